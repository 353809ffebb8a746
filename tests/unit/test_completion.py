"""What a person gets who presses the tab key in bash; zsh and fish ask with the same words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup import cli, client
from agentcgroup.cli.complete import complete
from agentcgroup.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
BASH = """
source "$1"; shift
COMP_WORDS=(agentcgroup "$@") COMP_CWORD=$#
[[ $(complete -p agentcgroup) == 'complete -o default -F _agentcgroup agentcgroup' ]] || exit 9
_agentcgroup agentcgroup "${@: -1}" "${@: -2:1}"
printf '%s\\n' ${#COMPREPLY[@]} "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[object]:
    """bash with an `agentcgroup` in its path; what it would offer for the words."""
    command = tmp_path / "agentcgroup"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentcgroup.cli "$@"\n')
    command.chmod(0o755)

    def offered(*words: str) -> list[str]:
        script = str(ROOT / "packaging/completions/agentcgroup.bash")
        done = subprocess.run(
            ["bash", "--norc", "-c", BASH, "bash", script, *words],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "runtime")},
            text=True,
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        count, *found = done.stdout.split()
        assert int(count) == len(found)  # an empty word would keep bash from offering files
        return found

    yield offered


def test_bash_offers_commands_options_and_nothing_where_only_files_fit(bash) -> None:
    assert {"ps", "calls", "why", "policy", "run"} <= set(bash(""))
    assert bash("po") == ["policy"]
    assert bash("policy", "sh") == ["show"]
    assert bash("why", "--") == ["--help", "--limit", "--all", "--json"]
    assert bash("match", "--engine", "") == ["podman", "crio"]
    assert bash("match", "--engine", "=", "cr") == ["crio"]
    assert bash("match", "--engine", "=") == ["podman", "crio"]
    assert bash("policy", "check", "") == bash("run", "--", "py") == bash("nonsense", "") == []


def test_policies_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcgroup.paths.POLICY_DIRS", (ROOT / "oci-config" / "policies.d",))
    found = ["batch", "coding-agent", "interactive", "observe"]
    assert list(complete(cli.parser(), ["policy", "show", ""])) == found
    assert list(complete(cli.parser(), ["run", "--policy", "co"])) == ["coding-agent"]
    assert list(complete(cli.parser(), ["policy", "show", "batch", ""])) == []


@pytest.mark.parametrize("words", [["calls", "--json"], ["unwrap"], ["why", "-n", "3"], ["trace", "--call", "1"]])
def test_containers_are_offered_by_id_and_name(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    answer = {"containers": [{"id": "9f2f" * 16, "name": "nightly"}, {"id": "abcd" * 16, "name": "$(touch x)"}]}
    monkeypatch.setattr(client, "ask", lambda request: answer)
    assert list(complete(cli.parser(), [*words, ""])) == ["9f2f" * 3, "nightly", "abcd" * 3, "$(touch x)"]
    assert list(complete(cli.parser(), [*words, "ni"])) == ["nightly"]


def test_without_a_daemon_no_container_is_offered_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_request: object) -> SimpleNamespace:
        raise UserError("agentcgroupd is not running")

    monkeypatch.setattr(client, "ask", refuse)
    assert list(complete(cli.parser(), ["calls", ""])) == []
