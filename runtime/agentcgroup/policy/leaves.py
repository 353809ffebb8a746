"""The leaves of a document by dotted key: how each is read, and how a dataclass takes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from agentcgroup.errors import UserError
from agentcgroup.policy.document import Document, Value
from agentcgroup.policy.schema import Problem, join

# lower: less is tighter, none is no limit. claim: less is tighter, none is 0. weight: less is tighter, none is 100.
# A tuple lists a field's values, tightest first. more: a longer list is tighter. fixed: a tenant may not touch it.
Tighter = Literal["lower", "claim", "weight", "more", "fixed"] | tuple[Any, ...]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """`read` turns a value that the schema let pass into the model's, or each item of a list; it raises UserError.

    `single`: an annotation may set it.
    """

    read: Callable[[Any], Any]
    tighter: Tighter = "fixed"
    single: bool = True
    each: bool = False


def read_leaves(fields: Mapping[str, Field], data: Mapping[str, Value], problems: list[Problem]) -> dict[str, Any]:
    """The values of all sound leaves by dotted key; what cannot be read is added to `problems`."""
    values: dict[str, Any] = {}
    refused = {problem.key for problem in problems}
    for key, raw in flat(fields, data):
        before = len(problems)
        value = _read(fields[key], key, raw, refused, problems)
        if len(problems) == before and not _touched(key, refused):
            values[key] = value
    return values


def flat(fields: Mapping[str, Field], data: Mapping[str, Value], key: str = "") -> Iterator[tuple[str, Value]]:
    """The known leaves of a nested mapping, by dotted key."""
    for name, value in data.items():
        path = join(key, name)
        if path in fields:
            yield path, value
        elif isinstance(value, dict):
            yield from flat(fields, value, path)


def put(target: T, key: str, value: Any) -> T:
    """A copy of a dataclass with the value at a dotted key replaced."""
    head, _, rest = key.partition(".")
    new = put(getattr(target, head), rest, value) if rest else value
    return replace(target, **{head: new})  # type: ignore[type-var]


def get(source: Any, key: str) -> Any:
    """The value at a dotted key."""
    for name in key.split("."):
        source = getattr(source, name)
    return source


def report(document: Document, problems: Sequence[Problem]) -> list[str]:
    """One line a problem, in the order of the file."""
    placed = [(document.line(problem.key), problem.text) for problem in problems]
    return [f"{document.path}:{line}: {text}" for line, text in sorted(placed)]


def _read(field: Field, key: str, raw: Any, refused: set[str], problems: list[Problem]) -> Any:
    if not field.each:
        return None if _touched(key, refused) else _attempt(field, key, raw, problems)
    if not isinstance(raw, list):
        return None
    items = [(join(key, index), item) for index, item in enumerate(raw)]
    return tuple(_attempt(field, path, item, problems) for path, item in items if not _touched(path, refused))


def _attempt(field: Field, path: str, raw: Any, problems: list[Problem]) -> Any:
    try:
        return field.read(raw)
    except UserError as error:
        problems.append(Problem(path, f"{path}: {error}"))
        return None


def _touched(key: str, refused: set[str]) -> bool:
    """Whether the schema refused the value at this key, or something in it."""
    return any(found == key or found.startswith((f"{key}.", f"{key}[")) for found in refused)
