"""The two protocols between a service and systemd: sd_notify(3) and sd_listen_fds(3). No library, no dependency."""

import contextlib
import os
import socket

_FIRST_FD = 3  # SD_LISTEN_FDS_START


def notify(*lines: str) -> bool:
    """Sends `READY=1`, `WATCHDOG=1`, `STATUS=...` and the like, one assignment a line; newlines in one become spaces.

    False without a service manager, or if it could not be told. Never blocks, never raises.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    message = "\n".join(" ".join(line.splitlines()) for line in lines).encode("utf-8", "replace")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            target = f"\0{address[1:]}" if address[0] == "@" else address
            sender.sendto(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, target)
    except OSError:
        return False
    return True


def watchdog_interval() -> float | None:
    """Seconds after which systemd takes silence for death; None if it does not watch this process."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 1e6 or None


def listen_fds() -> list[tuple[str, int]]:
    """(name, descriptor) of each socket that systemd passed, close-on-exec from now on; `unknown` without a name.

    The variables are removed, so that no child takes them for its own.
    """
    passed = {key: os.environ.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if passed["LISTEN_PID"] != str(os.getpid()) or not passed["LISTEN_FDS"].isdecimal():
        return []
    names = passed["LISTEN_FDNAMES"].split(":") if passed["LISTEN_FDNAMES"] else []
    found: list[tuple[str, int]] = []
    for index in range(min(int(passed["LISTEN_FDS"]), 1024)):
        with contextlib.suppress(OSError):  # not open: the number was a lie
            os.set_inheritable(_FIRST_FD + index, False)
            found.append((names[index] if index < len(names) and names[index] else "unknown", _FIRST_FD + index))
    return found


def listen_sockets() -> list[socket.socket]:
    """The passed sockets in order; what is no socket is left out, and left open."""
    sockets: list[socket.socket] = []
    for _, descriptor in listen_fds():
        with contextlib.suppress(OSError):
            sockets.append(socket.socket(fileno=descriptor))
    return sockets
