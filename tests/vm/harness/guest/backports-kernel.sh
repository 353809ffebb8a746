#!/bin/sh
# backports-kernel.sh ROOT SUITE: add the backports kernel beside the stable one; upgrading the meta package keeps both.
set -eu
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get install -y --no-install-recommends \
    -t "$2-backports" linux-image-cloud-amd64
