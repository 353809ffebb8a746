"""One short line for each phase of the harness, with the seconds since it started."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_started = time.monotonic()


def say(text: str, tag: str = "vm") -> None:
    """Print one line as `[tag  12s] text`, whole even when several VMs report at once."""
    # One write, so that lines of several VMs do not mix.
    sys.stderr.write(f"[{tag} {time.monotonic() - _started:4.0f}s] {text}\n")
    sys.stderr.flush()


@contextmanager
def phase(text: str, tag: str = "vm") -> Iterator[None]:
    """Say that a phase begins, and how long it took if that was more than two seconds."""
    say(f"{text} ...", tag)
    begun = time.monotonic()
    yield
    if (took := time.monotonic() - begun) > 2:
        say(f"{text}: {took:.1f} s", tag)
