#!/bin/bash
# budget: 400
# examples/vendor-backend as a vendor builds it: out of the tree, against what `make install` has put into a stage.
set -uo pipefail
. tests/ci/lib.sh

stage=$PWD/build/vendor-stage
prefix=$stage/usr/local
plugins=$prefix/lib/soquete/plugins-0
work=$PWD/build/vendor
model=tests/data/golden/llama/model.gguf
rm -rf "$stage" "$work"
mkdir -p "$work"

# Only the stage counts; no plugin of the build tree.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
soquete() {
    env -i PATH="$PATH" HOME="$work" SOQUETE_PLUGIN_PATH="$plugins" "$prefix/bin/soquete" "$@"
}

copy_out() {
    tracked examples/vendor-backend | xargs cp -t "$work"
}

build() {
    (cd "$work" && autoreconf -fi && ./configure --silent CFLAGS='-O2 -g -Werror' && make -j "$jobs")
}

only_symbol() {
    local so
    for so in "$work"/.libs/*.so; do
        [ "$(nm -D --defined-only "$so" | awk '{ print $3 }')" = soquete_plugin_v0 ] || { nm -D --defined-only "$so"; return 1; }
    done
}

in_build_folder() { # found where they were built, before they are installed
    soquete plugins --plugin-dir "$work" --why >"$work/why.txt" && grep -A 2 '^acme ' "$work/why.txt" | grep -q "$work/.libs/acme.so"
}

# The stage is where pkg-config says, or below it where that knows of no sysroot.
install_plugins() {
    make -C "$work" install plugindir="$plugins" manifestdir="$plugins" && [ -f "$plugins/acme.so" ] && [ -f "$plugins/acme.ini" ]
}

found() {
    soquete plugins --why --backend.use=acme,acme-attention,cpu >"$work/why.txt" || return
    [ "$(grep -cE '^acme(-attention)? .* chosen$' "$work/why.txt")" = 2 ] && grep -q "$plugins/acme-attention.so" "$work/why.txt"
}

options() {
    soquete plugins acme | grep -q '^memory = 16GiB'
}

answer() { # USE [ARGUMENT...]
    local use=$1
    shift
    soquete run -m "$model" --raw --temp 0 -n 24 --ignore-eos -q --backend.use="$use" --backend.cpu.activations=f32 "$@" \
        'Once upon a time'
}

same_answers() { # the same tokens with and without them
    local expected use
    expected=$(answer cpu) && [ -n "$expected" ] || return
    for use in acme,cpu acme-attention,cpu acme,acme-attention,cpu; do
        [ "$(answer $use)" = "$expected" ] || { echo "$use: another answer"; return 1; }
    done
    [ "$(answer acme,cpu --backend.split=acme:0,cpu:1-)" = "$expected" ]
}

no_device() { # a clear reason and the next backend; required stops
    answer acme,cpu --backend.acme.devices=0 2>"$work/log" && grep -q 'acme.*no accelerator' "$work/log" &&
        ! answer 'acme!,cpu' --backend.acme.devices=0 2>"$work/log" && grep -q 'acme! is required' "$work/log"
}

placement() {
    soquete config --placement -m "$model" --backend.use=acme,acme-attention,cpu >"$work/placement.txt" &&
        grep -q '^[0-9-]* *acme  *attn_q attn_k' "$work/placement.txt" && grep -q '^[0-9-]* *acme-attention  *attention' "$work/placement.txt"
}

uninstall_plugins() {
    make -C "$work" uninstall plugindir="$plugins" manifestdir="$plugins" && ! ls "$plugins"/acme* 2>/dev/null
}

ensure_build
try 'make install' make -C build install DESTDIR="$stage"
try 'the example is copied out of the tree' copy_out
try 'autoreconf, configure, make' build
try 'one symbol each' only_symbol
try 'found in their own folder' in_build_folder
try 'make install of the plugins' install_plugins
try 'found by their manifests' found
try 'their options' options
skip=0
if soquete check --help >/dev/null 2>&1; then
    try 'soquete check acme' soquete check "$plugins/acme.so"
    try 'soquete check acme-attention' soquete check "$plugins/acme-attention.so"
else
    skip=2
fi
try 'placement' placement
try 'the same answer with them' same_answers
try 'no device' no_device
if [ -e models/smollm2.gguf ]; then
    model=models/smollm2.gguf
    try 'the same answer of SmolLM2' same_answers
else
    skip=$((skip + 1))
fi
try 'make uninstall of the plugins' uninstall_plugins
tally "$ok_count" "$bad_count" "$skip"
