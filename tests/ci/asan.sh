#!/bin/bash
# budget: 2100
# Every test under AddressSanitizer with leak detection and UndefinedBehaviorSanitizer; warnings are errors. Of random schedules
# one seed of each kind runs. Without intercept_tls_get_addr=0 the leak checker reads thread-local blocks of modules that were
# unloaded (OpenCL's kernels), and crashes.
set -uo pipefail
. tests/ci/lib.sh

prepare &&
    configure_in build/asan --enable-werror --enable-sanitizers=address,undefined CFLAGS='-O1 -g1' &&
    SOQ_TEST_SHORT=1 LSAN_OPTIONS=suppressions=$PWD/tests/ci/lsan.supp:print_suppressions=0 \
        ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:intercept_tls_get_addr=0 UBSAN_OPTIONS=print_stacktrace=1 check_in build/asan
