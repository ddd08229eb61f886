#!/bin/bash
# budget: 1200
# The tarball builds, passes its tests, installs and uninstalls without the repository, from a read-only source folder.
set -uo pipefail
. tests/ci/lib.sh

distcheck() {
    make -C build -j "$jobs" distcheck
}
ensure_build
try 'make distcheck' distcheck
tally "$ok_count" "$bad_count" 0
