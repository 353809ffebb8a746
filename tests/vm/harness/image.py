"""Builds the VM's base image once for each set of inputs and keeps it in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import spec
from .build import GUEST, build
from .progress import phase

KEPT_IMAGES = 3


@dataclass(frozen=True)
class Image:
    """A finished image: the root disk, its ssh key, and a kernel and initrd for each entry of `spec.KERNELS`."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"

    @property
    def ssh_key(self) -> Path:
        return self.folder / "ssh-key"

    def kernel(self, name: str) -> Path:
        return self.folder / f"vmlinuz-{name}"

    def initrd(self, name: str) -> Path:
        return self.folder / f"initrd-{name}"


def cache_folder() -> Path:
    """Return the folder of all images, made if missing; it lies outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("AGENTCGROUP_CACHE") or Path(base) / "agentcgroup") / "vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cache_key() -> str:
    """Hash everything that decides the image's content, except the versions the mirror has today."""
    digest = hashlib.sha256()
    inputs = [spec.SUITE, spec.VM_PACKAGES, spec.CONTAINER_PACKAGES, spec.DPKG_EXCLUDES, spec.DISK_SIZE]
    digest.update(json.dumps([*inputs, sorted(spec.KERNELS)]).encode())
    for path in sorted(p for p in [*GUEST.rglob("*"), Path(__file__).with_name("build.py")] if p.is_file()):
        digest.update(f"{path.name}\0{path.stat().st_mode:o}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def get_image() -> Image:
    """Return the image for the current inputs, building it if the cache has none. Raises ImageError."""
    cache = cache_folder()
    folder = cache / cache_key()
    with locked(cache / "build.lock", "waiting for another run that builds the image"):
        if not folder.exists():
            build(cache, folder)
        os.utime(folder)
        _drop_old_images(cache)
    return Image(folder)


@contextmanager
def locked(path: Path, text: str) -> Iterator[None]:
    """Hold an exclusive lock on a file for a block; `text` is shown while another process has it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with phase(text):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _drop_old_images(cache: Path) -> None:
    images = [p for p in cache.iterdir() if (p / "root.img").exists()]
    for old in sorted(images, key=lambda p: p.stat().st_mtime)[:-KEPT_IMAGES]:
        shutil.rmtree(old)
