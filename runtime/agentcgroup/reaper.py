"""Removal of ended calls, on a thread of its own: reclaim may take milliseconds and must not delay an admission.

rmdir succeeds while page cache still pins the memcg; it then lives on as a dying one, with its percpu counters, until
that cache goes. So what the call left charged is reclaimed first (memory.reclaim, Linux 5.19), and what is dirty gets
a second chance later.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

from agentcgroup import cgroup
from agentcgroup.cgroup import Cgroup

#: A leftover this small is kernel memory in flight (stock and slab caches), which no reclaim returns.
NEGLIGIBLE = 256 << 10
RETRIES = (0.0, 0.5, 5.0, 35.0)  # seconds; the last is past vm.dirty_expire_centisecs (30 s)


@dataclass(order=True)
class _Job:
    due: float
    path: str
    attempt: int = 0


class Reaper:
    """A queue of directories to remove. `close` removes what is due at once and gives up the rest to the sweeper."""

    def __init__(self) -> None:
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def remove(self, path: str) -> None:
        """Remove an ended call's directory, soon."""
        self._jobs.put(_Job(time.monotonic(), path))
        self._wake.set()

    def close(self) -> None:
        """Stop the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closing:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                self._wake.wait()
                self._wake.clear()
                continue
            delay = job.due - time.monotonic()
            if delay > 0:
                self._jobs.put(job)
                self._wake.wait(delay)
                self._wake.clear()
            elif not drained(job.path, last=job.attempt + 1 == len(RETRIES)):
                attempt = min(job.attempt + 1, len(RETRIES) - 1)
                self._jobs.put(_Job(time.monotonic() + RETRIES[attempt], job.path, attempt))


def drained(path: str, last: bool) -> bool:
    """Reclaim what an ended call left charged, then remove it. False: try again later (dirty pages, or still
    populated).
    """
    group = Cgroup(path)
    if group.populated():
        return False
    left = group.number("memory.current") or 0
    if left > NEGLIGIBLE:
        group.try_write("memory.reclaim", left)
        left = group.number("memory.current") or 0
    if left > NEGLIGIBLE and not last:
        return False
    return cgroup.remove(group)
