"""Regular expressions of policies. The text they are held against comes from inside a container, so a pattern that a
hostile text could make slow is refused: Python's matcher backtracks, and it runs in the daemon.

The bound is an estimate over the parsed pattern, not a proof. `re._parser` is CPython's own (3.11 to 3.14).
"""

import importlib
import re
import warnings
from collections.abc import Iterator
from math import prod
from typing import Any

from agentcgroup.errors import UserError
from agentcgroup.policy.model import MATCH_CHARS
from agentcgroup.units import quoted

MAX_STEPS = 2**26  # about a second at the very worst
SPACES = 4  # what `\s+` counts for after a letter: it begins at few places then

_parser: Any = importlib.import_module("re._parser")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")  # those that give back what they took
_ALL_REPEATS = (*_REPEATS, "POSSESSIVE_REPEAT")


def compiled(text: str) -> re.Pattern[str]:
    """The pattern. Raises UserError if it is no regular expression, or could take long on 4096 hostile characters."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pattern = re.compile(text)
            tree = _parser.parse(text)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise UserError(f"{quoted(text)} is not a regular expression: {error}: escape or mend it") from None
    if any(_ambiguous(body) for op, body in _walk(tree) if op in _REPEATS):
        raise UserError(f"{quoted(text)} could run for minutes on a hostile text: take the inner repeat out")
    if _starts(tree) * _steps(tree) > MAX_STEPS:
        raise UserError(f"{quoted(text)} could run for seconds on a hostile text: write .{{0,99}} for .*, and so on")
    return pattern


def _starts(tree: Any) -> int:
    """At how many places of a text the pattern can begin: one if it is anchored, fewer if it begins with a word."""
    nodes = [(str(op), str(argument)) for op, argument in tree if str(op) != "AT" or str(argument) != "AT_BOUNDARY"]
    if nodes and nodes[0] in (("AT", "AT_BEGINNING"), ("AT", "AT_BEGINNING_STRING")):
        return MATCH_CHARS if tree.state.flags & re.MULTILINE else 1
    word = next((at for at, node in enumerate(nodes) if node[0] != "LITERAL"), len(nodes))
    return MATCH_CHARS // max(1, word)


def _steps(tree: Any) -> int:
    """How many ways there are to match the tree from one place."""
    ways, before = 1, ""
    for op, argument in tree:
        ways *= SPACES if before == "LITERAL" and _is_spaces(str(op), argument) else _ways(str(op), argument)
        before = str(op) if argument != ord(" ") else ""
    return ways


def _ways(op: str, argument: Any) -> int:
    if op in _ALL_REPEATS:
        low, high, body = argument
        return (min(int(high), MATCH_CHARS) - min(int(low), MATCH_CHARS) + 1) * _steps(body)
    if op == "BRANCH":
        ways = [_steps(branch) for branch in argument[1]]
        return min(sum(ways), max(ways) * _together(argument[1]))
    return prod(_steps(inner) for inner in _inner(op, argument))


def _is_spaces(op: str, argument: Any) -> bool:
    return op in _ALL_REPEATS and str(list(argument[2])) in ("[(IN, [(CATEGORY, CATEGORY_SPACE)])]", "[(LITERAL, 32)]")


def _inner(op: str, argument: Any) -> list[Any]:
    """The trees inside one node."""
    if op in _ALL_REPEATS:
        return [argument[2]]
    if op == "BRANCH":
        return list(argument[1])
    if op in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [argument[-1]]
    if op == "GROUPREF_EXISTS":
        return [tree for tree in argument[1:] if tree is not None]
    return [argument] if op == "ATOMIC_GROUP" else []


def _walk(tree: Any) -> Iterator[tuple[str, Any]]:
    for op, argument in tree:
        yield str(op), argument
        for inner in _inner(str(op), argument):
            yield from _walk(inner)


def _ambiguous(repeat: Any) -> bool:
    """Whether the body of a repeat can match one text in several ways, which makes the whole exponential."""
    _low, high, body = repeat
    return int(high) > 1 and any(
        (op in _REPEATS and argument[0] != argument[1]) or (op == "BRANCH" and _together(argument[1]) > 1)
        for op, argument in _walk(body)
    )


def _together(branches: list[Any]) -> int:
    """How many of the alternatives can match at one place: words only if one begins the other."""
    words = [[argument if str(op) == "LITERAL" else None for op, argument in branch] for branch in branches]
    if any(None in word for word in words):
        heads = [word[0] if word else None for word in words]
        return 1 if None not in heads and len(set(heads)) == len(heads) else len(branches)
    return max(sum(long[: len(short)] == short for short in words) for long in words)
