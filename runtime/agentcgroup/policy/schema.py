"""The JSON schemas, and what they find in a document, said in the words of the file's author."""

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentcgroup.errors import UserError
from agentcgroup.paths import data_dir
from agentcgroup.policy.document import Value, plain
from agentcgroup.units import quoted

NUMERIC = ("an integer", "a number")  # how the titles of such fields begin


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the dotted key to mend, a sentence for people, and a second key if it takes two."""

    key: str
    text: str
    other: str = ""


@cache
def load(name: str) -> dict[str, Any]:
    """The schema `name`.schema.json. Raises UserError if it is not installed."""
    path = data_dir() / "schemas" / f"{name}.schema.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}: reinstall agentcgroup") from error


def problems(data: Value, name: str) -> Iterator[Problem]:
    """What the schema `name` does not allow in `data`, at most one problem a key."""
    import jsonschema  # 0.1 s, and commands that only look up a default need none of it

    seen: set[str] = set()
    validator = jsonschema.Draft202012Validator(load(name))
    for error in sorted(validator.iter_errors(data), key=lambda error: [str(step) for step in error.absolute_path]):
        for problem in _translated(_innermost(error), name):
            if problem.key not in seen:
                seen.add(problem.key)
                yield problem


def leaves(name: str) -> dict[str, dict[str, Any]]:
    """Each dotted key of the schema `name` that takes a value of its own, with what the schema says about it."""
    root = load(name)
    return dict(_leaves(root, "", root["$defs"]))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def shown(value: Value) -> str:
    """A bad value as a message repeats it."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return ("a " if value else "an empty ") + ("list" if isinstance(value, list) else "mapping")
    return quoted(value) if isinstance(value, str) else str(value)


def join(key: str, step: str | int) -> str:
    """The dotted key one step down."""
    return f"{key}[{step}]" if isinstance(step, int) else f"{key}.{step}" if key else step


def _leaves(schema: dict[str, Any], key: str, defs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema["properties"].items():
        path = join(key, name)
        if "properties" in child:
            yield from _leaves(child, path, defs)
        else:
            yield path, {**defs.get(child.get("$ref", "").removeprefix("#/$defs/"), {}), **child}


def _innermost(error: Any) -> Any:
    """Of alternatives the one that got further: the bad item of a list, and not that the list is not `any`."""
    deeper = [inner for inner in error.context or () if len(inner.absolute_path) > len(error.absolute_path)]
    return deeper[0] if deeper else error


def _translated(error: Any, name: str) -> Iterator[Problem]:
    key = ""
    for step in error.absolute_path:
        key = join(key, step)
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = error.schema["properties"]
        yield from (_unknown(key, word, known, name) for word in error.instance if word not in known)
    elif error.validator == "required":
        missing = next(word for word in error.validator_value if word not in error.instance)
        yield Problem(key, f"{key}: has no {missing}: add one")
    elif not (error.validator == "pattern" and "format" in error.schema):  # else its reader has better advice
        key = join(key, error.instance) if "propertyNames" in error.absolute_schema_path else key
        title = error.schema.get("title", "another value")
        yield Problem(key, f"{key}: must be {title}, not {shown(error.instance)}{_advice(error, title)}")


def _advice(error: Any, title: str) -> str:
    """What to do, where the value looks right and is not."""
    value, wants = error.instance, error.schema.get("type")
    if value is None and title.endswith("or none"):
        return ": write none if no limit is wanted"
    if wants == "boolean" and value in ("yes", "no", "on", "off"):
        return f": write {'true' if value in ('yes', 'on') else 'false'}"
    if wants == "string" and isinstance(value, bool | int | float):
        return f': write "{shown(value)}" in quotes if that is meant'
    if isinstance(value, str) and title.startswith(NUMERIC) and isinstance(plain(value), int | float):
        return ": take the quotes off"
    return " with one of them twice" if error.validator == "uniqueItems" else ""


def _unknown(key: str, word: str, known: Iterable[str], name: str) -> Problem:
    """The nearest key: one of that name elsewhere, else one that is spelt like it here."""
    path = join(key, word)
    near = next((leaf for leaf in leaves(name) if leaf.rpartition(".")[2] == word), None)
    if near is None and (close := nearest(word, known)):
        near = join(key, close)
    advice = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
    return Problem(path, f"{path}: unknown key: {advice}")
