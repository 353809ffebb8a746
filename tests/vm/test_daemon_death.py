"""The daemon may die at any instant: calls go on under their limits, new ones run in calls/fallback, and the next
daemon takes over what lives and sweeps what is dead. The tests share one container and go on from each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import pytest
import service
from churn import come_to_rest
from podman import Background, Container, Engine, run, wait_for

POLICIES = Path("/etc/agentcgroup/policies.d")
CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
RUN = Path("/run/agentcgroup")
MIB = 1 << 20
HELD = 20
WHERE = "cat /proc/self/cgroup"
POLICY = """\
description: what the reload test changes
memory: {{max: 1G, swap_max: 0, agent_min: 64M}}
call:
  memory: {{low: 64M, default: {default}, medium: 384M, high: 512M, max: 640M}}
"""


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    (POLICIES / "changing.yaml").write_text(POLICY.format(default="256M"))
    run("systemctl", "reload", "agentcgroupd")
    return file_engine.start(policy="changing")


@pytest.fixture(autouse=True)
def alive():
    """Whatever a test did to it, the next one finds a daemon."""
    yield
    service.start()


def gated(box: Container, status: int, hint: str = "") -> Background:
    """A call that writes down its cgroup and waits for `release`, then exits with `status`."""
    name = f"/agent/gate.{status}"
    return box.background(f"{hint} cat /proc/self/cgroup >{name}.cgroup; read _ <{name}; exit {status}")


def cgroups(box: Container, count: int) -> list[Path]:
    """Where the gated calls run on the host, in the order of their statuses."""
    files = [box.agent / f"gate.{status}.cgroup" for status in range(1, count + 1)]
    wait_for(lambda: all(f.exists() and f.stat().st_size for f in files), 30, f"{count} calls to start")
    return [box.tree / f.read_text().strip().removeprefix("0::/agentcgroup/") for f in files]


def release(box: Container, count: int) -> None:
    for status in range(1, count + 1):
        with open(box.agent / f"gate.{status}", "w"):
            pass


def numbers(box: Container) -> list[int]:
    return [entry["number"] for entry in box.ledger()]


def test_twenty_calls_outlive_a_killed_daemon_and_the_next_one_takes_them_over(box: Container) -> None:
    agent = box.call("true").pid
    for status in range(1, HELD + 1):
        os.mkfifo(box.agent / f"gate.{status}")
    began = time.monotonic()
    running = [gated(box, s, "AGENT_RESOURCE_HINT=memory:medium" if s == 1 else "") for s in range(1, HELD + 1)]
    directories = cgroups(box, HELD)
    assert len(set(directories)) == HELD
    limits = [(d / "memory.max").read_text() for d in directories]
    assert limits == [f"{384 * MIB}\n", *[f"{256 * MIB}\n"] * (HELD - 1)]
    (directories[4] / "cgroup.freeze").write_text("1")

    service.kill()

    assert [(d / "memory.max").read_text() for d in directories] == limits
    rows = {row["call"]: row for row in service.calls(box.id)}
    assert sorted(rows) == sorted(int(d.name) for d in directories)
    assert {row["command"] for row in rows.values()} == {"cat"}
    assert rows[int(directories[0].name)]["limit"] == 384 * MIB
    assert "frozen 0" in (directories[4] / "cgroup.events").read_text()
    release(box, HELD)
    assert [call.result().rc for call in running] == list(range(1, HELD + 1))
    box.settled(HELD + 1)
    lasted = time.monotonic() - began
    wait_for(lambda: not [d for d in directories if d.exists()], 20, "the calls' directories to go")
    records = [entry for entry in box.ledger() if entry["number"] in rows]
    assert len(records) == HELD
    assert all(0 < entry["duration_s"] <= lasted for entry in records)
    assert max(entry["duration_s"] for entry in records) > lasted / 3  # the time before the daemon's death counts
    last = max(rows)
    assert box.call("true").pid == agent
    assert box.settled(HELD + 2)[-1]["number"] > last
    assert len(set(numbers(box))) == len(numbers(box))


def test_without_a_daemon_a_call_runs_limited_in_fallback(box: Container) -> None:
    service.stop()
    result = box.call(f"{WHERE}; exit 4")
    assert (result.rc, result.out, result.err) == (4, "0::/agentcgroup/calls/fallback\n", "")
    fallback = box.tree / "calls/fallback"
    assert (fallback / "memory.max").read_text() == f"{256 * MIB}\n"
    assert (fallback / "memory.oom.group").read_text() == "1\n"
    hog = box.call("python3 -c 'b = bytearray(400 << 20)'; echo survived")
    assert (hog.rc, hog.out) == (-9, "")
    assert box.call("echo alive").out == "alive\n"


def test_with_a_daemon_that_does_not_answer_a_call_waits_no_longer_than_the_ack_time(box: Container) -> None:
    known = numbers(box)
    with service.late():
        asking = box.call(WHERE, env={"AGENT_RESOURCE_HINT": "memory:low"})
        with_ticket = [box.call(f"{WHERE}; : {i}") for i in range(9)]
    assert asking.out == "0::/agentcgroup/calls/fallback\n"
    assert 2 <= asking.seconds < 2 + 20  # ack_ms is 2000 here
    places = [re.sub(r"\d+", "N", r.out.strip().rpartition("/")[2]) for r in with_ticket]
    assert places == ["N"] * 8 + ["fallback"]
    numbered = [int(r.out.strip().rpartition("/")[2]) for r in with_ticket[:8]]
    wait_for(lambda: set(numbered) <= set(numbers(box)), 20, "records of the calls that it missed")
    assert sorted(set(numbers(box)) - set(known)) == sorted(numbered)
    assert service.calls(box.id) == []


def test_a_container_that_starts_and_one_that_ends_without_a_daemon(file_engine: Engine, box: Container) -> None:
    service.stop()
    late = file_engine.start()
    assert late.record["registered"] is False
    assert late.call(WHERE).out == "0::/agentcgroup/calls/fallback\n"

    service.start()
    wait_for(lambda: late.record["registered"], 10, "the container to be adopted")
    assert (late.tree / "calls/fallback/memory.max").read_text() == f"{256 * MIB}\n"
    result = late.call(WHERE)
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", result.out), result

    service.stop(socket_too=False)
    late.podman("rm", "-f", "-t", "0", late.id)  # poststop starts the daemon by its socket
    wait_for(service.answers, 20, "the daemon that the hook has started")
    wait_for(lambda: not (RUN / "c" / late.id).exists(), 10, "the dead container to be swept")
    assert not (RUN / "containers" / f"{late.id}.json").exists()
    assert service.governs(box.id) and not service.governs(late.id)


def test_a_container_that_ended_without_a_daemon_and_without_a_word_is_swept(file_engine: Engine) -> None:
    dead = file_engine.start()
    service.stop()
    dead.podman("rm", "-f", "-t", "0", dead.id)
    assert (RUN / "c" / dead.id).exists() and (RUN / "containers" / f"{dead.id}.json").exists()
    service.start()
    assert not (RUN / "c" / dead.id).exists()
    assert not (RUN / "containers" / f"{dead.id}.json").exists()


def test_a_container_whose_hook_starts_the_daemon_is_governed(file_engine: Engine) -> None:
    """The socket holds the hook's question, but a start may take longer than the hook has time."""
    service.stop(socket_too=False)
    first = file_engine.start()
    wait_for(lambda: service.governs(first.id), 20, "the container to be governed")
    assert first.record["registered"] is True
    result = first.call(WHERE)
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", result.out), result
    assert (first.tree / "calls/fallback/memory.max").read_text() == f"{256 * MIB}\n"


def default_limits(box: Container) -> set[int]:
    """memory.max of fallback and of the directories that wait for calls."""
    found = set()
    for path in (box.tree / "calls").glob("*/memory.max"):
        with contextlib.suppress(OSError):  # it is removed just now
            found.add(int(path.read_text()))
    return found


def test_a_reload_takes_a_changed_policy_and_leaves_running_calls_alone(box: Container) -> None:
    for name in ("gate.1", "gate.1.cgroup"):
        (box.agent / name).unlink(missing_ok=True)
    os.mkfifo(box.agent / "gate.1")
    running = gated(box, 1)
    [directory] = cgroups(box, 1)
    before = service.pid()
    (POLICIES / "changing.yaml").write_text(POLICY.format(default="128M"))
    run("systemctl", "reload", "agentcgroupd")
    wait_for(lambda: default_limits(box) == {128 * MIB, 256 * MIB}, 10, "the new limits")
    assert (directory / "memory.max").read_text() == f"{256 * MIB}\n"
    assert '"call_memory_default": 134217728' in (RUN / "c" / box.id / "limits").read_text()
    release(box, 1)
    assert running.result().rc == 1
    wait_for(lambda: default_limits(box) == {128 * MIB}, 10, "the old call to go")
    assert service.pid() == before


def test_a_broken_policy_or_configuration_leaves_the_old_one_in_force(box: Container, journal) -> None:
    before, config = service.pid(), CONFIG.read_text()
    (POLICIES / "changing.yaml").write_text("call: {memory: {default: 12 parsecs}}\n")
    CONFIG.write_text("ack_ms: soon\n")
    try:
        run("systemctl", "reload", "agentcgroupd")
    finally:
        CONFIG.write_text(config)
    wait_for(lambda: "keeps its policy as it was" in journal.text(), 10, "the journal to say so")
    text = journal.text()
    assert "changing.yaml:1: " in text and "agentcgroup.yaml:1: ack_ms: " in text
    assert "the old configuration stays in force" in text
    assert default_limits(box) == {128 * MIB}
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", box.call(WHERE).out)
    assert service.pid() == before
    (POLICIES / "changing.yaml").write_text(POLICY.format(default="256M"))
    run("systemctl", "reload", "agentcgroupd")
    wait_for(lambda: default_limits(box) == {256 * MIB}, 10, "the mended policy")


def test_afterwards_the_daemon_holds_what_it_held_before(box: Container) -> None:
    come_to_rest(box)
    before, kib = service.descriptors(), service.resident_kib()
    for result in [b.result() for b in [box.background(f"exit {i}") for i in range(20)]]:
        assert result.rc is not None
    come_to_rest(box)
    wait_for(lambda: not service.differences(before), 10, lambda: f"open files to go: {service.differences(before)}")
    assert service.resident_kib() < kib + 4096
    assert len(set(numbers(box))) == len(numbers(box))
