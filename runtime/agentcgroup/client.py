"""Questions to a running daemon, and what can be known without one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from agentcgroup import paths, record
from agentcgroup.errors import UserError

_ANSWER_BYTES = 1 << 20
_TIMEOUT = 5.0


def ask(request: dict[str, Any], timeout: float = _TIMEOUT) -> dict[str, Any]:
    """The daemon's answer, within `timeout` seconds. Raises UserError when it is not running, may not be asked, or
    refuses.
    """
    path = paths.RUN_DIR / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
            connection.send(json.dumps(request).encode())
            message = connection.recv(_ANSWER_BYTES)
        except PermissionError:
            raise UserError(f"{path}: permission denied: run this as root") from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise UserError("agentcgroupd is not running: systemctl start agentcgroupd") from None
        except TimeoutError:
            raise UserError(f"agentcgroupd did not answer within {timeout:.0f} s: journalctl -u agentcgroupd") from None
        except (ConnectionResetError, BrokenPipeError):
            message = b""
    if not message:
        raise UserError("agentcgroupd ended before it answered: try again, or journalctl -u agentcgroupd")
    answer = json.loads(message)
    if "refuse" in answer:
        raise UserError(answer["refuse"])
    return dict(answer)


def records() -> list[record.Record]:
    """The records of the containers that the hook has prepared, daemon or not; broken ones are left out.
    Raises PermissionError.
    """
    found, folder = [], paths.RUN_DIR / "containers"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():  # glob() hides that it may not be read
        if path.suffix == ".json":
            with contextlib.suppress(UserError, OSError):
                found.append(record.load(path))
    return found


def find_record(name: str) -> record.Record:
    """The record of a container by id, unique beginning of the id, or name. Raises UserError."""
    named = dict(names())
    matches = [r for r in records() if r.answers_to(name) or (name and name == named.get(r.id))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f'"{name}" is the beginning of {len(matches)} container ids: give more of it')
    raise UserError(f'no governed container "{name}": agentcgroup ps lists them')


def names() -> list[tuple[str, str]]:
    """Container ids and the names that podman has for them; empty where podman-py or podman's socket is missing."""
    socket_path = Path("/run/podman/podman.sock")
    if not os.access(socket_path, os.W_OK):
        return []
    try:
        from podman import PodmanClient  # type: ignore[import-not-found,import-untyped,unused-ignore]

        with PodmanClient(base_url=f"unix://{socket_path}", timeout=2) as client:
            return [(c.id, c.name) for c in client.containers.list()]
    except Exception:  # a convenience that must never fail the command: podman-py raises many kinds
        return []
