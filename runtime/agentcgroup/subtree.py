"""The limits of a container's subtree (design: sections 3.4 and 6): who gets what of BASE, written as cgroup files.

The hook has made the directories; nothing is written above `BASE/agentcgroup`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentcgroup.cgroup import Cgroup, total_memory
from agentcgroup.policy.model import Policy, Size

#: Memory that a call always gets, whatever its hint or the policy's percentages say: less cannot start a shell.
FLOOR = 16 << 20
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
    """Write the container-wide limits. Returns what could not be written, in words; `observe` writes nothing."""
    if policy.mode == "observe":
        return []
    writes = [*_tree_knobs(policy, limits), *_leaf_knobs(policy, limits)]
    missed = [f"{path}/{name}={value}" for path, name, value in writes if not _put(tree, path, name, value)]
    for device, rates in policy.io.max:
        rule = " ".join(f"{key}={rate}" for key, rate in rates.items())
        if not tree.try_write("io.max", f"{_device_number(device)} {rule}"):
            missed.append(f"io.max {device}")
    return missed


def delegate(tree: Cgroup, uid: int, gid: int) -> None:
    """Give agent/ to the container's root of another user namespace (cgroup-v2.rst, "Delegation"): it may make cgroups
    there; the limits on agent/ itself stay ours.
    """
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(f"{tree.path}/agent/{name}", uid, gid)


def _put(tree: Cgroup, path: str, name: str, value: str | int) -> bool:
    return (tree.child(path) if path else tree).try_write(name, value)


def _tree_knobs(policy: Policy, limits: Limits) -> list[tuple[str, str, str | int]]:
    knobs: list[tuple[str, str, str | int]] = [
        ("", "memory.high", limits.memory_high or "max"),
        ("", "memory.max", limits.memory_max),
        ("", "memory.min", limits.agent_min),
    ]
    if policy.memory.swap_max is not None:
        knobs.append(("", "memory.swap.max", policy.memory.swap_max.of(limits.total)))
    if policy.pids_max is not None:
        knobs.append(("", "pids.max", policy.pids_max))
    if policy.cpu.weight is not None:
        knobs.append(("", "cpu.weight", policy.cpu.weight))
    if policy.cpu.max is not None:
        knobs.append(("", "cpu.max", cpu_max(policy.cpu.max)))
    if policy.io.weight is not None:
        knobs.append(("", "io.weight", policy.io.weight))
    return knobs


def _leaf_knobs(policy: Policy, limits: Limits) -> list[tuple[str, str, str | int]]:
    """JVM, Go and Node read their own leaf, so it carries the true numbers too (evener#301)."""
    agent_max = min(_of(policy.memory.agent_max, limits.total, limits.memory_max), limits.memory_max)
    knobs: list[tuple[str, str, str | int]] = [
        ("agent", "memory.min", limits.agent_min),
        ("agent", "memory.max", agent_max),
        ("helpers", "memory.max", limits.call(policy.call.memory.high)),
        ("calls", "memory.high", _calls_high(limits)),
        ("calls", "memory.max", limits.calls_max),
        ("calls", "cgroup.max.depth", 1),
    ]
    if limits.cpu is not None:
        knobs += [(leaf, "cpu.max", cpu_max(limits.cpu)) for leaf in ("agent", "helpers")]
    return knobs


def _calls_high(limits: Limits) -> str | int:
    """Calls are throttled together where the container would be, less what the agent is promised."""
    return max(FLOOR, limits.memory_high - limits.agent_min) if limits.memory_high else "max"


def cpu_max(cpus: float) -> str:
    """The text of cpu.max for a number of CPUs; at least 1 ms a period, the kernel's least (kernel/sched/core.c)."""
    return f"{max(1000, int(cpus * PERIOD_US))} {PERIOD_US}"


def _device_number(device: str) -> str:
    """`8:0` for a device node or number."""
    if not device.startswith("/"):
        return device
    number = os.stat(device).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"
