"""Everything that is known about a finished tool call. The daemon fills it in; feedback and records read it."""

import math
import os
import signal
from dataclasses import dataclass, field
from typing import Any, Literal

from agentcgroup import hint as hints
from agentcgroup.commandline import Command
from agentcgroup.memoryprofile import Point

VERSION = 1

Ended = Literal["time", "stall", "fork storm", "orphans", "container limit"]
OrphanAction = Literal["kill", "keep", "report"]


@dataclass(frozen=True)
class Clamp:
    """A key of the hint that was granted less than asked; bytes, cores, processes, seconds or a word."""

    key: str
    asked: int | float | str
    granted: int | float | str


@dataclass(frozen=True)
class Neighbour:
    """Another call of the container that ran at the same time; `bytes` is the memory it held."""

    number: int
    first_word: str
    bytes: int


@dataclass(frozen=True)
class Step:
    """What was done because memory was short: `hold`, `release`, `end`, and when (seconds of the call). budget: the
    slice, or "" for the calls of the container; used, limit, claimed: its bytes in use, its most, and what of it higher
    priorities were promised. None where the call itself or others had come to a limit.
    lag_s: seconds since the charge that the kernel told of.
    """

    step: str
    at_s: float
    budget: str = ""
    used: int | None = None
    limit: int | None = None
    claimed: int | None = None
    lag_s: float | None = None

    @property
    def inside(self) -> bool:
        """Whether it was for other calls of the same container."""
        return not self.budget


@dataclass
class Outcome:
    """A finished call. Times in seconds, memory in bytes; None is unknown or no limit, 0 is a measured zero.

    started: Unix time. status: wait status as waitpid(2) gives it. limit_source: `default`, `hint low`, `rule`,
    `container`. throttled_s: memory stall; cpu_throttled_s: stopped by cpu.max. repeat_failures: how often in a row,
    this one included, the same command failed for memory. refusals: of memory, with ENOMEM. changed: limits that were
    found altered and put back. would: what observe mode would have done, with numbers.
    feedback: the lines that the agent was given. profile: its memory over time, if it was looked at.
    """

    container: str
    number: int
    policy: str
    command: Command
    name: str = ""
    mode: Literal["observe", "enforce"] = "enforce"
    kind: str = "command"
    command_class: str = ""
    started: float = 0.0
    duration_s: float = 0.0
    status: int | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    limit_source: str = "default"
    container_limit_bytes: int | None = None
    cpu_s: float = 0.0
    cpu_throttled_s: float = 0.0
    io_bytes: int = 0
    egress_bytes: int | None = None
    ingress_bytes: int | None = None
    processes: int | None = None
    pids_peak: int | None = None
    pids_limit: int | None = None
    pids_denied: int = 0
    zombies: int = 0
    oom_kills: int = 0
    oom_victims: tuple[str, ...] = ()
    high_events: int = 0
    throttled_s: float = 0.0
    held_s: float = 0.0
    queued_s: float = 0.0
    ended: Ended | None = None
    time_limit_s: float | None = None
    stall_deadline_s: float | None = None
    steps: tuple[Step, ...] = ()
    refusals: int = 0
    orphans: int = 0
    orphan_names: tuple[str, ...] = ()
    orphan_action: OrphanAction | None = None
    others: tuple[Neighbour, ...] = ()
    hint: hints.Hint | None = None
    clamps: tuple[Clamp, ...] = ()
    repeat_failures: int = 0
    cooperative: bool = False
    changed: tuple[str, ...] = ()
    would: tuple[str, ...] = field(default=())
    feedback: tuple[str, ...] = ()
    profile: tuple[Point, ...] = ()


def exit_code(outcome: Outcome) -> int | None:
    """What the call's parent saw: the exit code, or minus the signal; None if unknown or no status of an end."""
    if outcome.status is None:
        return None
    try:
        return os.waitstatus_to_exitcode(outcome.status & 0xFFFF)
    except ValueError:  # "stopped": the number comes from inside the container
        return None


def result(outcome: Outcome) -> str:
    """One word for logs and tables: why it ended, else `oom`, `ok`, `exit N`, `SIGTERM`, or `unknown`."""
    if outcome.ended is not None and outcome.ended != "orphans":
        return outcome.ended
    if outcome.oom_kills:
        return "oom"
    code = exit_code(outcome)
    if code is None:
        return "unknown"
    return signal_name(-code) if code < 0 else f"exit {code}" if code else "ok"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 77` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain JSON types, the whole command text included: cut or hide it before it is stored."""
    plain = {"v": VERSION} | vars(outcome) | {"result": result(outcome), "exit": exit_code(outcome)}
    plain["command"] = outcome.command.text
    plain["first_word"] = outcome.command.first_word
    plain["hint"] = None if outcome.hint is None else hints.render(outcome.hint)
    plain["hint_problems"] = [] if outcome.hint is None else list(outcome.hint.problems)
    return {key: value if type(value) in _AS_THEY_ARE else _plain(value) for key, value in plain.items()}


_AS_THEY_ARE = frozenset((int, bool, type(None)))  # most of them: a call's cost is counted in microseconds


def _plain(value: Any) -> Any:
    """JSON has no infinity and no lone surrogates; both come from outside and must not spoil a line."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Clamp | Neighbour | Step):
        value = vars(value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
