#!/bin/bash
# budget: 600
# Unit tests of the parsers and of the kernels under valgrind, which sees uninitialised memory where the sanitizers do not.
set -uo pipefail
. tests/ci/lib.sh

build=build/valgrind
prepare && configure_in "$build" --with-test-runner=plain || exit 1
make -C "$build" -j "$jobs" >"$build/make.log" 2>&1 || { show_errors "$build/make.log"; exit 1; }
for test in $(make -s -C "$build" print-valgrind-tests); do
    run() {
        make -C "$build" "$test" &&
            SOQ_TEST_DATA=$PWD/tests/data SOQ_TEST_PLUGINS=$PWD/$build/plugins/stage \
                valgrind -q --error-exitcode=9 --leak-check=full "$build/$test"
    }
    try "valgrind $test" run
done
tally "$ok_count" "$bad_count" 0
