#!/bin/bash
# budget: 700
# The other compiler, warnings as errors, and the plugins that a switch can leave out left out; that only has to build.
set -uo pipefail
. tests/ci/lib.sh

everything() {
    ensure_plain all && ensure_plain check TESTS=
}

without_avx2() {
    configure_in build/clang-small CC=clang --enable-werror --disable-cpu-avx2 --disable-tests CFLAGS=-O0 && make -C build/clang-small -j "$jobs"
}

try 'clang -Werror, everything with its tests' everything
try 'clang -Werror, without the AVX2 variant and tests' without_avx2
tally "$ok_count" "$bad_count" 0
