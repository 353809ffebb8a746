"""The CLI's requests on `control.sock`: one JSON request, one JSON answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcgroup import __version__
from agentcgroup.errors import UserError

if TYPE_CHECKING:
    from agentcgroup.container import Container
    from agentcgroup.daemon import Daemon

#: An answer must fit into one message of the socket (net.core.wmem_default, 208 KiB); long lists are cut and say so.
MAX_ROWS = 200


class Control:
    """Answers for one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request. Raises UserError."""
        op = request.get("op")
        if op == "ps":
            rows = self._daemon.governor.overview()
            return {"containers": rows[:MAX_ROWS], "total": len(rows), "version": __version__}
        if op == "container":
            return {"container": self.find(str(request.get("name"))).row()}
        raise UserError(f"unknown request {str(op)[:40]!r}")

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
