"""Memory that is shared, by containers in one slice and by the calls of one container: who comes last is held before it
runs out, nobody is killed, nobody waits for ever, and all of it is told.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import fleet
import pytest
import service
from agentcgroup.units import format_bytes
from podman import Container, Engine, run, set_policy, wait_for

DEADLINE = 30.0


@pytest.fixture(scope="module", autouse=True)
def budget(daemon: None) -> Iterator[None]:
    fleet.policies(fleet.SMALL, f"{DEADLINE:.0f}s")
    with fleet.budget(fleet.SMALL.budget):
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    path = Path("/var/tmp/agentcgroup-test-shared")  # /run is noexec, and git has a hook
    path.mkdir(exist_ok=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def three(budget: None, file_engine: Engine, shared: Path) -> fleet.Fleet:
    return fleet.start(file_engine, fleet.SMALL, f"--volume={shared}:/shared")


def steps(box: Container) -> list[str]:
    """What was done to its latest call."""
    return [step["step"] for step in box.ledger()[-1]["steps"]]


def test_together_too_large_all_finish_and_nobody_is_killed(three: fleet.Fleet) -> None:
    kills = fleet.oom_kills()
    first, *batch = [call.result() for call in three.all_at_once()]
    assert (first.rc, first.out, first.feedback) == (0, f"{three.load.interactive}\n", []), first
    for result, box in zip(batch, three.containers[1:], strict=True):
        assert (result.rc, result.out) == (0, f"{three.load.batch}\n"), result
        record = box.settled(1)[-1]
        hold, release = record["steps"][:2]
        assert (hold["step"], release["step"], hold["budget"]) == ("hold", "release", fleet.SLICE)
        assert hold["limit"] == three.load.budget * fleet.MIB
        assert hold["lag_s"] > 0
        assert hold["used"] + hold["claimed"] > hold["limit"] * 15 / 16
        assert abs(record["held_s"] - (release["at_s"] - hold["at_s"])) < 0.5
        assert "s held for other containers. Peak 1" in result.feedback[0]
        assert f"had {format_bytes(hold['used'])} of 360 MiB in use, and " in result.feedback[1]
    assert fleet.oom_kills() == kills


def test_a_limit_that_is_moved_later_counts(three: fleet.Fleet) -> None:
    limit = fleet.GROUP / "memory.max"
    limit.write_text("4G")
    assert three.containers[0].call("true").rc == 0
    time.sleep(1)  # for which limits are taken to be fresh
    assert three.containers[0].call("true").rc == 0
    limit.write_text(f"{three.load.budget}M")
    kills = fleet.oom_kills()
    assert [call.result().rc for call in three.all_at_once()] == [0, 0, 0]
    assert fleet.oom_kills() == kills


#: Takes so many MiB, some each second, and computes until it is told to end.
RISE = """
import os, time
blocks = []
while len(blocks) < {mib}:
    blocks.append(b"x" * (1 << 20))
    time.sleep({pace})
while not os.path.exists("/shared/end"):
    sum(range(10000))
"""


def frozen(box: Container) -> bool:
    """Whether its largest call is."""
    groups = [group for group in (box.tree / "calls").iterdir() if (group / "memory.current").exists()]
    largest = max(groups, key=lambda group: int((group / "memory.current").read_text()))
    return (largest / "cgroup.freeze").read_text() == "1\n"


def test_who_comes_to_the_end_of_the_room_makes_way_for_the_largest_that_waits(
    three: fleet.Fleet, shared: Path
) -> None:
    """Else the smaller of two that would fit one after the other takes what is left, and one of them is killed."""
    _, large, small = three.containers
    kills, known = fleet.oom_kills(), (len(large.ledger()), len(small.ledger()))
    first = large.background(f"python3 -c '{RISE.format(mib=170, pace=0)}'")
    wait_for(lambda: int((large.tree / "calls/memory.current").read_text()) > 170 * fleet.MIB, 30, "the large call")
    second = small.background(f"python3 -c '{RISE.format(mib=200, pace=0.05)}'")
    wait_for(lambda: frozen(large), 60, "the large call is held")
    wait_for(lambda: frozen(small) and not frozen(large), 30, "they change places")
    (shared / "end").touch()
    assert (first.result().rc, second.result().rc) == (0, 0)
    for box, before in zip((large, small), known, strict=True):
        done = [step["step"] for step in box.settled(before + 1)[-1]["steps"]]
        assert done[:2] == ["hold", "release"], done
    assert fleet.oom_kills() == kills


#: What the batch call does around its growth, and what the interactive call does after a while.
LOCKS = {
    "flock": ("exec 9>/shared/lock; flock 9; {grow}", "flock /shared/lock echo got it"),
    "pipe": ("{grow} >/shared/pipe", "cat <&8; echo got it"),
    "index.lock": (
        "cd /shared/repository; git commit -qam 1 --allow-empty",
        "cd /shared/repository; until git add .; do sleep 1; done; echo got it",
    ),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_who_waits_for_something_that_the_held_has_gets_it(three: fleet.Fleet, shared: Path, kind: str) -> None:
    """The batch call is held for the interactive one, and that comes to wait for the batch call."""
    interactive, batch, _ = three.containers
    if kind == "pipe":
        run("mkfifo", str(shared / "pipe"))
    if kind == "index.lock":
        batch.call("git init -q /shared/repository && git -C /shared/repository config user.email a@b.c")
        hook = shared / "repository/.git/hooks/pre-commit"
        hook.write_text(f"#!/bin/sh\n{fleet.hog(250)}\n")
        hook.chmod(0o755)
    first, others = LOCKS[kind]
    known = len(batch.ledger())
    holder = batch.background(first.format(grow=fleet.hog(250)))
    opened = "exec 8</shared/pipe; " if kind == "pipe" else ""  # else the writer never starts
    waiter = interactive.call(f"{opened}{fleet.busy(15)}; {others}")
    assert waiter.rc == 0 and waiter.out.endswith("got it\n"), waiter
    assert holder.result().rc == 0, holder.result()
    record = batch.settled(known + 1)[-1]
    assert "hold" in steps(batch) and record["held_s"] < DEADLINE + 5, record


def test_a_container_that_is_only_observed_is_not_held_and_the_record_says_that_it_would(
    three: fleet.Fleet, engine: Engine
) -> None:
    set_policy("fleet-observed", json.dumps({"mode": "observe", "priority": "batch"}))
    box = engine.start(f"--cgroup-parent={fleet.SLICE}", policy="fleet-observed")
    beside = three.containers[0].background(fleet.busy(20))
    result = box.call(fleet.hog(200))
    assert (result.rc, result.feedback) == (0, [])
    record = box.settled(1)[-1]
    assert (record["held_s"], record["steps"]) == (0, [])
    [phrase] = record["would"]
    assert re.fullmatch(
        r"held: [\d.]+ MiB in use by agentcgroup.slice are too near the limit 360 MiB,"
        r" [\d.]+ MiB of which others were promised",
        phrase,
    )
    assert beside.result().rc == 0


def test_calls_of_one_container_give_way_to_each_other_by_what_they_declare(engine: Engine) -> None:
    policy = {
        "memory": {"max": "300M", "swap_max": 0, "agent_min": "16M"},
        "call": {"memory": dict.fromkeys(fleet.EACH, "250M"), "stall_deadline": f"{DEADLINE:.0f}s"},
    }
    set_policy("fleet-inside", json.dumps(policy))
    box = engine.start(policy="fleet-inside")
    last = box.background(fleet.hog(170), env={"AGENT_RESOURCE_HINT": "priority:batch"})
    first = box.call(fleet.hog(140), env={"AGENT_RESOURCE_HINT": "memory:160m"})
    assert (first.rc, first.out, first.feedback) == (0, "140\n", [])
    assert (last.result().rc, last.result().out) == (0, "170\n")
    told = "\n".join(last.result().feedback)
    assert "held for other calls" in told and "the calls of this container had" in told
    kills = (box.tree / "memory.events").read_text().splitlines()
    assert "oom_kill 0" in kills


def test_a_call_that_asked_for_it_is_refused_memory_and_not_killed(engine: Engine) -> None:
    ladder = ["throttle", "hold", "enomem", "end"]
    policy = {"call": {"memory": dict.fromkeys(fleet.EACH, "128M"), "on_pressure": ladder}}
    set_policy("fleet-enomem", json.dumps(policy))
    box = engine.start(policy="fleet-enomem")
    text = "try: bytearray(400 << 20)\nexcept MemoryError: print(1)"
    result = box.call(f"python3 -c '{text}'; echo went on")
    assert (result.rc, result.out) == (0, "1\nwent on\n"), result
    assert re.search(
        r"was refused memory (once|\d times) \(ENOMEM\)\. Peak [\d.]+ MiB, limit 128 MiB", result.feedback[0]
    )
    record = box.settled(1)[-1]
    assert (record["oom_kills"], record["result"]) == (0, "ok") and record["refusals"] > 0


def is_held(box: Container) -> bool:
    """Whether a call of it is."""
    return any(row["held"] for row in service.calls(box.id))


def oom_scores(box: Container) -> set[int]:
    """Of the processes of its calls."""
    pids = [pid for path in (box.tree / "calls").glob("[0-9]*/cgroup.procs") for pid in path.read_text().split()]
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found.add(int(Path(f"/proc/{pid}/oom_score_adj").read_text()))
    return found


def test_a_killed_daemon_leaves_nobody_held(three: fleet.Fleet) -> None:
    interactive, batch, _ = three.containers
    known = len(batch.ledger())
    holder = batch.background(fleet.hog(250))
    beside = interactive.background(fleet.busy(20))
    wait_for(lambda: is_held(batch), 10, "the hold")
    assert oom_scores(batch) == {750}
    service.kill()
    while holder.running:  # the next daemon lets it go on, and may hold it again
        held, scores = is_held(batch), oom_scores(batch)
        assert held or is_held(batch) or scores <= {500}, scores
    assert (holder.result().rc, beside.result().rc) == (0, 0)
    assert batch.settled(known + 1)[-1]["result"] in ("ok", "unknown")  # nobody told the next daemon how it ended
