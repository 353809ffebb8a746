"""What dockerd writes of a container: the bundle's config.json, and config.v2.json below its data root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: dockerd binds these of a container's own folder (daemon/container_operations_unix.go), unless the user binds others.
_OWN_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
_MAX_BYTES = 4 << 20


def container_name(bundle: str, container_id: str) -> str:
    """The name that docker gave to the container; empty where its files do not say it."""
    try:
        for mount in _read(Path(bundle, "config.json"))["mounts"]:
            source = Path(mount["source"])
            if mount["destination"] in _OWN_FILES and source.parent.name == container_id:
                return str(_read(source.with_name("config.v2.json"))["Name"]).removeprefix("/")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return ""


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.loads(file.read(_MAX_BYTES))
