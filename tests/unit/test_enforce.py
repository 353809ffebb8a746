"""What looks at a call find; directories with files stand for cgroupfs, and a call for one (logic only)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentcgroup.cgroup import Cgroup
from agentcgroup.enforce import CALM_LOOKS, Strain
from agentcgroup.policy.model import Policy

MIB = 1 << 20
FILES = {
    "memory.pressure": "some avg10=0.00 avg60=0.00 total=0\nfull avg10=0.00 avg60=0.00 total=0\n",
    "memory.high": "max\n", "memory.max": "max\n", "memory.current": "0\n", "cpu.stat": "usage_usec 0\n",
    "pids.current": "1\n", "pids.events": "max 0\n",
}  # fmt: skip


@pytest.fixture
def call(tmp_path: Path) -> Any:
    """calls/1 of a container in a slice; `put` writes a file of it or of a cgroup above."""
    path = tmp_path / "x.slice/b.scope/agentcgroup/calls/1"
    path.mkdir(parents=True)
    for group in (path, *path.parents[:4]):
        for name, text in FILES.items():
            (group / name).write_text(text)
    container = SimpleNamespace(top=tmp_path, policy=Policy("p"))
    made = SimpleNamespace(
        container=container, cgroup=Cgroup(path), held_s=0.0, held_since=None, spared_until=0.0, ended=None,
        grant=SimpleNamespace(pids=100, priority="normal"), zombies=0, raised=0, refused=False, can_be_refused=False,
        crowded_out=False, age_s=0.0,
    )  # fmt: skip
    made.note_zombies = lambda: setattr(made, "zombies", made.zombies + 1)
    made.raise_oom_scores = lambda: setattr(made, "raised", made.raised + 1)
    made.put = lambda name, text, up=0: (path, *path.parents)[up].joinpath(name).write_text(f"{text}\n")
    return made


def stall(call: Any, seconds: float) -> None:
    """All its tasks have waited for memory for so long in sum."""
    line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={int(seconds * 1e6)}"
    call.put("memory.pressure", f"some {line}\nfull {line}")


def strain(call: Any) -> Strain:
    """After a first look at the moment 0."""
    found = Strain()
    found.looked = -0.5
    found.look(call, 0.0)
    return found


def test_half_of_the_time_without_progress_is_a_stall(call: Any) -> None:
    found = strain(call)
    stall(call, 0.2)
    assert found.look(call, 0.5) and not found.stalled and not found.waited
    stall(call, 0.5)
    assert not found.look(call, 1.0) and found.stalled and found.waited[found.level] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("full", "level"),
    [
        ({"memory.max": 0}, 0),
        ({"memory.high": 1}, 1),
        ({"memory.max": 2}, 2),
        ({"memory.max": 4}, 4),
        ({}, 0),
        ({"memory.high": 1, "memory.max": 0}, 0),
    ],
)
def test_the_lowest_cgroup_that_is_full_makes_it_wait(call: Any, full: dict[str, int], level: int) -> None:
    """0 is the call itself, 1 calls/, 2 our subtree, 3 the container, 4 a slice."""
    found = strain(call)
    for limit, up in full.items():
        call.put(limit, 100 * MIB, up)
        call.put("memory.current", 99 * MIB, up)
    stall(call, 0.5)
    found.look(call, 0.5)
    assert found.level == str((Path(call.cgroup.path), *Path(call.cgroup.path).parents)[level])


def test_the_level_is_remembered_while_a_throttled_task_sleeps_on(call: Any) -> None:
    found = strain(call)
    call.put("memory.high", 100 * MIB, 1)
    call.put("memory.current", 101 * MIB, 1)
    stall(call, 0.5)
    found.look(call, 0.5)
    call.put("memory.current", 50 * MIB, 1)
    stall(call, 1.0)
    found.look(call, 1.0)
    assert found.level.endswith("/calls")


def test_the_host_makes_it_wait_only_when_the_host_is_short(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that thrashes below its own limits is no reason to hold those of other containers."""
    stalls = [7]
    monkeypatch.setattr("agentcgroup.enforce._host_stalls", lambda: stalls[0])
    found = strain(call)
    for number, (count, level) in enumerate([(7, call.cgroup.path), (7, call.cgroup.path), (9, call.container.top)], 1):
        stalls[0] = count
        stall(call, 0.5 * number)
        found.look(call, 0.5 * number)
        assert found.level == str(level), number


def test_what_waits_at_one_limit_is_not_late_at_another(call: Any) -> None:
    found = strain(call)
    call.put("memory.max", 100 * MIB)
    call.put("memory.current", 99 * MIB)
    stall(call, 30.0)
    found.look(call, 30.0)
    own, above = (found.standing(call, 30.0, str(p)) for p in (call.cgroup.path, Path(call.cgroup.path).parent))
    assert (own.late, own.stalled) == (True, True)
    assert (above.late, above.stalled, above.waited) == (False, False, 0.0)


def test_an_episode_ends_with_some_calm_looks(call: Any) -> None:
    found = strain(call)
    stall(call, 0.5)
    found.look(call, 0.5)
    calm = [found.look(call, 1.0 + look / 2) for look in range(CALM_LOOKS)]
    assert calm == [False] * (CALM_LOOKS - 1) + [True] and (found.waited, found.level) == ({}, "")


def test_held_time_counts_as_waited(call: Any) -> None:
    found = strain(call)
    call.held_s, call.held_at = 0.5, "/calls"
    assert not found.look(call, 0.5) and found.waited == {"/calls": 0.5} and not found.stalled


def test_a_call_that_neither_charges_nor_runs_is_idle(call: Any) -> None:
    found = strain(call)
    for now, file, text, idle in (
        (0.5, "memory.current", 8 * MIB, False),
        (2.0, "cpu.stat", "usage_usec 500000", False),
        (3.9, "cpu.stat", "usage_usec 510000", False),
        (4.1, "cpu.stat", "usage_usec 511000", True),
        (4.6, "memory.current", 9 * MIB, False),
    ):
        call.put(file, text)
        found.look(call, now)
        assert found.standing(call, now, "").idle is idle, now


def test_gained_and_refused_processes_are_the_fork_rate(call: Any) -> None:
    found = strain(call)
    call.put("pids.current", 61)
    call.put("pids.events", "max 40")
    assert not found.look(call, 0.5)
    assert (found.fork_rate, found.denied_seen, call.zombies) == (101.0, 40, 1)
    assert found.look(call, 1.0) and found.fork_rate == 100.0
    assert found.look(call, 1.5) and found.fork_rate == 0.0


def test_a_burst_is_no_storm_and_half_of_it_again_and_again_is(call: Any) -> None:
    """A JVM starts its threads at once, which is less than 500 a second; a storm of 600 a second is found."""
    found = strain(call)
    call.put("pids.current", 400)
    found.look(call, 0.001)
    assert found.fork_rate == 400.0
    for half in range(1, 4):
        call.put("pids.current", 400 + 300 * half)
        found.look(call, 10 + half * 0.5)
    assert found.fork_rate == 600.0


def test_what_an_adopted_call_did_before_is_not_held_against_it(call: Any) -> None:
    stall(call, 600.0)
    call.put("pids.current", 900)
    call.put("pids.events", "max 100")
    found = Strain()
    found.adopt(call)
    found.looked = -0.5
    found.look(call, 0.0)
    assert (found.stalled, found.waited, found.fork_rate) == (False, {}, 0.0)


def test_oom_scores_are_looked_at_once(call: Any) -> None:
    found = strain(call)
    found.look(call, 0.5)
    assert call.raised == 1
