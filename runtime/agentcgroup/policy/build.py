"""From a document to a policy: the leaves are read, laid over the parent's, and checked as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcgroup.policy import checks, schema
from agentcgroup.policy.document import Document, FileError
from agentcgroup.policy.fields import FIELDS
from agentcgroup.policy.leaves import flat, put, read_leaves, report
from agentcgroup.policy.model import Policy
from agentcgroup.policy.schema import Problem, join

NOT_INHERITED = ("description",)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values of a policy by dotted key, and where each came from: what a child inherits."""

    values: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


def build(name: str, document: Document, base: Resolved, extends: Sequence[Problem]) -> tuple[Policy, Resolved]:
    """The policy `name` of a document over the values of its parent; `extends` says why it has none, if it should.

    Raises FileError with every problem of the file.
    """
    problems = [*extends, *schema.problems(document.data, "policy")]
    own = read_leaves(FIELDS, document.data, problems)
    resolved = _merged(document, own, base)
    policy = assemble(name, document.path, resolved)
    sound = set(own) if extends else FIELDS.keys() - ({key for key, _ in flat(FIELDS, document.data)} - own.keys())
    found = checks.check(policy, f"{document.path}:")
    problems += [problem for problem in found if {problem.key, problem.other} <= sound]
    if problems:
        raise FileError(report(document, problems))
    return policy, resolved


def assemble(name: str, source: Path, resolved: Resolved) -> Policy:
    """The policy of these values; every other field has its default."""
    defaults = dict.fromkeys(FIELDS, "default")
    policy = Policy(name, source, provenance={**defaults, **resolved.provenance})
    for key, value in resolved.values.items():
        policy = put(policy, key, value)
    return policy


def _merged(document: Document, own: dict[str, Any], base: Resolved) -> Resolved:
    """The file's values over the inherited ones. Rules are joined, the file's first."""
    values = {key: value for key, value in base.values.items() if key not in NOT_INHERITED} | own
    places = {key: base.provenance[key] for key in values if key not in own} | {key: document.where(key) for key in own}
    rules, inherited = own.get("rules", ()), base.values.get("rules", ())
    if "rules" in values:
        values["rules"] = (*rules, *inherited)
    for index in range(len(rules)):
        places[join("rules", index)] = document.where(join("rules", index))
    for index in range(len(inherited)):
        places[join("rules", len(rules) + index)] = base.provenance[join("rules", index)]
    return Resolved(values, places)
