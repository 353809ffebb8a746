"""An OOM at any level takes tool calls and nothing else; the agent lives on and is told, later the operator too."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Journal
from podman import Container, Engine, fill, run, wait_for

MIB = 1 << 20
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
SLICE = "agentcgrouptest.slice"


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start()


@pytest.fixture
def oom(journal: Journal) -> Iterator[Journal]:
    """The kernel log; whatever else a test looks at, each victim is a tool call's."""
    yield journal
    victims = re.findall(r"task_memcg=([^,]*)", journal.kernel())
    assert victims and all("/agentcgroup/calls/" in victim for victim in victims), victims


def agent_pid(container: Container) -> int:
    """PID 1 of the container as the host sees it."""
    return int((container.tree / "agent/cgroup.procs").read_text().split()[0])


def test_a_call_above_its_limit_ends_whole_and_alone(box: Container, oom: Journal) -> None:
    """The kernel takes the agent instead of what it ran: claude-code#13126 (P002)."""
    agent = agent_pid(box)
    other = box.background("sleep 6; echo done")
    hog = box.call(f"sleep 1000 & {fill(400)}; echo not reached")
    assert (hog.rc, hog.out) == (-9, "")
    number = hog.number
    record = box.record_of(number)
    assert (record["result"], record["oom_kills"], record["limit_bytes"]) == ("oom", 3, 256 * MIB)
    assert sorted(record["oom_victims"]) == ["bash", "python3", "sleep"]
    assert record["oom_victims"][0] == "python3"
    assert 0.98 * 256 * MIB < record["peak_bytes"] <= 256 * MIB
    [neighbour] = record["others"]
    killed, beside = hog.feedback
    assert re.fullmatch(
        rf"\[agentcgroup\] Call {number} was ended: out of memory\. Peak 25[56](\.\d)? MiB, limit 256 MiB "
        r"\(default\)\. Killed: python3, (bash, sleep|sleep, bash)\.",
        killed,
    ), killed
    assert beside.startswith(f"[agentcgroup] At the same time: call {neighbour['number']} sleep ")
    advice = " Next: run it again with AGENT_RESOURCE_HINT=memory:384m before everything else in the command."
    assert beside.endswith(advice)
    assert other.result().out == "done\n"
    assert agent_pid(box) == agent


def test_a_call_that_ends_in_a_pipe_is_told_of_its_oom_too(box: Container, oom: Journal) -> None:
    hog = box.call(f"{fill(400)} | tail -1; true")
    assert hog.rc == -9
    assert box.record_of(hog.number)["result"] == "oom"


def test_an_oom_of_the_host_takes_a_call(box: Container, oom: Journal) -> None:
    """The agent and an editor's server die in a global OOM: claude-code#86712 (P006), oh-my-codex#2145 (P015)."""
    agent = agent_pid(box)
    daemon = run("systemctl", "show", "-P", "MainPID", "agentcgroupd").stdout
    with short_of_memory(leave=400):
        hog = box.call(f"AGENT_RESOURCE_HINT=memory:max {fill(620)}")
    assert hog.rc == -9
    record = box.record_of(hog.number)
    assert record["result"] == "container limit" and record["peak_bytes"] < 600 * MIB
    assert agent_pid(box) == agent
    assert run("systemctl", "show", "-P", "MainPID", "agentcgroupd").stdout == daemon


def test_the_verdict_outlives_the_container(box: Container, file_engine: Engine, oom: Journal) -> None:
    """The cgroup is gone before the OOM can be read: podman#25990 (P058), pelagos#343 (P059)."""
    number = box.call(fill(400)).number
    running = box.hold()
    unfinished = int(running.directory.name)
    file_engine.podman("rm", "-f", "-t", "0", box.id)
    wait_for(lambda: not running.call.running, 10, "the end of the call")
    said = run("agentcgroup", "why", f"{box.id[:12]}/{number}").stdout
    assert "ended for memory" in said.splitlines()[0]
    assert re.search(r"^  memory   peak 25[56](\.\d)? MiB, limit 256 MiB \(default\)", said, re.MULTILINE)
    assert "  killed   1 (python3)\n" in said
    [record] = [
        json.loads(line) for line in run("agentcgroup", "why", "--json", f"{box.id}/{number}").stdout.splitlines()
    ]
    assert (record["result"], record["oom_kills"]) == ("oom", 1)
    assert box.record_of(unfinished)["result"] == "unknown"


def test_an_oom_of_the_whole_container_takes_a_call_although_it_would_kill_all(engine: Engine, oom: Journal) -> None:
    """kubelet sets memory.oom.group on a container, host, runtime and shell die together: houston#1527 (P026)."""
    container = engine.start("--memory=200m")
    base = container.tree.parent
    (base / "memory.oom.group").write_text("1")
    agent = agent_pid(container)
    # The agent's own memory: more than agent_min, so that what calls may have together does not bind first.
    own = container.background_spawn(["python3", "-c", "import time; b = bytearray(90 << 20); time.sleep(60)"])
    wait_for(lambda: int((container.tree / "agent/memory.current").read_text()) > 90 * MIB, 10, "the agent's memory")
    first = container.background(fill(55, 8))
    wait_for(lambda: int((container.tree / "calls/memory.current").read_text()) > 55 * MIB, 10, "the first call")
    second = container.call(fill(70, 2))
    results = [second, first.result()]
    killed = [result for result in results if result.rc == -9]
    assert killed and [result.out for result in results if result.rc != -9] in ([], ["55\n"], ["70\n"])
    record = container.record_of(killed[0].number)
    assert (record["result"], record["oom_victims"]) == ("container limit", ["python3"])
    assert "All calls together may have 132 MiB." in killed[0].err
    assert (agent_pid(container), own.running) == (agent, True)
    assert "oom_kill 0" in (base / "memory.events.local").read_text()


def test_an_oom_of_the_slice_above_takes_a_call_and_no_neighbour(engine: Engine, oom: Journal) -> None:
    """Whatever is largest dies: vm0#34175 (P027), woodpecker#447 (P028)."""
    run("systemctl", "set-property", "--runtime", SLICE, "MemoryMax=240M")
    program = "import time; b = bytearray(120 << 20); time.sleep(1000)"
    run("systemd-run", f"--slice={SLICE}", "--unit=agentcgroup-neighbour", "--collect", "python3", "-c", program)
    try:
        container = engine.start(f"--cgroup-parent={SLICE}")
        assert SLICE in str(container.tree)
        agent = agent_pid(container)
        hog = container.call(fill(150))
        assert hog.rc == -9
        assert container.record_of(hog.number)["result"] == "container limit"
        assert agent_pid(container) == agent
        assert run("systemctl", "is-active", "agentcgroup-neighbour").stdout == "active\n"
    finally:
        run("systemctl", "stop", "agentcgroup-neighbour", check=False)
        run("systemctl", "revert", SLICE, check=False)


class short_of_memory:
    """While it lasts, huge pages that nobody uses leave the host so many MiB."""

    def __init__(self, leave: int) -> None:
        self.leave = leave

    def __enter__(self) -> None:
        for _ in range(10):
            meminfo = dict(re.findall(r"^(\w+):\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE))
            spare = (int(meminfo["MemAvailable"]) >> 10) - self.leave
            if spare < 50:
                return
            have = int(HUGE_PAGES.read_text())
            HUGE_PAGES.write_text(str(have + spare // (int(meminfo["Hugepagesize"]) >> 10)))
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        HUGE_PAGES.write_text("0")
        os.sync()
