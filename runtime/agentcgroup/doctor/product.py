"""What was installed: whether it is all there, and for this machine."""

from __future__ import annotations

import contextlib
import grp
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agentcgroup import paths
from agentcgroup.doctor.finding import AGAIN, Finding, error, warning
from agentcgroup.doctor.host import Host
from agentcgroup.ocihooks import OUR_HOOK
from agentcgroup.records import READERS

_SHIM = "agentcgroup-shim"
_LOST = {
    OUR_HOOK: "engines pass its JSON over in silence: containers start, and are not governed",
    _SHIM: "shells stay as they are: no tool call has a cgroup of its own",
    "agentcgroup-runtime": "containers of Docker and others without hooks do not start through it",
}
#: Bytes of an ELF header from the class up to the machine (elf(5)): which programs a machine runs.
_CLASS, _MACHINE, _HEADER = slice(4, 6), slice(18, 20), 20


def files(_host: Host, folder: Path = paths.LIBEXEC_DIR) -> Iterator[Finding]:
    """Our programs."""
    for name, lost in _LOST.items():
        if cause := _unfit(folder / name):
            mode = "is not executable" in cause
            yield error(f"{folder / name} {cause}", lost, f"chmod 755 {folder / name}" if mode else AGAIN)


def _unfit(path: Path) -> str:
    """Why a program does not run; "" if nothing is found."""
    try:
        header = _header(path)
    except OSError as problem:
        return f"cannot be read: {problem.strerror}" if path.exists() else "does not exist"
    if not os.access(path, os.X_OK):
        return "is not executable"
    if header[:4] != b"\x7fELF":
        return "is no program"
    ours = _header(Path("/proc/self/exe"))
    if (header[_CLASS], header[_MACHINE]) != (ours[_CLASS], ours[_MACHINE]):
        return f"is of another architecture than this {os.uname().machine} machine"
    return _will_not_start(path) if path.name == _SHIM else ""


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER)


def _will_not_start(shim: Path) -> str:
    """Under its other name, and without a hint, it says how that is used and ends with 1."""
    try:
        done = subprocess.run(
            ["agentcgroup-hint"], executable=shim, stdin=subprocess.DEVNULL, capture_output=True, timeout=5
        )
    except OSError as problem:
        return f"does not start: {problem.strerror}"
    except subprocess.TimeoutExpired:
        return "does not end"
    return "" if done.returncode == 1 else f"ends with {done.returncode} where it should say how it is used"


def group(_host: Host) -> Iterator[Finding]:
    """Whose members read the records."""
    with contextlib.suppress(KeyError):
        grp.getgrnam(READERS)
        return
    yield warning(f"there is no group {READERS}", "only root can read the records of calls", "systemd-sysusers")
