#!/bin/bash
# budget: 1200
# The tarball has every file that git has, builds, passes its tests, installs and uninstalls without the repository, from a
# read-only source folder. All tests are built; those run that are not long (long_tests in tests/tests.am). They are built with
# -O1 and the tarball is packed quickly: `./quickstart check` has run all of them optimised. `make distcheck` alone leaves out nothing.
set -uo pipefail
. tests/ci/lib.sh

distcheck() {
    local tests
    tests=$(make -s -C build print-short-tests) &&
        make -C build -j "$jobs" distcheck TESTS="$tests" DISTCHECK_CONFIGURE_FLAGS=CFLAGS=-O1 XZ_OPT=-1
}

complete() {
    local absent
    absent=$(comm -23 <(tracked . | grep -vx '.gitignore' | LC_ALL=C sort) \
        <(tar -tf build/soquete-*.tar.xz | sed 's|^[^/]*/||' | LC_ALL=C sort))
    [ -z "$absent" ] || { printf 'not in the tarball:\n%s\n' "$absent"; return 1; }
}

ensure_build
try 'make distcheck' distcheck
try 'the tarball has every file' complete
tally "$ok_count" "$bad_count" 0
