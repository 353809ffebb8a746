"""`agentcgroup match`: whether an engine would run our hook for a container, and why not."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcgroup import ocihooks
from agentcgroup.errors import UserError
from agentcgroup.ocihooks import Container, State, Verdict

_CRIO = (
    "CRI-O goes by the annotations of the pod and of the container, the pod's first. One of the pod reaches all its "
    "containers; the infra container gets no hook."
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "match",
        help="would an engine run the hook for such a container",
        description="Say of each file of the hook directories whether podman or CRI-O would inject it into such a "
        "container, at which stages, and if not, what keeps it out: oci-hooks(5). Annotations that the engine or the "
        "image adds are not known here. Exit status: 0 agentcgroup-hook runs, 1 it does not, 2 a file is broken.",
    )
    parser.add_argument("--annotation", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    parser.add_argument("--engine", choices=ocihooks.ENGINES, default="podman", help="default: podman")
    parser.add_argument("--command", metavar="ARGV0", help="first word of what the container runs")
    parser.add_argument("--bind-mounts", action="store_true", help="it has bind mounts or volumes")
    note = f"may be repeated, later ones win; name hooks_dir of the engine here (default: {ocihooks.DEFAULT_DIRS[0]})"
    parser.add_argument("--hooks-dir", type=Path, action="append", metavar="DIR", help=note)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the verdicts."""
    directories = options.hooks_dir or ocihooks.DEFAULT_DIRS
    container = Container(_annotations(options.annotation), options.command, options.bind_mounts)
    verdicts = ocihooks.judge(directories, container, options.engine)
    status = _status(verdicts)
    for directory in directories:
        if not os.path.isdir(directory) and directory not in [verdict.file for verdict in verdicts]:
            _warn(f"{directory} is no directory: it holds no hooks")
    if options.json:
        print(json.dumps({"engine": options.engine, "status": status, "hooks": [*map(_plain, verdicts)]}, indent=2))
    else:
        for line in _lines(verdicts, directories, container, options.engine):
            print(_printable(line))
    for verdict in verdicts:
        if verdict.state is State.BROKEN:
            _warn(f"{verdict.file} is broken: {verdict.reasons[-1]}")
    return status


def _annotations(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f'--annotation "{word}" is no annotation: write KEY=VALUE')
        found[key] = value
    return found


def _status(verdicts: Sequence[Verdict]) -> int:
    if any(verdict.state is State.BROKEN for verdict in verdicts):
        return 2
    return 0 if _runs(verdicts) else 1


def _runs(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.ours and verdict.state is State.RUNS for verdict in verdicts)


def _lines(verdicts: Sequence[Verdict], directories: Sequence[Path], container: Container, engine: str) -> list[str]:
    lines = []
    for verdict in verdicts:
        at = f" at {_stages(verdict, engine)}" if verdict.stages else ""
        lines += [f"{verdict.file}: {verdict.state}{at}"]
        lines += [f"  {reason}" for reason in verdict.reasons[: 1 if verdict.state is State.BROKEN else None]]
        lines += [f"  warning: {warning}" for warning in verdict.warnings]
    return [*lines, *([_CRIO] if engine == "crio" else []), _conclusion(verdicts, directories, container, engine)]


def _stages(verdict: Verdict, engine: str) -> str:
    places = [(stage, ocihooks.where(stage, engine)) for stage in verdict.stages]
    return ", ".join(f"{stage} ({place})" if place else stage for stage, place in places)


def _conclusion(verdicts: Sequence[Verdict], directories: Sequence[Path], container: Container, engine: str) -> str:
    """The answer, and with a no what to do."""
    if _runs(verdicts):
        broken = _status(verdicts) == 2
        return f"{ocihooks.OUR_HOOK} would run" + (", were it not for the broken file" if broken else "")
    ours = [verdict for verdict in verdicts if verdict.ours]
    no = f"{ocihooks.OUR_HOOK} does not run: "
    if not ours:
        places = ", ".join(str(directory) for directory in directories)
        return f"{no}no file of {places} names it: install agentcgroup, or say --hooks-dir"
    for verdict in ours:
        if verdict.hook and verdict.state is State.UNMATCHED:
            fitting = ocihooks.suggestions(verdict.hook, container, engine)
            return no + (
                f"it would with --annotation {' or '.join(fitting)}" if fitting else "its conditions are above"
            )
    return f"{no}see {ours[-1].file} above"


def _plain(verdict: Verdict) -> dict[str, Any]:
    hook = verdict.hook
    return {
        "file": str(verdict.file),
        "state": str(verdict.state),
        "ours": verdict.ours,
        "schema": hook and hook.schema,
        "path": hook and hook.path,
        "args": hook and hook.args,
        "env": hook and hook.env,
        "timeout": hook and hook.timeout,
        "stages": verdict.stages,
        "reasons": verdict.reasons,
        "warnings": verdict.warnings,
    }


def _warn(text: str) -> None:
    print(f"agentcgroup: {_printable(text)}", file=sys.stderr)


def _printable(text: str) -> str:
    """With escapes for what a file name or a JSON string can hold and a terminal should not get."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
