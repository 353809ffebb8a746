"""What conmon, the process that podman and CRI-O put above each container, knows of it."""

from __future__ import annotations

from agentcgroup.peer import look, read_proc

#: While a container is being made, its init is a child of the OCI runtime, and that of conmon.
_LEVELS = 4


def container_name(init: int) -> str:
    """The name that podman gave to the container of this init: the `-n` of its conmon (conmon(8)). Empty if its engine
    uses none.
    """
    peer = look(init)
    for _ in range(_LEVELS):
        peer = look(peer.ppid) if peer is not None else None
        if peer is not None and peer.comm == "conmon":
            return _option(read_proc(peer.pid, "cmdline").decode(errors="replace").split("\0"))
    return ""


def _option(argv: list[str]) -> str:
    for word, value in zip(argv, argv[1:], strict=False):
        if word in ("-n", "--name"):
            return value
    return ""
