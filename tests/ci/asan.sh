#!/bin/bash
# budget: 2100
# Every test under AddressSanitizer with leak detection and UndefinedBehaviorSanitizer; warnings are errors. Without
# intercept_tls_get_addr=0 the leak checker reads thread-local blocks of modules that were unloaded (OpenCL's kernels), and crashes.
# Left out: bad plugins, in which sanitizers find other things first than `soquete check`; of SOQ_TEST_SHORT random schedules but
# one of each kind, which `./quickstart check` runs, and how well SmolLM2 does, which shows no code that small models do not.
set -uo pipefail
. tests/ci/lib.sh

prepare &&
    configure_in build/asan --enable-werror --enable-sanitizers=address,undefined CFLAGS='-O1 -g1' &&
    SOQ_TEST_SHORT=1 LSAN_OPTIONS=suppressions=$PWD/tests/ci/lsan.supp:print_suppressions=0 \
        ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:intercept_tls_get_addr=0 UBSAN_OPTIONS=print_stacktrace=1 check_in build/asan
