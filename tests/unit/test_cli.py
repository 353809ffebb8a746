"""What every command has in common."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
