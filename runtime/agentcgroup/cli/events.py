"""`agentcgroup events`: what happened to containers and calls, and what happens."""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any

from agentcgroup import client, config, events
from agentcgroup.errors import UserError
from agentcgroup.events import Event
from agentcgroup.tail import Tail
from agentcgroup.units import parse_since

_LOOK_S = 0.25  # between looks at the ledger
_FIELDS = "MESSAGE,AGENTCGROUP_CONTAINER,AGENTCGROUP_CALL,AGENTCGROUP_EVENT,AGENTCGROUP_NAME,AGENTCGROUP_RESULT"
# _UID cannot be forged, SYSLOG_IDENTIFIER can: systemd.journal-fields(7).
_ENTRIES = ("_UID=0", "SYSLOG_IDENTIFIER=agentcgroupd", "SYSLOG_IDENTIFIER=agentcgroup-hook")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "events",
        help="what happened, in order",
        description="List what happened to containers and their calls, from the ledger and the journal. The events of "
        "a call come together when it has ended.",
    )
    parser.add_argument("container", metavar="CONTAINER", nargs="?", help="id, beginning of an id, or name")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as more happens; without --since from now")
    parser.add_argument(
        "--since", metavar="WHEN", help='30min or 2h ago, or "2026-11-30 17:30" (default: all that is kept)'
    )
    parser.add_argument("--json", action="store_true", help="as JSON, one event a line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print them."""
    now = time.time()
    since = None if options.since is None else parse_since(options.since, now)
    directory = config.load().records.dir
    named = {name: id_ for id_, name in client.names()}
    picked = events.Filter(named.get(options.container, options.container), _names())
    at_end = options.follow and since is None
    tail, journal = Tail(directory, since or 0.0, at_end), _Journal(now if at_end else since or 0.0)

    def show(found: Iterable[Event]) -> None:
        for event in picked.pick(iter(found)):
            if since is None or event.time >= since:
                print(json.dumps(event.json()) if options.json else event.line())

    with contextlib.closing(tail), contextlib.closing(journal):
        if not at_end:
            groups = heapq.merge(_ended_calls(tail, since or 0.0), journal.past(), key=lambda group: group[0])
            show(event for _, some in groups for event in some)
        if options.follow:
            _follow(tail, journal, show)
    return 0


def _names() -> dict[str, str]:
    with contextlib.suppress(OSError):
        return {record.id: record.name for record in client.records()}
    return {}


def _ended_calls(tail: Tail, since: float) -> Iterator[tuple[float, list[Event]]]:
    for record in tail.records():
        end = events.ended(record)
        if end >= since:
            yield end, events.of_record(record)


def _follow(tail: Tail, journal: _Journal, show: Any) -> None:
    """Until a signal comes, or nobody reads any more. SIGINT is how it is meant to end, so that is no failure."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        entries = journal.follow()
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if entries is not None:
            poll.register(entries.fileno(), select.POLLIN)
        while True:
            show(event for record in tail.records() for event in events.of_record(record))
            sys.stdout.flush()
            for descriptor, happened in poll.poll(_LOOK_S * 1000):
                if descriptor == sys.stdout.fileno() and happened & (select.POLLERR | select.POLLHUP):
                    return
                if descriptor != sys.stdout.fileno():
                    show(journal.come())


class _Journal:
    """journalctl, for the entries since that time (Unix time); none where there is no journal."""

    def __init__(self, since: float) -> None:
        self._since = f"--since=@{since:.6f}"
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def past(self) -> Iterator[tuple[float, list[Event]]]:
        """What there is, oldest first."""
        entries = self._start(self._since)
        for line in entries or ():
            entry = _entry(line)
            cursor = entry.get("__CURSOR")
            if isinstance(cursor, str):
                self._since = f"--after-cursor={cursor}"
            event = events.of_entry(entry)
            if event is not None:
                yield event.time, [event]
        self.close()

    def follow(self) -> IO[bytes] | None:
        """What comes after that; for `come` whenever there is something to read."""
        return self._start(self._since, "--follow", "--no-tail")

    def come(self) -> Iterator[Event]:
        """What can be read now. Raises UserError if journalctl has ended."""
        assert self._process is not None and self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            raise UserError("journalctl has ended: begin again with --since")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return filter(None, (events.of_entry(_entry(line)) for line in lines))

    def _start(self, *options: str) -> IO[bytes] | None:
        command = ["journalctl", "--quiet", "--no-pager", "--output=json", f"--output-fields={_FIELDS}", *options]
        try:  # a session of its own: ^C is for us to take
            self._process = subprocess.Popen([*command, *_ENTRIES], stdout=subprocess.PIPE, start_new_session=True)
        except FileNotFoundError:
            print("agentcgroup: there is no journalctl: only calls are shown", file=sys.stderr)
            return None
        return self._process.stdout

    def close(self) -> None:
        """End journalctl."""
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()
            process.terminate()
            process.wait()


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
