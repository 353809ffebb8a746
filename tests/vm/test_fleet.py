"""Containers that share a budget: nobody is killed, the highest priority first, and who waited is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fleet
import pytest
from podman import Engine, run

CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")


@pytest.fixture(scope="module", autouse=True)
def switched_on(daemon: None) -> Iterator[None]:
    config = CONFIG.read_text()
    CONFIG.write_text(config + "bpf: true\n")
    run("systemctl", "restart", "agentcgroupd")
    fleet.policies()
    with fleet.budget():
        yield
    CONFIG.write_text(config)
    run("systemctl", "restart", "agentcgroupd")
    run("agentcgroup", "bpf", "detach")


@pytest.fixture(scope="module")
def three(switched_on: None, file_engine: Engine) -> fleet.Fleet:
    return fleet.start(file_engine)


def test_together_too_large_all_finish_and_nobody_is_killed(three: fleet.Fleet) -> None:
    kills = fleet.oom_kills()
    results = [call.result() for call in three.all_at_once()]
    assert [result.rc for result in results] == [0, 0, 0]
    assert fleet.oom_kills() == kills
