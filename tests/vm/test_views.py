"""What an operator looks at: events as they happen, the table of what is at work, a report; all of a real container."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from podman import CGROUPFS, POLICIES, SLOW, Container, Engine, fill, run, set_policy, wait_for

MIB = 1 << 20
LEDGER = Path("/var/log/agentcgroup/calls.jsonl")
HOSTILE = "<script>alert(1)</script>"


def await_record(text: str) -> None:
    """Until there is one with that text."""
    wait_for(lambda: LEDGER.exists() and text in LEDGER.read_text(), 10, f"the record with {text}")


class Following:
    """`agentcgroup events --follow`, and the file that it writes."""

    def __init__(self, output: Path) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                ["agentcgroup", "events", "--follow", "--json"], stdout=file, stderr=subprocess.PIPE, text=True
            )
        wait_for(self.children, 10, "journalctl")

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def events(self, box: Container, call: int | None, name: str = "viewed") -> dict[str, str]:
        """Kind and text of what was told so far of a call of the container, or of the container itself."""
        whole = map(json.loads, self.output.read_text().split("\n")[:-1])
        found = [event for event in whole if event["container"] == box.id and event["call"] == call]
        assert all(event["name"] == name for event in found), found
        return {event["kind"]: event["text"] for event in found}

    def await_event(self, box: Container, call: int | None, kind: str, name: str = "viewed") -> dict[str, str]:
        """The same, once there is one of that kind."""
        wait_for(lambda: kind in self.events(box, call, name), 10, lambda: f"{kind}: {self.events(box, call, name)}")
        return self.events(box, call, name)


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Following]:
    """From before the container is there."""
    found = Following(tmp_path_factory.mktemp("events") / "events")
    yield found
    if found.process.poll() is None:
        found.process.kill()
        found.process.wait()


@pytest.fixture(scope="module")
def box(following: Following, file_engine: Engine) -> Container:
    set_policy("views", (POLICIES / "test.yaml").read_text() + "records: {command: full}\n")
    return file_engine.start("--name=viewed", policy="views")


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_are_told_as_they_happen(following: Following, box: Container) -> None:
    assert following.await_event(box, None, "start") == {"start": "container viewed is governed, policy views"}
    killed = box.call(fill(300), env={"AGENT_RESOURCE_HINT": "memory:128m"}).number
    found = following.await_event(box, killed, "feedback")
    assert found["hint"] == "memory:128m"
    assert re.search(r"ended for memory, peak 12[78](\.\d)? MiB, limit 128 MiB \(hint 128m\), ", found["call"]), found
    assert found["feedback"].startswith(f"Call {killed} was ended: out of memory.") and "Next:" not in found["feedback"]


def test_an_escape_is_an_event(following: Following, box: Container) -> None:
    outside, call = CGROUPFS / "escaped", box.hold()
    pid = int((call.directory / "cgroup.procs").read_text().split()[0])
    outside.mkdir()
    try:
        (outside / "cgroup.procs").write_text(str(pid))
        found = following.await_event(box, None, "escape")
    finally:
        (call.directory / "cgroup.procs").write_text(str(pid))
        call.finish()
        outside.rmdir()
    assert f"viewed: process {pid} (" in found["escape"]


def test_the_end_of_a_container_is_an_event(following: Following, box: Container, file_engine: Engine) -> None:
    short = file_engine.run("--name=short", command=("sleep", "0.1"))
    found = following.await_event(short, None, "stop", "short")
    assert found == {"start": "container short is governed, policy test", "stop": "container short has ended"}


def test_none_is_lost_or_told_twice_when_the_ledger_is_rotated(following: Following, box: Container) -> None:
    """Half of the records are written to a file that has been moved before `events` looks again."""

    def call(status: int) -> None:
        box.call(f"exit {status}")
        await_record(f'"exit":{status},')

    for number in (3, 2, 1):
        call(40 + number)
        following.process.send_signal(signal.SIGSTOP)
        call(50 + number)
        LEDGER.rename(LEDGER.with_name(f"{LEDGER.name}.{number}"))
        call(60 + number)
        following.process.send_signal(signal.SIGCONT)
    expected = [str(tens + number) for number in (3, 2, 1) for tens in (40, 50, 60)]

    def told() -> list[str]:
        return re.findall(r"exited with ([456][123]),", following.output.read_text())

    wait_for(lambda: len(told()) >= len(expected), 10, told)
    assert told() == expected


def test_following_ends_on_an_interrupt_and_takes_journalctl_along(following: Following, box: Container) -> None:
    [journalctl] = following.children()
    following.process.send_signal(signal.SIGINT)
    assert following.process.wait(60) == 0 and following.process.stderr is not None
    assert following.process.stderr.read() == ""
    assert not Path(f"/proc/{journalctl}").exists()


def test_what_was_is_listed_in_order_with_the_start_of_its_container(box: Container) -> None:
    lines = run("agentcgroup", "events", "--since=1h", "viewed").stdout.splitlines()
    order = [re.search(r"  viewed(?:/\d+)?  (\w+): ", line) for line in lines]
    kinds = [found[1] for found in order if found]
    assert len(kinds) == len(lines) and kinds[0] == "start" and "escape" in kinds, lines


# --- top --------------------------------------------------------------------------------------------------------------


def test_top_shows_what_is_at_work(box: Container) -> None:
    spinning = box.background("while test ! -e /agent/stop; do :; done")
    done = run("agentcgroup", "top", "-n", "2", "-d", "1", "--sort", "cpu")
    title, header, container, call = done.stdout.rstrip("\n").split("\n\n")[-1].splitlines()
    assert re.match(r"agentcgroup top  \d\d:\d\d:\d\d  1 containers, 1 calls, by cpu$", title)
    assert header.split() == ["CONTAINER", "CALL", "COMMAND", "MEMORY", "LIMIT", "PRESSURE", "CPU", "AGE", "STATE"]
    assert re.match(r"viewed +[\d.]+ MiB +1 GiB +\d+% +\d+% +[\d.]+ m?s +1 call$", container), container
    found = re.match(r" +\d+ +\S+ +[\d.]+ [KM]iB +256 MiB +\d+% +(\d+)% +[\d.]+ m?s +running$", call)
    assert found and int(found[1]) > 5, call
    (box.agent / "stop").touch()
    spinning.result()


def test_top_on_a_terminal_ends_on_q_and_leaves_it_as_it_was(box: Container) -> None:
    ours, theirs = pty.openpty()
    top = subprocess.Popen(["agentcgroup", "top", "-d", "0.5"], stdin=theirs, stdout=theirs, stderr=theirs)
    said, pressed, end = b"", 0, time.monotonic() + 60
    while top.poll() is None or select.select([ours], [], [], 0)[0]:
        assert time.monotonic() < end, said
        if select.select([ours], [], [], 0.1)[0]:
            said += os.read(ours, 65536)
        if not pressed and b"viewed" in said and b"AGE" in said:
            pressed = os.write(ours, b"q")
    os.close(ours)
    os.close(theirs)
    assert top.returncode == 0
    assert b"\x1b[?1049h" in said and said.endswith(b"\x1b[?1049l"), said


# --- records and report -----------------------------------------------------------------------------------------------


def test_a_record_has_the_calls_memory_over_time(box: Container) -> None:
    box.call(f"{fill(100, 6)} # the long one")
    box.call("exit 77")
    await_record('"exit":77,')
    long, short = box.ledger()[-2:]
    points = long["profile"]
    assert short["profile"] == [] or short["duration_s"] > 0.5
    assert 3 <= len(points) <= 32 and points == sorted(points)
    assert 100 * MIB <= max(size for _, size, _ in points) <= long["peak_bytes"]
    assert points[-1][0] <= 1000 * (long["duration_s"] + SLOW)


def test_a_report_is_one_harmless_file(box: Container, tmp_path: Path) -> None:
    box.call(f"'{HOSTILE}'; sleep {0.2 * SLOW}")
    await_record(HOSTILE)
    output = tmp_path / "report.html"
    done = run("agentcgroup", "report", "viewed", "--output", str(output))
    found: Any = re.fullmatch(rf"{output}: (\d+) calls\n", done.stdout)
    assert found and int(found[1]) > 9
    html = output.read_text()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert html.count("<figure>") >= 2 and "extends: views" in html and "was ended: out of memory" in html
    assert output.stat().st_mode & 0o777 == 0o600
    policy = re.search(r"<pre>(.*?)</pre>", html, re.DOTALL)
    assert policy is not None
    fitted = tmp_path / "fitted.yaml"
    fitted.write_text(policy[1].replace("&#x27;", "'"))
    assert run("agentcgroup", "policy", "check", str(fitted)).stdout == f"{fitted}: ok\n"
