"""The socket of one container (docs/architecture.md, "Call protocol"): how many may connect, how fast, and how much
they may say. What a message means is the container's business.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentcgroup import selinux
from agentcgroup.config import Config
from agentcgroup.hookserver import NO_FILES
from agentcgroup.loop import Group, Loop
from agentcgroup.request import MAX_MESSAGE, Request, parse

if TYPE_CHECKING:
    from agentcgroup.call import Call

BACKLOG = 512
#: Messages on a connection that is no call's: one to start, to move or to hint.
MESSAGES = 4


class Caller:
    """One connection; `call` is what it speaks for once that is known."""

    __slots__ = ("call", "left", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.call: Call | None = None
        self.left = MESSAGES

    def send(self, text: str) -> None:
        """Answer; a peer that is gone or does not read is its own loss."""
        with contextlib.suppress(OSError):
            self.socket.send(text.encode(errors="replace"), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def gave_up(self) -> bool:
        """Whether the other end has hung up, having waited long enough for us."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


class CallSocket:
    """Listens at `path`. `on_request` gets each message, `on_end` a call whose shim has hung up, `complain` a text."""

    def __init__(
        self,
        path: Path,
        loop: Loop,
        io: Group,
        config: Callable[[], Config],
        on_request: Callable[[Caller, Request], None],
        on_end: Callable[[Call], None],
        complain: Callable[[str], None],
    ) -> None:
        self._loop, self._io, self._config = loop, io, config
        self._on_request, self._on_end, self._complain = on_request, on_end, complain
        self._callers: dict[int, Caller] = {}
        self._tokens, self._paced = 0.0, float("-inf")
        self._listener = _listen(path)
        self._listen_again()

    def close(self) -> None:
        """Hang up on everybody."""
        self._io.remove(self._listener.fileno())
        self._listener.close()
        for caller in self._callers.values():
            self._io.remove(caller.socket.fileno())
            caller.socket.close()
        self._callers.clear()

    def hang_up(self, caller: Caller) -> None:
        """Close one connection; if it is a call's, `on_end` gets to know."""
        self._callers.pop(caller.socket.fileno(), None)
        self._io.forget(caller.socket.fileno())
        caller.socket.close()
        call, caller.call = caller.call, None
        if call is not None:
            self._on_end(call)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_FILES:
                self._listen_later(1.0)
            return
        connection.setblocking(False)
        self._pace()
        if len(self._callers) >= self._config().max_connections:
            self._complain(f"more than {len(self._callers)} connections, new ones are closed")
            connection.close()
            return
        caller = Caller(connection)
        self._callers[connection.fileno()] = caller
        self._io.add(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP, lambda _e: self._receive(caller))
        self._receive(caller)  # usually the message is here already: saves a turn

    def _pace(self) -> None:
        """A container that asks too fast waits in its own backlog: its shims fall back, nobody else is slowed."""
        now, config = time.monotonic(), self._config()
        self._tokens = min(config.call_burst, self._tokens + (now - self._paced) * config.call_rate) - 1
        self._paced = now
        if self._tokens < 1:
            self._complain(f"more than {config.call_rate} calls a second, they are slowed down")
            self._listen_later(1 / config.call_rate)

    def _listen_later(self, seconds: float) -> None:
        self._io.remove(self._listener.fileno())
        self._loop.after(seconds, self._listen_again)

    def _listen_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._io.remove(self._listener.fileno())
            self._io.add(self._listener.fileno(), select.EPOLLIN, lambda _e: self._accept())

    def _receive(self, caller: Caller) -> None:
        try:
            message = caller.socket.recv(MAX_MESSAGE + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        request = parse(message) if message else None
        caller.left -= caller.call is None
        if message and (request is None or caller.left < 0):
            self._complain("what came on the call socket is not of this protocol, connection closed")
            request = None
        if request is None:
            self.hang_up(caller)
        else:
            self._on_request(caller, request)


def _listen(path: Path) -> socket.socket:
    with selinux.for_containers():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(BACKLOG)
        undo.pop_all()
    return listener
