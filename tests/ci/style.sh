#!/bin/bash
# budget: 240
# Shell scripts pass shellcheck, C is formatted, the man pages are well-formed.
set -uo pipefail
. tests/ci/lib.sh

mapfile -t scripts < <({ tracked '*.sh' '*.test' quickstart .ci/run tests/unit/run; } | sort -u | xargs grep -lE '^(#!.*sh$|# shellcheck shell)')
mapfile -t sources < <(tracked '*.c' '*.h')
mapfile -t manuals < <(tracked 'docs/*.1' 'docs/*.5' 'docs/*.7')

mandoc_lint() {
    [ $# = 0 ] || mandoc -T lint -W warning "$@"
}

try "shellcheck, ${#scripts[@]} scripts" shellcheck -x "${scripts[@]}"
try "clang-format, ${#sources[@]} files" clang-format-14 --dry-run -Werror "${sources[@]}"
try "mandoc, ${#manuals[@]} manual pages" mandoc_lint "${manuals[@]}"
tally "$ok_count" "$bad_count" 0
