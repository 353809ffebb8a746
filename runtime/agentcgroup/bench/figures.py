"""What the runs of a result file come to: shares with Wilson's interval, medians and ratios with a bootstrap."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
_Z = 1.959964  # of 95 %
_RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """A number with its 95 % interval, from so many runs."""

    value: float
    low: float
    high: float
    n: int

    def text(self, digits: int = 2) -> str:
        """`1.23 [1.10, 1.40]`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def wilson(good: int, n: int) -> Figure:
    """A share (E. B. Wilson, JASA 22, 1927, p. 209)."""
    if not n:
        return Figure(math.nan, 0.0, 1.0, 0)
    share, squared = good / n, _Z * _Z
    middle = (share + squared / (2 * n)) / (1 + squared / n)
    half = _Z / (1 + squared / n) * math.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    return Figure(share, max(0.0, middle - half), min(1.0, middle + half), n)


def bootstrap(runs: Sequence[Any], figure: Callable[[Sequence[Any]], float], seed: int = 1) -> Figure:
    """A figure of all runs, with the interval that drawing whole runs anew gives (B. Efron, Ann. Statist. 7, 1979)."""
    if not runs:
        return Figure(math.nan, math.nan, math.nan, 0)
    dice = random.Random(seed)
    drawn = sorted(figure(dice.choices(runs, k=len(runs))) for _ in range(_RESAMPLES))
    low, high = drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES)]
    return Figure(figure(runs), low, high, len(runs))


def quantile(values: Sequence[float], share: float) -> float:
    """Of values in any order; between two of them on a straight line."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    at = share * (len(ordered) - 1)
    low = int(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def of_role(run: Record, role: str) -> list[Record]:
    """The agents of a run whose role begins so."""
    return [agent for agent in run["agents"] if agent["role"].startswith(role)]


def survival(runs: Sequence[Record]) -> Figure:
    """Of runs in which every agent came to the end of its plan, with every call."""
    return wilson(sum(all(a["survived"] and not a["lost"] for a in run["agents"]) for run in runs), len(runs))


def makespan(runs: Sequence[Record], role: str) -> Figure:
    """Median seconds of the agents of a role, over runs in which they came through."""
    whole = [[a["makespan_s"] for a in of_role(run, role)] for run in runs if _whole(run, role)]
    return bootstrap(whole, lambda some: statistics.median(s for one in some for s in one))


def _whole(run: Record, role: str) -> bool:
    agents = of_role(run, role)
    return bool(agents) and all(a["survived"] and not a["lost"] for a in agents)


def latency(runs: Sequence[Record], role: str, share: float, per_mib: bool = False) -> Figure:
    """A quantile of the milliseconds that a step took, or a step's MiB."""

    def of(run: Record) -> list[float]:
        steps = [step for agent in of_role(run, role) for step in agent["steps"]]
        return [ms / (size / 2**20) if per_mib else ms for ms, size in steps]

    return bootstrap([of(run) for run in runs], lambda some: quantile([ms for one in some for ms in one], share))


def against(runs: Sequence[Record], base: Sequence[Record], role: str) -> Figure:
    """The median of the ratios of makespans, of runs with those of the same round in which both came through."""
    other = {run["round"]: run for run in base if _whole(run, role)}
    pairs = [
        statistics.fmean(a["makespan_s"] for a in of_role(run, role))
        / statistics.fmean(a["makespan_s"] for a in of_role(other[run["round"]], role))
        for run in runs
        if run["round"] in other and _whole(run, role)
    ]
    return bootstrap(pairs, statistics.median)


def cells(runs: Sequence[Record]) -> dict[tuple[int, float], dict[str, list[Record]]]:
    """Runs by budget and speed, and then by arm."""
    found: dict[tuple[int, float], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        found[run["budget_mib"], run["speed"]][run["arm"]].append(run)
    return found


def table(runs: Sequence[Record]) -> str:
    """Markdown: for each cell a line an arm."""
    lines = []
    for (budget, speed), arms in sorted(cells(runs).items()):
        lines += [
            f"### {budget} MiB, {speed:g} times as fast",
            "",
            "| arm | n | all came through | calls lost | OOM kills | HIGH, s | x none | LOW, s | x none |"
            " HIGH step p50, ms | p95 | p99 | p95 a MiB |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for arm, some in arms.items():
            cells_ = [
                arm,
                str(len(some)),
                survival(some).text(),
                str(sum(a["lost"] + (a["calls"] - a["done"]) for run in some for a in run["agents"])),
                str(sum(run["oom_kills"] for run in some)),
                _or_dash(makespan(some, "HIGH")),
                _or_dash(against(some, arms.get("none", []), "HIGH")),
                _or_dash(makespan(some, "LOW")),
                _or_dash(against(some, arms.get("none", []), "LOW")),
                *(_or_dash(latency(some, "HIGH", share)) for share in (0.5, 0.95, 0.99)),
                _or_dash(latency(some, "HIGH", 0.95, per_mib=True)),
            ]
            lines.append(f"| {' | '.join(cells_)} |")
        lines += ["", *_reaction(arms), ""]
    return "\n".join(lines)


def too_many(run: Record, first: Record) -> bool:
    """Whether an agent ended early, or a step took twice as long (p95) as with the fewest agents."""
    if not all(agent["survived"] for agent in run["agents"]):
        return True
    late, early = (quantile([ms for a in one["agents"] for ms, _ in a["steps"]], 0.95) for one in (run, first))
    return late > 2 * early


def density(runs: Sequence[Record]) -> str:
    """Markdown: how many agents a budget bore, by arm, and how many if no call may be lost either."""
    lines = [
        "| arm | n | agents alive, p95 at most doubled | x static | and no call lost | x static |",
        "|" + "---|" * 6,
    ]
    byarm: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: len(run["agents"])):
        byarm[run["arm"]][run["round"]].append(run)
    borne = {
        arm: {number: (_borne(some, False), _borne(some, True)) for number, some in rounds.items()}
        for arm, rounds in byarm.items()
    }
    for arm, rounds in borne.items():
        cells_ = [arm, str(len(rounds))]
        for strict in (0, 1):
            static = {number: pair[strict] for number, pair in borne.get("static", {}).items()}
            pairs = [pair[strict] / static[number] for number, pair in rounds.items() if static.get(number)]
            cells_ += [_or_dash(bootstrap([pair[strict] for pair in rounds.values()], statistics.fmean))]
            cells_ += [_or_dash(bootstrap(pairs, statistics.fmean))]
        lines.append(f"| {' | '.join(cells_)} |")
    return "\n".join(lines)


def _borne(runs: Sequence[Record], strict: bool) -> int:
    """The most agents of one arm and round, by number, before it was too many."""
    most = 0
    for run in runs:
        if too_many(run, runs[0]) or (strict and any(agent["lost"] for agent in run["agents"])):
            break
        most = len(run["agents"])
    return most


def _reaction(arms: dict[str, list[Record]]) -> list[str]:
    """How long it took from the charge by which a budget became short until its call was held."""
    found = {
        arm: [lag for run in some for agent in run["agents"] for lag in agent["lags"]] for arm, some in arms.items()
    }
    return [
        f"{arm}: from the charge to the hold p50 {quantile(lags, 0.5):.1f} ms, p95 {quantile(lags, 0.95):.1f},"
        f" most {max(lags):.1f}, n {len(lags)}"
        for arm, lags in found.items()
        if lags
    ]


def _or_dash(figure: Figure) -> str:
    return f"{figure.text()} n {figure.n}" if figure.n else "-"


def narrow(runs: Sequence[Record], role: str, width: float) -> bool:
    """Whether the interval of a makespan is within such a share of it on each side."""
    figure = makespan(runs, role)
    return figure.n >= 5 and max(figure.high - figure.value, figure.value - figure.low) <= width * figure.value
