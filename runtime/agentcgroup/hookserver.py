"""The hook's requests (docs/architecture.md, "Hook protocol"), answered on the loop's thread."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentcgroup import journal
from agentcgroup.errors import UserError
from agentcgroup.loop import Loop

MAX_MESSAGE = 64 << 10
#: accept(2) would fail again at once.
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Message = dict[str, Any]


class MessageServer:
    """A SOCK_SEQPACKET server of JSON objects: each message goes to `answer`, what that returns goes back."""

    def __init__(self, loop: Loop, listener: socket.socket, answer: Callable[[Message], Message | None]) -> None:
        self._loop = loop
        self._listener = listener
        self._answer = answer
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add(self._listener.fileno(), select.EPOLLIN, lambda _e: self._accept())

    def close(self) -> None:
        """Stop listening; a socket that systemd holds stays open there."""
        self._loop.remove(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_FILES:
                self._loop.remove(self._listener.fileno())
                self._loop.after(1.0, self._listen)
            return
        connection.setblocking(False)
        self._loop.add(connection.fileno(), select.EPOLLIN, lambda _e: self._receive(connection))
        self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(MAX_MESSAGE + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._loop.remove(connection.fileno())
            connection.close()
            return
        reply = self._reply(message)
        if reply is not None:
            with contextlib.suppress(OSError):
                connection.send(json.dumps(reply).encode(), socket.MSG_NOSIGNAL)

    def _reply(self, message: bytes) -> Message | None:
        try:
            request = json.loads(message)
        except ValueError:
            request = None
        if not isinstance(request, dict) or len(message) > MAX_MESSAGE:
            return {"refuse": "the request is no JSON object of at most 64 KiB", "required": False}
        try:
            return self._answer(request)
        except UserError as error:
            return {"refuse": str(error), "required": False}
        except (OSError, KeyError, TypeError, ValueError) as error:
            journal.send(f"a request could not be answered: {type(error).__name__}: {error}", 3)
            return {"refuse": f"internal error in the daemon: {type(error).__name__}: {error}", "required": False}


def listen(path: Path, mode: int) -> socket.socket:
    """A SOCK_SEQPACKET listener at `path`, in the place of a dead one's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    listener.bind(str(temporary))
    os.chmod(temporary, mode)
    listener.listen(128)
    temporary.rename(path)
    return listener
