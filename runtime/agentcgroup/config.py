"""/etc/agentcgroup/agentcgroup.yaml: what holds for the whole host. Read and checked like a policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from agentcgroup.errors import UserError
from agentcgroup.paths import CONFIG_FILE, LOG_DIR
from agentcgroup.policy import schema
from agentcgroup.policy.document import FileError, read
from agentcgroup.policy.fields import duration, or_none, read_size
from agentcgroup.policy.leaves import Field, put, read_leaves, report
from agentcgroup.policy.model import MIB, Size
from agentcgroup.units import format_bytes, parse_size, quoted

Level = Literal["all", "tighten", "none"]


@dataclass(frozen=True, slots=True)
class Records:
    """The ledger: `max_size` in bytes a file, `keep` rotated files beside the current one."""

    dir: Path = LOG_DIR
    max_size: int = 64 * MIB
    keep: int = 5


@dataclass(frozen=True, slots=True)
class Overrides:
    """What annotations may change in a policy, by engine."""

    podman: Level = "all"
    docker: Level = "all"
    crio: Level = "tighten"
    other: Level = "none"

    def of(self, engine: str) -> Level:
        """The level of an engine."""
        level: Level = getattr(self, self.key(engine))
        return level

    def key(self, engine: str) -> str:
        """The field for an engine; an unknown one is `other`."""
        return engine if engine in ("podman", "docker", "crio") else "other"


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of all governed containers together; None: that of agentcgroup.slice, if any. Times in seconds."""

    memory: Size | None = None
    margin: Size = Size(256 * MIB)
    wait_max: float = 600.0
    ageing: float = 60.0


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where Prometheus asks for figures: a unix socket's path, or a loopback address and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """`ack_ms` in milliseconds; `call_rate` in calls a second of one container, `call_burst` in calls."""

    ack_ms: int = 200
    pool: int = 8
    max_containers: int = 1024
    max_connections: int = 256
    call_rate: int = 100
    call_burst: int = 400
    records: Records = Records()
    overrides: Overrides = Overrides()
    allowed_policies: tuple[str, ...] | None = None
    budget: Budget = Budget()
    bpf: bool = True
    scheduler: Literal["off", "partial", "full"] = "off"
    log_level: Literal["error", "warning", "info", "debug"] = "info"
    metrics: MetricsAddress | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)


def _directory(text: str) -> Path:
    if not text.startswith("/") or ".." in text.split("/"):
        raise UserError(f'"{text}" is not an absolute path without ..: write one such as {LOG_DIR}')
    return Path(text)


def _metrics(text: str) -> MetricsAddress | None:
    if text == "off":
        return None
    kind, _, rest = text.partition(":")
    if kind == "unix":
        return MetricsAddress(path=_directory(rest))
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(
            f"{quoted(text)} is neither a socket nor a loopback port: write unix:/run/agentcgroup/metrics.sock or "
            "127.0.0.1:9753; for other hosts put a proxy with authentication before it"
        )
    return MetricsAddress(host=host, port=int(port))


def _file_size(text: str | int) -> int:
    size = parse_size(text)
    if size < MIB:
        raise UserError(f"{format_bytes(size)} is too small: write 1M or more")
    return size


FIELDS: dict[str, Field] = {
    "ack_ms": Field(int),
    "pool": Field(int),
    "max_containers": Field(int),
    "max_connections": Field(int),
    "call_rate": Field(int),
    "call_burst": Field(int),
    "records.dir": Field(_directory),
    "records.max_size": Field(_file_size),
    "records.keep": Field(int),
    "overrides.podman": Field(str),
    "overrides.docker": Field(str),
    "overrides.crio": Field(str),
    "overrides.other": Field(str),
    "allowed_policies": Field(lambda names: None if names == "any" else tuple(names)),
    "budget.memory": Field(or_none(read_size)),
    "budget.margin": Field(lambda size: read_size(size, least=0)),
    "budget.wait_max": Field(duration(0, 86400)),
    "budget.ageing": Field(duration(1, 86400)),
    "bpf": Field(bool),
    "scheduler": Field(str),
    "log_level": Field(str),
    "metrics": Field(_metrics),
}


def load(path: Path = CONFIG_FILE) -> Config:
    """The configuration; without a file, the defaults. Raises UserError with a line for each problem of the file."""
    try:
        path.lstat()
    except FileNotFoundError:
        return Config(provenance=dict.fromkeys(FIELDS, "default"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}: run this as root") from None
    document = read(path)
    problems = list(schema.problems(document.data, "config"))
    values = read_leaves(FIELDS, document.data, problems)
    if problems:
        raise FileError(report(document, problems))
    config = Config(provenance={key: document.where(key) if key in values else "default" for key in FIELDS})
    for key, value in values.items():
        config = put(config, key, value)
    return config
