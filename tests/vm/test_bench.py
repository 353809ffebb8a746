"""`agentcgroup bench replay`, one small run of each way to share memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from podman import CGROUPFS, run

ARMS = ("none", "static", "memory.high", "freeze", "ours-files", "ours")


@pytest.mark.timeout(600)
def test_each_arm_runs_agents_to_their_end_and_leaves_nothing(daemon: None, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    config = Path("/etc/agentcgroup/agentcgroup.yaml")
    before = config.read_text()
    command = ["agentcgroup", "bench", "replay", "--cells", "600x50", "-n", "1", "--results", f"{results}"]
    small = ["--scale", "0.25", "--calls", "3", "--seed", "3"]
    run(*command, *small, "--arms", *ARMS, timeout=550)
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(one["arm"] for one in runs) == sorted(ARMS)
    for one in runs:
        assert [agent["role"] for agent in one["agents"]] == ["HIGH", "LOW1", "LOW2"]
        assert all(agent["survived"] and agent["done"] == agent["calls"] == 3 for agent in one["agents"]), one
        assert all(agent["lost"] == 0 and agent["steps"] for agent in one["agents"]), one
        assert max(sum(row[1:]) for row in one["memory"]) > 100 << 20
    assert run(*command, *small, "--arms", *ARMS).stdout == ""  # all is there
    assert "| ours | 1 | 1.00 [" in run("agentcgroup", "bench", "report", f"{results}").stdout
    assert config.read_text() == before
    assert not list((CGROUPFS / "agentcgroup.slice").glob("*bench*")) and not list(
        Path("/tmp").glob("agentcgroup-bench-*")
    )


def test_a_limit_that_is_too_small_for_all_is_shown_as_such(daemon: None, tmp_path: Path) -> None:
    """The slice has less than the agents themselves."""
    results = tmp_path / "results.jsonl"
    options = ["--cells", "100x20", "-n", "1", "--arms", "none", "--scale", "0.25", "--calls", "1"]
    run("agentcgroup", "bench", "replay", *options, "--results", f"{results}", timeout=250)
    [one] = [json.loads(line) for line in results.read_text().splitlines()]
    assert one["oom_kills"] > 0 and not all(agent["survived"] for agent in one["agents"])
