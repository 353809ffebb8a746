"""The cgroup hierarchy of this host: cgroup-v2.rst."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agentcgroup.cgroup import Cgroup
from agentcgroup.doctor import kernel
from agentcgroup.doctor.finding import Finding, error, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.mountinfo import Mount, mounts

FEATURES = Path("/sys/kernel/cgroup/features")
_USUAL = Path("/sys/fs/cgroup")
_UNIFIED = "put systemd.unified_cgroup_hierarchy=1 on the kernel's command line and boot"

#: Controllers, what is lost without each, and the option that builds it into the kernel.
_CONTROLLERS = {
    "memory": ("no call has a memory limit", "MEMCG"),
    "pids": ("a fork bomb in a call is not stopped", "CGROUP_PIDS"),
    "cpu": ("cpu.weight and cpu.max of policies do not act", "FAIR_GROUP_SCHED"),
    "io": ("io.weight and io.max of policies do not act", "BLK_CGROUP"),
}
NAMES = tuple(_CONTROLLERS)
_NEEDED = ("memory", "pids")

#: Options of the mount, and what is lost without each.
_OPTIONS = {
    "nsdelegate": "a container's root that mounts its own cgroup2 can then change the limits of its own calls",
    "memory_recursiveprot": "memory.min of a container or a slice protects nothing below it",
}
_DELEGATE = (
    "printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | install -D -m 644 /dev/stdin "
    "/etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload && systemctl restart user@{uid}"
)


def unified(host: Host) -> Iterator[Finding]:
    """Whether there is one hierarchy, in the usual place."""
    if host.top is None:
        yield error("cgroup2 is not mounted", "no container can be governed", _UNIFIED)
    elif host.top != _USUAL:
        why = "engines use cgroup v1 then, and no container can be governed"
        yield error(f"cgroup2 is at {host.top}, not at {_USUAL}", why, _UNIFIED)


def options(host: Host) -> Iterator[Finding]:
    """Whether the mount has what systemd gave it: a remount, or a container with --cgroupns=host, takes it away."""
    if host.top != _USUAL:
        return
    [mount] = [mount for mount in mounts("self") if mount.kind == "cgroup2" and mount.point == str(host.top)][-1:]
    known = FEATURES.read_text().split() if FEATURES.exists() else []
    lost = lost_options(mount, known)
    if lost:
        why = "; ".join(_OPTIONS[option] for option in lost)
        yield warning(f"{mount.point} is mounted without {', '.join(lost)}", why, _remount(mount, known, lost))


def lost_options(mount: Mount, known: list[str]) -> list[str]:
    """What the kernel knows, we rely on, and the mount has not."""
    return [option for option in _OPTIONS if option in known and option not in mount.options]


def _remount(mount: Mount, known: list[str], lost: list[str]) -> str:
    """A remount takes away what it does not name (cgroup2_reconfigure in kernel/cgroup/cgroup.c)."""
    kept = [option for option in mount.options if option in known]
    return f"mount -o remount,{','.join([*kept, *lost])} {mount.point}"


def controllers(host: Host) -> Iterator[Finding]:
    """Whether the root of the hierarchy has all controllers."""
    if host.top != _USUAL:
        return
    have = Cgroup(host.top).read("cgroup.controllers").split()
    for name, (lost, option) in _CONTROLLERS.items():
        if name not in have:
            found = error if name in _NEEDED else warning
            yield found(f"there is no {name} controller in {host.top}", lost, _missing_controller(name, option))


def _missing_controller(name: str, option: str) -> str:
    if kernel.built_without(option):
        return f"boot a kernel with CONFIG_{option}=y"
    if any(mount.kind == "cgroup" and name in mount.options for mount in mounts("self")):
        return _UNIFIED
    return f"take cgroup_disable={name} off the kernel's command line, or add cgroup_enable={name}, and boot"


def user_managers(host: Host) -> Iterator[Finding]:
    """Whether users' service managers are given what `agentcgroup run` and rootless engines need."""
    whose = "*" if host.root else str(os.getuid())
    slices = sorted(host.top.glob(f"user.slice/user-{whose}.slice")) if host.top else []
    for path in slices:
        uid = path.name.removeprefix("user-").removesuffix(".slice")
        manager = Cgroup(path / f"user@{uid}.service")
        missing = [name for name in NAMES if name not in manager.read("cgroup.controllers").split()]
        if not manager.exists() or not missing:
            continue
        found = note if missing == ["io"] else warning
        yield found(
            f"the services of user {uid} have no {', '.join(missing)} controller",
            "what this user starts with `agentcgroup run` or rootless podman has no such limits",
            _DELEGATE.format(uid=uid),
        )
