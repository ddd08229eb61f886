#!/bin/sh
# The guides' policies and codec: their listings are the examples' files, which compile from the public headers and make clean plugins; that
# of the plugin guide keeps within 60 lines of code.
number=0
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
example=$SOQ_TEST_SRC/examples/kv-policy
selecting=$SOQ_TEST_SRC/examples/new-kvpolicy
coding=$SOQ_TEST_SRC/examples/new-kvcodec

check() { # NAME COMMAND...
    number=$((number + 1))
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$work/log"
    fi
}

# The fenced blocks of one language.
blocks() { # LANGUAGE GUIDE
    awk -v fence="\`\`\`$1" '$0 == "```" { on = 0 } on { print } $0 == fence { on = 1 }' "$SOQ_TEST_SRC/docs/$2"
}

lists() { # LANGUAGE GUIDE FILE
    sed '/^$/d' "$3" >"$work/file"
    blocks "$1" "$2" | sed '/^$/d' | head -n "$(wc -l <"$work/file")" >"$work/listing"
    cmp "$work/listing" "$work/file"
}

compiles() { # FILE NAME
    # shellcheck disable=SC2086 # CC may carry options
    ${CC:-cc} -std=c11 -O2 -Wall -Wextra -Wconversion -Werror -fPIC -shared -fvisibility=hidden \
        -I"$SOQ_TEST_SRC/runtime/include" -o "$work/$2.so" "$1"
}

check "the plugin guide lists the example" lists c plugin-guide.md "$example/streaming60.c"
check "and its manifest" lists ini plugin-guide.md "$example/streaming60.ini"
check "60 lines of code" test "$(grep -cvE '^$|^/\*' "$example/streaming60.c")" -le 60
check "the example compiles" compiles "$example/streaming60.c" streaming60
check "the policy guide lists the template" lists c policy-guide.md "$selecting/heaviest.c"
check "and its manifest" lists ini policy-guide.md "$selecting/heaviest.ini"
check "the template compiles" compiles "$selecting/heaviest.c" heaviest
check "the codec guide lists the template" lists c codec-guide.md "$coding/rowscale.c"
check "and its manifest" lists ini codec-guide.md "$coding/rowscale.ini"
check "the template compiles" compiles "$coding/rowscale.c" rowscale
"$SOQ_TEST_SRC/tests/style/plugin-exports.sh" "$work" >"$work/exports"
check "they are clean plugins" sh -c "cat '$work/exports'; grep -q '^ok 18 ' '$work/exports' && ! grep -q '^not ok' '$work/exports'"
echo "1..$number"
