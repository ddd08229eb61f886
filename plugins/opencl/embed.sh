#!/bin/sh
# Writes a C file with the text of each kernel file and the table opencl_sources[]: embed.sh FILE.cl... >sources.c
set -e
table=
printf '/* Made by embed.sh from kernels/. */\n#include "opencl.h"\n\n'
for file; do
    name=$(basename "$file" .cl)
    printf 'static const unsigned char %s_text[] = {\n' "$name"
    od -An -v -tx1 "$file" | sed 's/ *\([0-9a-f][0-9a-f]\)/0x\1,/g'
    printf '0};\n\n'
    table="$table    {\"$name\", (const char *)${name}_text, sizeof ${name}_text - 1},
"
done
printf 'const struct opencl_source opencl_sources[] = {\n%s};\n' "$table"
printf 'const size_t opencl_n_sources = sizeof opencl_sources / sizeof opencl_sources[0];\n'
