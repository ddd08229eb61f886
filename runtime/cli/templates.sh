#!/bin/sh
# Writes a C file with the text of each template and the table soq__templates[]: templates.sh FILE... >templates.c
set -e
number=0
table=
printf '/* Made by templates.sh from examples/. */\n#include "cli/templates.h"\n\n'
for file; do
    number=$((number + 1))
    printf 'static const unsigned char text_%d[] = {\n' "$number"
    od -An -v -tx1 "$file" | sed 's/ *\([0-9a-f][0-9a-f]\)/0x\1,/g'
    printf '0};\n\n'
    table="$table    {\"$(basename "$file")\", (const char *)text_$number},
"
done
printf 'const struct soq__template soq__templates[] = {\n%s};\n' "$table"
printf 'const size_t soq__template_count = sizeof soq__templates / sizeof soq__templates[0];\n'
