#!/bin/sh
# go-program.sh ROOT SUITE: build runtime-limits.go into the container image; the compiler does not stay.
# Go reads its cgroup's cpu.max since 1.25, which the stable suite does not have.
set -eu
go=golang-1.26-go
cp "$(dirname "$0")/runtime-limits.go" "$1/tmp/"
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get install -y --no-install-recommends -t "$2-backports" "$go"
HOME=/tmp CGO_ENABLED=0 chroot "$1" /usr/lib/go-1.26/bin/go build -ldflags '-s -w' \
    -o /usr/local/bin/runtime-limits /tmp/runtime-limits.go
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get purge -y --autoremove "$go"
rm -rf "$1/tmp/runtime-limits.go" "$1/tmp/.cache" "$1/tmp/.config"
