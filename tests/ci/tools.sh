#!/bin/bash
# Installs what the suites need beyond `./quickstart check`.
set -uo pipefail
. tests/ci/lib.sh

missing=()
for p in clang clang-14 libclang-rt-14-dev clang-format-14 llvm-14 shellcheck valgrind mandoc file abigail-tools \
    ocl-icd-opencl-dev opencl-headers pocl-opencl-icd oclgrind; do
    case $(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null) in
    ii*) ;;
    *) missing+=("$p") ;;
    esac
done

install() {
    [ "${#missing[@]}" = 0 ] ||
        apt-get install -y --no-install-recommends "${missing[@]}" ||
        { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }
}
export DEBIAN_FRONTEND=noninteractive
try "tools: ${missing[*]:-all there}" install
tally "$ok_count" "$bad_count" 0
