#!/bin/bash
# budget: 900
# Each fuzz target from its seed corpus, as many at a time as there are cores. The number of runs and the seed are fixed, so that a
# change is judged by what it changed; who looks for new findings gives other ones: FUZZ_RUNS=10000000 FUZZ_SEED=0 (0: random).
set -uo pipefail
. tests/ci/lib.sh

build=build/fuzz
prepare && configure_in "$build" CC=clang --enable-fuzzing --enable-sanitizers=address,undefined CFLAGS='-O1 -g1' || exit 1
targets=$(make -s -C "$build" print-fuzz-targets)
# shellcheck disable=SC2086 # a list
make -C "$build" -j "$jobs" $targets >"$build/make.log" 2>&1 || { show_errors "$build/make.log"; exit 1; }

# The corpus that libFuzzer grows lies in the build folder; the tree's is its seed.
fuzz() { # TARGET
    local name=${1##*/fuzz_}
    mkdir -p "$build/corpus/$name"
    timeout "${FUZZ_LIMIT:-240}" "$build/$1" -runs="${FUZZ_RUNS:-200000}" -seed="${FUZZ_SEED:-1}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/crash-$name-" "$build/corpus/$name" "tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1
    echo $? >"$build/$name.status"
}

for target in $targets; do
    while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
    fuzz "$target" &
done
wait
report() { # NAME
    [ "$(cat "$build/$1.status")" = 0 ] || { tail -n 40 "$build/$1.log"; return 1; }
}
for target in $targets; do
    name=${target##*/fuzz_}
    try "fuzz $name, $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") runs" report "$name"
done
tally "$ok_count" "$bad_count" 0
