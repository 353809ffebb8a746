"""What the daemon adds up while metrics are on: plain numbers, written on the loop's thread and read on another, where
a figure that is one call behind does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from agentcgroup.outcome import Outcome, result

MIB = 1 << 20
#: Upper bounds of the buckets: seconds, and bytes of a call's peak.
HOOK = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
SETUP = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
DURATION = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
PEAK = tuple(float(size * MIB) for size in (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))


class Histogram:
    """How many values there were up to each bound, each counted once, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Take in one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts:
    """Everything since metrics were turned on. Keys of `calls`: policy and result."""

    def __init__(self) -> None:
        self.hook = Histogram(HOOK)
        self.setup = Histogram(SETUP)
        self.duration = Histogram(DURATION)
        self.peak = Histogram(PEAK)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.steps: Counter[str] = Counter()
        self.held_s = self.throttled_s = self.cpu_s = 0.0
        self.oom_kills = self.processes_refused = self.orphans = self.complaints = 0

    def finished(self, outcome: Outcome) -> None:
        """A call is over."""
        self.calls[outcome.policy, _word(outcome)] += 1
        self.duration.add(outcome.duration_s)
        if outcome.peak_bytes is not None:
            self.peak.add(outcome.peak_bytes)
        for step in outcome.steps:
            self.steps[step.step] += 1
        self.held_s += outcome.held_s
        self.throttled_s += outcome.throttled_s
        self.cpu_s += outcome.cpu_s
        self.oom_kills += outcome.oom_kills
        self.processes_refused += outcome.pids_denied
        self.orphans += outcome.orphans


def _word(outcome: Outcome) -> str:
    """Its result, of a closed set: labels must not grow with what containers do."""
    word = result(outcome)
    return "failed" if word.startswith("exit ") else "signal" if word.startswith(("SIG", "signal ")) else word
