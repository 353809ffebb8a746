"""Lines to journald in its own protocol, with fields to search for; to stderr where there is no journald.

Nothing here blocks or raises: the caller may be deciding about a call. Protocol: systemd, docs/JOURNAL_NATIVE_PROTOCOL.
"""

import array
import errno
import fcntl
import os
import re
import select
import socket
import struct
import sys
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "agentcgroupd"
MAX_FIELD = 1 << 20  # bytes of one value; a longer one is cut

LEVELS = {"error": 3, "warning": 4, "info": 6, "debug": 7}
_level = 6

_NAME = re.compile(r"[A-Z0-9][A-Z0-9_]{0,63}")
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def set_level(name: str) -> None:
    """Say nothing less urgent than `name` (a key of LEVELS) from now on."""
    global _level
    _level = LEVELS[name]


def send(message: str, priority: int = 6, **fields: object) -> None:
    """One entry with MESSAGE, PRIORITY (syslog's: 3 error, 4 warning, 5 notice, 6 info) and `fields`.

    Field names are upper-cased; one that journald would refuse is left out, and so is a value of None.
    """
    priority = min(max(priority, 0), 7)
    if priority > _level:
        return
    entry = {"MESSAGE": message, "PRIORITY": priority, "SYSLOG_IDENTIFIER": IDENTIFIER} | {
        name.upper(): value for name, value in fields.items() if value is not None
    }
    datagram = b"".join(_field(name, value) for name, value in entry.items() if _NAME.fullmatch(name))
    if not _to_journald(datagram):
        _to_stderr(message, priority)


def _field(name: str, value: object) -> bytes:
    """`NAME=value` for one line of text, else the name and a 64-bit length before the bytes."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    data = data[:MAX_FIELD]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


def _to_journald(datagram: bytes) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.sendto(datagram, _FLAGS, str(SOCKET))
            except OSError as error:
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    raise
                _send_as_file(sender, datagram)
    except OSError:
        return False
    return True


def _send_as_file(sender: socket.socket, datagram: bytes) -> None:
    """What is too large for a datagram goes in a sealed memfd. Raises OSError."""
    descriptor = os.memfd_create("agentcgroup-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(datagram)
        while left:
            left = left[os.write(descriptor, left) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        sender.sendmsg([], ancillary, _FLAGS, str(SOCKET))
    finally:
        os.close(descriptor)


def _to_stderr(message: str, priority: int) -> None:
    """One line with systemd's level prefix, if stderr takes it at once; at most what a pipe takes whole."""
    line = f"<{priority}>{' '.join(message.splitlines())}".encode("utf-8", "replace")
    try:
        descriptor = sys.stderr.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(descriptor, line[: select.PIPE_BUF - 1] + b"\n")
    except (OSError, ValueError, AttributeError):  # closed, replaced or never there
        return
