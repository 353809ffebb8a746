"""What `enforce` would have done to a call that ran under `observe`, with numbers (design: section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcgroup.outcome import Outcome
from agentcgroup.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from agentcgroup.call import Call


def would(outcome: Outcome, call: Call) -> tuple[str, ...]:
    """One phrase for each limit that the call passed."""
    grant, policy, found = call.grant, call.container.policy.call, []
    together, peak = call.container.limits.calls_max, outcome.peak_bytes or 0
    if peak > grant.memory:
        found.append(f"memory: peak {format_bytes(peak)} is above the limit {format_bytes(grant.memory)}")
    if max(peak, call.most_together) > together:
        most = format_bytes(max(peak, call.most_together))
        found.append(f"container: {most} of all calls together are above the limit {format_bytes(together)}")
    if call.crowded is not None:
        used, limit = format_bytes(call.crowded.used or 0), format_bytes(call.crowded.limit or 0)
        where = call.crowded.budget or "all calls together"
        promised = (
            f", {format_bytes(call.crowded.claimed)} of which others were promised" if call.crowded.claimed else ""
        )
        found.append(f"held: {used} in use by {where} are too near the limit {limit}{promised}")
    if grant.time is not None and outcome.duration_s > grant.time:
        found.append(f"time: {format_seconds(outcome.duration_s)} is above the limit {format_seconds(grant.time)}")
    if outcome.pids_peak is not None and outcome.pids_peak > grant.pids:
        found.append(f"pids: peak {outcome.pids_peak} is above the limit {grant.pids}")
    if policy.fork_rate is not None and call.most_forks > policy.fork_rate:
        found.append(f"fork storm: {call.most_forks:.0f} processes a second are above the limit {policy.fork_rate}")
    if outcome.orphans and policy.orphans == "kill":
        found.append(f"orphans: {outcome.orphans} would have been ended with the call")
    return tuple(found)
