"""Three containers under one slice, whose calls together need more memory than it has: one that is interactive and two
that are batch. For tests/vm/test_fleet.py and bench/fleet.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podman import CGROUPFS, Background, Container, Engine, run, set_policy

MIB = 1 << 20
SLICE = "agentcgroup.slice"
GROUP = CGROUPFS / SLICE
UNIT = Path("/run/systemd/system") / SLICE
EACH = dict.fromkeys(["low", "default", "medium", "high", "max"], "640M")


@dataclass(frozen=True)
class Load:
    """What the slice has, and what the interactive and the batch calls come to; MiB."""

    budget: int
    interactive: int
    batch: int


LARGE, SMALL = Load(1100, 421, 406), Load(360, 130, 125)


#: Takes so many MiB, a MiB at a time, and then has them for a while.
HOG = """
import time
blocks = []
for _ in range({mib}):
    blocks.append(b"x" * (1 << 20))
    {pace}
time.sleep({seconds})
print(len(blocks))
"""


def hog(mib: int, seconds: float = 1, pace: str = "pass") -> str:
    """The command text of that program."""
    return f"python3 -c '{HOG.format(mib=mib, seconds=seconds, pace=pace)}'"


def busy(seconds: int) -> str:
    """A command text that computes for so long."""
    return f"end=$((SECONDS+{seconds})); while [ $SECONDS -lt $end ]; do :; done"


@contextmanager
def budget(mib: int, **limits: str) -> Iterator[None]:
    """The slice, with that MemoryMax."""
    settings = {"MemoryMax": f"{mib}M", "MemorySwapMax": "0", **limits}
    UNIT.write_text("[Slice]\n" + "".join(f"{key}={value}\n" for key, value in settings.items()))
    run("systemctl", "daemon-reload")
    run("systemctl", "start", SLICE)
    try:
        yield
    finally:
        run("systemctl", "stop", SLICE)
        UNIT.unlink()
        run("systemctl", "daemon-reload")


def policies(load: Load, deadline: str = "120s") -> None:
    """`fleet-interactive`, which is promised what its call comes to, and `fleet-batch`."""
    for name, memory in (("interactive", {"reserve": f"{load.interactive + 16}M"}), ("batch", {})):
        policy = {
            "priority": name,
            "memory": {"swap_max": 0, "agent_min": 0, **memory},
            "call": {"memory": EACH, "stall_deadline": deadline},
        }
        set_policy(f"fleet-{name}", json.dumps(policy))


@dataclass
class Fleet:
    """The containers, the interactive one first."""

    containers: list[Container]
    load: Load

    def all_at_once(self) -> list[Background]:
        """Each begins its call now."""
        sizes = [self.load.interactive, self.load.batch, self.load.batch]
        return [box.background(hog(mib)) for box, mib in zip(self.containers, sizes, strict=True)]


def start(engine: Engine, load: Load, *options: str, governed: bool = True) -> Fleet:
    """The three containers, in the slice."""
    names = ("fleet-interactive", "fleet-batch", "fleet-batch")
    parent = f"--cgroup-parent={SLICE}"
    return Fleet([engine.start(parent, *options, policy=name if governed else None) for name in names], load)


def cgroup_of(container: Container) -> Path:
    """The container's own cgroup, governed or not."""
    path = Path(f"/proc/{container.pid}/cgroup").read_text().strip().removeprefix("0::/")
    return CGROUPFS / path.removesuffix("/agentcgroup/agent")


def oom_kills() -> int:
    """So far, in the slice."""
    text = (GROUP / "memory.events").read_text()
    return dict((line.split()[0], int(line.split()[1])) for line in text.splitlines())["oom_kill"]
