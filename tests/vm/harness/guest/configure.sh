#!/bin/sh
# configure.sh ROOT PUBLIC_KEY: users, services and boot speed of the VM.
set -eu
root=$1
key=$2

in_vm() { chroot "$root" "$@"; }

# Everything periodic or interactive would only compete with the tests for one slow CPU.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer systemd-tmpfiles-clean.timer podman-auto-update.timer podman-restart.service \
    getty@tty1.service serial-getty@ttyS0.service getty.target systemd-firstboot.service systemd-pstore.service \
    systemd-hwdb-update.service ldconfig.service systemd-journal-catalog-update.service \
    systemd-update-done.service systemd-random-seed.service apparmor.service ssh.socket; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# Started by the test that needs them.
in_vm systemctl disable docker.service docker.socket containerd.service
in_vm systemctl enable ssh.service vm-network.service

# A real id, or the first boot would run the presets again.
in_vm systemd-machine-id-setup
echo agentcgroup-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost agentcgroup-vm\n::1 localhost\n' >"$root/etc/hosts"

in_vm passwd -d root
in_vm useradd --create-home --uid 1000 --shell /bin/bash agent
echo 'agent:100000:65536' | tee "$root/etc/subuid" >"$root/etc/subgid"
mkdir -p "$root/var/lib/systemd/linger"
# root too: else each first ssh session starts a service manager, seconds under TCG.
touch "$root/var/lib/systemd/linger/agent" "$root/var/lib/systemd/linger/root"

install -D -m 600 "$key" "$root/root/.ssh/authorized_keys"
install -D -m 600 "$key" "$root/home/agent/.ssh/authorized_keys"
in_vm chown -R agent:agent /home/agent/.ssh

in_vm apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
