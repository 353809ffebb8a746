#!/bin/sh
# add-suites.sh ROOT SUITE: give the new system SUITE-updates and SUITE-backports from the mirror it already uses.
set -eu
sources="$1/etc/apt/sources.list"
main=$(grep -m1 -E "^deb .* $2 main" "$sources")
for suite in "$2-updates" "$2-backports"; do
    grep -q " $suite " "$sources" || printf '%s\n' "$main" | sed "s/ $2 / $suite /" >>"$sources"
done
