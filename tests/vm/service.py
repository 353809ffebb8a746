"""agentcgroupd as the tests treat it: asked, stopped, killed and measured."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podman import run, wait_for

SERVICE, SOCKET = "agentcgroupd.service", "agentcgroupd.socket"
CONTROL = Path("/run/agentcgroup/control.sock")


def pid() -> int:
    """The daemon's main process; 0 when there is none."""
    return int(run("systemctl", "show", "--property=MainPID", "--value", SERVICE).stdout)


def ask(**request: Any) -> dict[str, Any]:
    """One request of the CLI's protocol. Raises OSError when no daemon listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(CONTROL))
        connection.send(json.dumps(request).encode())
        return json.loads(connection.recv(1 << 20))


def answers() -> bool:
    """Whether a daemon serves."""
    try:
        return "containers" in ask(op="ps")
    except OSError:
        return False


def calls(container_id: str) -> list[dict[str, Any]]:
    """The rows of a container's running calls."""
    return ask(op="calls", name=container_id)["calls"]


def governs(container_id: str) -> bool:
    """Whether the daemon knows the container."""
    try:
        return container_id in [row["id"] for row in ask(op="ps")["containers"]]
    except OSError:
        return False


def start() -> int:
    """Start socket and daemon; returns its pid once it serves."""
    run("systemctl", "start", SOCKET, SERVICE)
    wait_for(answers, 10, "the daemon")
    return pid()


def stop(socket_too: bool = True) -> None:
    """No daemon from now on. With the socket up, the next container's hook starts it again."""
    run("systemctl", "stop", SERVICE, *([SOCKET] if socket_too else []))
    if not socket_too:
        run("systemctl", "start", SOCKET)


def kill() -> int:
    """SIGKILL it; returns the pid of the one that systemd has started in its place, once that serves."""
    old = pid()
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: pid() not in (0, old) and answers(), 20, "another daemon")
    return pid()


@contextmanager
def late() -> Iterator[None]:
    """A daemon that lives and does not answer."""
    stopped = pid()
    os.kill(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stopped, signal.SIGCONT)


def descriptors() -> list[str]:
    """What each open file of the daemon is, sorted; a stable daemon has the same list again."""
    found = []
    for entry in Path(f"/proc/{pid()}/fd").iterdir():
        try:
            found.append(re.sub(r"/calls/\d+/", "/calls/N/", os.readlink(entry).split(":[")[0]))
        except FileNotFoundError:
            continue
    return sorted(found)


def differences(before: list[str]) -> dict[str, int]:
    """Which open files are more (or, below 0, fewer) than `before`."""
    now = Counter(descriptors())
    now.subtract(Counter(before))
    return {name: count for name, count in now.items() if count}


def resident_kib() -> int:
    """Its resident memory in KiB."""
    for line in Path(f"/proc/{pid()}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the daemon has ended")
