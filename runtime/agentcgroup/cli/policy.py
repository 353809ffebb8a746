"""`agentcgroup policy`: check files, show a policy with the origin of each value, list what there is."""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentcgroup.cli import verb
from agentcgroup.errors import UserError
from agentcgroup.paths import POLICY_DIRS
from agentcgroup.policy import load
from agentcgroup.policy.fields import FIELDS, WITHOUT_EFFECT, shown
from agentcgroup.policy.leaves import get
from agentcgroup.policy.model import IoLimit, Policy, Rule, Size
from agentcgroup.units import format_bytes


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    policy = commands.add_parser("policy", help="check, show and list policies", description=__doc__)
    verbs = policy.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = verb(verbs, "check", "check policy files; each problem is a line, and the status is 1", _check)
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="policy file; its parent may be beside it")
    show = _look_up(verbs, "show", "show every value of a policy and where it comes from", _show)
    show.add_argument("name", metavar="NAME", help="name of the policy")
    show.add_argument("--json", action="store_true", help="print JSON: bytes and seconds")
    _look_up(verbs, "list", "list the policies of this host, the broken ones too", _list)


def _look_up(verbs: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser = verb(verbs, name, text, run)
    note = "policy directory, may be repeated; later ones win"
    parser.add_argument("--policies", type=Path, action="append", metavar="DIR", help=note)
    return parser


def _check(options: argparse.Namespace) -> int:
    status = 0
    for path in options.files:
        try:
            policy = load.load_file(path, POLICY_DIRS)
            print(f"{path}: ok", *(f"({key} has no effect yet)" for key in WITHOUT_EFFECT if get(policy, key)))
        except UserError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


def _show(options: argparse.Namespace) -> int:
    policy = load.load_policies(options.policies or POLICY_DIRS).get(options.name)
    if options.json:
        print(json.dumps(_plain(policy), indent=2))
        return 0
    rows = [("name", policy.name, str(policy.source)), *_rows(policy)]
    widths = [max(len(row[column]) for row in rows if len(row[column]) <= 40) for column in (0, 1)]
    for key, value, place in rows:
        print(f"{key:{widths[0]}}  {value:{widths[1]}}  {place}")
    return 0


def _list(options: argparse.Namespace) -> int:
    found = load.load_policies(options.policies or POLICY_DIRS)
    for name, policy in found.policies.items():
        print(f"{name:20}  {policy.mode:8}  {policy.description or policy.source}")
    for name in found.errors:
        print(f"{name:20}  broken    not usable, see below")
    for error in found.errors.values():
        print(error, file=sys.stderr)
    return 1 if found.errors else 0


def _rows(policy: Policy) -> Iterator[tuple[str, str, str]]:
    for key in FIELDS:
        value = get(policy, key)
        if key != "rules" and not (key == "io.max" and value):
            yield key, shown(key, value), policy.provenance[key]
    for limit in policy.io.max:
        yield f"io.max {limit.device}", _limits(limit), policy.provenance["io.max"]
    for index, rule in enumerate(policy.rules):
        yield f"rules[{index}]", _rule(rule), policy.provenance[f"rules[{index}]"]


def _limits(limit: IoLimit) -> str:
    texts = {name: format_bytes(rate) if name.endswith("bps") else rate for name, rate in limit.limits.items()}
    return ", ".join(f"{name} {text}/s" for name, text in texts.items())


def _rule(rule: Rule) -> str:
    what = [rule.as_ or "", rule.hint or ""]
    return f"{rule.match.pattern} -> {' '.join(part for part in what if part)}"


def _plain(value: Any) -> Any:
    """A policy as JSON takes it; a Size is its bytes, or `75%`."""
    if isinstance(value, Size):
        return value.bytes if value.percent is None else f"{value.percent:g}%" if value.bytes is None else str(value)
    if isinstance(value, IoLimit):
        return {"device": value.device, **value.limits}
    if dataclasses.is_dataclass(value):
        return {field.name.rstrip("_"): _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, re.Pattern):
        return value.pattern
    return str(value) if isinstance(value, Path) else value
