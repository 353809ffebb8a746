"""What `enforce` would have done to a call that ran under `observe`, with numbers (design: section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcgroup.outcome import Outcome
from agentcgroup.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from agentcgroup.call import Call


def would(outcome: Outcome, call: Call) -> tuple[str, ...]:
    """One phrase for each limit that the call passed."""
    grant, found = call.grant, []
    if outcome.peak_bytes is not None and outcome.peak_bytes > grant.memory:
        found.append(f"memory: peak {format_bytes(outcome.peak_bytes)} is above the limit {format_bytes(grant.memory)}")
    if grant.time is not None and outcome.duration_s > grant.time:
        found.append(f"time: {format_seconds(outcome.duration_s)} is above the limit {format_seconds(grant.time)}")
    if outcome.pids_peak is not None and outcome.pids_peak > grant.pids:
        found.append(f"pids: peak {outcome.pids_peak} is above the limit {grant.pids}")
    together = call.container.limits.calls_max
    if outcome.peak_bytes is not None and outcome.peak_bytes > together:
        found.append(
            f"container: peak {format_bytes(outcome.peak_bytes)} is above {format_bytes(together)} for all calls"
        )
    return tuple(found)
