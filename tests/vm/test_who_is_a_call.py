"""Who is a tool call, however the agent was started: its shells are, the agent and what serves it are not."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from podman import AGENT, Container, Engine, set_policy, wait_for

WHERE = "cat /proc/self/cgroup"
IN_AGENT = "0::/agentcgroup/agent\n"
IN_CALL = re.compile(r"0::/agentcgroup/calls/\d+\n")
RUN_AGENT = " ".join(AGENT)
ENTRYPOINT = f"""#!/bin/sh
{WHERE} >/agent/entry
sh -c 'sleep 0.5; {WHERE} >/agent/step'  # taken for a call at first, until the daemon has moved it
sh -c 'sleep 0.5; {WHERE} >/agent/deeper; {RUN_AGENT}; :' &
wait
"""


def govern(time_max: str) -> None:
    call = {
        "memory": {"low": "64M", "default": "128M", "medium": "256M", "high": "256M", "max": "256M"},
        "time_max": time_max,
        "grace": "1s",
        "orphans": "kill",
    }
    rules = [{"match": "^sleep 987", "as": "agent"}, {"match": "^sleep 654", "as": "call"}]
    set_policy("who", json.dumps({"extends": "coding-agent", "memory": {"max": "1G"}, "call": call, "rules": rules}))


@pytest.fixture
def short_calls() -> Iterator[None]:
    """Calls have 2 s: whatever lives longer was not taken for one."""
    govern("2s")
    yield
    govern("1min")


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    """The agent is PID 1 itself."""
    govern("1min")
    return file_engine.start(policy="who")


def begin(engine: Engine, *options: str, command: list[str]) -> Container:
    """A container with a start-up of its own; what it writes to /agent can be read."""
    shared = engine.shared_directory()
    (shared / "entrypoint").write_text(ENTRYPOINT)
    (shared / "entrypoint").chmod(0o755)
    container = engine.run(f"--volume={shared}:/agent", *options, policy="who", command=command)
    container.agent = shared
    wait_for(container.answers, 10, "the agent")
    return container


STARTS = {
    "as bash -c": (
        [],
        ["bash", "-c", f"{WHERE} >/agent/entry; sh -c 'sleep 0.5; {WHERE} >/agent/step'; {RUN_AGENT}; :"],
    ),
    "by a script": ([], ["/agent/entrypoint"]),
    "by a script under an init": (["--init"], ["/agent/entrypoint"]),
}


@pytest.mark.parametrize("how", STARTS)
def test_an_agent_is_no_call_and_its_shells_are(file_engine: Engine, box: Container, how: str) -> None:
    options, command = STARTS[how]
    container = begin(file_engine, *options, command=command)
    assert (container.agent / "entry").read_text() == IN_AGENT
    for name in ("step", "deeper"):
        if (container.agent / name).exists():
            assert (container.agent / name).read_text() == IN_AGENT
    assert container.spawn(["cat", "/proc/self/cgroup"]).out == IN_AGENT
    for shell in ("bash", "sh"):
        assert IN_CALL.fullmatch(container.call(WHERE, shell=shell).out)
    assert [record["result"] for record in container.settled(2)] == ["ok"] * 2


def test_an_agent_that_is_pid_1_has_its_calls_governed(box: Container) -> None:
    assert box.spawn(["cat", "/proc/self/cgroup"]).out == IN_AGENT
    assert box.spawn(["cat", "/proc/1/comm"]).out == "python3\n"
    assert IN_CALL.fullmatch(box.call(WHERE).out)


SPELLINGS = [
    ["bash", "-c", WHERE],
    ["bash", "-lc", WHERE],
    ["bash", "-c", "-l", WHERE],
    ["bash", "-l", "-c", WHERE],
    ["bash", "-ec", WHERE],
    ["bash", "-o", "pipefail", "-c", WHERE],
    ["bash", "-eo", "pipefail", "-c", WHERE],
    ["bash", "--norc", "-c", WHERE],
    ["sh", "-ec", WHERE],
    ["/usr/bin/bash", "-c", WHERE],
    ["/bin/sh", "-c", WHERE],
    ["env", "X=1", "bash", "-c", WHERE],
    ["bash", "/agent/script"],
    ["/agent/script"],
    ["/agent/env-script"],
]


def test_a_shell_with_a_command_is_a_call_in_any_spelling(box: Container) -> None:
    (box.agent / "script").write_text(f"#!/bin/bash\n{WHERE}\n")
    (box.agent / "env-script").write_text(f"#!/usr/bin/env -S bash -e\n{WHERE}\n")
    for name in ("script", "env-script"):
        (box.agent / name).chmod(0o755)
    known = {record["number"] for record in box.ledger()}
    results = [box.spawn(argv) for argv in SPELLINGS]
    wrong = {tuple(a): r for a, r in zip(SPELLINGS, results, strict=True) if not IN_CALL.fullmatch(r.out)}
    assert wrong == {}
    assert len({result.out for result in results}) == len(SPELLINGS)
    records = {r["number"]: r for r in box.settled(len(known) + len(SPELLINGS)) if r["number"] not in known}
    of = [records[int(result.out.rpartition("/")[2])] for result in results]
    assert [(r["kind"], r["first_word"]) for r in of] == [
        *[("call", "cat")] * 12,
        ("call", "script"),
        ("call", "script"),
        ("call", "env-script"),
    ]


def test_nested_shells_stay_in_their_parents_call(box: Container) -> None:
    known = len(box.settled(1))
    deeper = f"sh -c '{WHERE}; bash -c \"{WHERE}\"; sh /agent/inner'"
    nested = f"{WHERE}; {deeper}; ( {WHERE} ); env -i /bin/bash -c '{WHERE}'"
    (box.agent / "inner").write_text(WHERE + "\n")
    out = box.call(nested).out.splitlines()
    assert len(out) == 6 and len(set(out)) == 1 and IN_CALL.fullmatch(out[0] + "\n")
    assert len(box.settled(known + 1)) == known + 1


def test_a_server_that_the_agent_starts_is_a_helper_and_lives_on(box: Container, short_calls: None) -> None:
    """A ten-minute MCP server is no call; what it grows to is limited: claude-code#87319 (P004)."""
    (box.agent / "mcp-server-files").write_text("#!/bin/sh\ncat /proc/self/cgroup >/agent/server; exec sleep 1000\n")
    (box.agent / "mcp-server-files").chmod(0o755)
    server = box.background("exec /agent/mcp-server-files --stdio")
    began = time.monotonic()
    helpers = box.tree / "helpers"
    wait_for(lambda: (helpers / "cgroup.procs").read_text(), 10, "the server among the helpers")
    wait_for(lambda: time.monotonic() - began > 4, 10, "a call's time and grace are over")
    [pid] = (helpers / "cgroup.procs").read_text().split()
    assert server.running and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "250\n"  # an OOM takes calls first: vm0#34175 (P027)
    assert (helpers / "memory.max").read_text() == f"{256 << 20}\n"
    (helpers / "cgroup.kill").write_text("1")
    assert server.result().rc == -9


def test_a_rule_may_say_that_a_shell_is_the_agents(box: Container, short_calls: None) -> None:
    agents = box.tree / "agent/cgroup.procs"

    def sleeping(seconds: str) -> list[str]:
        pids = agents.read_text().split()
        return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode()]

    call = box.background("sleep 987")
    wait_for(lambda: sleeping("987"), 10, "the program in the agent's cgroup")
    began = time.monotonic()
    ordinary = box.call("sleep 654")
    assert ordinary.rc == -15 and "time limit of 2 s" in ordinary.err
    wait_for(lambda: time.monotonic() - began > 4, 10, "a call's time is over")
    assert call.running
    assert Path(f"/proc/{sleeping('987')[0]}/oom_score_adj").read_text() == "0\n"
    os.kill(int(sleeping("987")[0]), signal.SIGKILL)
    assert call.result().rc == -9


#: The image has no make: a program of that name which runs recipes.
MAKE = f"""
import ctypes, subprocess

ctypes.CDLL(None).prctl(15, b"make")
for recipe in ("{WHERE}; sleep 0.7", "bash -c '{WHERE}'", "sh -c '{WHERE}'"):
    subprocess.run(["/bin/sh", "-c", recipe], check=True)
"""


def test_what_a_build_driver_starts_shares_one_domain(box: Container) -> None:
    """make is started without a shell; each of its recipes has one (exec_match)."""
    (box.agent / "make").write_text(MAKE)
    known = len(box.settled(1))
    made = box.spawn(["python3", "/agent/make"])
    lines = made.out.splitlines()
    assert (made.rc, made.err, len(lines)) == (0, "", 3), made
    assert len(set(lines)) == 1 and IN_CALL.fullmatch(lines[0] + "\n"), lines
    [record] = box.settled(known + 1)[known:]
    assert (record["orphans"], record["result"]) == (0, "unknown")


def test_an_interactive_shell_is_a_shell_and_has_no_time_limit(box: Container, short_calls: None) -> None:
    known = len(box.settled(1))
    podman = [*box.engine, "exec", "-it", box.id, "bash", "-i"]
    terminal = pexpect.spawn(podman[0], podman[1:], timeout=300, encoding="utf-8", echo=False)
    terminal.expect(r"[#$] ")
    began = time.monotonic()
    terminal.sendline(f"{WHERE}; echo $((6*7))")
    terminal.expect(r"0::/agentcgroup/calls/(\d+)\s+42\s")
    number = int(terminal.match[1])
    wait_for(lambda: time.monotonic() - began > 4, 10, "a call's time is over")
    terminal.sendline("echo $((7*7)); exit 3")
    terminal.expect("49")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 3
    record = box.record_of(number)
    assert (record["kind"], record["time_limit_s"], record["result"]) == ("shell", None, "exit 3")
    assert record["duration_s"] > 4
    fed = box.spawn(["bash"], stdin=f"{WHERE}; exit 4\n")
    assert fed.rc == 4 and IN_CALL.fullmatch(fed.out)
    assert len(box.settled(known + 2)) == known + 2
