"""From a document to a policy: the leaves are read, laid over the parent's, and checked as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agentcgroup.errors import UserError
from agentcgroup.policy import checks, schema
from agentcgroup.policy.document import Document, FileError, Value
from agentcgroup.policy.fields import FIELDS
from agentcgroup.policy.model import Policy
from agentcgroup.policy.schema import Problem, join

NOT_INHERITED = ("description",)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values of a policy by dotted key, and where each came from: what a child inherits."""

    values: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


def build(
    name: str, document: Document, base: Resolved, extends: Sequence[Problem] = ()
) -> tuple[Policy, Resolved]:
    """The policy `name` of a document over the values of its parent; `extends` says why it has none, if it should.

    Raises FileError with every problem of the file.
    """
    problems = [*extends, *schema.problems(document.data, "policy")]
    own = read_leaves(document.data, problems)
    resolved = _merged(document, own, base)
    policy = assemble(name, document.path, resolved)
    sound = own.keys() if problems else FIELDS.keys()
    found = checks.check(policy, f"{document.path}:")
    problems += [problem for problem in found if {problem.key, problem.other} <= sound]
    if problems:
        raise FileError(report(document, problems))
    return policy, resolved


def report(document: Document, problems: Sequence[Problem]) -> list[str]:
    """One line a problem, in the order of the file."""
    placed = [(document.line(problem.key), problem.text) for problem in problems]
    return [f"{document.path}:{line}: {text}" for line, text in sorted(placed)]


def read_leaves(data: Mapping[str, Value], problems: list[Problem]) -> dict[str, Any]:
    """The values of all sound leaves by dotted key; what cannot be read is added to `problems`."""
    values: dict[str, Any] = {}
    refused = {problem.key for problem in problems}
    for key, raw in flat(data):
        before = len(problems)
        value = _read(key, raw, refused, problems)
        if len(problems) == before and not _touched(key, refused):
            values[key] = value
    return values


def flat(data: Mapping[str, Value], key: str = "") -> Iterator[tuple[str, Value]]:
    """The known leaves of a nested mapping, by dotted key."""
    for name, value in data.items():
        path = join(key, name)
        if path in FIELDS:
            yield path, value
        elif isinstance(value, dict):
            yield from flat(value, path)


def assemble(name: str, source: Path, resolved: Resolved) -> Policy:
    """The policy of these values; every other field has its default."""
    defaults = dict.fromkeys(FIELDS, "default")
    policy = Policy(name, source, provenance={**defaults, **resolved.provenance})
    for key, value in resolved.values.items():
        policy = put(policy, key, value)
    return policy


def put(target: T, key: str, value: Any) -> T:
    """A copy of a dataclass with the value at a dotted key replaced."""
    head, _, rest = key.partition(".")
    new = put(getattr(target, head), rest, value) if rest else value
    return replace(target, **{head: new})  # type: ignore[type-var]


def _read(key: str, raw: Any, refused: set[str], problems: list[Problem]) -> Any:
    if not FIELDS[key].each:
        return None if _touched(key, refused) else _attempt(key, key, raw, problems)
    if not isinstance(raw, list):
        return None
    items = [(join(key, index), item) for index, item in enumerate(raw)]
    return tuple(_attempt(key, path, item, problems) for path, item in items if not _touched(path, refused))


def _attempt(key: str, path: str, raw: Any, problems: list[Problem]) -> Any:
    try:
        return FIELDS[key].read(raw)
    except UserError as error:
        problems.append(Problem(path, f"{path}: {error}"))
        return None


def _touched(key: str, refused: set[str]) -> bool:
    """Whether the schema refused the value at this key, or something in it."""
    return any(found == key or found.startswith((f"{key}.", f"{key}[")) for found in refused)


def _merged(document: Document, own: dict[str, Any], base: Resolved) -> Resolved:
    """The file's values over the inherited ones. Rules are joined, the file's first."""
    values = {key: value for key, value in base.values.items() if key not in NOT_INHERITED} | own
    places = {key: base.provenance[key] for key in values if key not in own} | {key: document.where(key) for key in own}
    rules, inherited = own.get("rules", ()), base.values.get("rules", ())
    values["rules"] = (*rules, *inherited)
    for index in range(len(rules)):
        places[join("rules", index)] = document.where(join("rules", index))
    for index in range(len(inherited)):
        places[join("rules", len(rules) + index)] = base.provenance[join("rules", index)]
    return Resolved(values, places)
