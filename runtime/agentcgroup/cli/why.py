"""`agentcgroup why`: what happened to calls, also when their container is long gone."""

from __future__ import annotations

import argparse
import json

from agentcgroup import client, config, records
from agentcgroup.errors import UserError


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    why = commands.add_parser(
        "why", help="what happened to calls", description="Say what became of a container's calls."
    )
    why.add_argument(
        "what", metavar="CONTAINER[/CALL]", help="id, beginning of an id, or name; a call's number after a slash"
    )
    why.add_argument(
        "-n", "--limit", type=int, default=20, help="at most so many calls, newest first (default: %(default)s)"
    )
    why.add_argument("--all", action="store_true", help="also calls that nothing happened to")
    why.add_argument("--json", action="store_true", help="the records themselves, one a line")
    why.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print records in words or as JSON."""
    name, _, number = options.what.partition("/")
    if number and not (number.isascii() and number.isdecimal()):
        raise UserError(f'"{number}" is no call number: agentcgroup why CONTAINER/7')
    call = int(number) if number else None
    named = {name_: id_ for id_, name_ in client.names()}
    directory = config.load().records.dir
    found = met = 0
    for entry in records.read(directory, container=named.get(name, name), call=call):
        met += 1
        if not (options.all or options.json or call is not None or records.notable(entry)):
            continue
        print(json.dumps(entry) if options.json else records.why(entry))
        found += 1
        if found >= options.limit:
            break
    if not options.json and not found:
        nothing = f'nothing happened to the {met} calls of "{name}" (--all lists them)'
        print(nothing if met else f'no record of "{options.what}" in {directory}')
    return 0
