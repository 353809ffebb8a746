"""podman of a normal user: its containers start unharmed and ungoverned, and the journal says why in one line
(docs/rootless.md).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from podman import run, wait_for

IMAGE = "localhost/debian"
GOVERNED = "--annotation=agentcgroup.policy=test"


def as_user(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run podman as `agent` in the user's own service manager, as a login session would."""
    environment = ["XDG_RUNTIME_DIR=/run/user/1000", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus"]
    command = ["runuser", "-u", "agent", "--", "env", "HOME=/home/agent", *environment, "podman", *argv]
    return run(*command, check=False, cwd="/home/agent")


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """The id of a container that was started with our annotation."""
    wait_for(lambda: run("systemctl", "is-active", "user@1000.service", check=False).returncode == 0, 10, "the user")
    started = as_user("run", "-d", "--network=none", GOVERNED, IMAGE, "sleep", "1000")
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip()
    as_user("rm", "-f", "-t", "0", started.stdout.strip())


def journal_of(container_id: str) -> list[str]:
    return run("journalctl", "-o", "cat", f"AGENTCGROUP_CONTAINER={container_id}").stdout.splitlines()


def test_a_users_container_starts_ungoverned(container: str) -> None:
    done = as_user("exec", container, "bash", "-c", "cat /proc/self/cgroup /proc/self/mountinfo; ls /dev; exit 7")
    assert done.returncode == 7
    assert done.stdout.startswith("0::/\n")
    assert "agentcgroup" not in done.stdout


def test_one_line_in_the_journal_says_why(container: str) -> None:
    [line] = journal_of(container)
    assert line.startswith(f"container {container[:12]}: not governed: the engine runs without root")


def test_a_required_users_container_does_not_start_and_says_why() -> None:
    done = as_user(
        "run", "--rm", "--network=none", GOVERNED, "--annotation=agentcgroup.required=true", IMAGE, "echo", "up"
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the engine runs without root" in done.stderr
