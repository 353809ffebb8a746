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
SPACES = 4  # what `\s+` counts for: it seldom overlaps with what follows it

_parser: Any = importlib.import_module("re._parser")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


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
    if _starts(text) * _steps(tree) > MAX_STEPS:
        raise UserError(f"{quoted(text)} could run for seconds on a hostile text: write .{{0,99}} for .*, and so on")
    return pattern


def _starts(text: str) -> int:
    """At how many places of a text the pattern can begin: fewer if it begins with a word."""
    if text.startswith(("^", r"\A")) and "|" not in text:
        return 1
    word = re.match(r"(?:\\b)?([\w/@-]*)(?![*?+{|])", text)
    return MATCH_CHARS // max(1, len(word[1]) if word and "|" not in text else 0)


def _steps(tree: Any) -> int:
    """How many ways there are to match the tree from one place."""
    return prod(_ways(str(op), argument) for op, argument in tree)


def _ways(op: str, argument: Any) -> int:
    if op in _REPEATS:
        low, high, body = argument
        spread = min(int(high), MATCH_CHARS) - min(int(low), MATCH_CHARS) + 1
        return (min(spread, SPACES) if _spaces(body) else spread) * _steps(body)
    if op == "BRANCH":
        return sum(_steps(branch) for branch in argument[1])
    return prod(_steps(inner) for inner in _inner(op, argument))


def _spaces(body: Any) -> bool:
    return str(list(body)) in ("[(IN, [(CATEGORY, CATEGORY_SPACE)])]", "[(LITERAL, 32)]")


def _inner(op: str, argument: Any) -> list[Any]:
    """The trees inside one node."""
    if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
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
        (op in _REPEATS and argument[0] != argument[1]) or (op == "BRANCH" and not _distinct(argument[1]))
        for op, argument in _walk(body)
    )


def _distinct(branches: list[Any]) -> bool:
    heads = [tuple(branch[0]) if len(branch) else None for branch in branches]
    return all(head and str(head[0]) == "LITERAL" for head in heads) and len(set(heads)) == len(heads)
