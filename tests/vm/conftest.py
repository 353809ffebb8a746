"""What every test in the VM has: a running daemon, test policies, an engine, and a check that nothing was left
behind.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle import Bundle
from podman import CGROUPFS, Engine, alive, nothing_left, run, wait_for

POLICIES = Path("/etc/agentcgroup/policies.d")
BOTH_ENDS = (("crun", "systemd"), ("runc", "cgroupfs"))


@pytest.fixture(scope="session", autouse=True)
def daemon() -> None:
    """agentcgroupd runs with the tests' policies (tests/vm/policies/)."""
    POLICIES.mkdir(parents=True, exist_ok=True)
    for policy in (Path(__file__).parent / "policies").glob("*.yaml"):
        (POLICIES / policy.name).write_text(policy.read_text())
    Path("/etc/agentcgroup/agentcgroup.yaml").write_text("ack_ms: 2000\n")
    run("systemctl", "restart", "agentcgroupd.socket", "agentcgroupd.service")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """podman with crun and the systemd cgroup manager."""
    yield from _engine("crun", "systemd")


@pytest.fixture(
    params=[("crun", "systemd"), ("crun", "cgroupfs"), ("runc", "systemd"), ("runc", "cgroupfs")],
    ids=lambda p: "-".join(p),
)
def any_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each runtime under each cgroup manager."""
    yield from _engine(*request.param)


@pytest.fixture(params=BOTH_ENDS, ids=lambda p: "-".join(p))
def each_end(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Both runtimes and both cgroup managers."""
    yield from _engine(*request.param)


@pytest.fixture(scope="module")
def file_engine() -> Iterator[Engine]:
    """podman with crun and the systemd cgroup manager, for containers that a whole file shares."""
    yield from _engine("crun", "systemd")


@pytest.fixture(scope="module", params=BOTH_ENDS, ids=lambda p: "-".join(p))
def both_ends(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Both runtimes and both cgroup managers, for containers that a whole file shares."""
    yield from _engine(*request.param)


def _engine(runtime: str, manager: str) -> Iterator[Engine]:
    before = leftovers()
    engine = Engine(runtime, manager)
    yield engine
    engine.clean()
    wait_for(lambda: leftovers() <= before, 10, f"nothing left behind, but there is {leftovers() - before}")


@pytest.fixture(scope="module")
def rootfs() -> Iterator[Path]:
    """The files of the Debian image, for bundles."""
    yield Path(run("podman", "image", "mount", "localhost/debian").stdout.strip())
    run("podman", "image", "unmount", "localhost/debian")


@pytest.fixture
def bundle(rootfs: Path) -> Iterator[Callable[..., Bundle]]:
    """Makes bundles; removes their containers and sees that nothing is left."""
    made: list[Bundle] = []

    def make(runtime: str = "crun", **annotations: str) -> Bundle:
        made.append(Bundle(runtime, rootfs, annotations))
        return made[-1]

    yield make
    for each in made:
        each.delete()
        nothing_left(each.id)


def leftovers() -> set[str]:
    """Cgroups, mounts, sockets and files of ours that exist now, but for containers that another fixture keeps."""
    groups = {str(path) for path in CGROUPFS.rglob("agentcgroup") if path.is_dir()}
    mounts = {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "agentcgroup" in line}
    run_dir = Path("/run/agentcgroup")
    files = {str(p) for sub in ("c", "containers") for p in (run_dir / sub).glob("*") if not p.name.endswith(".tmp")}
    return {path for path in groups | mounts | files if not any(each in path for each in alive)}


@pytest.fixture
def journal() -> Iterator[Journal]:
    yield Journal()


class Journal:
    """The journal since the test began."""

    def __init__(self) -> None:
        self._since = int(time.time())

    def text(self) -> str:
        since = f"@{self._since}"
        return subprocess.run(["journalctl", "-o", "cat", f"--since={since}"], text=True, capture_output=True).stdout

    def kernel(self) -> str:
        since = f"@{self._since}"
        return subprocess.run(
            ["journalctl", "-k", "-o", "cat", f"--since={since}"], text=True, capture_output=True
        ).stdout
