"""Ways to share memory among agents, by turns on the same load."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agentcgroup.bench.traces import MIB, Trace
from agentcgroup.cgroup import Cgroup

#: memory.high of each agent of low priority, as in the AgentCgroup paper (arXiv 2602.09345, section 5).
LOW_HIGH = 400 * MIB
#: Where the user-space watcher stops who is of low priority, and how often it looks (seconds).
ALMOST, EVERY = 15 / 16, 0.01


@dataclass(frozen=True)
class Arm:
    """governed: by agentcgroup; bpf: with its programs in the kernel."""

    name: str
    governed: bool = False
    bpf: bool = False

    def options(self, trace: Trace, budget: int, count: int) -> list[str]:
        """For `podman run`: the agent's own limit, or its policy."""
        if self.name == "static":
            return [f"--memory={budget // count}", f"--memory-swap={budget // count}"]
        if not self.governed:
            return []
        notes = {"policy": "coding-agent"}
        if trace.role.startswith("HIGH"):
            notes = {"policy": "interactive", "memory.reserve": f"{trace.peak // MIB + 16}M"}
        elif trace.role.startswith("LOW"):
            notes = {"policy": "batch"}
        notes |= {"memory.swap_max": "0", "memory.agent_min": "0"}
        notes |= {f"call.memory.{size}": f"{budget}" for size in ("low", "default", "medium", "high", "max")}
        return [f"--annotation=agentcgroup.{key}={value}" for key, value in notes.items()]

    def during(self, slice_: Cgroup, low: Sequence[Cgroup]) -> Watcher:
        """What acts while they run; `low` are the engine's cgroups of those of low priority."""
        if self.name == "memory.high":
            for group in low:
                group.write("memory.high", LOW_HIGH)
        return Watcher(slice_, low if self.name == "freeze" else ())


@dataclass
class Watcher:
    """A daemon without help of the kernel: near the limit it freezes who is of low priority, until `high_ended`."""

    slice: Cgroup
    low: Sequence[Cgroup]
    high_ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if self.low:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.high_ended.set()
        if self.low:
            self._thread.join()

    def _watch(self) -> None:
        limit = self.slice.number("memory.max") or 0
        while not self.high_ended.is_set():
            if (self.slice.number("memory.current") or 0) > limit * ALMOST:
                self._freeze("1")
            time.sleep(EVERY)
        self._freeze("0")

    def _freeze(self, state: str) -> None:
        for group in self.low:
            with suppress(OSError):
                group.write("cgroup.freeze", state)


ARMS = {
    arm.name: arm
    for arm in (
        Arm("none"), Arm("static"), Arm("memory.high"), Arm("freeze"), Arm("ours-files", True), Arm("ours", True, True)
    )
}  # fmt: skip
