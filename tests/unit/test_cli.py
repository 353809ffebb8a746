"""What every command has in common."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup import hookserver
from agentcgroup.cli import main
from agentcgroup.control import Control
from daemon_socket import Answer, ask_a_daemon

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"


def python(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(RUNTIME)}
    command = [sys.executable, *argv]
    return subprocess.run(command, text=True, env=environment, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", ["ps", "calls", "unwrap"])
def test_a_command_that_reads_no_policy_loads_none_of_what_reads_them(command: str) -> None:
    """It would take four times as long to start."""
    program = f"import sys; from agentcgroup.cli import parser; parser({command!r}); sys.exit('yaml' in sys.modules)"
    assert python("-c", program).returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = python("-m", "agentcgroup.cli", "policy", "list", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_answered_with_all_of_them() -> None:
    done = python("-m", "agentcgroup.cli", "sp")
    assert done.returncode == 2
    assert "'ps', 'calls', 'why', 'policy', 'unwrap', 'run'" in done.stderr or "ps, calls, why, policy" in done.stderr


def control(containers: int, calls: int) -> Answer:
    def row(**more: object) -> SimpleNamespace:
        return SimpleNamespace(row=lambda: {"notes": ["x" * 1000], "mode": "enforce", "policy": "p", **more})

    found = {}
    for number in range(containers):
        found[f"{number:064}"] = one = row(
            id=f"{number:064}", name="n", calls=calls, injected=[], cooperative=[], memory=1, memory_max=1,
            agent_memory=1, network="",
        )  # fmt: skip
        one.calls = {n: row(call=n) for n in range(calls)}
    governor = SimpleNamespace(containers=found, overview=lambda: [c.row() for c in found.values()])
    return Control(SimpleNamespace(governor=governor)).answer  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "containers", "calls", "said"),
    [
        (("ps", "--json"), 2, 5000, ""),
        (("ps", "--json"), 1000, 3, " of 1000 containers shown\n"),
        (("ps",), 1000, 3, " of 1000 containers shown\n"),
        (("calls", "--json", "0" * 64), 1, 5000, " of 5000 calls shown\n"),
    ],
)
def test_a_long_list_is_cut_and_that_is_said(
    run_dir: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], containers: int, calls: int, said: str
) -> None:
    assert ask_a_daemon(run_dir, control(containers, calls), *argv) == 0
    out, err = capsys.readouterr()
    assert err.endswith(said) and bool(err) == bool(said)
    shown = len(json.loads(out)) if "--json" in argv else out.count("\n") - 1
    assert shown == int(err.split()[1]) if said else shown == containers


def test_a_daemon_that_ends_before_it_answers_is_an_error_in_words(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = hookserver.listen(run_dir / "control.sock", 0o600)

    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    ending = threading.Thread(target=hang_up)
    ending.start()
    assert main(["ps"]) == 1
    ending.join()
    listener.close()
    assert capsys.readouterr().err == (
        "agentcgroup: agentcgroupd ended before it answered: try again, or journalctl -u agentcgroupd\n"
    )


def test_unwrap_says_that_it_is_for_root(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    os.seteuid(65534)
    try:
        assert main(["unwrap", "box"]) == 1
    finally:
        os.seteuid(0)
    assert capsys.readouterr().err == f"agentcgroup: {run_dir}/containers: Permission denied: run this as root\n"


@pytest.mark.parametrize("number", ["²", "٣", "7x", "-7"])
def test_a_call_number_is_made_of_ascii_digits(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", f"box/{number}"]) == 1
    assert capsys.readouterr().err == f'agentcgroup: "{number}" is no call number: agentcgroup why CONTAINER/7\n'
