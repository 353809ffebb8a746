"""What the agent is told after a call: what happened, in numbers, and one thing to do about it.

Read by language models, so: short lines, plain words, the same wording for the same event each time. Every message is
documented in docs/feedback.md. Names and commands come from inside the container: no control character gets through.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentcgroup import advice
from agentcgroup.hint import clean
from agentcgroup.outcome import Clamp, Outcome, Step, exit_code, to_json
from agentcgroup.units import format_bytes, format_seconds

PREFIX = "[agentcgroup] "
BESIDE = "At the same time: "  # begins the line that names other calls
MAX_LINES = 6
MAX_LINE = 400
MAX_COMMAND = 4096  # characters of the command text in the JSON twin

SLOWED_S = 0.2
SLOWED_SHARE = 0.05
NOTICED_S = 0.01  # below this a share of a short call is noise of the clock
NEAR_LIMIT = 0.9

_SIGKILL = (-9, 137)  # the shell itself, or a process that its exit status speaks of
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+:/@-]")


@dataclass(frozen=True)
class _Message:
    """Facts, one a line, and what to do."""

    facts: tuple[str, ...]
    action: str

    def lines(self) -> list[str]:
        action = clean(f" Next: {self.action}", MAX_LINE - 80)
        *before, last = (clean(fact, MAX_LINE - len(action)) for fact in self.facts)
        return [PREFIX + line for line in (*before, last + action)]


def compose(outcome: Outcome, max_hint: int) -> list[str]:
    """The lines for stderr, the most important first, at most MAX_LINES; empty if nothing happened.

    max_hint: the most bytes of memory that a hint can get from the policy.
    """
    lines: list[str] = []
    if outcome.mode == "observe":  # nothing was limited, so no limit is spoken of and a larger one would not help
        outcome, max_hint = replace(outcome, limit_bytes=None, pids_limit=None, clamps=()), 0
    for message in _messages(outcome, max_hint):
        if len(lines) + len(message.facts) <= MAX_LINES:
            lines += message.lines()
    return lines


def facts(lines: Sequence[str]) -> list[str]:
    """The lines without the prefix and without what to do, which repeats the command."""
    return [line.removeprefix(PREFIX).partition(" Next: ")[0] for line in lines]


def twin(outcome: Outcome, lines: list[str]) -> str:
    """The same for programs: the outcome as JSON, with what was said in `feedback`."""
    plain = to_json(outcome)
    plain["command"] = plain["command"][:MAX_COMMAND]
    return json.dumps(plain | {"feedback": lines})


def _messages(outcome: Outcome, max_hint: int) -> Iterator[_Message]:
    """Every event of the call; what follows from one already told is left out."""
    told_memory = bool(outcome.oom_kills) or outcome.ended in ("stall", "container limit")
    if outcome.ended == "fork storm":
        yield _fork_storm(outcome)
    if outcome.ended == "time":
        fact = f"{_call(outcome)} was ended at its time limit{_time_limit(outcome)}."
        yield _Message((fact,), advice.shorter(outcome))
    if told_memory:
        yield _memory(outcome, max_hint)
    elif outcome.ended in (None, "orphans") and exit_code(outcome) in _SIGKILL:
        yield _killed(outcome)
    if outcome.refusals:
        yield _refused(outcome, max_hint)
    if outcome.pids_limit and outcome.ended != "fork storm" and (outcome.pids_denied or _near_pids(outcome)):
        yield _pids(outcome, outcome.pids_limit)
    if outcome.orphans and outcome.orphan_action in ("kill", "report"):
        yield _orphans(outcome)
    slowed = min(outcome.held_s + outcome.throttled_s, max(outcome.duration_s, 0))
    if not told_memory and (slowed > SLOWED_S or slowed > max(SLOWED_SHARE * outcome.duration_s, NOTICED_S)):
        yield _slowed(outcome, slowed, max_hint)
    if outcome.queued_s > SLOWED_S:
        fact = f"{_call(outcome)} waited {format_seconds(outcome.queued_s)} before it started: memory was in use."
        yield _Message((fact,), advice.less(outcome))
    yield from _hints(outcome)


def _memory(outcome: Outcome, max_hint: int) -> _Message:
    """An end for memory: by the kernel, at the stall deadline, or because all calls together were too large."""
    facts = f"{_call(outcome)} {_memory_cause(outcome)}. {_figures(outcome)}{_victims(outcome)}"
    if outcome.repeat_failures > 1:
        facts += f" This command has failed for memory {outcome.repeat_failures} times in a row."
    others = sorted(outcome.others, key=lambda other: -other.bytes)
    shown = [f"call {other.number} {_name(other.first_word)} {format_bytes(other.bytes)}" for other in others[:4]]
    lines = (facts, f"{BESIDE}{', '.join(shown)}.") if shown else (facts,)
    if _own_limit(outcome):
        return _Message(lines, advice.more(outcome, max_hint))
    return _Message(lines, advice.alone(outcome, others[0] if others else None))


def _memory_cause(outcome: Outcome) -> str:
    if outcome.ended == "stall":
        deadline = format_seconds(outcome.stall_deadline_s or 0)
        waited = outcome.throttled_s + outcome.held_s
        if waited < (outcome.stall_deadline_s or 0):
            return f"was ended, the largest of the calls that waited for memory until the stall deadline of {deadline}"
        return f"was ended at the stall deadline of {deadline}: it waited for memory for {format_seconds(waited)}"
    code = exit_code(outcome)
    by_us = outcome.ended in ("time", "fork storm")
    went_on = not by_us and code is not None and code not in _SIGKILL
    return "went on after an out-of-memory kill, its result is not whole" if went_on else "was ended: out of memory"


def _own_limit(outcome: Outcome) -> bool:
    """Whether it met its own limit, and not one above it: that of all calls, of the container, of the host."""
    if outcome.ended == "container limit":
        return False
    return not (outcome.limit_bytes and outcome.peak_bytes is not None) or (
        outcome.peak_bytes >= NEAR_LIMIT * outcome.limit_bytes
    )


def _figures(outcome: Outcome) -> str:
    peak = "Peak not known" if outcome.peak_bytes is None else f"Peak {format_bytes(outcome.peak_bytes)}"
    if outcome.limit_bytes is None:
        return f"{peak}, no limit of its own."
    own = f"{peak}, limit {format_bytes(outcome.limit_bytes)} ({clean(outcome.limit_source, 40)})."
    if _own_limit(outcome) or not outcome.container_limit_bytes:
        return own
    return f"{own} All calls together may have {format_bytes(outcome.container_limit_bytes)}."


def _victims(outcome: Outcome) -> str:
    if not outcome.oom_kills:
        return ""
    if not outcome.oom_victims:
        return f" Killed: {_count(outcome.oom_kills, 'process', 'processes')}."
    return f" Killed: {_names(outcome.oom_victims)}."


def _killed(outcome: Outcome) -> _Message:
    """podman#10825: a 137 without an OOM is not called one."""
    how = "was ended by SIGKILL" if exit_code(outcome) == -9 else "exited with 137 (SIGKILL of a process in it)"
    fact = f"{_call(outcome)} {how}: no memory OOM was recorded for it, and agentcgroup did not send the signal."
    return _Message((fact,), "look for kill -9, pkill or timeout -s KILL in the command and in what it runs.")


def _refused(outcome: Outcome, max_hint: int) -> _Message:
    times = f"{outcome.refusals} times" if outcome.refusals > 1 else "once"
    fact = f"{_call(outcome)} was refused memory {times} (ENOMEM)"
    if any(step.step == "enomem" for step in outcome.steps):
        fact += ": others waited until the stall deadline for what it had"
    return _Message((f"{fact}. {_figures(outcome)}",), advice.more(outcome, max_hint))


def _fork_storm(outcome: Outcome) -> _Message:
    parts = [f"{_call(outcome)} was ended: fork storm"]
    if outcome.pids_peak is not None:
        limit = f" of at most {outcome.pids_limit}" if outcome.pids_limit else ""
        parts.append(f"{outcome.pids_peak} processes and threads{limit}")
    if outcome.zombies:
        parts.append(_count(outcome.zombies, "zombie", "zombies"))
    if outcome.pids_denied:
        parts.append(f"{outcome.pids_denied} more refused")
    return _Message((", ".join(parts) + ".",), "check the command for a script or hook that starts itself.")


def _near_pids(outcome: Outcome) -> bool:
    """claude-code and others: zombies under an init that does not reap fill pids.max unseen (openclaw#68691)."""
    return bool(outcome.zombies) and (outcome.pids_peak or 0) >= NEAR_LIMIT * (outcome.pids_limit or 0)


def _pids(outcome: Outcome, limit: int) -> _Message:
    fact = f"{_call(outcome)} came to {outcome.pids_peak} of {limit} processes and threads"
    if outcome.pids_denied:
        refused = f'{outcome.pids_denied} could not be started ("Resource temporarily unavailable")'
        fact = f"{_call(outcome)} reached its limit of {limit} processes and threads: {refused}"
    zombies = f", {_count(outcome.zombies, 'was a zombie', 'were zombies')}" if outcome.zombies else ""
    if outcome.zombies * 2 >= limit:
        return _Message((f"{fact}{zombies}.",), "end the program that does not wait for its children.")
    return _Message((f"{fact}{zombies}.",), advice.fewer(outcome))


def _orphans(outcome: Outcome) -> _Message:
    left = f"{_call(outcome)} left {_count(outcome.orphans, 'background process', 'background processes')}"
    left += f" ({_names(outcome.orphan_names)})" if outcome.orphan_names else ""
    if outcome.orphan_action == "kill":
        fact = f"{left}, ended with the call."
        return _Message((fact,), "keep a call in the foreground while its processes are needed.")
    return _Message((f"{left}, still running within its limits.",), "end them with kill when they are not needed.")


def _slowed(outcome: Outcome, slowed: float, max_hint: int) -> _Message:
    hold = next((step for step in outcome.steps if step.step == "hold" and step.limit), None)
    whom = "other calls" if hold is None or hold.inside else "other containers"
    waits = ((outcome.throttled_s, "waiting for memory"), (outcome.held_s, f"held for {whom}"))
    parts = [f"{format_seconds(seconds)} {what}" for seconds, what in waits if seconds >= 0.001]
    whole = f"{format_seconds(slowed)} of {format_seconds(outcome.duration_s)}"
    fact = f"{_call(outcome)} was slowed for {whole}: {', '.join(parts)}. {_figures(outcome)}"
    if hold is not None and not hold.inside:
        return _Message((fact, _short(hold)), "use less at a time: fewer workers, smaller parts.")
    if hold is not None:
        return _Message((fact, _short(hold)), "run heavy commands one after another.")
    if outcome.held_s > outcome.throttled_s or not _own_limit(outcome):
        return _Message((fact,), "run heavy commands one after another.")
    return _Message((fact,), advice.more(outcome, max_hint))


def _short(hold: Step) -> str:
    where = "the calls of this container" if hold.inside else f"the containers of {_name(hold.budget)}"
    text = f"When it was held {where} had {format_bytes(hold.used or 0)} of {format_bytes(hold.limit or 0)} in use"
    return f"{text}, and {format_bytes(hold.claimed)} more was promised." if hold.claimed else f"{text}."


def _hints(outcome: Outcome) -> Iterator[_Message]:
    """What was granted less than asked, and what of the hint was not understood."""
    if outcome.clamps:
        shown = ", ".join(
            f"{clamp.key} {_amount(clamp, clamp.asked)} asked, {_amount(clamp, clamp.granted)} granted"
            for clamp in outcome.clamps
        )
        yield _Message((f"Hint: {shown}, the most allowed here.",), f"ask for at most {advice.granted(outcome)}.")
    problems = dict.fromkeys((*outcome.command.problems, *(() if outcome.hint is None else outcome.hint.problems)))
    if problems:
        text = clean("; ".join(problems), MAX_LINE - 120)
        end = "" if text.endswith("?") else "."
        yield _Message((f"Hint: {text}{end}",), "write the hint as in AGENT_RESOURCE_HINT=memory:2g,time:10m COMMAND")


def _amount(clamp: Clamp, value: int | float | str) -> str:
    if isinstance(value, str):
        return clean(value, 24)
    if clamp.key == "memory":
        return format_bytes(int(value))
    return format_seconds(value) if clamp.key == "time" else f"{value:g}" if clamp.key == "cpu" else str(int(value))


def _call(outcome: Outcome) -> str:
    return f"Call {outcome.number}"


def _time_limit(outcome: Outcome) -> str:
    return f" of {format_seconds(outcome.time_limit_s)}" if outcome.time_limit_s else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _names(names: tuple[str, ...]) -> str:
    """At most five different names, in the order of their first appearance, with how often each occurs."""
    counted = Counter(_name(name) for name in names)
    shown = [name if times == 1 else f"{name} x{times}" for name, times in list(counted.items())[:5]]
    return ", ".join([*shown, f"{len(counted) - 5} more"] if len(counted) > 5 else shown)


def _name(comm: str) -> str:
    return _NOT_IN_NAMES.sub("?", comm[:64]) or "?"
