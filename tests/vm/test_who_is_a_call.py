"""Which shells are tool calls: neither the agent nor what it depends on is ever throttled or ended as one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from podman import Container, Engine, set_policy, wait_for

WHERE = "cut -d: -f3 /proc/self/cgroup"
POLICY = """
extends: test
call: {time_max: 8s, grace: 1s, orphans: kill}
exec_match: ['make']
rules:
  - {match: 'mcp-server', as: helper}
"""


@pytest.fixture(scope="module")
def container(file_engine: Engine) -> Iterator[Container]:
    set_policy("who", POLICY)
    yield file_engine.start(policy="who")


def started(engine: Engine, *command: str, options: tuple[str, ...] = ()) -> str:
    """The log of a container that runs `command` and ends."""
    annotation = "--annotation=agentcgroup.policy=who"
    return engine.podman("run", "--rm", "--network=none", annotation, *options, "localhost/debian", *command).stdout


@pytest.mark.parametrize("init", [(), ("--init",)], ids=["pid 1", "under --init"])
def test_an_agent_that_is_started_by_a_shell_is_no_call_and_outlives_the_time_limit(
    container: Container, file_engine: Engine, init: tuple[str, ...]
) -> None:
    out = started(file_engine, "bash", "-c", f"sleep 10; {WHERE}; python3 -c 'print(1)'", options=init)
    assert out.splitlines() == ["/agentcgroup/agent", "1"]


def test_an_entrypoint_script_is_no_call(container: Container, file_engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "entry.sh"
    script.write_text(f"#!/bin/sh\n{WHERE}\nexec python3 -c \"import os; os.system('true'); print(2)\"\n")
    script.chmod(0o755)
    out = started(file_engine, "/entry.sh", options=(f"--volume={script}:/entry.sh:ro",))
    assert out.splitlines() == ["/agentcgroup/agent", "2"]


def test_calls_of_an_agent_that_is_pid_1_itself_are_governed(container: Container) -> None:
    assert container.call(WHERE).out.startswith("/agentcgroup/calls/")


@pytest.mark.parametrize("argv", [["bash", "-lc"], ["bash", "-ec"], ["bash", "-o", "pipefail", "-c"], ["sh", "-c"]])
def test_every_spelling_of_a_command_is_a_call(container: Container, argv: list[str]) -> None:
    assert container.spawn([*argv, WHERE]).out.startswith("/agentcgroup/calls/")


def test_nested_shells_stay_in_the_call_of_the_first(container: Container) -> None:
    out = container.call(
        f"{WHERE}; bash -c '{WHERE}; sh -c \"{WHERE}\"'; python3 -c \"import os; os.system('{WHERE}')\""
    )
    places = set(out.out.splitlines())
    assert len(places) == 1 and places.pop().startswith("/agentcgroup/calls/")


def test_a_helper_server_is_capped_and_never_ended_for_time(container: Container) -> None:
    server = container.background(f"exec -a mcp-server sleep 11; {WHERE}")
    wait_for(lambda: (container.tree / "helpers" / "cgroup.procs").read_text().split(), 10, "the helper")
    assert (container.tree / "helpers" / "memory.max").read_text().strip() == str(512 << 20)
    assert server.result().rc == 0
    assert not [entry for entry in container.ledger() if entry["ended"]]


def test_make_without_a_shell_shares_one_domain_with_what_it_starts(container: Container) -> None:
    """The driver is a Python program of that name: the rule goes by comm."""
    driver = (
        "import ctypes, subprocess; ctypes.CDLL(None).prctl(15, b'make', 0, 0, 0)\n"
        f"for _ in range(3): subprocess.run(['sh', '-c', 'sleep 0.5; {WHERE}'])"
    )
    places = container.spawn(["python3", "-c", driver]).out.split()
    assert len(set(places)) == 1 and places[0].startswith("/agentcgroup/calls/"), places


def test_an_interactive_shell_is_kept_past_the_time_limit_of_calls(container: Container) -> None:
    script = (
        "import os, pty, time\n"
        "pid, fd = pty.fork()\n"
        "if pid == 0: os.execvp('bash', ['bash', '--norc', '-i'])\n"
        "time.sleep(10)\n"
        f"os.write(fd, b'echo at $({WHERE})\\nexit\\n')\n"
        "out = b''\n"
        "try:\n"
        "    while data := os.read(fd, 4096): out += data\n"
        "except OSError: pass\n"
        "print(out.decode())\n"
    )
    out = container.spawn(["python3", "-c", script]).out
    assert "at /agentcgroup/calls/" in out, out


def test_a_call_is_ended_at_the_same_limit(container: Container) -> None:
    """The control of the tests above: the time limit does end a call."""
    began = time.monotonic()
    result = container.call("sleep 60")
    assert result.rc != 0 and time.monotonic() - began < 55
    assert any("time limit" in line for line in result.feedback), result.err
