"""`agentcgroup report`: what calls needed, and the policy numbers that would fit, as one HTML file."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from agentcgroup import client, config, events, records
from agentcgroup.errors import UserError
from agentcgroup.tail import Tail
from agentcgroup.units import parse_since

_FILE = Path("agentcgroup-report.html")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="what calls needed, as an HTML file",
        description="Write one HTML file from the ledger: calls over time, peaks by command class, what agents were "
        "told, and the policy numbers that would fit.",
    )
    parser.add_argument("container", metavar="CONTAINER", nargs="?", help="id, beginning of an id, or name")
    parser.add_argument("--since", metavar="WHEN", help='calls that ended since then: 24h, or "2026-11-30 17:30"')
    parser.add_argument(
        "-o", "--output", type=Path, default=_FILE, metavar="FILE", help="- is stdout (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write it."""
    from agentcgroup.report import gather, page

    if options.container is None and options.since is None:
        raise UserError("which calls: agentcgroup report CONTAINER, or agentcgroup report --since 24h")
    since = 0.0 if options.since is None else parse_since(options.since, time.time())
    directory = config.load().records.dir
    named = {name: id_ for id_, name in client.names()}
    container = named.get(options.container, options.container)
    with contextlib.closing(Tail(directory, since)) as tail:
        wanted = (one for one in tail.records() if records.about(one, container) and events.ended(one) >= since)
        found = gather.gather(wanted)
    what = " ".join(filter(None, (options.container, f"since {options.since}" if options.since else "")))
    if not found.calls:
        raise UserError(f'no record of "{what}" in {directory}')
    _write(page.page(found, what).encode("utf-8", "replace"), options.output)
    if options.output != Path("-"):
        print(f"{options.output}: {found.calls} calls")
    return 0


def _write(data: bytes, output: Path) -> None:
    """A whole file or none, for its owner alone: records are not everybody's."""
    if output == Path("-"):
        sys.stdout.buffer.write(data)
        return
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".report-", dir=output.parent)
    except OSError as error:
        raise UserError(f"{output}: {error.strerror}: choose another with --output") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, output)
    except OSError as error:
        os.unlink(temporary)
        raise UserError(f"{output}: {error.strerror}: choose another with --output") from None
