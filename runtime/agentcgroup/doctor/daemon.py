"""The daemon: whether containers find it, whether it runs, and whether it answers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from agentcgroup import __version__, client, paths
from agentcgroup.doctor.finding import Finding, error, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError

HOOK, CONTROL = "hook.sock", "control.sock"
_UNITS = ("agentcgroupd.socket", "agentcgroupd.service")
_PATIENCE = 2.0  # seconds
_LISTENING = 1 << 16  # __SO_ACCEPTCON (include/uapi/linux/net.h)
_START = f"systemctl enable --now {' '.join(_UNITS)}"


def listens(path: Path, table: Path = Path("/proc/net/unix")) -> bool:
    """Whether somebody does. To connect would start a daemon that its socket starts. The kernel tells the name that a
    socket was bound to, and the daemon renames its own (hookserver.py).
    """
    names = (str(path), f"{path}.new") if path.exists() else ()
    rows = (line.split(None, 7) for line in table.read_text(errors="surrogateescape").splitlines()[1:])
    return any(len(row) == 8 and row[7] in names and int(row[3], 16) & _LISTENING for row in rows)


def units(_host: Host) -> Iterator[Finding]:
    """Whether they come with the next boot."""
    if not Path("/run/systemd/system").is_dir():  # sd_booted(3)
        return
    ask = ["systemctl", "show", "--value", "--property=UnitFileState", *_UNITS]
    told = subprocess.run(ask, text=True, capture_output=True, check=False).stdout.split("\n\n")
    states = [(unit, state.strip()) for unit, state in zip(_UNITS, told, strict=False)]
    off = [f"{unit} is {state or 'missing'}" for unit, state in states if state not in _ON]
    if off:
        yield warning(", ".join(off), "after the next boot no container is governed", _START)


_ON = ("enabled", "enabled-runtime", "static", "generated", "linked", "alias", "indirect")


def hook_socket(_host: Host) -> Iterator[Finding]:
    """Where the hook asks."""
    path = paths.RUN_DIR / HOOK
    if not listens(path):
        yield error(
            f"nothing listens on {path}",
            "calls of new containers run in calls/fallback with default limits, and required containers do not start",
            _START,
        )


def answers(host: Host) -> Iterator[Finding]:
    """Who answers, and for which containers."""
    if not listens(paths.RUN_DIR / CONTROL):
        if listens(paths.RUN_DIR / HOOK):
            why = "calls run in calls/fallback with default limits, until a container's start or removal wakes it"
            yield warning("agentcgroupd does not run", why, f"systemctl start {_UNITS[1]}")
        return
    try:
        answer = client.ask({"op": "ps"}, _PATIENCE)
    except UserError as problem:
        why = "new calls run in calls/fallback with default limits"
        yield error(str(problem).partition(":")[0], why, f"systemctl restart {_UNITS[1]}")
        return
    if answer["version"] != __version__:
        yield warning(
            f"agentcgroupd is version {answer['version']}, and {__version__} is installed",
            "what the new version mends is not in force",
            f"systemctl restart {_UNITS[1]}",
        )
