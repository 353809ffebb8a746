"""Where metrics are asked for: HTTP on a unix socket or a loopback port. The loop only accepts; each scrape has a
thread of its own, so that one who reads slowly, or not at all, holds up nobody.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from agentcgroup.config import MetricsAddress
from agentcgroup.errors import UserError
from agentcgroup.loop import Loop
from agentcgroup.metrics.exporter import CONTENT_TYPE
from agentcgroup.records import readers

#: Scrapes at once; more are hung up on. Seconds that one may take to ask, and again to read.
SCRAPES = 4
PATIENCE = 5.0


class Server:
    """Serves `text()` at an address until it is closed."""

    def __init__(self, loop: Loop, address: MetricsAddress, text: Callable[[], bytes]) -> None:
        """Raises UserError or OSError where it cannot listen there."""
        self._loop = loop
        self._address = address
        self._text = text
        self._free = threading.BoundedSemaphore(SCRAPES)
        self._listener = _listen_at_path(address.path) if address.path is not None else _listen_at_port(address)
        self._listener.setblocking(False)
        loop.add(self._listener.fileno(), select.EPOLLIN, lambda _e: self._accept())

    def close(self) -> None:
        """Stop listening; scrapes that have begun come to their end."""
        self._loop.remove(self._listener.fileno())
        self._listener.close()
        if self._address.path is not None:
            self._address.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="metrics", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(PATIENCE)
            with connection, contextlib.suppress(OSError):
                _Scrape(connection, self._text)
        finally:
            self._free.release()


class _Scrape(BaseHTTPRequestHandler):
    """One request. The whole answer is made before its first byte is sent."""

    def __init__(self, connection: socket.socket, text: Callable[[], bytes]) -> None:
        self._metrics = text
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """/metrics, and / for those who try."""
        if self.path.partition("?")[0] not in ("/metrics", "/"):
            self.send_error(404)
            return
        body = self._metrics()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read of each scrape."""


def _listen_at_path(path: Path) -> socket.socket:
    """For root, and for the group that may read records."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise UserError(f"metrics: {path} exists and is no socket: name another path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))  # to connect, one must be allowed to write: with umask 022 nobody else is
        group = readers()
        os.chown(path, -1, group)
        os.chmod(path, 0o600 if group == -1 else 0o660)
        listener.listen(SCRAPES)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_at_port(address: MetricsAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=SCRAPES)
