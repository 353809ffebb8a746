"""A host for the hook to run on without an engine: run directories, a daemon and a journal to look into, and containers
that are a process in a cgroup, mount and cgroup namespace of its own, as an engine leaves init when it runs hooks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CC = ["musl-gcc", "-static"] if shutil.which("musl-gcc") else ["cc", "-static"]
FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11"]
MESSAGE_MAX = 64 << 10
MNT_DETACH = 2


def cgroup_top() -> Path | None:
    """Where cgroup2 is mounted and can be written."""
    for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (path / "cgroup.controllers").exists() and os.access(path, os.W_OK) and os.geteuid() == 0:
            return path
    return None


def compile_c(out: Path, sources: list[Path], *defines: str) -> Path:
    """Compile a static program and return it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*CC, *FLAGS, *defines, "-o", str(out), *map(str, sources)], check=True)
    return out


class Daemon:
    """Answers by operation: an object, raw bytes, None for no answer, or "hang up". Keeps what it was told.

    A connection ends with the operation `last`.
    """

    last = ""

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.told: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._path = path
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError), peer:  # the hook does not wait for each answer
            while message := peer.recv(1 << 20):
                assert len(message) <= MESSAGE_MAX
                request = json.loads(message)
                self.told.append(request)
                answer = self.answers.get(request["op"])
                if answer == "hang up":
                    break
                if request["op"] == self.last:
                    peer.shutdown(socket.SHUT_RD)  # what the hook sends next is EPIPE
                if answer is not None:
                    peer.send(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def operations(self, wanted: int) -> list[str]:
        """The operations so far; waits for the last message, which has no answer to wait for."""
        end = time.monotonic() + 2
        while len(self.told) < wanted and time.monotonic() < end:
            time.sleep(0.005)
        return [m["op"] for m in self.told]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._path.unlink(missing_ok=True)


class Journal:
    """What arrives in the place of journald's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def lines(self) -> list[dict[str, str]]:
        """The fields of each message since the last call."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self._socket.recv(1 << 16).decode()
                assert text.endswith("\n")
                found.append(dict(line.split("=", 1) for line in text[:-1].split("\n")))
        return found

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def fuse(where: Path, serve: Callable[[int], None]) -> Iterator[None]:
    """Mount a FUSE file system on a directory or file; `serve` gets its server's descriptor, on a thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode={where.stat().st_mode & 0o170000 | 0o755:o},user_id=0,group_id=0".encode()
    if libc.mount(b"fuse", bytes(where), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount a FUSE file system")
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    try:
        yield
    finally:
        libc.umount2(bytes(where), MNT_DETACH)


def serve_no_read(server: int) -> None:
    """A file of 8192 bytes that can be opened but answers no read (linux/fuse.h, 7.31; readahead is asynchronous)."""
    attributes = struct.pack("<QIIQQQQQQIIIIIIIIII", 60, 0, 0, 1, 8192, 16, *[0] * 6, 0o100755, 1, *[0] * 3, 4096, 0)
    answers = {
        26: struct.pack("<IIIIHHIIHH32x", 7, 31, 1 << 16, 1, 12, 9, 1 << 16, 1, 0, 0),  # FUSE_INIT
        3: attributes,  # FUSE_GETATTR
        14: struct.pack("<QII", 1, 0, 0),  # FUSE_OPEN
    }
    with contextlib.suppress(OSError):  # unmounted
        while True:
            _, operation, unique = struct.unpack_from("<IIQ", os.read(server, 1 << 18))
            if operation == 15:  # FUSE_READ
                continue
            answer = answers.get(operation, b"")
            error = 0 if answer else -errno.ENOSYS
            os.write(server, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)
    os.close(server)


@dataclass
class Container:
    """One container; `config` and `state` may be changed before the hook runs."""

    id: str
    bundle: Path
    rootfs: Path
    base: Path
    init: subprocess.Popen[str]
    config: dict[str, Any]
    state: dict[str, Any]
    pretty: bool = False

    def write(self) -> str:
        (self.bundle / "config.json").write_text(json.dumps(self.config, indent=4 if self.pretty else None))
        return json.dumps(self.state, indent=4 if self.pretty else None)

    def inside(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the rootfs in the container's namespaces."""
        return subprocess.run(
            ["nsenter", "-m", "-t", str(self.init.pid), "chroot", str(self.rootfs), *argv],
            capture_output=True,
            text=True,
            timeout=20,
        )

    def mounts(self) -> dict[str, list[str]]:
        """Mount point below the rootfs -> options, of the container's namespace."""
        rows = [line.split() for line in Path(f"/proc/{self.init.pid}/mountinfo").read_text().splitlines()]
        cut = len(str(self.rootfs))
        return {row[4][cut:]: row[5].split(",") for row in rows if row[4].startswith(str(self.rootfs) + "/")}

    def wrapped(self) -> list[str]:
        """The mountpoints of shims, one entry for each mount."""
        rows = [line.split() for line in Path(f"/proc/{self.init.pid}/mountinfo").read_text().splitlines()]
        return sorted(row[4][len(str(self.rootfs)) :] for row in rows if "/shims/" in row[3] and "/bin/" in row[4])

    def cgroup_of_init(self) -> str:
        lines = Path(f"/proc/{self.init.pid}/cgroup").read_text().splitlines()
        return next(line[3:] for line in lines if line.startswith("0::"))

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.init.pid, signal.SIGKILL)
        self.init.wait()


@dataclass
class Host:
    """A host: a hook compiled for its directories, and what runs on it."""

    folder: Path
    top: Path
    hook: Path
    journal: Journal
    daemon: Daemon | None = None
    containers: list[Container] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def serve(self, **answers: Any) -> Daemon:
        """Start a daemon; what is not given is answered as for a plain governed container."""
        self.run_dir.mkdir(exist_ok=True)
        plan = {"policy": "coding", "required": False, "inject": True}
        self.daemon = Daemon(self.run_dir / "hook.sock", {"plan": plan, "register": {"ok": True}} | answers)
        return self.daemon

    def run(self, container: Container, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the hook as an engine does."""
        return subprocess.run(
            [self.hook, *options.pop("argv", [])],
            input=container.write(),
            capture_output=True,
            text=True,
            timeout=10,
            cwd=container.bundle,
            env={},
            **options,
        )

    def record(self, container: Container) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.run_dir / "containers" / f"{container.id}.json").read_text())
        return record

    def close(self) -> None:
        for container in self.containers:
            container.end()
        if self.daemon:
            self.daemon.close()
        self.journal.close()
        remove_cgroup(self.top)


def remove_cgroup(path: Path) -> None:
    """Remove a cgroup and what is below it; processes that were killed may take a moment."""
    for below, _, _ in os.walk(path, topdown=False):
        for _ in range(100):
            try:
                Path(below).rmdir()
                break
            except OSError:
                time.sleep(0.02)


def build_hook(folder: Path) -> Path:
    """The hook for this host's directories, and a shim for it."""
    defines = {
        "RUNDIR": folder / "run",
        "LIBEXECDIR": folder / "libexec",
        "STATEDIR": folder / "state",
        "JOURNAL_SOCKET": folder / "journal",
    }
    shim = ROOT / "tests/unit/hook_fake_shim.c"
    compile_c(folder / "libexec/agentcgroup-shim", [shim])
    arguments = [f'-D{name}="{value}"' for name, value in defines.items()]
    return compile_c(folder / "libexec/agentcgroup-hook", sorted((ROOT / "hooks").glob("*.c")), *arguments)


def build_shells(folder: Path) -> dict[str, Path]:
    """Static programs that can run in an empty rootfs."""
    source = ROOT / "tests/unit/hook_fake_shim.c"
    return {n: compile_c(folder / n, [source], f'-DSHELL="{n}"') for n in ("bash", "dash", "cat")}


def make_rootfs(rootfs: Path, shells: dict[str, Path]) -> None:
    """A merged /usr with bash, dash as sh, and cat."""
    for directory in ("usr/bin", "dev", "sys/fs/cgroup", "proc"):
        (rootfs / directory).mkdir(parents=True)
    (rootfs / "bin").symlink_to("usr/bin")
    for name, program in shells.items():
        shutil.copy(program, rootfs / "usr/bin" / name)
    (rootfs / "usr/bin/sh").symlink_to("dash")


def default_config(rootfs: str, cgroups_path: str) -> dict[str, Any]:
    """What an engine writes for an unprivileged container, as far as the hook reads it."""
    return {
        "ociVersion": "1.0.2",
        "root": {"path": rootfs},
        "process": {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_KILL"]}},
        "mounts": [
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro", "nosuid"]}
        ],
        "linux": {
            "cgroupsPath": cgroups_path,
            "namespaces": [{"type": t} for t in ("pid", "mount", "cgroup")],
        },
        "annotations": {"agentcgroup.policy": "coding", "io.container.manager": "libpod"},
    }


def open_path(folder: Path) -> None:
    """Let other users reach a folder of pytest's."""
    for part in [folder, *folder.parents]:
        if part.name.startswith(("pytest", "test", "hookhost", "rootfs")):
            part.chmod(0o755)


# What a process with a fresh user namespace waits for before it becomes root there.
BECOME_ROOT = "read go; exec setpriv --reuid 0 --regid 0 --clear-groups"


def start_container(host: Host, rootfs: Path, mounts: str = "", in_user_namespace: bool = False) -> Container:
    """Start an init. `mounts` is shell text that runs in its mount namespace, with R for the rootfs."""
    number = len(host.containers)
    cid = f"{number}".rjust(2, "c") + "0123456789abcdef" * 2
    base = host.top / f"libpod-{cid}"
    base.mkdir()
    bundle = host.folder / f"bundle{number}"
    bundle.mkdir()
    script = f"""set -e; R={rootfs}; mount --bind $R $R; mount -t tmpfs -o mode=755 tmpfs $R/dev
        mount -t cgroup2 cgroup2 $R/sys/fs/cgroup; {mounts}
        echo ready; exec sleep 600"""
    flags, wait = ("-U --keep-caps -m -C", BECOME_ROOT) if in_user_namespace else ("-m -C", "exec")
    entry = f"""echo $$ >{base}/cgroup.procs
        exec unshare {flags} --propagation private bash -c '{wait} bash -c "$0"' "$0" """
    init = subprocess.Popen(
        ["bash", "-c", entry, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert init.stdin and init.stdout
    if in_user_namespace:
        open_path(rootfs)
        map_ids(init.pid)
        init.stdin.write("go\n")
        init.stdin.flush()
    assert init.stdout.readline() == "ready\n"
    inside = "/" + str(base.relative_to(host.top.parent))
    state = {"ociVersion": "1.0.2", "id": cid, "pid": init.pid, "status": "created", "bundle": str(bundle)}
    container = Container(cid, bundle, rootfs, base, init, default_config(str(rootfs), inside), state)
    host.containers.append(container)
    return container


def map_ids(pid: int) -> None:
    """Give the user namespace of a process 65536 ids from 100000 on, once it has made one."""
    own = os.readlink("/proc/self/ns/user")
    while os.readlink(f"/proc/{pid}/ns/user") == own:
        time.sleep(0.005)
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text("0 100000 65536")


Start = Callable[..., Container]


def result(host: Host) -> dict[str, str]:
    (line,) = host.journal.lines()
    return line


def said(container: Container) -> str:
    """The beginning of what the hook writes to stderr when it stops a container."""
    return f"agentcgroup-hook: container {container.id[:12]}: its policy is required and cannot be kept: "


def untouched(container: Container) -> bool:
    """The container is as the engine made it."""
    return (
        not (container.base / "agentcgroup").exists()
        and not container.wrapped()
        and container.cgroup_of_init().endswith(container.base.name)
        and (container.base / "cgroup.subtree_control").read_text().split() == []
    )
