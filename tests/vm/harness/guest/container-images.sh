#!/bin/sh
# container-images.sh ROOT DEBIAN_TAR: run make-images.sh in the built system, as in a container of its own.
#
# Namespaces and pivot_root instead of chroot: podman remounts "/" to unpack a layer, so it has to be a mount point; a
# chroot may not make user namespaces (user_namespaces(7)), which rootless podman needs; and the process that rootless
# podman leaves behind ends with the pid namespace.
set -eu
here=$(dirname "$0")
root=$1
work="$root/var/tmp/images"

mkdir -p "$work"
cp "$2" "$work/debian.tar"
cp "$here/make-images.sh" "$here/hello.c" "$work/"
unshare --mount --pid --fork --kill-child sh -euc '
    mount --rbind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    pivot_root . mnt
    umount -l mnt
    exec chroot . sh /var/tmp/images/make-images.sh
' sh "$root"
rm -rf "$work"
