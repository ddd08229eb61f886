# shellcheck shell=bash
# What the suites of CI and `./quickstart check` share. Every suite ends with one line, "N passed, N failed, N skipped", and a
# status that is not 0 if anything failed.

jobs=$(nproc)

# What an OpenCL driver has compiled serves all builds: its kernels are the same.
export POCL_CACHE_DIR=${POCL_CACHE_DIR:-$PWD/build/tests/pocl-cache}

tally() { # PASSED FAILED SKIPPED
    printf '%d passed, %d failed, %d skipped\n' "$1" "$2" "$3"
    [ "$2" = 0 ]
}

# The part of the source tree that git tracks, by pattern.
tracked() { # PATTERN...
    git -c safe.directory='*' ls-files -- "$@"
}

prepare() { # autoreconf, where it has not been done
    if [ ! -e configure ] || [ ! -e Makefile.in ]; then
        autoreconf -fi
    fi
}

configure_in() { # FOLDER ARGUMENT...
    local folder=$1 top=$PWD
    shift
    mkdir -p "$folder"
    (cd "$folder" && "$top/configure" --silent "$@")
}

# What went wrong in a build, from its log.
show_errors() { # LOG
    grep -E -A 4 'error:|undefined reference|cannot find|\*\*\* ' "$1" | head -n 60
}

# The build that quickstart made, or one like it.
ensure_build() {
    [ -e build/Makefile ] || { prepare && configure_in build; }
}

# What the suites clang, valgrind and Oclgrind share: a build by clang, warnings as errors, its tests with the plain runner. -O1 and
# lines as the only debug information, as DWARF that valgrind reads, are enough for what they say.
plain_build=build/plain
ensure_plain() { # MAKE-ARGUMENT...
    if [ ! -e "$plain_build/Makefile" ]; then
        prepare && configure_in "$plain_build" CC=clang --enable-werror --enable-opencl --with-test-runner=plain CFLAGS='-O1 -gdwarf-4 -g1' || return
    fi
    if ! make -C "$plain_build" -j "$jobs" "$@" >"$plain_build/make.log" 2>&1; then
        show_errors "$plain_build/make.log"
        return 1
    fi
}

# Builds and runs the tests in a configured folder, all or those of TESTS; shows what failed; counts single tests, as TAP has
# them, not programs.
check_in() { # FOLDER [MAKE-ARGUMENT...]
    local folder=$1 status=0 summary=$1/test-suite.log passed failed skipped
    shift
    rm -f "$summary"
    make -C "$folder" -j "$jobs" -k check "$@" >"$folder/check.log" 2>&1 || status=$?
    if [ ! -e "$summary" ]; then
        show_errors "$folder/check.log"
        tally 0 1 0
        return
    fi
    count() { sed -n "s/^# $1: *//p" "$summary"; }
    passed=$(($(count PASS) + $(count XFAIL)))
    failed=$(($(count FAIL) + $(count ERROR) + $(count XPASS)))
    skipped=$(count SKIP)
    if [ $status != 0 ]; then
        grep -E '^(FAIL|ERROR|XPASS):|error:' "$folder/check.log" | sort -u | head -n 100
        [ "$failed" != 0 ] || failed=1
        printf 'the logs: %s and %s/check.log\n' "$summary" "$folder"
    fi
    tally "$passed" "$failed" "$skipped"
}

# Runs COMMAND and prints its TAP line; counts in ok_count and bad_count.
ok_count=0
bad_count=0
try() { # NAME COMMAND...
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        ok_count=$((ok_count + 1))
        printf 'ok - %s\n' "$name"
    else
        bad_count=$((bad_count + 1))
        printf 'not ok - %s\n%s\n' "$name" "$(printf '%s\n' "$output" | tail -n 40 | sed 's/^/# /')"
    fi
}

# Runs COMMAND with each ITEM, as many at a time as there are cores; then `try` with what each said.
try_each() { # NAME COMMAND ITEM...
    local name=$1 command=$2 item work
    shift 2
    work=$(mktemp -d)
    for item in "$@"; do
        while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
        {
            "$command" "$item" >"$work/${item##*/}.log" 2>&1
            echo $? >"$work/${item##*/}.status"
        } &
    done
    wait
    for item in "$@"; do
        try "$name $item" replay "$work/${item##*/}"
    done
    rm -rf "$work"
}

replay() { # FILE, without .log and .status
    cat "$1.log"
    return "$(cat "$1.status")"
}
