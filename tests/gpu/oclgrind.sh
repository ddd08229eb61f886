#!/bin/bash
# Every kernel of the OpenCL backend under Oclgrind, an interpreter that sees races, accesses out of bounds, uninitialised values,
# barriers that not all reach and wrong API calls: oclgrind.sh [BUILD], a folder in which configure is run.
#
# A test must pass and nothing may be said: findings go to standard error and leave the status 0, and --log FILE begins anew with
# each context. Kernels are compiled without optimisation, so that nothing is optimised away. Each buffer is an object of its own
# (SOQ_TEST_ARENA), so that its end is known, and because Oclgrind takes a write to part of an object for one that leaves the rest
# uninitialised. It also keeps the size of an object for the next one in its place: the test of vectors opens the device anew for each.
set -uo pipefail
. tests/ci/lib.sh

build=${1:-build/oclgrind}
prepare && configure_in "$build" --enable-opencl --with-test-runner=plain || exit 1
make -C "$build" -j "$jobs" >"$build/make.log" 2>&1 || { show_errors "$build/make.log"; exit 1; }
for test in ops matmul attention evict gather packed; do
    run() {
        local log=$PWD/$build/oclgrind-$test.log
        make -s -C "$build" "tests/unit/test_opencl_$test" >"$build/make.log" 2>&1 || { show_errors "$build/make.log"; return 1; }
        SOQ_TEST_ARENA=1 SOQ_TEST_DATA=$PWD/tests/data SOQ_TEST_PLUGINS=$PWD/$build/plugins/stage \
            oclgrind --data-races --uninitialized --check-api --build-options -cl-opt-disable \
            "$build/tests/unit/test_opencl_$test" 2>"$log" &&
            { head -n 40 "$log"; [ ! -s "$log" ]; }
    }
    try "oclgrind test_opencl_$test" run
done
tally "$ok_count" "$bad_count" 0
