#!/bin/sh
# backports-kernel.sh ROOT SUITE: add the backports kernel and its headers beside the stable ones; upgrading the meta
# packages keeps both.
set -eu
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get install -y --no-install-recommends \
    -t "$2-backports" linux-image-cloud-amd64 linux-headers-cloud-amd64
