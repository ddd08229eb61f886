#!/bin/bash
# budget: 120
# Shell scripts pass shellcheck, C is formatted, the man pages are well-formed, and nothing names a machine's folders.
set -uo pipefail
. tests/ci/lib.sh

mapfile -t scripts < <({ tracked '*.sh' '*.test' quickstart .ci/run tests/unit/run | sort -u; } | xargs grep -lE '^(#!.*sh$|# shellcheck shell)')
mapfile -t sources < <(tracked '*.c' '*.h')
mapfile -t manuals < <(tracked 'docs/*.1' 'docs/*.5' 'docs/*.7')

for script in "${scripts[@]}"; do
    try "shellcheck $script" shellcheck -x "$script"
done
for source in "${sources[@]}"; do
    try "clang-format $source" clang-format-14 --dry-run -Werror "$source"
done
for manual in "${manuals[@]}"; do
    try "mandoc $manual" mandoc -T lint -W warning "$manual"
done
tally "$ok_count" "$bad_count" 0
