"""Labels that the policy module agentcgroup gives rules for (packaging/selinux/agentcgroup.cil). Without the module, or
without SELinux, nothing is labelled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from agentcgroup.cgroup import Cgroup

_PROCS = b"system_u:object_r:agentcgroup_procs_t:s0"
_SOCKET = b"system_u:object_r:agentcgroup_socket_t:s0"


@cache
def enabled() -> bool:
    """Whether a policy with the module was in force when this process began: selinuxfs takes what it knows."""
    try:
        with open("/sys/fs/selinux/context", "r+b", buffering=0) as file:
            file.write(_PROCS)
    except OSError:
        return False
    return True


def open_door(group: Cgroup) -> None:
    """Processes of containers may be put into this cgroup, as far as SELinux has a say."""
    if enabled():
        with suppress(OSError):
            os.setxattr(f"{group.path}/cgroup.procs", "security.selinux", _PROCS)


@contextmanager
def for_containers() -> Iterator[None]:
    """Sockets that are made meanwhile are those that containers may connect to."""
    _create_sockets_as(_SOCKET)
    try:
        yield
    finally:
        _create_sockets_as(b"\n")


def _create_sockets_as(label: bytes) -> None:
    """setsockcreatecon(3); a newline takes it back (selinux_setprocattr in security/selinux/hooks.c)."""
    if enabled():
        with suppress(OSError), open("/proc/thread-self/attr/sockcreate", "wb", buffering=0) as file:
            file.write(label)
