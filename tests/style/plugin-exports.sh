#!/bin/sh
# Every plugin exports its descriptor and nothing else, and takes nothing from the host: plugin-exports.sh [FOLDER]
#
# Undefined symbols may come from the C library alone, whose symbols carry a GLIBC version; weak ones with none are the
# compiler's start-up files'. A backend also links the library of its device. A build with sanitizers is skipped: those add
# symbols and constructors of their own.
dir=${1:-$SOQ_TEST_PLUGINS}
nm=${NM:-nm}
number=0

check() { # NAME FOUND: nothing may be found
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        printf '%s\n' "$2" | sed 's/^/# /'
    fi
}

# One array entry, frame_dummy or its counterpart, comes from the compiler's start-up files.
constructors() {
    readelf -SW "$1" | sed 's/^ *\[ *[0-9]*\] *//' |
        awk '($1 == ".init_array" || $1 == ".fini_array") && $5 != "000008" || $1 ~ /^\.(ctors|dtors)$/ { print }'
}

if ! command -v readelf >/dev/null; then
    echo "1..0 # SKIP readelf is missing"
    exit 0
fi
# The library that a backend is there for, and the version of its symbols.
device_library() { # PLUGIN
    case $1 in
    opencl.so) echo 'libOpenCL OPENCL_' ;;
    *) echo 'libc GLIBC_' ;;
    esac
}

for so in "$dir"/*.so; do
    plugin=$(basename "$so")
    read -r library version <<EOF
$(device_library "$plugin")
EOF
    if [ ! -e "$so" ]; then
        check "$dir holds plugins" "no .so"
        continue
    fi
    undefined=$($nm -D --undefined-only "$so")
    case $undefined in
    *__asan_* | *__ubsan_* | *__tsan_* | *__sanitizer_*)
        number=$((number + 1))
        echo "ok $number - $plugin # SKIP built with sanitizers"
        continue
        ;;
    esac
    dynamic=$(readelf -dW "$so")
    check "$plugin exports soquete_plugin_v0" "$($nm -D --defined-only "$so" | grep -q ' [DR] soquete_plugin_v0$' || echo missing)"
    check "$plugin exports nothing else" "$($nm -D --defined-only "$so" | grep -v ' soquete_plugin_v0$')"
    check "$plugin imports from the C library and its device's only" \
        "$(printf '%s\n' "$undefined" | grep -Ev "@(GLIBC_|$version)" | grep -v '^ *w ')"
    check "$plugin needs the C library and its device's only" \
        "$(printf '%s\n' "$dynamic" | grep NEEDED | grep -Ev "\[($library|libc|libm|libpthread|ld-linux[^]]*)\.so\.[0-9]+\]")"
    check "$plugin has no relocations in its text, no path, no static TLS" \
        "$(printf '%s\n' "$dynamic" | grep -E 'TEXTREL|STATIC_TLS|RPATH|RUNPATH'; readelf -lW "$so" | grep '^ *TLS ')"
    check "$plugin has no constructors" "$(constructors "$so")"
done
echo "1..$number"
