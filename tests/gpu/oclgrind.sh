#!/bin/bash
# budget: 1500
# Every kernel of the OpenCL backend under Oclgrind, an interpreter that sees races, accesses out of bounds, uninitialised values,
# barriers that not all reach and wrong API calls.
#
# A test must pass and nothing may be said: findings go to standard error and leave the status 0, and --log FILE begins anew with
# each context. Kernels are compiled without optimisation, so that nothing is optimised away. Each buffer is an object of its own
# (SOQ_TEST_ARENA), so that its end is known, and because Oclgrind takes a write to part of an object for one that leaves the rest
# uninitialised. It also keeps the size of an object for the next one in its place: the test of vectors opens the device anew for each.
set -uo pipefail
. tests/ci/lib.sh

under_oclgrind() { # TEST
    local log=$PWD/$plain_build/oclgrind-${1##*/}.log
    SOQ_TEST_ARENA=1 SOQ_TEST_DATA=$PWD/tests/data SOQ_TEST_PLUGINS=$PWD/$plain_build/plugins/stage \
        oclgrind --data-races --uninitialized --check-api --build-options -cl-opt-disable --num-threads 1 "$plain_build/$1" 2>"$log" &&
        { head -n 40 "$log"; [ ! -s "$log" ]; }
}

# The longest first: Oclgrind has one thread.
tests=()
for subject in evict packed matmul attention gather ops; do
    tests+=("tests/unit/test_opencl_$subject")
done
ensure_plain all || exit 1
ensure_plain "${tests[@]}" || exit 1
try_each oclgrind under_oclgrind "${tests[@]}"
tally "$ok_count" "$bad_count" 0
