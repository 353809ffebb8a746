"""What a policy says, once it is read and checked. Plain values: no file, no YAML, no kernel here.

Attribute paths are the dotted keys of the files: `call.memory.max` is `policy.call.memory.max` (`as` is `as_`).
The defaults below are the ones that docs/policy.md and the JSON schema give.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from agentcgroup.units import format_bytes

Mode = Literal["observe", "enforce"]
Priority = Literal["interactive", "normal", "batch"]
Orphans = Literal["kill", "keep", "report"]
Rung = Literal["throttle", "hold", "enomem", "end"]
Kind = Literal["call", "helper", "agent"]
CommandText = Literal["off", "hash", "first", "full"]

LADDER: tuple[Rung, ...] = ("throttle", "hold", "enomem", "end")
MATCH_CHARS = 4096  # of a command text; the text comes from inside the container

MIB = 1024**2
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of memory: bytes, a percentage, or both (then the smaller holds).

    A percentage is of the smaller of the host's memory and the container's own limit.
    """

    bytes: int | None = None
    percent: float | None = None

    def of(self, total: int) -> int:
        """The size in bytes where `total` bytes are 100 %. Without a value it is `total`."""
        share = total if self.percent is None else int(total * self.percent / 100)
        return share if self.bytes is None else self.bytes if self.percent is None else min(self.bytes, share)

    def __str__(self) -> str:
        parts = [] if self.bytes is None else [format_bytes(self.bytes)]
        return " or ".join(parts if self.percent is None else [*parts, f"{self.percent:g} %"]) or "none"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the whole container. None: no limit of ours."""

    max: Size | None = None
    high: Size | None = None
    agent_min: Size | None = None
    agent_max: Size | None = None
    reserve: Size | None = None
    swap_max: Size | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """`weight` is cpu.weight (1 to 10000); `max` is in CPUs (1.5 is one and a half). None: untouched."""

    weight: int | None = None
    max: float | None = None


class IoLimit(NamedTuple):
    """Limits of one block device: a path below /dev or MAJ:MIN; keys rbps, wbps (bytes/s), riops, wiops."""

    device: str
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Io:
    """`weight` is io.weight (1 to 10000), which acts only with iocost or bfq."""

    weight: int | None = None
    max: tuple[IoLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """Bytes a second, None: no limit."""

    egress: int | None = None
    ingress: int | None = None


@dataclass(frozen=True, slots=True)
class CallMemory:
    """Hard limits of one call: without a hint, for each hint word, and the most a hint may ask for."""

    default: Size = Size(2 * GIB)
    low: Size = Size(512 * MIB)
    medium: Size = Size(4 * GIB)
    high: Size = Size(8 * GIB)
    max: Size = Size(percent=100.0)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. Durations in seconds; `fork_rate` in processes gained a second; cpu_* are cpu.weight."""

    memory: CallMemory = CallMemory()
    pids_max: int = 1024
    time_max: float | None = None
    grace: float = 5.0
    stall_deadline: float = 30.0
    fork_rate: int | None = 500
    orphans: Orphans = "report"
    on_pressure: tuple[Rung, ...] = ("throttle", "hold", "end")
    cpu_low: int = 50
    cpu_normal: int = 100
    cpu_high: int = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """What a command that `match` is found in is, and the hint it gets where the agent gave none."""

    match: re.Pattern[str]
    hint: str | None = None
    as_: Kind | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """How much of a command text the ledger keeps."""

    command: CommandText = "first"


SHELLS = tuple(
    f"{where}/{name}" for name in ("bash", "sh", "dash", "zsh") for where in ("/bin", "/usr/bin", "/usr/local/bin")
)


@dataclass(frozen=True, slots=True)
class Policy:
    """A resolved policy. `provenance` maps each dotted key to `file:line`, an annotation, or "default"."""

    name: str
    source: Path = Path()
    description: str = ""
    mode: Mode = "enforce"
    required: bool = False
    delegate: bool = False
    priority: Priority = "normal"
    memory: Memory = Memory()
    cpu: Cpu = Cpu()
    pids_max: int | None = None
    io: Io = Io()
    network: Network = Network()
    shells: tuple[str, ...] = SHELLS
    exec_match: tuple[re.Pattern[str], ...] = ()
    call: Call = Call()
    rules: tuple[Rule, ...] = ()
    records: Records = Records()
    tenant: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    def rule_for(self, command: str) -> Rule | None:
        """The first rule whose pattern is found in the first 4096 characters of `command`."""
        text = command[:MATCH_CHARS]
        return next((rule for rule in self.rules if rule.match.search(text)), None)

    def takes_exec(self, comm: str) -> bool:
        """Whether a process of this comm (15 bytes at most), started without a shell, is to be a call."""
        return any(pattern.fullmatch(comm) for pattern in self.exec_match)
