"""Single fields of a policy replaced by annotations: read like the file's, compared with what they replace."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from agentcgroup.policy import checks, schema
from agentcgroup.policy.document import FileError, Value, plain
from agentcgroup.policy.fields import FIELDS, shown
from agentcgroup.policy.leaves import Tighter, get, put, read_leaves
from agentcgroup.policy.model import Policy, Size
from agentcgroup.policy.schema import Problem

ORIGIN = "annotation "  # how the provenance of an overridden field begins
DEFAULT_WEIGHT = 100  # of cpu.weight and io.weight, cgroup-v2.rst


def apply_overrides(policy: Policy, overrides: Mapping[str, str], tighten_only: bool) -> Policy:
    """The policy with single fields replaced, and checked again; `tighten_only` refuses what gives a container more.

    A percentage and bytes cannot be compared yet: a Size then holds both, and the smaller counts. Raises UserError with
    a line for each override that cannot be read, is looser, or contradicts another value.
    """
    problems: list[Problem] = []
    for key, value in _read(overrides, problems).items():
        policy = put(policy, key, _tightened(key, get(policy, key), value, problems) if tighten_only else value)
    origins = {key: f"{ORIGIN}agentcgroup.{key}" for key in overrides}
    policy = replace(policy, provenance={**policy.provenance, **origins})
    spoilt = {problem.key for problem in problems}
    problems += [found for found in checks.check(policy, ORIGIN) if not spoilt & {found.key, found.other}]
    if problems:
        raise FileError([f"{ORIGIN}agentcgroup.{problem.key}: {_sentence(problem)}" for problem in problems])
    return policy


def _sentence(problem: Problem) -> str:
    return problem.text.removeprefix(f"{problem.key}: ")


def _read(overrides: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """The values by dotted key. A text that the schema refuses as a string is tried as the number it may be."""
    data: dict[str, Value] = {}
    for key, text in sorted(overrides.items()):
        words: list[Value] = [word.strip() for word in text.split(",")]
        as_text = _nested(key, words if FIELDS[key].tighter == "more" else text)
        _merge(data, as_text if not any(schema.problems(as_text, "policy")) else _nested(key, plain(text)))
    problems += schema.problems(data, "policy")
    return read_leaves(FIELDS, data, problems)


def _nested(key: str, value: Value) -> dict[str, Value]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _merge(into: dict[str, Value], more: dict[str, Value]) -> None:
    for name, value in more.items():
        old = into.setdefault(name, value)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)


def _tightened(key: str, old: Any, new: Any, problems: list[Problem]) -> Any:
    """The new value, joined with the old one where only the container will tell which is smaller."""
    joined = new
    if isinstance(old, Size) and isinstance(new, Size):
        looser = _over(new.bytes, old.bytes) or _over(new.percent, old.percent)
        joined = Size(_least(new.bytes, old.bytes), _least(new.percent, old.percent))
    else:
        looser = _looser(FIELDS[key].tighter, old, new)
    if looser:
        text = f"{shown(key, new)} loosens the policy's {shown(key, old)}: {_advice(key, old)}"
        problems.append(Problem(key, f"{key}: {text}"))
    return joined


def _over(new: float | None, old: float | None) -> bool:
    return new is not None and old is not None and new > old


def _least(new: Any, old: Any) -> Any:
    return old if new is None else new if old is None else min(new, old)


def _looser(rule: Tighter, old: Any, new: Any) -> bool:
    """Whether the new value gives the container more."""
    if isinstance(rule, tuple):
        return bool(rule.index(new) > rule.index(old))
    if rule == "more":
        return not set(old) <= set(new)
    if rule == "fixed":
        return bool(new != old)
    none = {"lower": inf, "claim": 0, "weight": DEFAULT_WEIGHT}[rule]
    return _number(new, none) > _number(old, none)


def _number(value: Any, none: float) -> float:
    """A value that can be compared with none; of a Size only whether it is 0."""
    if isinstance(value, Size):
        return min(1.0, value.of(1024))
    return none if value is None else float(value)


def _advice(key: str, old: Any) -> str:
    rule = FIELDS[key].tighter
    if isinstance(rule, tuple):
        return f"write {' or '.join(shown(key, value) for value in rule[: rule.index(old) + 1])}"
    if rule == "fixed" or (rule == "claim" and old is None):
        return "remove it"
    if rule == "weight" and old is None:
        return f"write {DEFAULT_WEIGHT} or less"
    return f"write {shown(key, old)}{' and more' if rule == 'more' else ' or less'}"
