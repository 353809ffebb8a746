"""The benchmark's arithmetic: traces to plans, and runs to figures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from agentcgroup.bench import figures, traces
from agentcgroup.bench.arms import ARMS
from agentcgroup.cli import main
from agentcgroup.errors import UserError

MB, MIB, OWN = traces.MB, traces.MIB, traces.OWN_BYTES

RECORDED = {
    "task": "a-task",
    "role": "HIGH",
    "samples": [[0.0, 100.0], [1.0, 150.0], [2.0, 200.0], [3.0, 320.0], [4.0, 1500.0], [5.0, 100.0]],
    "calls": [
        {"start_s": 1.5, "end_s": 4.5, "tool": "Bash"},
        {"start_s": 2.5, "end_s": 3.5, "tool": "Bash"},
        {"start_s": 0.5, "end_s": 1.2, "tool": "Read"},
        {"start_s": 0.5, "end_s": 5.0, "tool": "Bash", "background": True},
    ],
}


def test_what_a_bash_call_adds_is_the_latest_ones_and_all_else_the_agents_own() -> None:
    trace = traces.parse(RECORDED)
    assert trace.own == ((0.0, 100 * MB - OWN), (1.0, 150 * MB - OWN), (5.0, 100 * MB - OWN))
    first, second = trace.calls
    assert (first.start_s, first.end_s, first.steps) == (1.5, 4.5, ((0.5, 50 * MB), (2.5, 1350 * MB)))
    assert second.steps == ((0.5, 120 * MB),)
    assert (trace.peak, trace.length, trace.role) == (1500 * MB - OWN, 5.0, "HIGH")


def test_the_papers_units_take_a_printed_mb_for_a_mib_and_add_a_base() -> None:
    trace = traces.parse(RECORDED, paper_units=True)
    assert trace.own[0] == (0.0, 200 * MIB - OWN)
    assert trace.peak == (1536 + 100) * MIB - OWN


def test_a_plan_is_in_the_order_of_time_and_so_many_times_faster() -> None:
    plan = traces.parse(RECORDED).plan(10, offset_s=1.0).splitlines()
    assert plan[0] == f"own 1000 {100 * MB - OWN}"
    assert plan[2:4] == ["call 1150 1 1450", f"step 1 50 {50 * MB}"]
    assert [line for line in plan if line.startswith("step 1")][-1] == "step 1 300 0"
    assert [line.split()[0] for line in plan] == ["own"] * 2 + ["call"] + ["step"] * 3 + ["call"] + ["step"] * 2 + [
        "own"
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "1: not a trace: JSONDecodeError"),
        ('{"task": "a", "samples": []}', "1: not a trace: KeyError: 'calls'"),
        ("", "no trace in it"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_its_line(text: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=wrong) as raised:
        traces.load(path)
    assert str(raised.value).startswith(f"{path}")


def test_drawn_agents_are_as_those_that_were_recorded_and_the_same_for_a_seed() -> None:
    agents = list(traces.drawn(300, seed=7))
    assert agents == list(traces.drawn(300, seed=7))
    assert 20 < figures.quantile([len(agent.calls) for agent in agents], 0.5) < 30  # 51 % of 48
    assert all(190 * MB <= agent.own[0][1] <= 208 * MB for agent in agents)
    sizes = [max(size for _, size in call.steps) / MB for agent in agents for call in agent.calls]
    assert 100 < figures.quantile(sizes, 0.98) < 250 and max(sizes) < 3858
    most = max(
        sum(c.start_s <= call.start_s < c.end_s for c in agent.calls) for agent in agents for call in agent.calls
    )
    assert 2 <= most <= traces.AT_ONCE


def test_quantiles_are_met_and_nothing_lies_beyond_the_last() -> None:
    one = traces.Quantiles(((0, 1), (0.5, 10), (0.9, 100), (1, 1000)))
    assert [one.at(p) for p in (0, 0.5, 0.9, 1)] == pytest.approx([1, 10, 100, 1000])
    assert one.at(0.25) == pytest.approx(10**0.5)
    assert 1 <= one.draw(random.Random(3)) <= 1000


# --- figures ---------------------------------------------------------------------------------------------------------


def run(arm: str, number: int, seconds: float, lost: int = 0, survived: bool = True) -> dict[str, Any]:
    agent = {
        "name": "a", "role": "HIGH", "calls": 2, "done": 2, "survived": survived, "lost": lost,
        "makespan_s": seconds if survived else None, "steps": [[seconds, MIB], [2 * seconds, 2 * MIB]],
        "lags": [seconds],
    }  # fmt: skip
    return {"arm": arm, "round": number, "budget_mib": 1000, "speed": 50.0, "agents": [agent], "oom_kills": lost}


def test_wilsons_interval() -> None:
    assert wilson(10, 10) == (1.0, 0.722, 1.0)
    assert wilson(5, 10) == (0.5, 0.237, 0.763)
    assert wilson(0, 6) == (0.0, 0.0, 0.39)
    assert figures.wilson(0, 0).n == 0


def wilson(good: int, n: int) -> tuple[float, float, float]:
    found = figures.wilson(good, n)
    return round(found.value, 3), round(found.low, 3), round(found.high, 3)


def test_makespans_are_of_runs_that_came_through_and_ratios_of_the_same_round() -> None:
    base = [run("none", 1, 10), run("none", 2, 20, lost=1), run("none", 3, 10)]
    ours = [run("ours", 1, 12), run("ours", 2, 30), run("ours", 3, 11, survived=False), run("ours", 4, 5)]
    assert (figures.makespan(ours, "HIGH").value, figures.makespan(ours, "HIGH").n) == (12, 3)
    ratio = figures.against(ours, base, "HIGH")
    assert (ratio.value, ratio.n) == (1.2, 1)
    assert figures.survival(ours).value == 0.75
    assert figures.makespan(ours, "LOW").n == 0


def test_latencies_of_a_step_and_of_a_mib() -> None:
    runs = [run("none", 1, 10), run("none", 2, 10)]
    assert figures.latency(runs, "HIGH", 0.5).value == 15
    assert figures.latency(runs, "HIGH", 0.5, per_mib=True).value == 10


def test_a_bootstrap_holds_the_true_median_and_narrows() -> None:
    dice = random.Random(5)
    wide, slim = ([run("none", n, dice.gauss(100, 10)) for n in range(count)] for count in (8, 200))
    found = [figures.makespan(runs, "HIGH") for runs in (wide, slim)]
    assert all(figure.low < 100 < figure.high for figure in found)
    assert found[1].high - found[1].low < (found[0].high - found[0].low) / 2
    assert figures.narrow(slim, "HIGH", 0.05) and not figures.narrow(wide[:4], "HIGH", 0.5)


def test_the_report_has_a_line_for_each_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(run(arm, n, 10)) + "\n" for n in range(3) for arm in ARMS))
    assert main(["bench", "report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "### 1000 MiB, 50 times as fast" in out
    assert "ours: from the charge to the hold p50 10.0 ms, p95 10.0, most 10.0, n 3" in out
    assert [line.split(" | ")[0] for line in out.splitlines() if " | 3 | 1.00 [0.44, 1.00] |" in line] == [
        f"| {arm}" for arm in ARMS
    ]


def test_density_is_the_most_agents_before_one_dies_or_is_twice_as_slow_and_without_a_lost_call() -> None:
    def fleet(arm: str, count: int, seconds: float = 10, number: int = 1, **ill: int) -> dict[str, Any]:
        some = [run(arm, number, seconds)["agents"][0] | {"role": ""} for _ in range(count)]
        some[-1] |= ill
        return run(arm, number, seconds) | {"agents": some}

    runs = [fleet("static", 2), fleet("static", 4, lost=1), fleet("static", 6), fleet("static", 8, survived=False)]
    runs += [fleet("ours", 2), fleet("ours", 4), fleet("ours", 6), fleet("ours", 8, 19), fleet("ours", 10, 21)]
    assert [figures.too_many(one, runs[4]) for one in runs[4:]] == [False, False, False, False, True]
    ours, static = sorted(figures.density(list(reversed(runs))).splitlines()[2:])
    assert static.startswith("| static | 1 | 6.00 [6.00, 6.00] n 1 | 1.00 [") and "| 2.00 [2.00" in static
    assert ours.startswith("| ours | 1 | 8.00 [8.00, 8.00] n 1 | 1.33 [") and "| 4.00 [4.00" in ours


def test_pictures_are_drawn_of_runs_that_came_through_and_of_others(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    more = {"memory": [[0.0, MIB], [1.0, 2 * MIB]]}
    runs = [run(arm, n, 10, lost=n % 2, survived=arm != "none") | more for n in range(10) for arm in ARMS]
    for one in runs:
        one["agents"][0]["moments"] = [[0.5, "hold"], [0.7, "release"], [2.0, "lost"]]
    path.write_text("".join(json.dumps(one) + "\n" for one in runs))
    assert main(["bench", "report", str(path), "--pictures", str(tmp_path / "drawn")]) == 0
    names = sorted(file.name for file in (tmp_path / "drawn").iterdir())
    assert names == sorted(
        f"{name}.{kind}" for name in ("latency-1000M-50x", "memory-1000M-50x", "survival") for kind in ("png", "svg")
    )
    assert all(file.stat().st_size > 5000 for file in (tmp_path / "drawn").iterdir())


@pytest.mark.parametrize("cell", ["1000", "x50", "1000x", "1000x0", "MiBx50"])
def test_a_cell_that_is_none_is_refused(cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "replay", "--cells", cell, "--results", str(tmp_path / "r")]) != 0
    assert f"cell '{cell}'" in capsys.readouterr().err
