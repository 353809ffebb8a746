"""`agentcgroup`: what an operator asks and does by hand. Each subcommand is a module of this package with
`register`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from agentcgroup import __version__
from agentcgroup.errors import UserError

_MODULES = {
    "ps": "show", "calls": "show", "why": "why", "policy": "policy", "unwrap": "unwrap", "run": "run", "bpf": "bpf",
    "trace": "trace", "bench": "bench", "match": "match", "metrics": "metrics", "doctor": "doctor",
    "events": "events", "top": "top", "report": "report",
}  # fmt: skip


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, which completions and the manual page follow. With `command` only what that one
    needs is loaded: policies, with YAML and JSON schema, take three quarters of a start.
    """
    top = argparse.ArgumentParser(
        prog="agentcgroup", description="Tool calls of agents in containers, each in its own cgroup."
    )
    top.add_argument("--version", action="version", version=f"agentcgroup {__version__}")
    top.add_argument("--debug", action="store_true", help="show where in the program an error came from")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in [_MODULES[command]] if command in _MODULES else dict.fromkeys(_MODULES.values()):
        importlib.import_module(f"agentcgroup.cli.{name}").register(commands)
    return top


def verb(verbs: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Add a command below a command, `agentcgroup policy check`; its parser."""
    added: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    added.set_defaults(run=run)
    return added


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `agentcgroup`. Returns the exit status; errors are one line on stderr."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == "__complete":  # the shells' completion asks, packaging/completions
        from agentcgroup.cli.complete import complete

        for word in complete(parser(words[1] if len(words) > 2 else None), words[1:]):
            print(word)
        return 0
    options = parser(words[0] if words else None).parse_args(words)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (UserError, OSError) as error:
        if options.debug:
            raise
        for line in _in_words(error).splitlines():
            print(f"agentcgroup: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _in_words(error: UserError | OSError) -> str:
    """The error as a person reads it; a UserError is that already."""
    if isinstance(error, UserError) or error.filename is None:
        return str(error)
    advice = ": run this as root" if isinstance(error, PermissionError) and os.geteuid() else ""
    return f"{error.filename}: {error.strerror}{advice}"
