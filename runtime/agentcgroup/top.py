"""Containers and their calls as they are now, and what they did since the last look: the rows of `agentcgroup top`.

The daemon says which there are and in which state; their cgroups are read here, so that it loses no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentcgroup.cgroup import Cgroup, pressure_total
from agentcgroup.hint import clean
from agentcgroup.units import format_bytes, format_seconds

#: The share of the time that some of a call's tasks waited for memory from which on it is slowed, as for feedback.
SLOWED_SHARE = 0.05
HEADER = ("CONTAINER", "CALL", "COMMAND", "MEMORY", "LIMIT", "PRESSURE", "CPU", "AGE", "STATE")


@dataclass(frozen=True, slots=True)
class Row:
    """A container, or one of its calls. memory, limit: bytes. pressure: share of the time since the last look in which
    some of its tasks waited for memory. cpu: CPUs. age: seconds. None is not known, or not limited.
    """

    name: str
    call: int | None
    command: str
    memory: int | None
    limit: int | None
    pressure: float | None
    cpu: float | None
    age: float | None
    state: str

    def cells(self) -> tuple[str, ...]:
        """As HEADER, for people; what comes from inside the container is printable."""
        return (
            clean(self.name, 32) if self.call is None else "",
            "" if self.call is None else str(self.call),
            clean(self.command, 32),
            "-" if self.memory is None else format_bytes(self.memory),
            "-" if self.limit is None else format_bytes(self.limit),
            "-" if self.pressure is None else f"{self.pressure:.0%}",
            "-" if self.cpu is None else f"{self.cpu:.0%}",
            "-" if self.age is None else format_seconds(self.age),
            clean(self.state, 40),
        )


#: What rows are sorted by: the greatest first, but names.
SORTS: dict[str, Callable[[Row], Any]] = {
    "memory": lambda row: -(row.memory or 0),
    "cpu": lambda row: -(row.cpu or 0),
    "pressure": lambda row: -(row.pressure or 0),
    "age": lambda row: -(row.age or 0),
    "name": lambda row: (row.name, row.call or 0),
}


#: A container and its calls.
Group = tuple[Row, list[Row]]


def ordered(groups: Sequence[Group], sort: str) -> list[Row]:
    """Containers, each with its calls below it, both sorted by a key of SORTS."""
    key = SORTS[sort]
    some = sorted(groups, key=lambda group: key(group[0]))
    return [row for container, calls in some for row in (container, *sorted(calls, key=key))]


class Sampler:
    """Keeps the counters of the last look."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float, float]] = {}

    def look(self, answer: Mapping[str, Any]) -> list[Group]:
        """Each container with its calls, for the daemon's answer to `top`."""
        before, self._before = self._before, {}
        calls: dict[str, list[Row]] = {}
        trees = {one["id"]: one["tree"] for one in answer["containers"]}
        for call in answer["calls"]:
            if call["container"] in trees:
                tree = trees[call["container"]]
                calls.setdefault(call["container"], []).append(self._call(call, tree, before))
        found = [(one, calls.get(one["id"], [])) for one in answer["containers"]]
        return [(self._container(one, own, before), own) for one, own in found]

    def _container(self, one: Mapping[str, Any], calls: Sequence[Row], before: Mapping[str, Any]) -> Row:
        group = Cgroup(one["tree"])
        pressure, cpu = self._since(group, None, before)
        count = f"{len(calls)} call{'' if len(calls) == 1 else 's'}" if calls else "no calls"
        oldest = max((row.age or 0 for row in calls), default=None)
        memory = group.number("memory.current")
        return Row(one["name"], None, "", memory, one["memory_max"], pressure, cpu, oldest, count)

    def _call(self, call: Mapping[str, Any], tree: str, before: Mapping[str, Any]) -> Row:
        group = Cgroup(tree).child(f"calls/{call['call']}")
        pressure, cpu = self._since(group, call["seconds"], before)
        state = "slowed" if (pressure or 0) >= SLOWED_SHARE else "running"
        if call["ended"] or call["held"]:
            state = f"ending: {call['ended']}" if call["ended"] else "held"
        memory = group.number("memory.current")
        return Row("", call["call"], call["command"], memory, call["limit"], pressure, cpu, call["seconds"], state)

    def _since(
        self, group: Cgroup, age: float | None, before: Mapping[str, tuple[float, float, float]]
    ) -> tuple[float | None, float | None]:
        """Pressure and CPUs since the last look; for a call that was not there since it began."""
        now = time.monotonic()
        stall = pressure_total(group, "memory.pressure")
        cpu = group.keyed("cpu.stat").get("usage_usec", 0) / 1e6
        self._before[group.path] = (now, stall, cpu)
        last = before.get(group.path)
        if last is None and age is None:
            return None, None
        then, stall_then, cpu_then = last or (now - (age or 0), 0.0, 0.0)
        elapsed = max(now - then, 0.001)
        return min(max(stall - stall_then, 0) / elapsed, 1.0), max(cpu - cpu_then, 0) / elapsed
