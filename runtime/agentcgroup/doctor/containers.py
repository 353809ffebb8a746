"""The governed containers that run: what undoes their limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentcgroup.cgroup import Cgroup, total_memory
from agentcgroup.doctor.cgroups import NAMES
from agentcgroup.doctor.finding import Finding, warning
from agentcgroup.doctor.host import Host
from agentcgroup.mountinfo import mounts
from agentcgroup.record import Record
from agentcgroup.units import format_bytes


def cooperative(host: Host) -> Iterator[Finding]:
    """Those that could undo their limits: by what they were started with, or have mounted since."""
    for record in host.records:
        reasons = list(dict.fromkeys([*record.cooperative, *_writable(record)]))
        if reasons:
            yield warning(
                f"container {record.name} could undo its limits: {', '.join(reasons)}",
                "they hold only as long as it respects them; a policy with `required: true` refuses such a container",
                "start it without --privileged, --systemd=always, --cgroupns=host, --cap-add=SYS_ADMIN",
            )


def _writable(record: Record) -> list[str]:
    """cgroup2 that its init could write, in the hook's words (hooks/cooperative.c)."""
    try:
        found = [mount for mount in mounts(record.pid) if mount.kind == "cgroup2" and "ro" not in mount.flags]
    except OSError:  # it has just ended
        return []
    return [f"writable cgroup2 at {mount.point}" for mount in found]


def levels(host: Host) -> Iterator[Finding]:
    """Whether each level hands down the controllers that calls need."""
    if host.top is None:
        return
    at_hand = Cgroup(host.top).read("cgroup.controllers").split()
    for record in host.records:
        for name in _wanted(host, record):
            if name in at_hand and (path := _withheld(record, name, host.top)):
                yield warning(
                    f"{path} does not hand down {name}: calls of container {record.name} have no {name} limits",
                    "what the policy says of it does not act",
                    f"echo +{name} >{path}/cgroup.subtree_control  # and start the container again",
                )


def _wanted(host: Host, record: Record) -> list[str]:
    policy = host.policies.policies.get(record.policy)
    io = policy is not None and (policy.io.weight is not None or bool(policy.io.max))
    return [name for name in NAMES if name != "io" or io]


def _withheld(record: Record, name: str, top: Path) -> str:
    """The uppermost level that does not hand a controller down; "" if all do."""
    calls = Cgroup(record.tree).child("calls")
    for group in (Cgroup(top), *reversed([*calls.parents(top)])):
        if group.exists() and name not in " ".join(group.lines("cgroup.subtree_control")).split():
            return group.path
    return ""


def overcommit(host: Host) -> Iterator[Finding]:
    """Whether containers may take more memory together than there is, with nothing above them that stops them."""
    if host.top is None or host.config.budget.memory is not None:
        return
    limits = [limit for record in host.records if (limit := _alone(record, host.top))]
    together, there = sum(limits), total_memory()
    if len(limits) > 1 and together > there:
        yield warning(
            f"{len(limits)} containers may take {format_bytes(together)} together, and there are {format_bytes(there)}",
            "when they do, the kernel kills by size; below a slice with a limit, calls wait or are held instead",
            "systemctl set-property agentcgroup.slice MemoryMax=75%  # and --cgroup-parent=agentcgroup.slice for each",
        )


def _alone(record: Record, top: Path) -> int | None:
    """Its limit, where nothing above the container has one."""
    above = Cgroup(str(Path(record.base).parent)).memory_limit(top)
    return Cgroup(record.tree).memory_limit(top) if above is None else None
