"""The ledger from the oldest record to the newest, and on as it grows. No record is lost or met twice when files are
rotated meanwhile: a file is left only when its successor is there, since nothing is written to it from then on.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from agentcgroup.records import BLOCK, MAX_LINE, NAME, Record, numbered, parse_line, rotated


class _File:
    """One file of the ledger; its descriptor keeps its inode from being used again."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.key = (status.st_dev, status.st_ino)
        self.changed = status.st_mtime
        self.offset = 0

    def to_end(self) -> None:
        """Leave out what it has now."""
        self.offset = os.fstat(self.descriptor).st_size

    def lines(self) -> Iterator[bytes]:
        """Whole lines that have come since the last time. One that is being written is left for later."""
        if os.fstat(self.descriptor).st_size < self.offset:
            self.offset = 0  # somebody has emptied it
        rest, at = b"", self.offset
        while block := os.pread(self.descriptor, BLOCK, at):
            at += len(block)
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE:
                rest = b""
            self.offset = at - len(rest)
            yield from whole


class Tail:
    """Reads `directory`. oldest: files last written before that (Unix time) are left out. at_end: only what is written
    from now on. Raises PermissionError if the ledger may not be read.
    """

    def __init__(self, directory: Path, oldest: float = 0.0, at_end: bool = False) -> None:
        self._directory = directory
        self._files: deque[_File] = deque()
        self._find()
        while self._files and (at_end or self._files[0].changed < oldest):
            if len(self._files) == 1:
                self._files[0].to_end()
                break
            os.close(self._files.popleft().descriptor)

    def records(self) -> Iterator[Record]:
        """What has come since the last time, oldest first. Lines that are no record are left out."""
        while True:
            if len(self._files) < 2:
                self._find()  # before the last file is read: when it has a successor, it is complete
            if not self._files:
                return
            for line in self._files[0].lines():
                record = parse_line(line)
                if record is not None:
                    yield record
            if len(self._files) == 1:
                return
            os.close(self._files.popleft().descriptor)

    def close(self) -> None:
        """Give back the descriptors."""
        while self._files:
            os.close(self._files.popleft().descriptor)

    def _find(self) -> None:
        """Take up the files that are newer than the newest known. A rotation meanwhile only moves a file on to a higher
        number, so going upward none is missed.
        """
        last = self._files[-1].key if self._files else None
        found: list[_File] = []
        path, number = self._directory / NAME, 0
        while number <= max([0, *rotated(self._directory)]):
            with contextlib.suppress(FileNotFoundError):
                file = _File(os.open(numbered(path, number), os.O_RDONLY | os.O_CLOEXEC))
                if file.key == last or file.key in [other.key for other in found]:
                    os.close(file.descriptor)
                    if file.key == last:
                        break
                else:
                    found.append(file)
            number += 1
        self._files.extend(reversed(found))
