"""What a policy says holds, for the call that it is said of and for no other; what was changed for a while is put back.

The agent of the container is PID 1 and waits only for its own children. Each test sets the policy that it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scheduling
from conftest import Journal
from podman import CGROUPFS, Background, Container, Engine, fill, run, set_policy, wait_for

MIB = 1 << 20
CALL = {
    "memory": {"low": "64M", "default": "256M", "medium": "384M", "high": "512M", "max": "640M"},
    "pids_max": 60,
    "grace": "2s",
}
MEMORY = {"max": "1G", "swap_max": 0, "agent_min": "64M"}
#: Room for one large call of two: 168 MiB until they are throttled, 268 MiB until the kernel kills.
TIGHT = {"max": "300M", "high": "200M", "swap_max": 0, "agent_min": "32M"}
EACH = {"low": "64M", "default": "256M", "medium": "256M", "high": "256M", "max": "256M"}
CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
WHERE = "cat /proc/self/cgroup"
OWN_CGROUP = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)"
#: Configuration of a cgroup that is no limit or changes by itself.
NO_LIMITS = {"cgroup.procs", "cgroup.threads", "cgroup.kill", "memory.reclaim", "memory.peak", "memory.swap.peak"}


def enforce(memory: dict[str, Any] | None = None, call: dict[str, Any] | None = None, **fields: Any) -> None:
    """The policy of this file's containers from now on."""
    policy = {"memory": memory or MEMORY, "call": {**CALL, **(call or {})}, **fields}
    set_policy("enforcement", json.dumps(policy))


def tight(deadline: str, **call: Any) -> None:
    """A policy under which two large calls wait for memory."""
    enforce(TIGHT, {"memory": EACH, "stall_deadline": deadline, **call})


def knobs(group: Path) -> dict[str, str]:
    """The settings of a cgroup."""
    files = (path for path in group.iterdir() if path.is_file() and path.stat().st_mode & 0o200)
    return {p.name: p.read_text() for p in files if p.name not in NO_LIMITS and not p.name.endswith(".pressure")}


def above(group: Path) -> dict[Path, dict[str, str]]:
    """The settings of each cgroup above this one."""
    return {parent: knobs(parent) for parent in group.parents if CGROUPFS in (parent, *parent.parents)}


@pytest.fixture(scope="module")
def lock() -> Iterator[Path]:
    path = Path("/run/agentcgroup-test-lock")
    path.mkdir(exist_ok=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def box(file_engine: Engine, lock: Path) -> Container:
    enforce()
    return file_engine.start(f"--volume={lock}:/lock", policy="enforcement")


@pytest.fixture(scope="module", autouse=True)
def knobs_before(box: Container) -> dict[Path, dict[str, str]]:
    base = box.tree.parent
    return {base: knobs(base), **above(base)}


@pytest.fixture
def bystanders(box: Container) -> Iterator[None]:
    """Whatever happens to a call, the agent lives and a call beside it ends as it would."""
    agent = (box.tree / "agent/cgroup.procs").read_text().split()[0]
    enforce()
    beside = box.hold()
    yield
    result = beside.finish()
    assert (result.rc, result.out) == (7, ""), result
    assert (box.tree / "agent/cgroup.procs").read_text().split()[0] == agent


def calls_of(container: Container) -> dict[int, Path]:
    """The calls that run."""
    groups = [path for path in (container.tree / "calls").iterdir() if path.name.isdigit()]
    return {int(path.name): path for path in groups if lives(path)}


def lives(group: Path) -> bool:
    with contextlib.suppress(OSError):  # it is removed just now
        return "populated 1" in (group / "cgroup.events").read_text()
    return False


def started(container: Container, text: str, **request: Any) -> tuple[Background, Path]:
    """A call under way and its cgroup."""
    before = calls_of(container)
    call = container.background(text, **request)
    wait_for(lambda: calls_of(container).keys() - before.keys(), 10, "the call")
    (number,) = calls_of(container).keys() - before.keys()
    return call, container.group(number)


def is_held(group: Path) -> bool:
    return "frozen 1" in (group / "cgroup.events").read_text()


def memory(group: Path) -> int:
    return int((group / "memory.current").read_text())


# --- processes --------------------------------------------------------------------------------------------------------

FORK = """
import os, sys, time
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            {child}
        children.append(pid)
except OSError as error:
    print(len(children), error.strerror, flush=True)
{after}
"""


def forker(child: str, after: str) -> str:
    return f"python3 -c '{FORK.format(child=child, after=after)}'"


def test_a_call_gets_no_more_processes_than_it_may_have_and_is_told(box: Container, bystanders: None) -> None:
    end_them = "for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)"
    call = box.call(forker("time.sleep(100)", end_them))
    assert (call.rc, call.out) == (0, "59 Resource temporarily unavailable\n")
    assert call.feedback == [
        f"[agentcgroup] Call {call.number} reached its limit of 60 processes and threads: 1 could not be started "
        '("Resource temporarily unavailable"). Next: start fewer processes at once.'
    ]
    record = box.record_of(call.number)
    assert (record["pids_peak"], record["pids_limit"], record["pids_denied"], record["result"]) == (60, 60, 1, "ok")


def test_zombies_that_fill_the_limit_are_named(box: Container) -> None:
    """Nobody says that zombies fill pids.max: opencomputer#194 (P041), subfloor#644 (P042), openclaw#68691 (P038)."""
    enforce()
    call = box.call(forker("os._exit(0)", "time.sleep(2)"))
    assert (call.rc, call.out) == (0, "59 Resource temporarily unavailable\n")
    [line] = call.feedback
    assert re.fullmatch(
        r'.*: 1 could not be started \("Resource temporarily unavailable"\), 5\d were zombies\. '
        r"Next: end the program that does not wait for its children\.",
        line,
    ), line


def test_a_fork_bomb_is_ended_as_one_and_leaves_nothing(box: Container, bystanders: None) -> None:
    """The session or the host dies of it: claude-code#57 (P008), claude-code#85457 (P003)."""
    enforce(call={"fork_rate": 20})
    bomb = box.call(":(){ :|:& };:; sleep 100")
    assert bomb.rc == -9
    [line] = bomb.feedback
    assert re.fullmatch(
        rf"\[agentcgroup\] Call {bomb.number} was ended: fork storm, \d+ processes and threads of at most 60"
        r"(, \d+ zombies)?(, \d+ more refused)?\. "
        r"Next: check the command for a script or hook that starts itself\.",
        line,
    ), line
    assert box.record_of(bomb.number)["result"] == "fork storm"
    assert bomb.number not in calls_of(box)


def test_a_storm_that_is_slower_than_the_rate_ends_by_its_refusals(box: Container, bystanders: None) -> None:
    enforce(call={"fork_rate": 100000})
    bomb = box.call(
        forker("time.sleep(1000)", "\n".join(["while True:", "  try: os.fork()", "  except OSError: pass"]))
    )
    assert (bomb.rc, box.record_of(bomb.number)["result"]) == (-9, "fork storm")


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_call_out_of_time_gets_term_and_may_clean_up(box: Container, bystanders: None) -> None:
    """Signals are not passed to the tree, traps never run: claude-code#42532 (P034), #82433 (P029)."""
    child = "setsid sh -c 'trap \"echo child >>/lock/trapped; exit\" TERM; while :; do sleep 0.2; done' & "
    call = box.call(
        f"AGENT_RESOURCE_HINT=time:2s; {child} trap 'echo trapped; sleep 0.2; exit 3' TERM; while :; do sleep 0.2; done"
    )
    assert (call.rc, call.out) == (3, "trapped\n")
    assert call.feedback[0] == (
        f"[agentcgroup] Call {call.number} was ended at its time limit of 2 s. Next: run it without time in the hint."
    )
    wait_for(lambda: not box.group(call.number).exists(), 20, "the end of its processes")
    assert box.call("cat /lock/trapped; rm /lock/trapped").out == "child\n"
    record = box.record_of(call.number)
    assert (record["result"], record["time_limit_s"]) == ("time", 2.0) and record["duration_s"] >= 2


def test_a_call_that_ignores_term_is_killed_after_its_grace(box: Container, bystanders: None) -> None:
    """A sandbox's bash call blocks for hours: A3S Code#67 (P046), OpenHands#207 (P048), claude-code#84647 (P030)."""
    enforce(call={"time_max": "1s", "grace": "1s"})
    call = box.call("trap '' TERM; sleep 1000 & while :; do sleep 0.2; done")
    assert call.rc == -9
    assert call.feedback == [
        f"[agentcgroup] Call {call.number} was ended at its time limit of 1 s. Next: run a smaller part of it."
    ]
    assert box.record_of(call.number)["duration_s"] >= 2
    wait_for(lambda: not box.group(call.number).exists(), 20, "the end of its processes")


@pytest.mark.parametrize("action", ["report", "keep", "kill"])
def test_what_a_call_leaves_in_the_background_is_the_policys_to_decide(box: Container, action: str) -> None:
    """`&` children survive and become orphans of PID 1: claude-code#82433 (P029), openai/codex#17257 (P013)."""
    enforce(call={"orphans": action})
    call, group = started(box, "setsid sleep 1000 >/dev/null 2>&1 </dev/null & sleep 0.5; echo left")
    result = call.result()
    assert (result.rc, result.out) == (0, "left\n")
    left = f"[agentcgroup] Call {group.name} left 1 background process (sleep), "
    assert (
        result.feedback
        == {
            "report": [left + "still running within its limits. Next: end them with kill when they are not needed."],
            "keep": [],
            "kill": [left + "ended with the call. Next: keep a call in the foreground while its processes are needed."],
        }[action]
    )
    if action != "kill":
        assert lives(group)
        (group / "cgroup.kill").write_text("1")
    record = box.record_of(int(group.name))
    assert (record["orphans"], record["orphan_names"], record["orphan_action"]) == (1, ["sleep"], action)
    wait_for(lambda: not group.exists(), 20, "the end of its cgroup")


# --- waiting for memory -----------------------------------------------------------------------------------------------


def busy(size: int, seconds: float) -> str:
    """A program that holds so many MiB and computes for so long."""
    work = f"b = bytearray({size} << 20); end = time.time() + {seconds}\nwhile time.time() < end: pass"
    return f"python3 -c 'import time; {work}\nprint(len(b) >> 20)'"


def one_held(container: Container, large: str, small: str) -> tuple[Background, Background, Path]:
    """Two calls of which the large one is held for the small one, and its cgroup."""
    held, group = started(container, large)
    wait_for(lambda: memory(group) > 110 * MIB, 10, "the large call")
    other = container.background(small)
    wait_for(lambda: is_held(group), 30, "the hold")
    return held, other, group


def test_the_larger_of_two_calls_is_held_until_the_other_has_finished(box: Container) -> None:
    """memory.high alone never ends it: oh-my-pi#12769 (P063), kubernetes/enhancements#4243 (P064)."""
    tight("15s")
    soft = [box.tree / "memory.high", box.tree / "calls/memory.high"]
    wait_for(lambda: [path.read_text() for path in soft] == [f"{200 * MIB}\n", f"{168 * MIB}\n"], 10, "the soft limits")
    large, small, group = one_held(box, fill(110, 6), busy(90, 2))
    wait_for(lambda: [int(path.read_text()) // MIB for path in soft] == [281, 251], 5, "room for the other")
    assert (small.result().rc, small.result().out) == (0, "90\n")
    assert (large.result().rc, large.result().out) == (0, "110\n")
    [line] = large.result().feedback
    assert re.search(r" was slowed for .*: .*s held for other calls\. .* Next: run heavy commands one after", line), (
        line
    )
    record, beside = box.record_of(int(group.name)), box.record_of(small.result().number)
    assert 0 < record["held_s"] < 15 and record["result"] == beside["result"] == "ok"
    assert beside["throttled_s"] > 0.5 and beside["held_s"] == 0
    wait_for(lambda: [int(path.read_text()) // MIB for path in soft] == [200, 168], 10, "the soft limits as before")


def test_what_waits_for_the_stall_deadline_makes_the_largest_end(box: Container, bystanders: None) -> None:
    """15 minutes of thrashing before anything ends: claude-code#87319 (P004), oh-my-pi#12769 (P063)."""
    tight("5s")
    large, group = started(box, fill(140, 1000))
    wait_for(lambda: memory(group) > 140 * MIB, 10, "the large call")
    small = box.call(fill(125))
    assert (small.rc, small.out) == (0, "125\n")
    assert large.result().rc == -15
    said = "\n".join(large.result().feedback)
    assert re.match(
        rf"\[agentcgroup\] Call {group.name} was ended.* stall deadline of 5 s.*\. Peak 1\d\d(\.\d)? MiB, "
        r"limit 256 MiB \(default\)\. All calls together may have 268 MiB\.\n"
        rf"\[agentcgroup\] At the same time: .*call {small.number} python3 .* Next: run it again when call "
        rf"{small.number} has ended\.",
        said,
    ), said
    record = box.record_of(int(group.name))
    assert record["result"] == "stall" and record["held_s"] > 1 and record["oom_kills"] == 0
    assert box.record_of(small.number)["throttled_s"] > 0.5


def test_a_call_that_stands_still_at_its_own_limit_ends_and_not_its_larger_neighbour(
    box: Container, bystanders: None
) -> None:
    enforce(call={"stall_deadline": "2s"})
    large, larger = started(box, fill(150, 6))
    wait_for(lambda: memory(larger) > 150 * MIB, 10, "the large call")
    call, group = started(box, f"sleep 1; {fill(60)}")
    (group / "memory.high").write_text("8M")
    assert call.result().rc == -15 and "at the stall deadline of 2 s" in call.result().err
    record = box.record_of(int(group.name))
    assert (record["result"], record["held_s"]) == ("stall", 0)
    assert large.result().out == "150\n" and box.record_of(int(larger.name))["held_s"] == 0


def test_a_held_call_that_gets_a_signal_runs_its_trap_once_and_at_once(box: Container) -> None:
    tight("20s", grace="20s")
    text = f"n=0; trap 'echo trapped $((n+=1)); kill $!; wait; exit 5' TERM; {fill(110, 1000)} & wait"
    large, group = started(box, text)
    wait_for(lambda: memory(group) > 110 * MIB, 10, "the large call")
    small, beside = started(box, busy(90, 60))
    wait_for(lambda: is_held(group), 30, "the hold")
    shims = [pid for pid in agent_processes(box) if b"echo trapped" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(min(shims), signal.SIGTERM)  # the other one is its witness
    result = large.result()
    assert small.running, "the trap ran only when the other call had finished"
    assert (result.rc, result.out) == (5, "trapped 1\n")
    (beside / "cgroup.kill").write_text("1")
    small.result()


def agent_processes(container: Container) -> list[int]:
    return [int(pid) for pid in (container.tree / "agent/cgroup.procs").read_text().split()]


def test_a_lock_shared_by_two_containers_does_not_deadlock(box: Container, engine: Engine, lock: Path) -> None:
    tight("3s")
    other = engine.start(f"--volume={lock}:/lock", policy="enforcement")
    holder, small, group = one_held(box, f"exec 9>/lock/file; flock 9; {fill(110, 5)}", busy(90, 8))
    waiter = other.call("exec 9>/lock/file; flock 9; echo got it")
    assert (waiter.rc, waiter.out) == (0, "got it\n")
    assert small.result().rc == 0
    holder.result()
    record = box.record_of(int(group.name))
    assert 0 < record["held_s"] < 2 * 3 and record["result"] in ("ok", "stall")


def test_a_held_call_goes_on_when_the_others_wait_for_what_it_has(box: Container) -> None:
    tight("20s")
    waits = f"exec 9>/lock/file; {fill(90)}; flock 9; echo got it"
    holder, waiter, group = one_held(box, f"exec 9>/lock/file; flock 9; {fill(110, 5)}", waits)
    assert waiter.result().out == "90\ngot it\n"
    assert holder.result().out == "110\n"
    assert box.record_of(int(group.name))["held_s"] < 20


def test_a_held_call_goes_on_when_the_daemon_dies(box: Container) -> None:
    tight("20s")
    large, small, group = one_held(box, fill(110, 6), busy(90, 5))
    run("systemctl", "kill", "--signal=KILL", "agentcgroupd.service")
    wait_for(lambda: not is_held(group), 30, "the next daemon")
    soft = [box.tree / "memory.high", box.tree / "calls/memory.high"]
    wait_for(lambda: [int(path.read_text()) // MIB for path in soft] == [200, 168], 30, "the soft limits")
    assert [call.result().out for call in (large, small)] == ["110\n", "90\n"]


def test_a_held_call_goes_on_when_the_policy_turns_to_observe(box: Container) -> None:
    tight("20s")
    large, small, group = one_held(box, fill(110, 4), busy(90, 4))
    enforce(mode="observe")
    wait_for(lambda: not is_held(group), 10, "its release")
    assert [call.result().out for call in (large, small)] == ["110\n", "90\n"]


def test_more_calls_than_there_may_be_run_in_fallback(box: Container, journal: Journal) -> None:
    """What each leaves in the background is still its call: openai/codex#17257 (P013)."""
    config = CONFIG.read_text()
    CONFIG.write_text(f"{config}max_connections: 8\n")
    try:
        enforce(call={"orphans": "keep"})
        where = [box.call(f"sleep 1000 >/dev/null 2>&1 </dev/null & {WHERE}").out.strip() for _ in range(26)]
    finally:
        CONFIG.write_text(config)
    enforce()
    assert len(set(where[:16])) == 16 and where[-1] == "0::/agentcgroup/calls/fallback"
    assert re.search(r": (1[6-9]|2[0-4]) calls run: further ones run in calls/fallback$", journal.text(), re.MULTILINE)
    for group in calls_of(box).values():
        (group / "cgroup.kill").write_text("1")
    (box.tree / "calls/fallback/cgroup.kill").write_text("1")
    wait_for(lambda: not calls_of(box), 10, "their end")
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", box.call(WHERE).out)


def test_limits_that_a_call_has_changed_are_put_back_and_noted(box: Container) -> None:
    """Root in a container may mount its own leaf in new namespaces and write to it."""
    enforce()
    call = box.hold()
    for name, value in (("memory.oom.group", "0"), ("memory.max", "max"), ("pids.max", "4000")):
        (call.directory / name).write_text(value)
    wanted = {"memory.oom.group": "1\n", "memory.max": f"{256 * MIB}\n", "pids.max": "60\n"}
    wait_for(lambda: {name: (call.directory / name).read_text() for name in wanted} == wanted, 10, "the limits")
    call.finish()
    assert box.record_of(int(call.directory.name))["changed"] == sorted(wanted)


# --- cpu, io, swap ----------------------------------------------------------------------------------------------------


def test_cpu_follows_the_hint_within_the_policy(box: Container) -> None:
    enforce(cpu={"max": 1.5, "weight": 70}, call={"cpu_low": 30, "cpu_high": 300})
    read = f"{OWN_CGROUP}; cat cpu.weight cpu.max"
    wanted = {"": "100\n150000 100000\n", "cpu:low": "30\n150000 100000\n", "cpu:high": "300\n150000 100000\n"}
    wanted |= {"cpu:0.25": "100\n25000 100000\n", "cpu:8": "100\n150000 100000\n"}
    results = {hint: box.call(read, env={"AGENT_RESOURCE_HINT": hint} if hint else {}) for hint in wanted}
    assert {hint: result.out for hint, result in results.items()} == wanted
    clamp = "[agentcgroup] Hint: cpu 8 asked, 1.5 granted, the most allowed here. Next: ask for at most cpu:1.5."
    assert {hint: result.feedback for hint, result in results.items() if result.feedback} == {"cpu:8": [clamp]}
    assert (box.tree / "cpu.max").read_text() == "150000 100000\n"
    wait_for(lambda: (box.tree.parents[1] / "cpu.weight").read_text() == "70\n", 10, "the weight of its scope")
    slow = box.call("AGENT_RESOURCE_HINT=cpu:0.1 timeout 1 sh -c 'while :; do :; done'; sleep 0.3")
    number = max(entry["number"] for entry in box.settled(1))
    assert slow.rc == 0 and box.record_of(number)["cpu_throttled_s"] > 0


def test_containers_share_a_cpu_by_the_weights_of_their_policies(engine: Engine) -> None:
    """And one that the engine has given a weight keeps it."""
    set_policy("light", json.dumps({"extends": "test", "cpu": {"weight": 50}}))
    set_policy("heavy", json.dumps({"extends": "test", "cpu": {"weight": 200}}))
    light, heavy = engine.start(policy="light"), engine.start(policy="heavy")
    shares = engine.start("--cpu-shares=512", policy="heavy")
    scopes = [container.tree.parents[1] for container in (light, heavy, shares)]
    wait_for(lambda: (scopes[1] / "cpu.weight").read_text() == "200\n", 10, "the weight")
    assert (scopes[0] / "cpu.weight").read_text() == "50\n"
    assert int((scopes[2] / "cpu.weight").read_text()) not in (100, 200)
    run("systemctl", "daemon-reload")
    work = "for i in $(seq $(nproc)); do timeout 15 sh -c 'while :; do :; done' & done; wait"
    calls = [container.background(work) for container in (light, heavy)]
    time.sleep(5)
    used = [scheduling.cpu_s(container) for container in (light, heavy)]
    time.sleep(8)
    one, four = [scheduling.cpu_s(container) - was for container, was in zip((light, heavy), used, strict=True)]
    assert four / one == pytest.approx(4, rel=0.25)
    assert [call.result().rc for call in calls] == [0, 0]


def test_a_device_is_no_faster_than_allowed(box: Container) -> None:
    enforce(io={"max": {"/dev/vda": {"wbps": "2M"}}, "weight": 50})
    rule = r"\d+:\d+ rbps=max wbps=2097152 riops=max wiops=max\n"
    wait_for(lambda: re.fullmatch(rule, (box.tree / "io.max").read_text()), 10, "the limit")
    write = box.call("dd if=/dev/zero of=/var/tmp/slow bs=512k count=8 oflag=direct status=none; rm /var/tmp/slow")
    assert write.rc == 0 and write.seconds > 1.5
    enforce()
    wait_for(lambda: (box.tree / "io.max").read_text() == "", 5, "the limit is taken back")


@pytest.fixture
def swap() -> Iterator[None]:
    path = Path("/var/swap-of-the-test")
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 96 * MIB)
    path.chmod(0o600)
    run("mkswap", str(path))
    run("swapon", str(path))
    yield
    run("swapoff", str(path))
    path.unlink()


def test_swap_is_limited_and_by_default_there_is_none(box: Container, swap: None) -> None:
    enforce()
    assert box.call(fill(300)).rc == -9
    assert (box.tree / "memory.swap.peak").read_text() == "0\n"
    enforce({**MEMORY, "swap_max": "48M"})
    holds = "print(len(b'x' * (280 << 20)) >> 20)"  # zeroes take no room in swap
    assert box.call(f'python3 -c "{holds}"').out == "280\n"
    assert 10 * MIB < int((box.tree / "memory.swap.peak").read_text()) <= 48 * MIB


# --- the agent and the whole ------------------------------------------------------------------------------------------


def test_the_agents_pages_stay_when_a_helper_wants_them(box: Container) -> None:
    """Each delegate is told the full memory and the agent dies: evener#496 (P022)."""
    helper = "sleep 1; cat /var/tmp/large >/dev/null; sleep 1000"
    small = {"max": "192M", "swap_max": 0, "agent_min": "96M"}
    each = {"low": "64M", "default": "64M", "medium": "64M", "high": "160M", "max": "160M"}
    enforce(small, {"memory": each}, rules=[{"match": "^sleep 1; cat", "as": "helper"}])
    box.call("dd if=/dev/zero of=/var/tmp/large bs=1M count=250 status=none")
    box.spawn(["dd", "if=/dev/zero", "of=/var/tmp/agents", "bs=1M", "count=80", "status=none"])
    box.spawn(["sync"])
    had = memory(box.tree / "agent")
    assert 80 * MIB < had < 96 * MIB
    events, met = box.tree / "memory.events.local", lambda text: int(re.findall(r"^max (\d+)", text, re.MULTILINE)[0])
    before = met(events.read_text())
    call = box.background(fill(55, 4))
    box.background(helper)
    wait_for(lambda: met(events.read_text()) > before + 20, 10, "the limit of the whole is met")
    assert call.result().out == "55\n"
    assert memory(box.tree / "agent") > 0.95 * had
    (box.tree / "helpers/cgroup.kill").write_text("1")


def test_an_agent_that_grows_ends_at_a_limit_of_its_own(box: Container, bystanders: None) -> None:
    """A runtime grows to 120 GB and takes its neighbours along: claude-code#4953 (P007), #86712 (P006)."""
    enforce({**MEMORY, "agent_max": "128M"})
    limit = box.tree / "agent/memory.max"
    wait_for(lambda: limit.read_text() == f"{128 * MIB}\n", 10, "the limit")
    grown = box.spawn(["python3", "-c", "b = bytearray(200 << 20)"])
    assert grown.rc == -9
    assert box.call(fill(150)).out == "150\n"


def test_the_limits_in_force_can_be_read_inside(box: Container) -> None:
    """A visible file of limits: beta9#1910 (P075), evener#301 (P072)."""
    enforce(cpu={"max": 2}, call={"time_max": "10min"})
    inside = json.loads(box.call("cat /dev/agentcgroup/limits").out)
    assert inside == {
        "policy": "enforcement",
        "mode": "enforce",
        "memory_max": 1024 * MIB,
        "calls_memory_max": 960 * MIB,
        "call_memory_default": 256 * MIB,
        "call_memory_most": 640 * MIB,
        "call_pids_max": 60,
        "call_time_max_s": 600.0,
        "cpus": 2.0,
    }
    own = box.call(f"{OWN_CGROUP}; cat memory.max pids.max cpu.max memory.swap.max memory.oom.group").out.split("\n")
    assert own == [str(256 * MIB), "60", "200000 100000", "0", "1", ""]
    leaves = {name: (box.tree / name / "cpu.max").read_text() for name in ("agent", "helpers")}
    assert leaves == {"agent": "200000 100000\n", "helpers": "200000 100000\n"}
    assert int((box.tree / "agent/memory.max").read_text()) == 1024 * MIB


def test_nothing_is_written_above_the_subtree(
    box: Container, engine: Engine, knobs_before: dict[Path, dict[str, str]]
) -> None:
    base = box.tree.parent
    free = engine.run(policy=None, command=["sleep", "1000"])
    (own,) = CGROUPFS.rglob(f"libpod-{free.id}.scope")
    untouched = knobs(own / "container")
    ours = knobs(base)
    assert ours.pop("cgroup.subtree_control").split() == ["cpu", "io", "memory", "pids"]
    untouched.pop("cgroup.subtree_control")
    assert ours == untouched
    assert {base: knobs(base), **above(base)} == knobs_before
