"""`agentcgroup ps` and `agentcgroup calls`: what runs now."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from agentcgroup import client
from agentcgroup.cli import unwrap
from agentcgroup.units import format_bytes, format_seconds


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    ps = commands.add_parser("ps", help="governed containers", description="List the containers that are governed now.")
    ps.add_argument("--json", action="store_true", help="as JSON")
    ps.set_defaults(run=run_ps)
    calls = commands.add_parser(
        "calls", help="running calls of a container", description="List a container's running calls."
    )
    calls.add_argument("container", metavar="CONTAINER", help="id, beginning of an id, or name")
    calls.add_argument("--json", action="store_true", help="as JSON")
    calls.set_defaults(run=run_calls)


def run_ps(options: argparse.Namespace) -> int:
    """Print the containers."""
    rows = _shown({"op": "ps"}, "containers")
    names = dict(client.names())
    pids = {record.id: record.pid for record in client.records()}
    for row in rows:
        row["name"] = names.get(row["id"], row["name"])
        row["unwrapped"] = bool(row["injected"]) and _is_unwrapped(pids.get(row["id"], 0))
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    header = ("CONTAINER", "NAME", "POLICY", "MEMORY", "LIMIT", "AGENT", "CALLS", "NOTES")
    print_table(header, [_container_row(row) for row in rows])
    return 0


def _shown(request: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """The rows of the daemon's answer. That there are more is said on stderr, for stdout may be read as JSON."""
    answer = client.ask(request)
    rows: list[dict[str, Any]] = answer[what]
    if len(rows) < answer["total"]:
        print(f"agentcgroup: {len(rows)} of {answer['total']} {what} shown", file=sys.stderr)
    return rows


def _is_unwrapped(pid: int) -> bool:
    try:
        return not unwrap.wrapped(pid)
    except OSError:  # it has just ended
        return False


def _container_row(row: dict[str, Any]) -> tuple[str, ...]:
    notes = [f"cooperative: {', '.join(row['cooperative'])}"] if row["cooperative"] else []
    if row["mode"] == "observe":
        notes.append("observe")
    if not row["injected"]:
        notes.append("no shell wrapped")
    if row["unwrapped"]:
        notes.append("shells unwrapped")
    if row["network"]:
        notes.append(f"network not limited: {row['network']}")
    figures = (_bytes(row["memory"]), _bytes(row["memory_max"]), _bytes(row["agent_memory"]))
    return (row["id"][:12], row["name"], row["policy"], *figures, str(row["calls"]), "; ".join(notes))


def run_calls(options: argparse.Namespace) -> int:
    """Print one container's calls."""
    name = options.container
    named = {name_: id_ for id_, name_ in client.names()}
    rows = _shown({"op": "calls", "name": named.get(name, name)}, "calls")
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    header = ("CALL", "KIND", "COMMAND", "TIME", "MEMORY", "LIMIT", "FROM", "PIDS", "STATE")
    print_table(header, [_call_row(row) for row in rows])
    return 0


def _call_row(call: dict[str, Any]) -> tuple[str, ...]:
    state = f"ending: {call['ended']}" if call["ended"] else "held" if call["held"] else "running"
    memory = (_bytes(call["memory"]), _bytes(call["limit"]), call["limit_source"])
    return (
        str(call["call"]),
        call["kind"],
        call["command"],
        format_seconds(call["seconds"]),
        *memory,
        str(call["pids"]),
        state,
    )


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their content, the last one free."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]
    for row in (header, *rows):
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip())
