"""A shim of the tests' own, a folder that stands for /dev/agentcgroup, and a daemon that speaks the call protocol."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "runtime" / "shim"
MAGIC = b"AGCSHIM1"
BASH = shutil.which("bash") or "/bin/bash"
# Folders of many tests would not fit into sun_path (108 bytes) below pytest's own.
PREFIX = "agcshim-"


def cgroup_top() -> Path | None:
    """The host's cgroup2 mount if directories can be made there, else None."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind != "cgroup2":
            continue
        probe = Path(where) / f"{PREFIX}probe-{os.getpid()}"
        with contextlib.suppress(OSError):
            probe.mkdir()
            probe.rmdir()
            return Path(where)
    return None


needs_cgroups = pytest.mark.skipif(cgroup_top() is None, reason="no writable cgroup2")


def shim_flags() -> list[str]:
    text = (SOURCES / "flags.mk").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("SHIM_FLAGS"))
    return line.split("=", 1)[1].split()


def build_shim(target: Path, folder: Path, *flags: str) -> Path:
    """Compiles the shim for a folder other than /dev/agentcgroup."""
    compiler = shutil.which("musl-gcc") or "cc"
    command = [compiler, "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", *shim_flags()]
    command += [f'-DAGC_DIR="{folder}"', *flags, "-o", str(target), *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run(command, check=True)
    return target


def patch(shim: Path, target: Path, shell: Path | None, ack_ms: int = 1000, name: str = "bash") -> Path:
    """What the hook does: the shim, padded to a page, and the image's shell behind it."""
    data = shim.read_bytes()
    at = data.index(MAGIC)
    assert data.count(MAGIC) == 1
    tail = shell.read_bytes() if shell else b""
    length = (len(data) + 4095) // 4096 * 4096 if tail else 0
    payload = struct.pack("<8sQQII32s", MAGIC, length, len(tail), ack_ms, 0, name.encode())
    data = data[:at] + payload + data[at + len(payload) :]
    target.write_bytes(data.ljust(length, b"\0") + tail)
    target.chmod(0o755)
    return target


@dataclass
class Message:
    """One message of a shim, and the host pid that sent it."""

    pid: int
    fields: list[tuple[str, str]]

    def get(self, key: str) -> str | None:
        return next((value for name, value in self.fields if name == key), None)

    @property
    def argv(self) -> list[str]:
        return [value for name, value in self.fields if name == "a"]


def parse(raw: bytes, pid: int) -> Message:
    assert raw.endswith(b"\0")
    head, *rest = raw[:-1].split(b"\0")
    assert head == b"AGC1"
    pairs = (part.decode("utf-8", "surrogateescape").partition("=") for part in rest)
    return Message(pid, [(key, value) for key, _, value in pairs])


@dataclass
class Daemon:
    """Answers every connection from a thread of its own. The callables may be replaced before the shim starts."""

    box: Box
    verdict: Callable[[Message], list[str]] = lambda message: ["run 1"]
    feedback: Callable[[Message], str | None] = lambda message: ""
    move: Callable[[Message], str | None] | None = None
    delay: float = 0.0
    starts: list[Message] = field(default_factory=list)
    ends: list[Message] = field(default_factory=list)
    moves: list[Message] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    hangups: int = 0
    open_now: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.box.folder / "sock"))
        self.listener.listen(4096)
        os.mkfifo(self.box.folder / "tickets")
        self.fifo = os.open(self.box.folder / "tickets", os.O_RDWR | os.O_NONBLOCK)
        threading.Thread(target=self._accept, daemon=True).start()

    def issue(self, *numbers: int) -> None:
        for number in numbers:
            os.write(self.fifo, struct.pack("<I", number))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.close(self.fifo)

    def settle(self, calls: int) -> None:
        """Waits until that many start connections have come and gone."""
        wait_until(lambda: self.hangups >= calls and not self.open_now)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("iII", credentials)[0]
        with self.lock:
            self.open_now += 1
        with connection, contextlib.suppress(OSError):
            while raw := connection.recv(65536):
                time.sleep(self.delay)
                for answer in self._answers(parse(raw, pid)):
                    connection.send(answer.encode())
        with self.lock:
            self.open_now -= 1
            self.hangups += 1

    def _answers(self, message: Message) -> Iterator[str]:
        key = message.fields[0][0]
        if key == "t":
            self.starts.append(message)
            if message.get("t") == "0":
                yield from self.verdict(message)
        elif key == "m":
            answer = (self.move or self._move)(message)
            self.moves.append(message)
            if answer is not None:
                yield answer
        elif key == "e":
            self.ends.append(message)
            text = self.feedback(message)
            if text is not None:
                yield text
        elif key == "s":
            self.signals.append(int(message.get("s") or 0))
        else:
            self.hints.append(message.get("n") or "")
            yield "noted"

    def _move(self, message: Message) -> str:
        (self.box.calls / str(message.get("m")) / "cgroup.procs").write_text(str(message.pid))
        return "moved"


class Box:
    """A folder like /dev/agentcgroup. Its calls are real cgroups, unless the host has no cgroup2 for us."""

    def __init__(self, folder: Path, shim: Path, top: Path | None) -> None:
        self.folder = folder
        self.shim = shim
        self.cgroup = top / f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}" if top else None
        self.daemon: Daemon | None = None
        for name in ("real", "feedback"):
            (folder / name).mkdir(parents=True)
        (folder / "real" / "bash").symlink_to(BASH)
        if self.cgroup:
            self.calls = self.cgroup / "agentcgroup" / "calls"
            self.calls.mkdir(parents=True)
            (folder / "calls").symlink_to(self.calls)
            self.make("fallback", *range(1, 9))
        else:
            self.calls = folder / "calls"
            self.calls.mkdir()

    def make(self, *names: int | str) -> None:
        for name in names:
            (self.calls / str(name)).mkdir()

    def serve(self, tickets: int = 8) -> Daemon:
        """Starts the daemon with that many of the numbers 1 to 8 in the FIFO."""
        self.daemon = Daemon(self)
        self.daemon.issue(*range(1, tickets + 1))
        return self.daemon

    def remove(self) -> None:
        if self.daemon:
            self.daemon.close()
        if self.cgroup:
            kill = self.cgroup / "cgroup.kill"
            if kill.exists():
                kill.write_text("1")
            wait_until(lambda: "populated 0" in (self.cgroup / "cgroup.events").read_text())
            for path, _, _ in os.walk(self.cgroup, topdown=False):
                Path(path).rmdir()
        shutil.rmtree(self.folder)


@dataclass
class Result:
    """Of a finished shell; the shim's own lines are kept apart."""

    status: int
    out: bytes
    err: bytes
    said: list[str]


def run(program: Path | str, *args: str, argv0: str = "bash", **options: object) -> Result:
    """Runs a shell to its end, under the given argv[0]."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("timeout", 30)
    done = subprocess.run([argv0, *args], executable=str(program), capture_output=True, **options)  # type: ignore[call-overload]
    lines = done.stderr.splitlines(keepends=True)
    said = [line.decode() for line in lines if line.startswith(b"[agentcgroup]")]
    return Result(done.returncode, done.stdout, b"".join(x for x in lines if not x.startswith(b"[agentcgroup]")), said)


def wait_until(condition: Callable[[], object], limit: float = 10.0) -> None:
    """Polls; fails the test after limit seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def refuse(*numbers: int, error: int = errno.ENOSYS) -> None:
    """In this process and its children those system calls fail, as under a container's seccomp profile (seccomp(2))."""
    load = struct.pack("<HBBI", 0x20, 0, 0, 0)
    tests = [struct.pack("<HBBI", 0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    verdicts = [struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000), struct.pack("<HBBI", 6, 0, 0, 0x50000 | error)]
    code = b"".join([load, *tests, *verdicts])
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privs, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privs, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
