#!/bin/sh
# The ABI as abidw sees it: dump.sh plugin|library BUILD writes it to standard output. The stored dumps are plugin-0.abi and
# library-0.abi; after an intended change: tests/abi/dump.sh plugin build >tests/abi/plugin-0.abi, and the same for the library.
set -eu
here=$(dirname "$0")
flags="--headers-dir $here/../../runtime/include --drop-private-types --no-show-locs --no-corpus-path --no-comp-dir-path --type-id-style hash --drop-undefined-syms"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $1 in
plugin)
    # shellcheck disable=SC2086 # CC may carry options
    ${CC:-cc} -g -O0 -fPIC -shared -I"$here/../../runtime/include" -o "$work/types.so" "$here/types.c"
    object=$work/types.so
    ;;
library) object=$2/.libs/libsoquete.so ;;
esac
# shellcheck disable=SC2086 # a list
abidw $flags "$object" | sed -E "s#path='[^']*/(runtime|tests)/#path='\1/#; s| soname='[^']*'||"
