"""Pictures of a result file, PNG and SVG; matplotlib is the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcgroup.bench import figures
from agentcgroup.errors import UserError

_MARKS = {"hold": ("v", "tab:orange"), "release": ("^", "tab:green"), "end": ("x", "tab:red"), "lost": ("X", "tab:red")}


def draw(runs: Sequence[figures.Record], folder: Path) -> list[Path]:
    """Memory of each agent in the first run of each arm, latencies, and survival by budget. Raises UserError without
    matplotlib.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise UserError("pictures need matplotlib: pip install 'agentcgroup[bench]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    for (budget, speed), arms in sorted(figures.cells(runs).items()):
        name = f"{budget}M-{speed:g}x"
        drawn += _save(pyplot, _memory(pyplot, arms, budget), folder / f"memory-{name}")
        drawn += _save(pyplot, _latencies(pyplot, arms), folder / f"latency-{name}")
    drawn += _save(pyplot, _survival(pyplot, runs), folder / "survival")
    return drawn


def _save(pyplot: Any, figure: Any, path: Path) -> list[Path]:
    files = [path.with_name(path.name + end) for end in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return files


def _memory(pyplot: Any, arms: dict[str, list[figures.Record]], budget: int) -> Any:
    figure, axes = pyplot.subplots(len(arms), sharex=True, squeeze=False, figsize=(9, 2.2 * len(arms)))
    for axis, (arm, some) in zip(axes[:, 0], arms.items(), strict=True):
        run = some[0]
        times = [row[0] for row in run["memory"]]
        for number, agent in enumerate(run["agents"], 1):
            sizes = [row[number] / 2**20 for row in run["memory"]]
            axis.plot(times, sizes, label=f"{agent['role']} {agent['name']}".strip(), linewidth=1)
            for at, what in agent["moments"]:
                marker, color = _MARKS.get(what, (".", "black"))
                axis.plot([at], [_at(times, sizes, at)], marker, color=color, markersize=6)
        axis.plot(
            times, [sum(row[1:]) / 2**20 for row in run["memory"]], color="black", linewidth=0.6, label="together"
        )
        axis.axhline(budget, color="tab:red", linewidth=0.6, linestyle="--")
        axis.set_ylabel("MiB")
        axis.set_title(f"{arm}: {run['oom_kills']} OOM kills", loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=7, ncols=2)
    axes[-1, 0].set_xlabel("seconds; v held, ^ went on, x ended, X lost")
    return figure


def _at(times: Sequence[float], sizes: Sequence[float], at: float) -> float:
    return next((size for time, size in zip(times, sizes, strict=True) if time >= at), sizes[-1] if sizes else 0.0)


def _latencies(pyplot: Any, arms: dict[str, list[figures.Record]]) -> Any:
    figure, axis = pyplot.subplots(figsize=(7, 4))
    for arm, some in arms.items():
        steps = sorted(ms for run in some for agent in figures.of_role(run, "HIGH") for ms, _ in agent["steps"])
        if steps:
            axis.step(steps, [(n + 1) / len(steps) for n in range(len(steps))], where="post", label=arm, linewidth=1)
    axis.set_xscale("log")
    axis.set_xlabel("milliseconds of one step of the HIGH agent")
    axis.set_ylabel("share of steps")
    axis.legend(fontsize=8)
    return figure


def _survival(pyplot: Any, runs: Sequence[figures.Record]) -> Any:
    figure, axis = pyplot.subplots(figsize=(7, 4))
    byarm: dict[str, list[tuple[int, figures.Figure]]] = {}
    for (budget, _), arms in sorted(figures.cells(runs).items()):
        for arm, some in arms.items():
            byarm.setdefault(arm, []).append((budget, figures.survival(some)))
    for number, (arm, points) in enumerate(byarm.items()):
        shift = [budget + 4 * (number - len(byarm) / 2) for budget, _ in points]
        values = [point.value for _, point in points]
        below = [max(0.0, point.value - point.low) for _, point in points]
        above = [max(0.0, point.high - point.value) for _, point in points]
        axis.errorbar(shift, values, yerr=[below, above], marker="o", markersize=4, linewidth=1, capsize=2, label=arm)
    axis.set_xlabel("MiB for all agents")
    axis.set_ylabel("share of runs in which all came through")
    axis.set_ylim(-0.05, 1.05)
    axis.legend(fontsize=8)
    return figure
