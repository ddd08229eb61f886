#!/bin/bash
# budget: 300
# What `make install` puts into a stage works from there: the program, the plugins, the library, pkg-config.
set -uo pipefail
. tests/ci/lib.sh

stage=$PWD/build/stage
prefix=$stage/usr/local
plugins=$prefix/lib/soquete/plugins-0
rm -rf "$stage"

installed() { # FILE...
    local f
    for f in "$@"; do
        [ -f "$prefix/$f" ] || { echo "not installed: $f"; return 1; }
    done
}

no_la_files() {
    [ -z "$(find "$plugins" -name '*.la')" ]
}

exports() {
    local others
    others=$(nm -D --defined-only "$prefix/lib/libsoquete.so" | awk '$2 != "A" && $3 !~ /^soq_[a-z]/ { print $3 }')
    [ -z "$others" ] || { echo "exported, but not public: $others"; return 1; }
}

embed() { # examples/embed knows only what pkg-config says
    # shellcheck disable=SC2046 # a list
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage \
        sh -c 'cc -Wall -Wextra -Werror "$1" $(pkg-config --cflags --libs soquete) -o "$2"' - examples/embed/answer.c "$stage/answer" &&
        { LD_LIBRARY_PATH=$prefix/lib "$stage/answer" 2>&1 || true; } | grep -q '^usage:'
}

embedded_answer() {
    local text
    text=$(LD_LIBRARY_PATH=$prefix/lib SOQUETE_PLUGIN_PATH=$plugins "$stage/answer" models/smollm2.gguf 'Say hello.') && [ -n "$text" ]
}

policy() { # examples/kv-policy, built from installed headers and put into a folder of its own
    mkdir -p "$stage/mine"
    # shellcheck disable=SC2046 # a list
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage \
        sh -c 'cc -Wall -Wextra -Werror -shared -fPIC "$1" $(pkg-config --cflags soquete) -o "$2"' - \
        examples/kv-policy/streaming60.c "$stage/mine/streaming60.so" &&
        cp examples/kv-policy/streaming60.ini "$stage/mine" &&
        SOQUETE_PLUGIN_PATH=$plugins "$prefix/bin/soquete" --plugin-dir "$stage/mine" plugins --why | grep -q streaming60
}

new_plugins() { # what `soquete new` writes builds against the stage, passes the kit and is found
    local soquete=$prefix/bin/soquete
    export SOQUETE_PLUGIN_PATH=$plugins PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
    local kind
    for kind in kvpolicy kvcodec; do
        "$soquete" new "$kind" "my-$kind" "$stage/$kind" &&
            make -C "$stage/$kind" check SOQUETE="$soquete" CFLAGS='-O2 -Wall -Wextra -Werror' &&
            "$soquete" plugins --plugin-dir "$stage/$kind" "my-$kind" | grep -q "^\[kv.my-$kind\]" || return
    done
}

pc_variables() {
    local pc="env PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config soquete"
    [ "$($pc --variable=abi)" = 0 ] && [ "$($pc --variable=plugindir)" = "$($pc --variable=manifestdir)" ] &&
        [ "$($pc --variable=plugindir)" = /usr/local/lib/soquete/plugins-0 ] &&
        [ "$($pc --variable=docdir)" = /usr/local/share/doc/soquete ]
}

finds_plugins() { # the installed plugins, and no others
    SOQUETE_PLUGIN_PATH=$plugins "$prefix/bin/soquete" plugins --why >"$stage/plugins.txt" && grep -q "$plugins" "$stage/plugins.txt"
}

answers() {
    local answer
    answer=$(SOQUETE_PLUGIN_PATH=$plugins "$prefix/bin/soquete" run -m models/smollm2.gguf -n 8 --temp 0 'Say hello.') && [ -n "$answer" ]
}

nothing_left() {
    [ -z "$(find "$prefix" -type f -o -type l)" ]
}

ensure_build
try 'make install' make -C build install DESTDIR="$stage"
try 'program, library, headers, plugins, manual, configuration' \
    installed bin/soquete lib/libsoquete.so include/soquete/soquete.h include/soquete/plugin.h lib/pkgconfig/soquete.pc \
    lib/soquete/plugins-0/full.so lib/soquete/plugins-0/full.ini etc/soquete/soquete.ini share/doc/soquete/policy-guide.md \
    share/doc/soquete/codec-guide.md
try 'plugins without .la files' no_la_files
try 'the library shows soq_* only' exports
try 'pkg-config: abi, plugindir, manifestdir, docdir' pc_variables
try 'a program built with pkg-config' embed
try 'a policy built with pkg-config is found' policy
try 'a new policy, a new codec' new_plugins
try 'soquete --version' "$prefix/bin/soquete" --version
try 'soquete plugins --why' finds_plugins
skip=0
if [ -e models/smollm2.gguf ]; then
    try 'soquete run' answers
    try 'the embedding program answers' embedded_answer
else
    skip=2
fi
try 'make uninstall' make -C build uninstall DESTDIR="$stage"
try 'nothing is left' nothing_left
tally "$ok_count" "$bad_count" "$skip"
