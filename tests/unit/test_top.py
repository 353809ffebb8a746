"""`agentcgroup top`: rows from real files, in lines and on a terminal, and nothing of a name is obeyed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentcgroup import hookserver, top
from agentcgroup.cli import main
from agentcgroup.control import MAX_BYTES, Control
from agentcgroup.loop import Loop
from daemon_socket import ask_a_daemon

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
MIB = 1 << 20
NASTY = "\x1b]0;owned\x07[bold red]x[/]\n\u202e"


def put(group: Path, memory: int, stall_s: float, cpu_s: float) -> None:
    """A cgroup's counters."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.current").write_text(f"{memory}\n")
    (group / "memory.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(stall_s * 1e6)}\n")
    (group / "cpu.stat").write_text(f"usage_usec {int(cpu_s * 1e6)}\n")


def container(tree: Path, identity: str = "c0ffee", name: str = "web") -> dict[str, Any]:
    return {"id": identity, "name": name, "policy": "p", "tree": str(tree), "memory_max": 1024 * MIB}


def call(number: int, container: str = "c0ffee", **changes: Any) -> dict[str, Any]:
    plain = {"container": container, "call": number, "kind": "call", "command": "pytest", "seconds": 10.0}
    return {**plain, "limit": 256 * MIB, "limit_source": "default", "held": False, "ended": None, **changes}


def answer(containers: list[dict[str, Any]], calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"containers": containers, "calls": calls, "total": len(containers), "total_calls": len(calls)}


def test_states_and_shares(tmp_path: Path) -> None:
    put(tmp_path, 90 * MIB, 0.0, 0.0)
    for number in (1, 2, 3, 4):
        put(tmp_path / f"calls/{number}", number * MIB, 0.0, 5.0)
    calls = [call(1), call(2), call(3, held=True), call(4, ended="time"), call(9, container="gone")]
    sampler = top.Sampler()
    first = top.ordered(sampler.look(answer([container(tmp_path)], calls)), "memory")
    assert [row.cells()[:5] for row in first[:2]] == [
        ("web", "", "", "90 MiB", "1 GiB"),
        ("", "4", "pytest", "4 MiB", "256 MiB"),
    ]
    assert [row.state for row in first] == ["4 calls", "ending: time", "held", "running", "running"]
    assert first[0].cells()[5:8] == ("-", "-", "10 s")
    assert first[4].cells()[5:8] == ("0%", "50%", "10 s")  # since it began
    time.sleep(0.2)
    put(tmp_path / "calls/2", 2 * MIB, 10.0, 5.0)
    put(tmp_path / "calls/1", 1 * MIB, 0.0, 5.1)
    second = top.ordered(sampler.look(answer([container(tmp_path)], calls)), "memory")
    by_call = {row.call: row for row in second}
    assert (by_call[2].state, by_call[2].pressure) == ("slowed", 1.0)
    assert by_call[1].cpu is not None and 0.1 < by_call[1].cpu <= 0.5 and by_call[1].state == "running"


@pytest.mark.parametrize(
    ("sort", "order"),
    [("memory", "bac"), ("cpu", "cab"), ("age", "abc"), ("name", "abc"), ("pressure", "cba")],
)
def test_containers_and_calls_are_sorted_alike(tmp_path: Path, sort: str, order: str) -> None:
    figures = {"a": (20, 1, 2.0, 30.0), "b": (30, 2, 1.0, 20.0), "c": (10, 3, 3.0, 10.0)}
    sampler, containers, calls = top.Sampler(), [], []
    for name, (memory, stall, cpu, age) in figures.items():
        tree = tmp_path / name
        put(tree, 0, 0.0, 0.0)
        put(tree / "calls/1", memory, 0.1 * stall, cpu)
        containers.append(container(tree, name, name))
        calls.append(call(1, name, seconds=age, command=name))
    sampler.look(answer(containers, calls))
    for name, (memory, stall, cpu, _age) in figures.items():
        put(tmp_path / name, memory, 0.001 * stall, 0.01 * cpu)
    time.sleep(0.1)
    rows = top.ordered(sampler.look(answer(containers, calls)), sort)
    assert "".join(row.name for row in rows if row.call is None) == order


def test_a_call_that_ends_meanwhile_is_a_row_without_figures(tmp_path: Path) -> None:
    rows = top.ordered(top.Sampler().look(answer([container(tmp_path / "gone")], [call(1)])), "memory")
    assert [row.cells()[3] for row in rows] == ["-", "-"]


def test_the_daemons_answer_fits_and_says_what_is_missing(tmp_path: Path) -> None:
    from types import SimpleNamespace

    one = SimpleNamespace(record=SimpleNamespace(id="c" * 64), brief=lambda: container(tmp_path, "c" * 64))
    one.calls = {n: SimpleNamespace(brief=lambda n=n: call(n)) for n in range(3000)}
    daemon = SimpleNamespace(governor=SimpleNamespace(containers={str(n): one for n in range(2)}))
    found = Control(daemon).answer({"op": "top"})  # type: ignore[arg-type]
    assert (found["total"], found["total_calls"]) == (2, 6000)
    assert len(found["containers"]) == 2 and 300 < len(found["calls"]) < 6000
    assert len(str(found)) < MAX_BYTES


def test_lines_where_there_is_no_terminal(
    tmp_path: Path,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path, 90 * MIB, 0.0, 0.0)
    put(tmp_path / "calls/1", 5 * MIB, 0.0, 1.0)
    found = answer([container(tmp_path, name=NASTY)], [call(1, command=NASTY)])
    argv = ("top", "-n", "2", "-d", "0.2", "--sort", "cpu")
    assert ask_a_daemon(run_dir, lambda request: found if request == {"op": "top"} else {}, *argv) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    first, second = out.rstrip("\n").split("\n\n")
    assert re.match(r"agentcgroup top  \d\d:\d\d:\d\d  1 containers, 1 calls, by cpu\nCONTAINER +CALL +COMMAND", second)
    assert re.search(
        r"^\?\]0;owned\?\[bold red\]x\[/\]\?\? .* 90 MiB +1 GiB +0% +0% +10 s +1 call$", second, re.MULTILINE
    )
    assert first.count("\n") == second.count("\n") == 3


def test_no_daemon_is_said(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 1
    assert capsys.readouterr().err == "agentcgroup: agentcgroupd is not running: systemctl start agentcgroupd\n"


@pytest.mark.parametrize("argv", [("-d", "0"), ("-d", "x"), ("-n", "0"), ("--sort", "pids")])
def test_nonsense_is_refused(argv: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", *argv])
    assert caught.value.code == 2
    assert "invalid" in capsys.readouterr().err


# --- on a terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(tmp_path: Path, run_dir: Path) -> Iterator[tuple[Loop, Path]]:
    """A daemon's socket that tells of one container with hostile names."""
    put(tmp_path / "box", 90 * MIB, 0.0, 0.0)
    put(tmp_path / "box/calls/1", 5 * MIB, 0.0, 1.0)
    found = answer([container(tmp_path / "box", name=NASTY)], [call(1, command="[bold]hog")])
    loop = Loop(lambda error: None)
    server = hookserver.MessageServer(loop, hookserver.listen(run_dir / "control.sock", 0o600), lambda _request: found)
    yield loop, run_dir
    server.close()
    loop.close()


def watch(terminal: tuple[Loop, Path], keys: list[tuple[str, bytes]], program: str) -> tuple[int, str, bool]:
    """Run top on a pseudo-terminal; each key is pressed once its text has come, an empty one is ^C. Returns status,
    output, and whether the terminal is as before.
    """
    loop, folder = terminal
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 120))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "PYTHONPATH": str(RUNTIME), "TERM": "xterm", "RUN": str(folder)}
    child = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    said, end, left = b"", time.monotonic() + 60, list(keys)
    while child.poll() is None or select.select([ours], [], [], 0)[0]:
        assert time.monotonic() < end, said
        loop.turn(0.02)
        if select.select([ours], [], [], 0.02)[0]:
            said += os.read(ours, 65536)
        if left and left[0][0].encode() in said:
            key = left.pop(0)[1]
            if key:
                os.write(ours, key)
            else:
                child.send_signal(signal.SIGINT)
    same = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return child.returncode, said.decode(), same


TOP = """import os, sys
from pathlib import Path
from agentcgroup import cli, paths
paths.RUN_DIR = Path(os.environ["RUN"])
sys.exit(cli.main(["top", "-d", "0.3"]))"""

HIDDEN = """import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "rich" else find(name)
"""


def test_keys_sort_and_end_and_the_terminal_is_as_before(terminal: tuple[Loop, Path]) -> None:
    status, said, modes = watch(terminal, [("by memory", b"c"), ("by cpu", b"x"), ("by cpu", b"q")], TOP)
    assert (status, modes) == (0, True), said
    assert "\x1b[?1049h" in said and said.endswith("\x1b[?1049l")  # its own screen, left again
    assert "\x1b]0;owned" not in said and "?]0;owned?[bold red]x[/]??" in said and "[bold]hog" in said


def test_an_interrupt_puts_the_terminal_back(terminal: tuple[Loop, Path]) -> None:
    status, said, modes = watch(terminal, [("by memory", b"")], TOP)
    assert (status, modes) == (0, True)
    assert "\x1b[?1049l" in said and "Traceback" not in said


def test_without_rich_it_is_lines_on_a_terminal_too(terminal: tuple[Loop, Path]) -> None:
    status, said, modes = watch(terminal, [("90 MiB", b"")], HIDDEN + TOP)
    assert (status, modes) == (0, True)
    assert "\x1b" not in said and "90 MiB" in said and "Traceback" not in said
