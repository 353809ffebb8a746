"""Puts the product and its tests into a VM: `make install` into a stage, then one tar over ssh."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .image import locked
from .machine import Machine, MachineError
from .progress import phase

CHECKOUT = Path(__file__).resolve().parents[3]
GUEST_CHECKOUT = "/root/agentcgroup"

_BUILD = CHECKOUT / "build"
_VM_PYTHON_SITE = "/usr/lib/python3/dist-packages"
# What the tests read, below GUEST_CHECKOUT.
_TEST_FILES = ("tests", "bench", "docs/tutorial.md", "packaging/kubernetes", "pyproject.toml")
# Packages of two releases, if they were built (make packages).
_PACKAGES = {
    f"build/packages/{release}/{kind}": f"packages/{release}/{kind}" for release in (1, 2) for kind in ("RPMS", "DEBS")
}
# Removed first, so that a file deleted from the checkout goes away in the VM too. systemd reloads (seconds under TCG)
# only if a unit that it knows has changed: `make install` keeps the files' times.
_UNPACK = f"""set -e
rm -rf {GUEST_CHECKOUT} {_VM_PYTHON_SITE}/agentcgroup
tar -C / -xf - --no-same-owner --warning=no-timestamp
if systemctl show --value --property NeedDaemonReload 'agentcgroup*' | grep -q yes; then systemctl daemon-reload; fi
if systemctl --quiet is-active agentcgroupd.service; then systemctl restart agentcgroupd.service; fi
"""


class ProductError(Exception):
    """The product did not build or install."""


@contextmanager
def staged() -> Iterator[Path]:
    """Build the product and have it installed in a folder for the length of a block. Raises ProductError."""
    _BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stage-", dir=_BUILD) as folder:
        # Several developers share this checkout, each with a VM of their own.
        with locked(_BUILD / "make.lock", "waiting for another build"), phase("building the product"):
            command = ["make", "--silent", "--directory", str(CHECKOUT), "build", "install", f"DESTDIR={folder}"]
            variables = ["PREFIX=/usr", "SYSCONFDIR=/etc", f"PYTHON_SITE={_VM_PYTHON_SITE}"]
            if status := subprocess.run([*command, *variables], stdout=subprocess.DEVNULL).returncode:
                raise ProductError(f"`make build install` ended with {status}")
        yield Path(folder)


def sync(machine: Machine, stage: Path) -> None:
    """Copy the staged product and the tests into a VM. Raises MachineError if the VM refused them."""
    with phase("copying the product into the VM", machine.settings.kernel):
        command = machine.ssh.command(_UNPACK)
        with subprocess.Popen(command, stdin=subprocess.PIPE) as remote:
            assert remote.stdin is not None
            with remote.stdin as pipe:
                _pack(pipe, stage)
        if remote.returncode:
            raise MachineError(f"copying the product into the VM ended with {remote.returncode}")


def _pack(pipe: IO[bytes], stage: Path) -> None:
    with tarfile.open(fileobj=pipe, mode="w|") as archive:
        # hooks.d last: a hook's JSON must never be there before its binary.
        for path in sorted(_files(stage), key=lambda path: ("hooks.d" in path.parts, path)):
            archive.add(path, path.relative_to(stage), recursive=False)
        for name, there in ({name: name for name in _TEST_FILES} | _PACKAGES).items():
            if (CHECKOUT / name).exists():
                archive.add(CHECKOUT / name, f"{GUEST_CHECKOUT}/{there}", filter=_without_caches)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()] if folder.exists() else []


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in ("__pycache__", ".pytest_cache") else entry
