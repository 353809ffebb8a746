#!/bin/sh
# before-packages.sh ROOT: what has to be in place before the kernel packages build their initrds.
set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
# An initrd that holds only what the VM's disk and network need: unpacking a full one costs seconds under TCG.
printf 'MODULES=list\nFSTYPE=ext4\nCOMPRESS=gzip\n' >"$1/etc/initramfs-tools/conf.d/agentcgroup-vm"
printf '%s\n' virtio_pci virtio_blk virtio_net virtio_rng ext4 >"$1/usr/share/initramfs-tools/modules.d/agentcgroup-vm"
