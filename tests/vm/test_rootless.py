"""podman of a normal user: its containers start unharmed and ungoverned, and the journal says why in one line
(docs/rootless.md).
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from podman import run, wait_for

IMAGE = "localhost/debian"
GOVERNED = "--annotation=agentcgroup.policy=test"


def as_user(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command as `agent`, who has a service manager of its own, as a login session would."""
    environment = ["XDG_RUNTIME_DIR=/run/user/1000", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus"]
    command = ["runuser", "-u", "agent", "--", "env", "HOME=/home/agent", *environment, *argv]
    return run(*command, check=False, cwd="/home/agent")


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """The id of a container that was started with our annotation."""
    wait_for(lambda: run("systemctl", "is-active", "user@1000.service", check=False).returncode == 0, 10, "the user")
    started = as_user("podman", "run", "-d", "--network=none", GOVERNED, IMAGE, "sleep", "1000")
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip()
    as_user("podman", "rm", "-f", "-t", "0", started.stdout.strip())


def journal_of(container_id: str) -> list[str]:
    return run("journalctl", "-o", "cat", f"AGENTCGROUP_CONTAINER={container_id}").stdout.splitlines()


def test_a_users_container_starts_ungoverned(container: str) -> None:
    done = as_user(
        "podman", "exec", container, "bash", "-c", "cat /proc/self/cgroup /proc/self/mountinfo; ls /dev; exit 7"
    )
    assert done.returncode == 7
    assert done.stdout.startswith("0::/\n")
    assert "agentcgroup" not in done.stdout


def test_one_line_in_the_journal_says_why(container: str) -> None:
    """oci-seccomp-bpf-hook#103: exit 1 after ten seconds, and no text."""
    [line] = journal_of(container)
    assert line.startswith(f"container {container[:12]}: not governed: the engine runs without root")


def test_a_required_users_container_does_not_start_and_says_why() -> None:
    done = as_user(
        "podman",
        "run",
        "--rm",
        "--network=none",
        GOVERNED,
        "--annotation=agentcgroup.required=true",
        IMAGE,
        "echo",
        "up",
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the engine runs without root" in done.stderr


def test_a_user_can_run_one_command_as_a_call() -> None:
    text = "cat /proc/self/cgroup; python3 -c 'bytearray(100 << 20)'"
    done = as_user("agentcgroup", "run", "--hint=memory:64m", "--", "sh", "-c", text)
    assert done.returncode == 137
    assert re.fullmatch(r"0::/user\.slice/user-1000\.slice/.*/agentcgroup/calls/1\n", done.stdout)
    assert "limit 64 MiB (hint 64m)" in done.stderr
    assert f"AGENT_RESOURCE_HINT=memory:96m sh -c {shlex.quote(text)}" in done.stderr


def test_what_is_roots_is_said_to_be_roots() -> None:
    done = as_user("agentcgroup", "why", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "agentcgroup: /var/log/agentcgroup/calls.jsonl: Permission denied: run this as root\n"
