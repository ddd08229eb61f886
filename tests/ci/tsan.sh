#!/bin/bash
# budget: 1200
# The tests that run threads under ThreadSanitizer; without OpenCL, whose drivers have threads that it cannot see into.
# Of drafts test_draft_samples runs: test_drafts, which has the same threads, takes too long here (one of its tests more than five
# minutes).
set -uo pipefail
. tests/ci/lib.sh

prepare && configure_in build/tsan --enable-sanitizers=thread --disable-opencl CFLAGS='-O1 -g1' || exit 1
tests=$(make -s -C build/tsan print-threaded-tests)
SOQ_TEST_SHORT=1 TSAN_OPTIONS=halt_on_error=1 check_in build/tsan TESTS="$tests" check_PROGRAMS="$tests"
