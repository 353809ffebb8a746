"""The CLI's requests on `control.sock`: one JSON request, one JSON answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentcgroup import __version__
from agentcgroup.errors import UserError

if TYPE_CHECKING:
    from agentcgroup.container import Container
    from agentcgroup.daemon import Daemon

Row = dict[str, Any]
#: Bytes of rows: an answer must fit into one message of the socket (net.core.wmem_default, 208 KiB). What does not fit
#: is left out, `total` counts it.
MAX_BYTES = 160 << 10


class Control:
    """Answers for one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request. Raises UserError."""
        op = request.get("op")
        if op == "ps":
            rows = self._daemon.governor.overview()
            return {"containers": _fitting(rows), "total": len(rows), "version": __version__}
        if op == "calls":
            calls = self.find(str(request.get("name"))).calls
            return {"calls": _fitting(call.row() for call in calls.values()), "total": len(calls)}
        if op == "top":
            return self._everything()
        raise UserError(f"unknown request {str(op)[:40]!r}")

    def _everything(self) -> dict[str, Any]:
        """All containers and calls; whoever asks looks at their cgroups himself, calls wait for nothing meanwhile."""
        containers = self._daemon.governor.containers.values()
        calls = [{"container": one.record.id} | call.brief() for one in containers for call in one.calls.values()]
        return {
            "containers": _fitting((one.brief() for one in containers), MAX_BYTES // 2),
            "calls": _fitting(calls, MAX_BYTES // 2),
            "total": len(containers),
            "total_calls": len(calls),
        }

    def find(self, name: str) -> Container:
        """The governed container of this id, unique beginning of an id, or name. Raises UserError."""
        containers = self._daemon.governor.containers
        if name in containers:
            return containers[name]
        found = [c for c in containers.values() if c.record.answers_to(name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(c.record.name for c in containers.values())[:8]) or "none"
        what = "is not governed" if not found else "is the beginning of several ids"
        raise UserError(f'container "{name}" {what}; governed: {known}')


def _fitting(rows: Iterable[Row], left: int = MAX_BYTES) -> list[Row]:
    found = []
    for row in rows:
        size = len(json.dumps(row)) + 2
        if size <= left:
            found.append(row)
            left -= size
    return found
