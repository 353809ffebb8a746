"""Values that contradict each other, which neither a schema nor a field by itself can see.

Two values of one file must agree. A value that was inherited, or is a default, may be larger than what contains it:
the daemon cuts it, and a policy with a small memory.max need not repeat every size. Only what cannot be cut is checked
across files: the agent's own memory, and the order of the hint words.
"""

from collections.abc import Iterator
from typing import Any

from agentcgroup.policy.leaves import get
from agentcgroup.policy.model import Policy, Size
from agentcgroup.policy.schema import Problem

# (smaller, larger, whether it holds across files)
ORDER = (
    ("memory.high", "memory.max", False),
    ("memory.agent_min", "memory.max", True),
    ("memory.agent_min", "memory.agent_max", True),
    ("memory.agent_max", "memory.max", False),
    ("memory.reserve", "memory.max", False),
    ("call.memory.low", "call.memory.medium", True),
    ("call.memory.medium", "call.memory.high", True),
    ("call.memory.high", "call.memory.max", False),
    ("call.memory.default", "call.memory.max", False),
    ("call.memory.max", "memory.max", False),
    ("call.memory.default", "memory.max", False),
    ("call.pids_max", "pids_max", False),
    ("call.cpu_low", "call.cpu_normal", True),
    ("call.cpu_normal", "call.cpu_high", True),
)


def check(policy: Policy, mine: str) -> Iterator[Problem]:
    """Contradictions in a resolved policy that involve a value whose provenance begins with `mine`."""
    for low, high, across in ORDER:
        below, above = get(policy, low), get(policy, high)
        here, there = (policy.provenance.get(key, "default") for key in (low, high))
        own = [key for key, place in ((low, here), (high, there)) if place.startswith(mine)]
        if len(own) < (1 if across else 2) or _fits(below, above, low.startswith("call.") != high.startswith("call.")):
            continue
        key, other, place = (low, high, there) if own[0] == low else (high, low, here)
        aside = "" if len(own) == 2 else f" ({other}: {place})"
        yield Problem(key, f"{low} {below} exceeds {high} {above}{aside}: lower {low} or raise {high}", other)


def _fits(below: Any, above: Any, other_base: bool) -> bool:
    """Whether below <= above. Bytes and percentages cannot be compared before the container is there.

    Nor can percentages of different things: those of a call's sizes are of what all calls may have together.
    """
    if below is None or above is None:
        return True
    if isinstance(below, Size):
        pairs = ((below.bytes, above.bytes), (below.percent, above.percent))
        return all(a is None or b is None or a <= b for a, b in pairs[: 1 if other_base else 2])
    return bool(below <= above)
