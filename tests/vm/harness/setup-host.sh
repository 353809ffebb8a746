#!/bin/sh
# setup-host.sh: install the host tools that building and the test VMs need; says in one line what it could not.
set -eu

# command:package of Debian
tools='gcc:gcc make:make musl-gcc:musl-tools qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils
clang:clang llvm-strip:llvm mmdebstrap:mmdebstrap mkfs.ext4:e2fsprogs ssh:openssh-client unshare:util-linux
rpmbuild:rpm git:git go-md2man:go-md2man groff:groff-base shellcheck:shellcheck rpmlint:rpmlint'

missing() {
    for tool in $tools; do
        command -v "${tool%%:*}" >/dev/null || printf '%s ' "${tool#*:}"
    done
    [ -e /usr/include/bpf/bpf_helpers.h ] || printf 'libbpf-dev '
    python3 -c 'import ensurepip' 2>/dev/null || printf 'python3-venv '
}

packages=$(missing)
[ -n "$packages" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: missing: $packages(install these packages, or run \`make setup\` as root on Debian)" >&2
    exit 1
fi
echo "setup: installing $packages"
log=$(mktemp)
# shellcheck disable=SC2086 # a list of packages
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages; } \
    >"$log" 2>&1; then
    tail -5 "$log" >&2
    echo "setup: apt-get could not install: $packages" >&2
    exit 1
fi
rm -f "$log"
