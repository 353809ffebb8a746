"""The packages in a server's life: installed, upgraded under a running container, erased with one and with none."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import console
import pytest
import service
from conftest import leftovers
from podman import Engine, run, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = CHECKOUT / "packages"
JSON = Path("/usr/share/containers/oci/hooks.d/50-agentcgroup.json")
CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
LOGS = Path("/var/log/agentcgroup")
# What packages are about to change; logs and state outlive an erase, as they do with other daemons.
WATCHED = ("/usr", "/etc")
APART = (
    "/usr/lib/sysimage",
    "/etc/group",
    "/etc/gshadow",
    "/etc/agentcgroup",
    "/usr/share/doc/agentcgroup",
    "__pycache__",
)


class Rpm:
    """Debian has none of the packages that ours need under their names: --nodeps."""

    names = ("agentcgroup", "python3-agentcgroup", "agentcgroup-selinux", "agentcgroup-doc")

    def files(self, release: int) -> list[str]:
        """The packages of one release."""
        return [str(next(PACKAGES.glob(f"{release}/RPMS/*/{name}-[0-9]*.rpm"))) for name in self.names]

    def install(self, release: int) -> None:
        run("rpm", "-U", "--nodeps", *self.files(release), timeout=300)
        run("systemctl", "enable", "--now", service.SOCKET, service.SERVICE)

    def upgrade(self, release: int) -> None:
        run("rpm", "-U", "--nodeps", *self.files(release), timeout=300)

    def erase(self) -> None:
        run("rpm", "-e", *self.names, timeout=300)

    def purge(self) -> None:
        if self.version():
            self.erase()
        shutil.rmtree(CONFIG.parent, ignore_errors=True)

    def version(self) -> str:
        """That which is installed; empty if none is."""
        found = run("rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}", self.names[0], check=False)
        return found.stdout if found.returncode == 0 else ""

    def verify(self) -> None:
        for name in self.names:
            run("rpm", "-V", "--nodeps", "--noconfig", name)

    def kept_configuration(self) -> Path:
        return CONFIG.with_suffix(".yaml.rpmsave")


class Deb:
    """Enabled and started by its installation, as Debian's users expect."""

    def files(self, release: int) -> list[str]:
        return [str(next(PACKAGES.glob(f"{release}/DEBS/agentcgroup_*.deb")))]

    def install(self, release: int) -> None:
        run("dpkg", "-i", *self.files(release), timeout=300)

    def upgrade(self, release: int) -> None:
        run("dpkg", "-i", *self.files(release), timeout=300)

    def erase(self) -> None:
        run("dpkg", "-r", "agentcgroup", timeout=300)

    def purge(self) -> None:
        run("dpkg", "-P", "agentcgroup", timeout=300)
        assert not CONFIG.parent.exists() and not LOGS.exists()

    def version(self) -> str:
        found = run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "agentcgroup", check=False).stdout
        return found.removeprefix("installed ") if found.startswith("installed ") else ""

    def verify(self) -> None:
        changed = [line.split()[-1] for line in run("dpkg", "-V", "agentcgroup").stdout.splitlines()]
        unpacked = [path for path in changed if not path.startswith(("/usr/share/doc/", "/usr/share/man/"))]
        assert unpacked in ([], [str(CONFIG)])

    def kept_configuration(self) -> Path:
        return CONFIG


MANAGERS = {"rpm": Rpm(), "deb": Deb()}


@pytest.fixture(scope="module", params=MANAGERS)
def manager(request: pytest.FixtureRequest) -> Rpm | Deb:
    return MANAGERS[request.param]


def on_disk() -> dict[str, tuple[int, int, str]]:
    """Every file that could be ours: mode, size, target."""
    found = {}
    for top in WATCHED:
        for folder, _, names in os.walk(top):
            for path in (f"{folder}/{name}" for name in names):
                if not any(part in path for part in APART):
                    state = os.lstat(path)
                    found[path] = (state.st_mode, state.st_size, os.readlink(path) if os.path.islink(path) else "")
    return found


def units() -> str:
    return run("systemctl", "list-unit-files", "--no-legend", "agentcgroup*", check=False).stdout


def pins() -> list[str]:
    return [str(path) for path in Path("/sys/fs/bpf").rglob("*") if "agentcgroup" in str(path)]


@pytest.fixture(scope="module", autouse=True)
def bare() -> dict[str, tuple[int, int, str]]:
    """What the harness has put there goes, file by file; then this is a host that never saw us."""
    run("systemctl", "disable", "--now", service.SOCKET, service.SERVICE, check=False)
    run("agentcgroup", "bpf", "detach")
    ours = [path for file in MANAGERS["rpm"].files(1) for path in run("rpm", "-qlp", file).stdout.splitlines()]
    ours += re.findall(r" \.(/\S+)", run("dpkg", "-c", *MANAGERS["deb"].files(1)).stdout)
    for path in ours:
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
    for folder in ("/usr/libexec/agentcgroup", "/usr/share/agentcgroup", "/etc/agentcgroup", "/run/agentcgroup"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(next(path for path in ours if path.endswith("-packages/agentcgroup")), ignore_errors=True)
    run("systemctl", "daemon-reload")
    assert not units() and not JSON.exists()
    return on_disk()


@pytest.fixture
def installed(bare: dict[str, tuple[int, int, str]], manager: Rpm | Deb) -> Iterator[None]:
    """Installed and enabled, as the README says."""
    manager.install(1)
    CONFIG.write_text("ack_ms: 2000\n")
    run("systemctl", "restart", service.SERVICE)
    yield
    manager.purge()


def erased(bare: dict[str, tuple[int, int, str]]) -> None:
    """Nothing is left on disk, in systemd or in the kernel but what an administrator wrote, and what was recorded."""
    after = on_disk()
    assert after == bare, sorted(set(after.items()) ^ set(bare.items()))
    assert not units() and not pins()
    assert run("systemctl", "is-active", service.SERVICE, check=False).stdout.strip() == "inactive"


def test_the_package_has_what_the_tree_says() -> None:
    files = MANAGERS["rpm"].files(1)
    found = run("rpm", "-qp", "--qf", "%{NAME} %{LICENSE} %{ARCH}\n", *files).stdout.splitlines()
    assert found == [
        "agentcgroup Apache-2.0 AND GPL-2.0-only x86_64",
        "python3-agentcgroup Apache-2.0 AND GPL-2.0-only noarch",
        "agentcgroup-selinux Apache-2.0 AND GPL-2.0-only noarch",
        "agentcgroup-doc Apache-2.0 AND GPL-2.0-only noarch",
    ]


def test_an_installed_package_governs_and_an_erased_one_leaves_nothing(
    bare: dict[str, tuple[int, int, str]], manager: Rpm | Deb, installed: None, file_engine: Engine
) -> None:
    manager.verify()
    assert run("getent", "group", "agentcgroup").stdout.startswith("agentcgroup:")
    box = file_engine.start(policy="coding-agent")
    assert box.call("exit 7").rc == 7 and box.record_of(1)["exit"] == 7
    ledger = Path("/var/log/agentcgroup/calls.jsonl")
    assert (ledger.stat().st_mode & 0o777, ledger.group()) == (0o640, "agentcgroup")
    box.podman("rm", "-f", "-t0", box.id)
    wait_for(lambda: not leftovers(), 30, "the container's leftovers are gone")
    manager.erase()
    erased(bare)
    assert manager.kept_configuration().read_text() == "ack_ms: 2000\n"
    run(
        "podman",
        "run",
        "--rm",
        "--network=none",
        "--annotation=agentcgroup.policy=coding-agent",
        "localhost/debian",
        "true",
    )


def test_an_upgrade_keeps_a_running_container_governed(
    manager: Rpm | Deb, installed: None, file_engine: Engine
) -> None:
    box = file_engine.start(policy="coding-agent")
    held = box.hold()
    before = service.pid()
    manager.upgrade(2)
    assert manager.version().startswith("0.1.0-2")
    assert CONFIG.read_text() == "ack_ms: 2000\n"
    wait_for(lambda: service.pid() not in (0, before) and service.answers(), 60, "the new daemon answers")
    assert held.finish().rc == 7
    assert box.call("exit 5").rc == 5
    assert [record["exit"] for record in box.settled(2)] == [None, 5]  # whom the shim would have told has ended
    assert json.loads(JSON.read_text())["hook"]["path"] == "/usr/libexec/agentcgroup/agentcgroup-hook"
    run("systemctl", "restart", service.SERVICE)
    assert (LOGS.group(), LOGS.stat().st_mode & 0o777) == ("agentcgroup", 0o750)  # without a call since


def test_erased_under_a_running_container_it_lets_that_be(
    bare: dict[str, tuple[int, int, str]], manager: Rpm | Deb, installed: None, file_engine: Engine
) -> None:
    box = file_engine.start(policy="coding-agent")
    held = box.hold()
    manager.erase()
    erased(bare)
    assert held.finish().rc == 7
    assert box.call("exit 6").rc == 6
    box.podman("rm", "-f", "-t0", box.id)
    kept = "/run/agentcgroup"  # until the next boot: nobody is there to remove it, and the container had it mounted
    wait_for(lambda: all(path.startswith(kept) for path in leftovers()), 30, "its cgroups and mounts go")
    shutil.rmtree(kept)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[console.Shell]:
    """In a folder with the package; a tutorial that was not read to its end leaves nothing."""
    (tmp_path / "build/deb").mkdir(parents=True)
    shutil.copy(MANAGERS["deb"].files(1)[0], tmp_path / "build/deb")
    run("podman", "tag", "localhost/debian", "docker.io/library/python:3-slim")  # there is no registry here
    shell = console.Shell(tmp_path)
    yield shell
    shell.close()
    run("podman", "rm", "-f", "-i", "-t0", "agent", "ci")
    run("dpkg", "-P", "agentcgroup")


def test_the_tutorial_prints_what_it_says(bare: dict[str, tuple[int, int, str]], shell: console.Shell) -> None:
    """Here, for it installs the package and removes it."""
    for step in console.steps(CHECKOUT / "docs/tutorial.md"):
        printed = shell.run(step.command)
        assert console.same(step.output, printed), f"# {step.command}\n{printed}"
        if step.command.startswith("dpkg -i"):  # an emulated CPU answers late
            CONFIG.write_text("ack_ms: 2000\n")
            run("systemctl", "reload", service.SERVICE)
    erased(bare)
