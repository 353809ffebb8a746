"""The scheduler of bpf/sched.bpf.c, with a few loads of it in all: CI's emulated CPUs do not bear many."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduling
import service
from agentcgroup.doctor.examine import examine
from agentcgroup.doctor.host import Host
from bpftool import counter, opened
from podman import CGROUPFS, Container, Engine, run, wait_for

SLICE = 20.0  # seconds of work that is measured


@pytest.fixture(scope="module", autouse=True)
def policies(daemon: None) -> Iterator[None]:
    scheduling.policies()
    yield
    scheduling.switch("off")


@pytest.fixture(scope="module")
def boxes(policies: None, file_engine: Engine) -> dict[str, Container]:
    names = ("interactive", "normal", "batch", "heavy")
    return {name: file_engine.start(policy=f"sched-{name}") for name in names}


@pytest.fixture
def partial(policies: None) -> None:
    """It is at work in that mode; loaded once for all who want it."""
    if scheduling.status()[0] != "partial":
        scheduling.switch("partial")


def test_off_is_what_it_is_where_nobody_says_otherwise() -> None:
    assert scheduling.status() == ("off", "") and scheduling.owner() == ""


def test_partial_takes_who_is_nobodys_foreground(boxes: dict[str, Container], engine: Engine) -> None:
    scheduling.switch("partial")
    assert scheduling.owner() == "agentcgroup"
    policy = {name: scheduling.policy_of(box.pid) for name, box in boxes.items()}
    ext = scheduling.EXT
    assert policy == {"interactive": 0, "normal": ext, "batch": ext, "heavy": ext}
    for name, kind in (("interactive", 0), ("batch", ext)):
        call = boxes[name].hold()
        pids = (call.directory / "cgroup.procs").read_text().split()
        assert {scheduling.policy_of(int(pid)) for pid in pids} == {kind}
        assert call.finish().rc == 7
    shown = boxes["batch"].exec("bash", "-c", "sleep 1; grep ^policy /proc/self/sched").stdout
    assert shown.split() == ["policy", ":", f"{ext}"]
    late, limited = engine.start(policy="sched-batch"), engine.start("--cpus=1", policy="sched-batch")
    assert (scheduling.policy_of(late.pid), scheduling.policy_of(limited.pid)) == (ext, 0)


def test_weights_are_kept_whatever_the_number_of_threads(partial: None, boxes: dict[str, Container]) -> None:
    heavy, light = boxes["heavy"], boxes["batch"]
    work = [scheduling.burn(heavy, 2, SLICE + 15), scheduling.burn(light, 6, SLICE + 15)]
    time.sleep(8)
    three, one = scheduling.shares([heavy, light], SLICE)
    assert three / one == pytest.approx(3, rel=0.1)  # bench/sched.py has the figures
    assert [call.result().rc for call in work] == [0, 0]


def test_who_comes_last_is_not_starved(partial: None, boxes: dict[str, Container]) -> None:
    work = [scheduling.burn(boxes["normal"], 2, SLICE + 15), scheduling.burn(boxes["batch"], 1, SLICE + 15)]
    time.sleep(8)
    first, last = scheduling.shares([boxes["normal"], boxes["batch"]], SLICE)
    assert 0.03 < last / (first + last) < 0.15
    assert [call.result().rc for call in work] == [0, 0]


def test_a_killed_daemon_leaves_it_at_work(partial: None, boxes: dict[str, Container]) -> None:
    service.kill()
    assert scheduling.status() == ("partial", "")
    assert boxes["batch"].call("exit 3").rc == 3


def test_small_calls_do_not_renew_an_agents_credit(partial: None, boxes: dict[str, Container], engine: Engine) -> None:
    """Hundreds of small calls of one agent, and then a fresh agent of the same priority: it goes first."""
    old, fresh = boxes["normal"], engine.start(policy="sched-normal")
    now = time.monotonic()
    time.sleep(60 - now % 60)  # the boost
    small = "for i in $(seq 60); do bash -c ': {1..40000}'; done"
    work = [old.background(small), old.background(small)]
    wait_for(lambda: credit(old) > 2, 4, lambda: f"an agent that has used its credit, but it is {credit(old)}")
    assert credit(fresh) < 0.5
    work.append(scheduling.burn(fresh, os.cpu_count() or 1, 5))
    wait_for(lambda: credit(fresh) > 0.5, 4, "the fresh agent to be at work")
    used, was = scheduling.cpu_s(old), credit(fresh)
    wait_for(lambda: credit(fresh) > 1.6, 4, "the fresh agent to have used almost all of its credit")
    assert scheduling.cpu_s(old) - used < (credit(fresh) - was) / 3
    assert [call.result().rc for call in work] == [0, 0, 0]


def credit(box: Container) -> float:
    """CPU seconds by weight that it has used since the last boost."""
    with opened() as kernel:
        share = kernel.slot(box.tree.stat().st_ino).share
        return share.spent_ns / 1e9 if share.window == int(time.monotonic() // 60) else 0.0


# --- who is parked ---------------------------------------------------------------------------------------------------

GROW = "import time; b = [bytearray(1 << 20) for _ in range({mib})]; print(len(b), flush=True); time.sleep({rest})"


@pytest.fixture
def parking(partial: None, boxes: dict[str, Container]) -> Iterator[Container]:
    """Whoever takes memory in this container is parked, once for each decision, and nobody decides."""
    box = boxes["batch"]
    root = box.tree.stat().st_ino
    service.stop()
    with opened() as kernel:
        kernel.watch(root, 4096, 1, park=True)
    yield box
    with opened() as kernel:
        kernel.watch(root, 0, 1)
    service.start()


def again(box: Container) -> None:
    """A decision, after which who was parked goes on."""
    with opened() as kernel:
        kernel.watch(box.tree.stat().st_ino, 4096, 1, park=True)


def test_who_takes_too_much_is_parked_for_a_second_and_goes_on(parking: Container) -> None:
    before, early = counter(parking, "parks"), counter(parking, "early")
    result = parking.call(f"python3 -c '{GROW.format(mib=64, rest=0)}'")
    assert (result.rc, result.out) == (0, "64\n")
    assert counter(parking, "parks") == before + 1
    assert counter(parking, "early") == early
    assert 0 < counter(parking, "park_lag_ns") < 1e9 < result.seconds * 1e9


def test_within_a_container_the_first_call_goes_on(parking: Container) -> None:
    root, fallback = parking.tree.stat().st_ino, (parking.tree / "calls" / "fallback").stat().st_ino
    parks = [counter(parking, "parks")]
    with opened() as kernel:
        kernel.watch(root, 0, 1)
    for first in (fallback, root):
        with opened() as kernel:
            kernel.watch(root, 4096, 0, park=True, first=first)
        assert parking.call(f"python3 -c '{GROW.format(mib=16, rest=0)}'").out == "16\n"
        parks.append(counter(parking, "parks"))
    with opened() as kernel:
        kernel.watch(root, 0, 0)
    assert (parks[1] - parks[0], parks[2] - parks[1]) == (0, 1)


#: The first thread waits for the second, who takes memory, to be at work, and runs another program in their place.
EXEC = """
import os, threading, time
threading.Thread(target=lambda: [bytearray(1 << 20) for _ in range(64)], daemon=True).start()
time.sleep(0.2)
os.execv("/bin/echo", ["echo", "another"])
"""


@pytest.mark.parametrize("act", ["move", "bind", "exec"])
def test_who_is_parked_may_be_moved_bound_to_a_cpu_and_run_another_program(parking: Container, act: str) -> None:
    folder = parking.tree / "calls" / "fallback"
    again(parking)
    before = counter(parking, "parks")
    program = EXEC if act == "exec" else GROW.format(mib=64, rest=0)
    call = parking.background(f"exec python3 -c '{program}'")
    while counter(parking, "parks") == before:
        assert call.running, call.result()
    if act != "exec":
        pid = int((folder / "cgroup.procs").read_text().split()[-1])
        if act == "move":
            (parking.tree / "helpers" / "cgroup.procs").write_text(f"{pid}")
        else:
            os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))})
    result = call.result()
    assert (result.rc, result.out) == (0, "another\n" if act == "exec" else "64\n")
    assert (scheduling.owner(), scheduling.status()) == ("agentcgroup", ("partial", ""))


@pytest.mark.parametrize("act", ["kill", "term", "freeze", "trace", "decision"])
def test_who_is_parked_does_at_once_what_he_is_told(parking: Container, act: str) -> None:
    folder = parking.tree / "calls" / "fallback"  # nobody gives out another without a daemon
    again(parking)
    before, early = counter(parking, "parks"), counter(parking, "early")
    call = parking.background(f"exec python3 -c '{GROW.format(mib=64, rest=0)}'")
    while counter(parking, "parks") == before:
        assert call.running, call.result()
    pid = int((folder / "cgroup.procs").read_text().split()[-1])
    if act == "freeze":
        (folder / "cgroup.freeze").write_text("1")
        while "frozen 1" not in (folder / "cgroup.events").read_text():
            time.sleep(0.01)
    elif act == "trace":
        assert ptrace(SEIZE, pid) == 0 and ptrace(INTERRUPT, pid) == 0
        assert os.waitpid(pid, 0x40000000)[0] == pid  # __WALL
    elif act == "decision":
        again(parking)
        assert call.result().rc == 0
    else:
        os.kill(pid, signal.SIGKILL if act == "kill" else signal.SIGTERM)
        while str(pid) in (folder / "cgroup.procs").read_text().split():
            time.sleep(0.01)
    assert counter(parking, "early") == early + 1
    if act == "freeze":
        (folder / "cgroup.freeze").write_text("0")
    if act == "trace":
        ptrace(DETACH, pid)
    assert call.result().rc in ((0,) if act in ("freeze", "trace", "decision") else (-9, -15, 137, 143))


SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # include/uapi/linux/ptrace.h


def ptrace(request: int, pid: int) -> int:
    return ctypes.CDLL(None).ptrace(request, pid, None, None)


# --- an end of it ----------------------------------------------------------------------------------------------------


def test_who_cannot_run_for_too_long_ends_it_and_the_kernels_reason_is_shown(
    partial: None, boxes: dict[str, Container], journal
) -> None:
    """Realtime tasks on every CPU, where the kernel keeps nothing of them back for sched_ext. The kernel sees it after
    30 to 45 s and can act when they have ended.
    """
    kept = {path: path.read_text() for path in Path("/sys/kernel/debug/sched/ext_server").glob("cpu*/runtime")}
    for path in kept:
        path.write_text("0")
    work = scheduling.burn(boxes["batch"], 1, 60)
    time.sleep(5)
    hog = ["chrt", "-f", "50", "python3", "-c", "import signal; signal.alarm(50)\nwhile True: pass"]
    hogs = [subprocess.Popen(hog) for _ in kept]
    try:
        assert [hog.wait() for hog in hogs] == [-signal.SIGALRM] * (os.cpu_count() or 0)
    finally:
        for path, text in kept.items():
            path.write_text(text)
    wait_for(lambda: scheduling.owner() == "", 20, "the kernel to take it out")
    wait_for(lambda: "stall" in scheduling.status()[1], 10, lambda: f"the reason: {scheduling.status()}")
    assert "it is tried again in 60 s" in scheduling.status()[1]
    assert "CPUs are shared by cpu.weight alone: the kernel took it out: runnable task stall" in journal.text()
    assert work.result().rc == 0


# --- full ------------------------------------------------------------------------------------------------------------


def test_full_is_refused_while_a_cgroup_has_a_cpu_max_and_given_back_when_one_gets_it(
    boxes: dict[str, Container], journal
) -> None:
    group = CGROUPFS / "agentcgroup-test-limited"
    group.mkdir()
    try:
        (group / "cpu.max").write_text("50000 100000")
        scheduling.configure("full")
        wait_for(lambda: "agentcgroup-test-limited" in scheduling.status()[1], 10, "the refusal")
        assert scheduling.status()[0] == "off" and scheduling.owner() == ""
        (group / "cpu.max").write_text("max")
        scheduling.switch("full")
        assert boxes["interactive"].call("exit 3").rc == 3
        (group / "cpu.max").write_text("50000 100000")
        wait_for(lambda: scheduling.owner() == "", 10, "the CPUs to be given back")
        assert re.search(r"full. does not keep cpu.max, and /agentcgroup-test-limited has one", scheduling.status()[1])
    finally:
        group.rmdir()


def test_an_administrators_sysrq_takes_it_out_and_that_is_said(journal) -> None:
    scheduling.switch("full")
    Path("/proc/sysrq-trigger").write_text("S")
    wait_for(lambda: "sysrq" in scheduling.status()[1].lower(), 10, lambda: f"the reason: {scheduling.status()}")
    assert scheduling.owner() == ""
    assert "CPUs are shared by cpu.weight alone: the kernel took it out" in journal.text()


def test_another_scheduler_is_left_alone_and_named(tmp_path: Path) -> None:
    """Ours, under another name, stands for it."""
    path = tmp_path / "another.o"
    path.write_bytes(
        Path("/usr/share/agentcgroup/bpf/sched.o").read_bytes().replace(b"agentcgroup\0", b"another\0\0\0\0\0")
    )
    scheduling.switch("off")
    pins = Path("/sys/fs/bpf/agentcgroup-another")
    pins.mkdir()
    run("bpftool", "struct_ops", "register", str(path), str(pins), check=False)  # the second of its two is refused
    try:
        assert scheduling.owner() == "another"
        scheduling.configure("partial")
        wait_for(lambda: 'the scheduler "another" has the CPUs' in scheduling.status()[1], 10, "the refusal")
        assert scheduling.owner() == "another"
        [found] = [finding for finding in examine(Host()) if finding.check == "scheduler"]
        assert found.what == 'the sched_ext scheduler "another" has the CPUs'
        assert "`scheduler: partial` does not act" in found.why
    finally:
        run("rm", "-r", str(pins))
        wait_for(lambda: scheduling.owner() == "", 10, "the other's end")
