"""What a new shell is and what it gets: class, limit and where the limit comes from (design: sections 4 and 5).
Pure decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from agentcgroup.commandline import Command
from agentcgroup.hint import Hint, Percent, render_size
from agentcgroup.outcome import Clamp
from agentcgroup.policy.model import Policy, Priority, Rule
from agentcgroup.subtree import FLOOR, UNLIMITED, Limits, cpu_max

Kind = Literal["call", "shell", "helper", "agent"]
#: Highest first: a hint may lower its call's priority, not raise it above the container's.
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "batch")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one call gets. Memory in bytes, time in seconds; `source` says in words where the memory limit comes
    from.
    """

    kind: Kind
    memory: int
    source: str
    clamps: tuple[Clamp, ...] = ()
    pids: int = 0
    priority: Priority = "normal"
    time: float | None = None
    cpu_weight: int | None = None
    cpu: float | None = None

    @property
    def declared(self) -> int:
        """What the call was said to need; 0 where nobody said."""
        return 0 if self.source == "default" else self.memory

    def writes(self) -> tuple[tuple[str, str], ...]:
        """The grant as cgroup files and values."""
        return (
            ("memory.max", str(self.memory)),
            ("pids.max", str(self.pids)),
            ("cpu.weight", str(UNLIMITED["cpu.weight"] if self.cpu_weight is None else self.cpu_weight)),
            ("cpu.max", str(UNLIMITED["cpu.max"]) if self.cpu is None else cpu_max(self.cpu)),
        )


def directory_files(policy: Policy, limits: Limits) -> tuple[tuple[str, str], ...]:
    """What is written to each directory ahead of its call; `observe` sets no limit."""
    swap = policy.memory.swap_max
    files = (
        ("memory.oom.group", "1"),
        ("memory.swap.max", "max" if swap is None else str(swap.of(limits.total))),
        *default_grant(policy, limits).writes(),
    )
    return tuple((name, str(UNLIMITED[name])) for name, _ in files) if policy.mode == "observe" else files


def default_grant(policy: Policy, limits: Limits) -> Grant:
    """The grant of a call that says nothing."""
    call = policy.call
    return Grant(
        kind="call",
        memory=min(limits.call(call.memory.default), limits.call(call.memory.max)),
        source="default",
        pids=call.pids_max,
        priority=policy.priority,
        time=call.time_max,
        cpu_weight=call.cpu_normal,
        cpu=limits.cpu,
    )


def kind_of(command: Command, rule: Rule | None) -> Kind:
    """A rule's word first; an interactive or stdin-fed shell has no time budget of its own."""
    if rule is not None and rule.as_ is not None:
        return rule.as_
    return "shell" if command.kind == "shell" else "call"


def grant(policy: Policy, limits: Limits, kind: Kind, hint: Hint, origin: str) -> Grant:
    """The default changed by a hint as far as the policy allows. `origin` names the hint's source for texts."""
    base = replace(default_grant(policy, limits), kind=kind)
    if kind != "call":
        base = replace(base, time=None)
    clamps: list[Clamp] = []
    if hint.memory is not None:
        asked = _bytes(policy, limits, hint.memory)
        memory = _least(clamps, "memory", asked, limits.call(policy.call.memory.max))
        word = hint.memory if isinstance(hint.memory, str) else render_size(asked)
        base = replace(base, memory=max(memory, FLOOR), source=f"{origin} {word}")
    if hint.priority is not None:
        base = replace(base, priority=max(hint.priority, policy.priority, key=PRIORITIES.index))
    if hint.pids is not None:
        base = replace(base, pids=_least(clamps, "pids", hint.pids, base.pids))
    if hint.time is not None and kind == "call":
        base = replace(base, time=hint.time if base.time is None else _least(clamps, "time", hint.time, base.time))
    if isinstance(hint.cpu, str):
        return replace(base, cpu_weight=getattr(policy.call, f"cpu_{hint.cpu}"), clamps=tuple(clamps))
    if hint.cpu is not None:
        cores = hint.cpu if base.cpu is None else _least(clamps, "cpu", hint.cpu, base.cpu)
        base = replace(base, cpu=cores)
    return replace(base, clamps=tuple(clamps))


def _least(clamps: list[Clamp], key: str, asked: Number, most: Number) -> Number:
    """`asked`, or `most` and a note that it was less than asked."""
    if asked > most:
        clamps.append(Clamp(key, asked, most))
    return min(asked, most)


def _bytes(policy: Policy, limits: Limits, asked: str | int | Percent) -> int:
    """Bytes that a hint asks for, before the policy's maximum."""
    if isinstance(asked, str):
        return limits.call(getattr(policy.call.memory, asked))
    if isinstance(asked, Percent):
        return int(limits.calls_max * asked.value / 100)
    return asked
