"""Where calls spend their time, counted in the kernel by `agentcgroup trace` while it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from podman import SLOW, Container, Engine, run, wait_for

#: 16384 faults, 1000 getsid and 2 s asleep; 15 is MADV_NOHUGEPAGE (sys/mman.h), for a huge page is one fault.
WORK = """python3 -c '
import mmap, os, time
pages = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages.madvise(15)
for at in range(0, len(pages), 4096):
    pages[at] = 1
for _ in range(1000):
    os.getsid(0)
time.sleep(2)
'"""
COMPILES_S = 12 * SLOW


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start("--annotation=agentcgroup.name=trace-box")


@pytest.fixture
def unloaded() -> Iterator[list[int]]:
    """What is loaded before the tracer; nothing of it stays in the kernel."""
    before = programs()
    yield before
    wait_for(lambda: programs() == before, 5, "the kernel without the tracer")


def programs() -> list[int]:
    """What is loaded of the kinds that the tracer has; the engine's are of others."""
    kinds = ("tracepoint", "raw_tracepoint", "tracing")
    loaded = json.loads(run("bpftool", "-j", "prog", "show").stdout)
    return [program["id"] for program in loaded if program["type"] in kinds]


@contextmanager
def tracing(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """`agentcgroup trace` at work; it has ended when the block is left."""
    command = ["agentcgroup", "trace", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        watchdog = signal.signal(signal.SIGALRM, lambda *_: tracer.kill())
        signal.alarm(int(COMPILES_S))
        try:
            assert tracer.stderr is not None
            line = tracer.stderr.readline()
            assert line.startswith("agentcgroup: tracing for "), line + tracer.stderr.read()
            yield tracer
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, watchdog)
            tracer.kill()


def ended(tracer: subprocess.Popen[str], number: signal.Signals) -> dict[str, Any]:
    """What it has seen until it is told to end."""
    tracer.send_signal(number)
    out, err = tracer.communicate(timeout=10 * SLOW)
    assert (tracer.returncode, err) == (0, "")
    return json.loads(out)


def syscalls(call: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {one["name"]: (one["count"], one["seconds"]) for one in call["syscalls"]}


def test_faults_waits_and_syscalls_of_a_call_that_begins_meanwhile(
    box: Container, file_engine: Engine, unloaded: list[int]
) -> None:
    other = file_engine.start()
    before = len(box.ledger())
    with tracing(box.id, "--json", "--seconds=1000") as tracer:
        assert len(programs()) == len(unloaded) + 6
        other.call(WORK)
        assert box.call(WORK).rc == 0
        [record] = box.settled(before + 1)[before:]
        found = ended(tracer, signal.SIGINT)
    assert (found["container"], found["lost"]) == (box.id, 0)
    [call] = found["calls"]
    made = syscalls(call)
    assert call["call"] == record["number"]
    assert 16384 <= call["faults"] < 16384 + 8000
    assert 0 < call["fault_s"] < record["duration_s"]
    assert 2 <= call["blocked_s"] <= call["off_cpu_s"] < record["duration_s"] * 2
    assert made["getsid"][0] == 1000 and made["getsid"][1] < 2 * SLOW
    assert made["clock_nanosleep"][0] == 1 and made["clock_nanosleep"][1] >= 2
    assert call["syscalls"] == sorted(call["syscalls"], key=lambda one: -one["seconds"])


def test_one_call_that_waits_all_the_time(box: Container, unloaded: list[int]) -> None:
    held, beside = box.hold(), box.hold()
    number = int(held.directory.name)
    with tracing(box.id, "--call", str(number), "--json", "--seconds=1000") as tracer:
        beside.finish()
        box.call("sleep 2")
        found = ended(tracer, signal.SIGTERM)
    held.finish()
    [call] = found["calls"]
    assert call["call"] == number and found["seconds"] > 2
    count, seconds = syscalls(call)["read"]
    assert (call["faults"], count) == (0, 1)
    assert call["blocked_s"] == call["off_cpu_s"] == pytest.approx(found["seconds"], rel=0.01)
    assert seconds == pytest.approx(found["seconds"], rel=0.01)


def test_the_time_over_it_ends_and_people_read_it(box: Container, unloaded: list[int]) -> None:
    held = box.hold()
    with tracing("trace-box", "--seconds=1") as tracer:
        out, err = tracer.communicate(timeout=10 * SLOW)
    held.finish()
    assert (tracer.returncode, err) == (0, "")
    assert re.search(
        rf"^call {held.directory.name} of trace-box, in 1(\.\d)? s\n  faults   0 in 0 s\n"
        r"  off CPU  1(\.\d)? s: 1(\.\d)? s blocked, 0 s waiting for a CPU\n  syscalls read: 1 in 1(\.\d)? s$",
        out,
        re.MULTILINE,
    ), out


def test_without_headers_their_package_is_named(box: Container, unloaded: list[int]) -> None:
    hidden = "mount -t tmpfs none /usr/src && exec agentcgroup trace trace-box"
    done = run("unshare", "--mount", "sh", "-c", hidden, check=False)
    release = os.uname().release
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "agentcgroup: the headers of the running kernel are missing: "
        f"install linux-headers-{release} (Debian) or kernel-devel-{release} (Fedora, RHEL)\n"
    )


def test_a_call_that_does_not_run_and_a_user_who_may_not(box: Container) -> None:
    done = run("agentcgroup", "trace", "trace-box", "--call", "99999", check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "agentcgroup: trace-box has no call 99999 now: agentcgroup calls trace-box lists those that run\n",
    )
    done = run("runuser", "-u", "agent", "--", "agentcgroup", "trace", "trace-box", check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "agentcgroup: agentcgroup trace puts programs into the kernel: run this as root\n",
    )
