"""The limits of a container's subtree (design: sections 3.4 and 6): who gets what of BASE, written as cgroup files.

The hook has made the directories; nothing is written above `BASE/agentcgroup`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentcgroup import selinux
from agentcgroup.cgroup import Cgroup, total_memory
from agentcgroup.policy.model import Policy, Size

#: Memory that a call always gets, whatever its hint or the policy's percentages say: less cannot start a shell.
FLOOR = 16 << 20
#: What stays below BASE's own limit, for memory charged to BASE itself: an OOM there may take the whole container
#: (kubelet sets memory.oom.group on it), one in our subtree takes a call.
OUTSIDE = 4 << 20
PERIOD_US = 100_000  # cpu.max period, the kernel's default (cgroup-v2.rst)


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds in one container now: bytes, CPUs, processes; None is unlimited."""

    total: int  # the smaller of host memory and the limits at and above BASE
    memory_max: int  # of agentcgroup/
    memory_high: int | None
    calls_max: int  # of calls/ all together
    agent_min: int
    cpu: float | None

    def call(self, size: Size) -> int:
        """A call's memory limit in bytes for a size of the policy: never above calls/."""
        return max(FLOOR, min(size.of(self.calls_max), self.calls_max))


def compute(policy: Policy, base: Cgroup, top: Path) -> Limits:
    """The limits of a container whose engine cgroup is `base`; re-read at admissions because `podman update`
    moves them.
    """
    ceiling = base.memory_limit(top)
    total = min(total_memory(), ceiling) if ceiling is not None else total_memory()
    memory_max = min(_of(policy.memory.max, total, total), total)
    own = base.number("memory.max")
    if own is not None:
        memory_max = min(memory_max, own - min(OUTSIDE, own // 16))
    high = _of(policy.memory.high, total, 0)
    agent_min = min(_of(policy.memory.agent_min, total, 0), memory_max // 2)
    cpus = [c for c in (base.cpu_limit(top), policy.cpu.max) if c is not None]
    return Limits(
        total=total,
        memory_max=memory_max,
        memory_high=min(high, memory_max) if high else None,
        calls_max=max(FLOOR, memory_max - agent_min),
        agent_min=agent_min,
        cpu=min(cpus, default=None),
    )


def _of(size: Size | None, total: int, default: int) -> int:
    return default if size is None else size.of(total)


def apply(policy: Policy, limits: Limits, tree: Cgroup) -> list[str]:
    """Write the container-wide limits, and the kernel's own where there is none: an earlier policy may have set one.
    Returns what could not be written, in words.
    """
    missed = []
    for door in (tree, tree.child("calls/fallback")):
        selinux.open_door(door)
    for path, name, value in _knobs(policy, limits):
        default = UNLIMITED.get(name)
        wanted = default if value is None or policy.mode == "observe" else value
        if wanted is not None and not _put(tree, path, name, wanted) and wanted != default:
            missed.append(f"{path}/{name}={wanted}")
    return missed + _apply_io(policy, tree)


def soften(policy: Policy, limits: Limits, tree: Cgroup, lift: bool) -> None:
    """While a call is held (`lift`) the others may use what is left up to the hard limits, but for the last bit of it,
    where they are throttled and not killed. Otherwise put memory.high back where the policy wants it.
    """
    for path, soft, hard in (
        ("", limits.memory_high, limits.memory_max), ("calls", _calls_high(policy, limits), limits.calls_max)
    ):  # fmt: skip
        if soft is not None:
            _put(tree, path, "memory.high", max(soft, hard - hard // 16) if lift else soft)


def delegate(tree: Cgroup, uid: int, gid: int) -> None:
    """Give agent/ to the container's root of another user namespace (cgroup-v2.rst, "Delegation"): it may make cgroups
    there; the limits on agent/ itself stay ours.
    """
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(f"{tree.path}/agent/{name}", uid, gid)


def _put(tree: Cgroup, path: str, name: str, value: str | int) -> bool:
    return (tree.child(path) if path else tree).try_write(name, value)


def _knobs(policy: Policy, limits: Limits) -> list[tuple[str, str, str | int | None]]:
    """Directory, file and value; None is no limit. JVM, Go and Node read their own leaf, so the leaves carry the true
    numbers too (evener#301).
    """
    memory, leaf_cpu = policy.memory, None if limits.cpu is None else cpu_max(limits.cpu)
    return [
        ("", "memory.high", limits.memory_high),
        ("", "memory.max", limits.memory_max),
        ("", "memory.min", limits.agent_min),
        ("", "memory.swap.max", None if memory.swap_max is None else memory.swap_max.of(limits.total)),
        ("", "pids.max", policy.pids_max),
        ("", "cpu.max", None if policy.cpu.max is None else cpu_max(policy.cpu.max)),
        ("agent", "memory.min", limits.agent_min),
        ("agent", "memory.max", min(_of(memory.agent_max, limits.total, limits.memory_max), limits.memory_max)),
        ("agent", "cpu.max", leaf_cpu),
        ("helpers", "memory.max", min(limits.call(policy.call.memory.high), limits.call(policy.call.memory.max))),
        ("helpers", "cpu.max", leaf_cpu),
        ("calls", "memory.high", _calls_high(policy, limits)),
        ("calls", "memory.max", limits.calls_max),
        ("calls", "cgroup.max.depth", 1),
    ]


#: What the kernel has in a new cgroup (cgroup-v2.rst).
UNLIMITED: dict[str, str | int] = {
    "memory.high": "max", "memory.max": "max", "memory.min": 0, "memory.swap.max": "max", "memory.oom.group": 0,
    "pids.max": "max", "cpu.weight": 100, "cpu.max": f"max {PERIOD_US}", "io.weight": "default 100",
    "cgroup.max.depth": 1,
}  # fmt: skip


def _calls_high(policy: Policy, limits: Limits) -> int | None:
    """Calls are throttled together where the container would be, less what the agent is promised."""
    if limits.memory_high is None or "throttle" not in policy.call.on_pressure:
        return None
    return max(FLOOR, limits.memory_high - limits.agent_min)


def _apply_io(policy: Policy, tree: Cgroup) -> list[str]:
    missed, wanted = [], {}
    for device, rates in policy.io.max if policy.mode == "enforce" else ():
        try:
            wanted[_device_number(device)] = device, " ".join(f"{key}={rate}" for key, rate in rates.items())
        except OSError as error:
            missed.append(f"io.max of {device}: {error.strerror}")
    for number in {line.split()[0] for line in tree.lines("io.max")} - set(wanted):
        tree.try_write("io.max", f"{number} rbps=max wbps=max riops=max wiops=max")
    missed += [f"io.max of {device}" for number, (device, rule) in wanted.items() if not _limit_io(tree, number, rule)]
    return missed


def _limit_io(tree: Cgroup, number: str, rule: str) -> bool:
    """Keys that the rule does not name keep an earlier value (cgroup-v2.rst, io.max), so all are named."""
    free = (f"{key}=max" for key in ("rbps", "wbps", "riops", "wiops") if f"{key}=" not in rule)
    return tree.try_write("io.max", " ".join([number, rule, *free]))


def cpu_max(cpus: float) -> str:
    """The text of cpu.max for a number of CPUs; at least 1 ms a period, the kernel's least (kernel/sched/core.c)."""
    return f"{max(1000, int(cpus * PERIOD_US))} {PERIOD_US}"


def _device_number(device: str) -> str:
    """`8:0` for a device node or number."""
    if not device.startswith("/"):
        return device
    number = os.stat(device).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"
