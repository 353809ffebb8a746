"""What may stand next on the command line, for the completion of shells (packaging/completions/). It is found in the
parser itself, so that a new command or option needs nothing here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from agentcgroup.errors import UserError


def complete(top: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """The candidates for the last of `words`, which may be empty; the others are whole. None where only the shell knows
    what fits: files, commands, numbers.
    """
    *before, begun = ["" if word == "=" else word for word in words] or [""]
    parser, wanted, given = top, None, 0
    for word in before:
        if word == "--":
            return
        if not word:  # bash makes three words of --policy=NAME
            continue
        if wanted:
            wanted = None
        elif word.startswith("-"):
            wanted = _value_of(parser, word)
        elif commands := _commands(parser):
            if word not in commands:
                return
            parser, given = commands[word], 0
        else:
            given += 1
    yield from (word for word in _next(parser, wanted, given, begun) if word.startswith(begun))


def _next(parser: argparse.ArgumentParser, wanted: argparse.Action | None, given: int, begun: str) -> Iterator[str]:
    if wanted:
        return _values(wanted)
    if begun.startswith("-"):
        return (option for action in parser._actions for option in action.option_strings)
    return iter(_commands(parser)) if _commands(parser) else _values(_operand(parser, given))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next((dict(action.choices) for action in actions), {})


def _value_of(parser: argparse.ArgumentParser, option: str) -> argparse.Action | None:
    """The option, if the next word is its value."""
    action = parser._option_string_actions.get(option)
    return action if action is not None and action.nargs != 0 else None


def _operand(parser: argparse.ArgumentParser, number: int) -> argparse.Action | None:
    operands = [action for action in parser._actions if not action.option_strings]
    if operands and number >= len(operands) and operands[-1].nargs == "+":
        return operands[-1]
    return operands[number] if number < len(operands) else None


def _values(action: argparse.Action | None) -> Iterator[str]:
    if action is None:
        return
    if action.choices:
        yield from map(str, action.choices)
    elif str(action.metavar).startswith("CONTAINER"):
        yield from _containers()
    elif action.dest == "policy" or action.metavar == "NAME":
        yield from _policies()


def _containers() -> Iterator[str]:
    from agentcgroup import client

    try:
        rows = client.ask({"op": "ps"})["containers"]
    except (UserError, OSError):  # not root, or no daemon: nothing to offer
        return
    for row in rows:
        yield from (row["id"][:12], row["name"])


def _policies() -> Iterator[str]:
    from agentcgroup import paths
    from agentcgroup.policy.load import load_policies

    yield from load_policies(paths.POLICY_DIRS).policies
