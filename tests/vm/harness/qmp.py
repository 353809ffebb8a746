"""The few orders that the harness gives a running QEMU over its QMP socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class QmpError(Exception):
    """QEMU refused an order; the text is its own."""


class Qmp:
    """A QMP session; see QEMU's docs/interop/qmp-spec."""

    def __init__(self, stream: socket.socket) -> None:
        self._lines = stream.makefile("rw", encoding="utf-8")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, order: str, **arguments: object) -> Any:
        """Give one order and return its answer. Raises QmpError."""
        self._lines.write(json.dumps({"execute": order, "arguments": arguments}) + "\n")
        self._lines.flush()
        for line in self._lines:
            answer = json.loads(line)
            if "error" in answer:
                raise QmpError(f"{order}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise QmpError(f"{order}: QEMU closed its socket")


@contextmanager
def connect(path: Path) -> Iterator[Qmp]:
    """Open a session on QEMU's socket for a block. Raises OSError if nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(str(path))
        yield Qmp(stream)
