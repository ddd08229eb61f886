#!/bin/bash
# budget: 240
# The plugin ABI and the embedding API against the stored dumps. A difference is reported; it fails the suite once SOQ_ABI_MAJOR
# is not 0, if it is one that breaks what was built before. docs/abi.md says what to do about it.
set -uo pipefail
. tests/ci/lib.sh

major=$(sed -n 's/^#define SOQ_ABI_MAJOR *//p' runtime/include/soquete/plugin.h)
new=build/abi
mkdir -p "$new"

compare() { # plugin|library
    local stored=tests/abi/$1-$major.abi status=0
    tests/abi/dump.sh "$1" build >"$new/$1.abi" || return 1
    abidiff "$stored" "$new/$1.abi" >"$new/$1.diff" || status=$?
    cat "$new/$1.diff"
    # Of abidiff's status: 1 an error, 2 wrong usage, 4 a change, 8 an incompatible one.
    [ $((status & 3)) = 0 ] && { [ "$major" = 0 ] || [ $((status & 8)) = 0 ]; }
}

reported() { # plugin|library
    [ ! -s "$new/$1.diff" ] || printf 'while the major is 0, only reported: %s differs from tests/abi/%s-%s.abi\n%s\n' "$1" "$1" \
        "$major" "$(head -n 60 "$new/$1.diff")"
}

ensure_build
try 'plugin ABI' compare plugin
reported plugin
if [ -e build/.libs/libsoquete.so ] && readelf -SW build/.libs/libsoquete.so | grep -q debug_info; then
    try 'embedding API' compare library
    reported library
fi
try 'every field is recorded' sh -c '! tests/abi/layout.py | grep "^not ok" -A 20'
tally "$ok_count" "$bad_count" 0
