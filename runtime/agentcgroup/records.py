"""The ledger: one JSON line for each finished call, in calls.jsonl and its rotated elders, readable long afterwards.

Writing never blocks or fails the caller: lines go through a bounded queue to a thread, for a disk may stall just when
the host is short of memory. The file has one writer; a line torn by a crash is closed off by the next one and left out
by the reader.
"""

import atexit
import contextlib
import errno
import grp
import hashlib
import json
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from agentcgroup import feedback, journal
from agentcgroup.outcome import Outcome, to_json
from agentcgroup.why import notable, why

__all__ = ["Ledger", "notable", "read", "record_of", "why"]

NAME = "calls.jsonl"
MAX_COMMAND = 4096  # bytes of a command text that are kept
MAX_LINE = 4 << 20  # bytes; more without a newline is no record
QUEUED = 4096  # lines that wait for the disk at most
READERS = "agentcgroup"  # the group whose members may read what was recorded
MIN_PREFIX = 4  # characters of a container id that name it
BLOCK = 1 << 16

CommandText = Literal["off", "hash", "first", "full"]
Record = dict[str, Any]


def record_of(outcome: Outcome, command: CommandText = "first") -> Record:
    """The outcome as it is stored: `command` says how much of the command text is kept, for it may hold secrets."""
    record = to_json(outcome)
    record["command"] = _kept(outcome.command.text, outcome.command.first_word, command)
    record["feedback"] = feedback.facts(record["feedback"])
    if command in ("off", "hash"):
        record["feedback"] = [line for line in record["feedback"] if not line.startswith(feedback.BESIDE)]
        record["first_word"] = record["command_class"] = None
        record["others"] = [other | {"first_word": None} for other in record["others"]]
    return record


def _kept(text: str, first_word: str, command: CommandText) -> str | None:
    if command == "off":
        return None
    if command == "first":
        return first_word
    try:
        data = text.encode("utf-8", "surrogateescape")  # the bytes that the shell was given
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    if command == "hash":
        return hashlib.sha256(data).hexdigest()[:16]
    return data[:MAX_COMMAND].decode("utf-8", "replace" if len(data) <= MAX_COMMAND else "ignore")


class Ledger:
    """Appends to `directory`/calls.jsonl. At `max_size` bytes a file is rotated, `keep` rotated ones stay."""

    def __init__(self, directory: Path, max_size: int, keep: int) -> None:
        self._file = _Appender(directory, max_size, keep)
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.lost = 0  # records, since the start
        self._lost_before = 0
        self._failing = False
        with contextlib.suppress(OSError):
            share(directory, 0o700, 0o750)  # at each start systemd gives it to root's group (LogsDirectory=)

    def write(self, outcome: Outcome, command: CommandText = "first") -> None:
        """Records a finished call. Never blocks, never raises: what cannot be written is counted and said once."""
        line = json.dumps(record_of(outcome, command), separators=(",", ":")).encode("ascii") + b"\n"
        if self._queue.qsize() < QUEUED:
            self._queue.put(line)
        else:
            self.lost += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def flush(self, timeout: float = 5.0) -> bool:
        """Waits until what was written so far is in the file, `timeout` seconds at most; whether it is."""
        done = threading.Event()
        if self._thread is None:
            return True
        self._queue.put(done)
        return done.wait(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Writes what waits and ends the thread; a later write starts another."""
        thread, self._thread = self._thread, None
        atexit.unregister(self.close)
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._append(item)
        self._file.close()

    def _append(self, line: bytes) -> None:
        try:
            self._file.append(line)
        except OSError as error:
            self.lost += 1
            if not self._failing:
                journal.send(f"{self._file.path}: calls are not recorded: {error.strerror}: free or mend the disk", 3)
            self._failing = True
            return
        if self.lost > self._lost_before:
            journal.send(f"{self._file.path}: calls are recorded again, {self.lost - self._lost_before} were not", 4)
        self._failing, self._lost_before = False, self.lost


class _Appender:
    """The current file and its rotation. Every method may raise OSError and can be called again after it."""

    def __init__(self, directory: Path, max_size: int, keep: int) -> None:
        self.path = directory / NAME
        self._max_size = max_size
        self._keep = keep
        self._fd = -1

    def append(self, line: bytes) -> None:
        """Adds a whole line or, as far as the disk allows, nothing."""
        self._reopen_if_moved()
        size = os.fstat(self._fd).st_size
        if size and size + len(line) > self._max_size:
            self._rotate()
            size = 0
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # a crash or a full disk tore the last one
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Until the next append."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reopen_if_moved(self) -> None:
        """Opens the file, also when someone else has renamed or removed it (logrotate, an administrator)."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), os.stat(self.path, follow_symlinks=False)):
                    return
            self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        share(self.path.parent, 0o700, 0o750)
        share(self._fd, 0o600, 0o640)

    def _rotate(self) -> None:
        """calls.jsonl becomes .1, .1 becomes .2; the oldest is overwritten. Renames only, the eldest first."""
        self.close()
        for number in rotated(self.path.parent):
            if number > self._keep:
                numbered(self.path, number).unlink(missing_ok=True)
        if self._keep == 0:
            self.path.unlink()
        for number in range(self._keep - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                numbered(self.path, number).rename(numbered(self.path, number + 1))
        self._reopen_if_moved()


def share(file: Path | int, alone: int, shared: int) -> None:
    """Let READERS have a file or directory under the mode `shared`; without them it gets the mode `alone`."""
    group = readers()
    os.chown(file, -1, group)
    os.chmod(file, alone if group == -1 else shared)


def readers() -> int:
    """The group that may read (packaging/rpm/agentcgroup.sysusers); -1 where there is none, or we are not root."""
    if os.geteuid():
        return -1
    try:
        return grp.getgrnam(READERS).gr_gid
    except KeyError:
        return -1


def numbered(path: Path, number: int) -> Path:
    """The ledger's current file, or its elder of that number."""
    return path.with_name(f"{path.name}.{number}") if number else path


def rotated(directory: Path) -> list[int]:
    """The numbers of the rotated files; a crash amid a rotation may have left a gap."""
    suffixes = (path.name.removeprefix(f"{NAME}.") for path in directory.glob(f"{NAME}.*"))
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal() and len(suffix) < 7)


def read(
    directory: Path, container: str | None = None, call: int | None = None, limit: int | None = None
) -> Iterator[Record]:
    """Records, newest first, over all files. Lines that are none are left out.

    container: an id, the beginning of one (4 characters or more), or a name. limit: at most so many. Raises
    PermissionError if the ledger may not be read.
    """
    found = 0
    for line in _lines(directory):
        record = parse_line(line)
        if record is None or not about(record, container, call):
            continue
        if limit is not None and found >= limit:
            return
        found += 1
        yield record


def parse_line(line: bytes) -> Record | None:
    """The record in a line of the ledger, if it is one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def about(record: Record, container: str | None, call: int | None = None) -> bool:
    """Whether a record is of that container, as `read` takes it, and of that call; None is any."""
    if call is not None and record.get("number") != call:
        return False
    if container is None:
        return True
    identity = str(record.get("container"))
    begins = len(container) >= MIN_PREFIX and identity.startswith(container)
    return begins or container in (identity, record.get("name"))


def _lines(directory: Path) -> Iterator[bytes]:
    """Lines of all files from the last to the first. A rotation meanwhile only moves a file on to a higher number: it
    is met again and known by its inode."""
    seen: set[tuple[int, int]] = set()
    path = directory / NAME
    number = 0
    while number <= max([0, *rotated(directory)]):
        with contextlib.suppress(FileNotFoundError), open(numbered(path, number), "rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield from _backward(file.fileno(), status.st_size)
        number += 1


def _backward(descriptor: int, size: int) -> Iterator[bytes]:
    """The lines in the first `size` bytes of a file, the last one first."""
    rest, at = b"", size
    while at > 0:
        length = min(BLOCK, at)
        at -= length
        block = os.pread(descriptor, length, at)
        first, *whole = (block + rest).split(b"\n")
        yield from reversed(whole)
        rest = first if len(first) <= MAX_LINE else b""
    yield rest
