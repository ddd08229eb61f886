#!/bin/bash
# budget: 700
# The other compiler, warnings as errors, and the plugins that a switch can leave out left out.
set -uo pipefail
. tests/ci/lib.sh

without_avx2() {
    configure_in build/clang-small CC=clang --enable-werror --disable-cpu-avx2 --disable-tests && make -C build/clang-small -j "$jobs"
}

everything() {
    configure_in build/clang CC=clang --enable-werror && make -C build/clang -j "$jobs" && make -C build/clang -j "$jobs" check TESTS=
}

prepare
try 'clang -Werror, everything with its tests' everything
try 'clang -Werror, without the AVX2 variant and tests' without_avx2
tally "$ok_count" "$bad_count" 0
