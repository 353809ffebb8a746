"""`agentcgroup unwrap`: take the shim off a container's shells, so that its package manager can replace them.

While the shim is mounted over bash an upgrade of it fails: dpkg's backup link is EXDEV (link(2)), and a rename over a
mounted file EBUSY (rename(2)).
"""

from __future__ import annotations

import argparse
import ctypes
import os

from agentcgroup import client
from agentcgroup.errors import UserError
from agentcgroup.hint import clean
from agentcgroup.mountinfo import mounts
from agentcgroup.peer import look

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MNT_DETACH = 2  # umount2(2)
_UMOUNT_NOFOLLOW = 8


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    unwrap = commands.add_parser(
        "unwrap",
        help="take the shim off a container's shells",
        description="Unmount the shim from a container's shells until its next start, so that they can be upgraded. "
        "Shells started from then on run in the agent's own cgroup; running calls go on as they are.",
    )
    unwrap.add_argument("container", metavar="CONTAINER", help="id, beginning of an id, or name")
    unwrap.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Unmount and say what was unmounted."""
    record = client.find_record(options.container)
    init = look(record.pid)
    if init is None or init.start_time != record.start_time:
        raise UserError(f'container "{options.container}" is not running')
    shells = wrapped(record.pid)
    if not shells:
        print(f"no shell of {record.name} is wrapped")
    for path in shells:
        _unmount(record.pid, path)
        print(f"{clean(path, 4096)}: unwrapped until the next start of {record.name}")
    return 0


def wrapped(pid: int) -> list[str]:
    """The shells, as the container sees them, that our shim is mounted over in the mount namespace of `pid`.
    Raises OSError when the process is gone.
    """
    shims = (mount.point for mount in mounts(pid) if "/agentcgroup/shims/" in mount.root)
    return [path for path in shims if not path.startswith("/dev/agentcgroup/")]  # agentcgroup-hint is no shell


def _unmount(pid: int, path: str) -> None:
    """umount2 inside the container's mount namespace, in a child so that this process stays where it is."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os._exit(_unmount_inside(namespace, path))
    os.close(namespace)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise UserError(f"{path}: not unmounted: {os.strerror(code)}")


def _unmount_inside(namespace: int, path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNS):
        return ctypes.get_errno()
    return ctypes.get_errno() if libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) else 0
