#!/bin/bash
# budget: 600
# Unit tests of the parsers and of the kernels under valgrind, which sees uninitialised memory where the sanitizers do not.
set -uo pipefail
. tests/ci/lib.sh

under_valgrind() { # TEST
    SOQ_TEST_DATA=$PWD/tests/data SOQ_TEST_PLUGINS=$PWD/$plain_build/plugins/stage \
        valgrind -q --error-exitcode=9 --leak-check=full "$plain_build/$1"
}

ensure_plain all || exit 1
read -ra tests <<<"$(make -s -C "$plain_build" print-valgrind-tests)"
ensure_plain "${tests[@]}" || exit 1
try_each valgrind under_valgrind "${tests[@]}"
tally "$ok_count" "$bad_count" 0
