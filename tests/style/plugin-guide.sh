#!/bin/sh
# The guide's policy: its listing is the example's file, which compiles from the public headers, keeps within 60 lines of code
# and makes a clean plugin.
number=0
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
example=$SOQ_TEST_SRC/examples/kv-policy

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
blocks() { # LANGUAGE
    awk -v fence="\`\`\`$1" '$0 == "```" { on = 0 } on { print } $0 == fence { on = 1 }' "$SOQ_TEST_SRC/docs/plugin-guide.md"
}

sed '/^$/d' "$example/streaming60.c" >"$work/file"
blocks c | sed '/^$/d' >"$work/listing"
check "the guide lists the example" cmp "$work/listing" "$work/file"
blocks ini | head -n "$(wc -l <"$example/streaming60.ini")" >"$work/manifest"
check "the guide lists the manifest" cmp "$work/manifest" "$example/streaming60.ini"
check "60 lines of code" test "$(grep -cvE '^$|^/\*' "$example/streaming60.c")" -le 60
# shellcheck disable=SC2086 # CC may carry options
check "the example compiles" ${CC:-cc} -std=c11 -O2 -Wall -Wextra -Wconversion -Werror -fPIC -shared -fvisibility=hidden \
    -I"$SOQ_TEST_SRC/runtime/include" -o "$work/streaming60.so" "$example/streaming60.c"
"$SOQ_TEST_SRC/tests/style/plugin-exports.sh" "$work" >"$work/exports"
check "it is a clean plugin" sh -c "cat '$work/exports'; grep -q '^ok 6 ' '$work/exports' && ! grep -q '^not ok' '$work/exports'"
echo "1..$number"
