"""`agentcgroup metrics`: the figures as Prometheus gets them."""

from __future__ import annotations

import argparse
import http.client
import socket
import sys
from pathlib import Path

from agentcgroup import config, paths
from agentcgroup.errors import UserError

_TIMEOUT = 10.0


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    metrics = commands.add_parser(
        "metrics",
        help="figures for Prometheus",
        description="Print the figures that Prometheus gets, from where agentcgroup.yaml says that they are served.",
    )
    metrics.set_defaults(run=run)


def run(_options: argparse.Namespace) -> int:
    """Ask the daemon as Prometheus does."""
    address = config.load().metrics
    if address is None:
        raise UserError(
            f"metrics are off: write metrics: unix:/run/agentcgroup/metrics.sock in {paths.CONFIG_FILE}, then "
            "systemctl reload agentcgroupd"
        )
    connection = http.client.HTTPConnection(address.host or "localhost", address.port, timeout=_TIMEOUT)
    try:
        if address.path is not None:
            connection.sock = _connected(address.path)
        connection.request("GET", "/metrics")
        sys.stdout.write(connection.getresponse().read().decode())
    except (OSError, http.client.HTTPException) as error:
        where = address.path or f"{address.host}:{address.port}"
        raise UserError(f"{where}: no metrics: {error}: journalctl -u agentcgroupd says why") from None
    finally:
        connection.close()
    return 0


def _connected(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.settimeout(_TIMEOUT)
    found.connect(str(path))
    return found
