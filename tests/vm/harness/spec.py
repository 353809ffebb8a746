"""What the test VM is made of, as data: every value here is part of the image's cache key."""

from __future__ import annotations

from dataclasses import dataclass

SUITE = "trixie"

# From here on in the order of use: boot, engines, test tools.
VM_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "udev", "kmod", "util-linux",
    "procps", "psmisc", "iproute2", "openssh-server", "ca-certificates", "apparmor", "initramfs-tools",
    "linux-image-cloud-amd64", "linux-headers-cloud-amd64",
    "podman", "crun", "runc", "conmon", "catatonit", "netavark", "aardvark-dns", "nftables", "iptables",
    "uidmap", "passt", "slirp4netns", "fuse-overlayfs", "bubblewrap", "libbpf1", "bpftool", "python3-bpfcc",
    "python3", "python3-yaml", "python3-jsonschema", "python3-pyroute2", "python3-podman",
    "python3-pytest", "python3-pytest-timeout", "python3-hypothesis", "python3-pexpect",
    "strace", "busybox-static", "gcc", "libc6-dev", "rpm",
    "python3-rich", "python3-prometheus-client", "podman-compose", "docker.io", "selinux-policy-default",
    "policycoreutils",
)  # fmt: skip

CONTAINER_PACKAGES = (
    "bash", "dash", "coreutils", "procps", "util-linux", "git", "bubblewrap", "systemd-sysv", "dbus",
    "python3", "openjdk-21-jre-headless", "nodejs",
)  # fmt: skip

# Nothing in the VM or its containers reads these (java's alternatives need the folder man/man1 itself).
DPKG_EXCLUDES = ("/usr/share/man/*/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")

DISK_SIZE = "12G"


@dataclass(frozen=True)
class Kernel:
    """One column of the test matrix."""

    name: str
    """What the command line, the logs and the reports call it; also the name of its files in the image's folder."""

    release: str
    """Shell pattern of its release below /boot."""


KERNELS = {
    kernel.name: kernel
    for kernel in (
        # trixie-backports: sched_ext, BPF LSM, BTF
        Kernel("7", "[7-9].*"),
        # trixie: no sched_ext, one-argument sched_process_exit tracepoint
        Kernel("6.12", "6.12.*"),
    )
}

# A run of all kernels does not repeat these files, in which the kernel's version matters least; the rest runs on each.
# Together they are divided so that both VMs end at about the same time. `KERNEL=7` runs every file there.
ONE_KERNEL = {
    "test_modes.py": "7",
    "test_refusals.py": "7",
    "test_engine.py": "7",
    "test_rootless.py": "7",
    "test_unwrap.py": "7",
    "test_attacks.py": "7",
    "test_observe.py": "7",
    "test_runtimes.py": "7",
    "test_fleet.py": "7",
    "test_destructive_sched.py": "7",
    "test_destructive_packages.py": "6.12",
    "test_bench.py": "7",
    "test_shells.py": "6.12",
    "test_daemon_death.py": "6.12",
    "test_enforcement.py": "6.12",
    "test_feedback.py": "6.12",
    "test_seccomp.py": "6.12",
    "test_churn.py": "6.12",
    "test_cli.py": "6.12",
    "test_who_is_a_call.py": "6.12",
    "test_dying.py": "6.12",
    "test_bpf.py": "6.12",
    "test_trace.py": "6.12",
    "test_wrapper.py": "6.12",
    "test_docker.py": "6.12",
    "test_crio_shape.py": "7",
    "test_kubernetes.py": "7",
    "test_examples.py": "6.12",
    "test_metrics.py": "7",
    "test_doctor_breaks.py": "7",
    "test_views.py": "6.12",
    "test_network.py": "7",
    "test_selinux.py": "6.12",
}
