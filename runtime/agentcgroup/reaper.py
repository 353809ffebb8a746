"""Removal of ended calls, on a thread of its own: reclaim may take milliseconds and must not delay an admission.

Before Linux 7 page cache that the call has made pins its memcg: rmdir succeeds, and it lives on as a dying one, with
its percpu counters, until that cache goes. So there the cache is reclaimed first (memory.reclaim, Linux 5.19), and what
is dirty gets a second chance later. A page of the file system's own, such as a directory's block that many calls write
to, can outlast all chances; such leftovers are reclaimed once no call runs beside them. Newer kernels give the cache to
the parent, and it stays warm for the next call.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentcgroup import cgroup
from agentcgroup.cgroup import Cgroup

RETRIES = (0.0, 0.5, 5.0, 35.0)  # seconds; the last is past vm.dirty_expire_centisecs (30 s)
LEFTOVERS = (40.0, 80.0, 160.0, 320.0)  # seconds between looks at what outlasted them; the last again and again


@dataclass(order=True)
class _Job:
    due: float
    path: str
    attempt: int = 0
    leftovers: bool = False


class Reaper:
    """A queue of directories to remove. `close` removes what is due at once and gives up the rest to the sweeper."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._jobs: list[_Job] = []
        self._swept: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def remove(self, path: str) -> None:
        """Remove an ended call's directory, soon."""
        self._new.put(path)

    def close(self) -> None:
        """Stop the thread."""
        self._new.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        cached: Callable[[Cgroup], int] = (lambda _: 0) if kernel_reparents() else page_cache
        while True:
            with contextlib.suppress(queue.Empty):
                path = self._new.get(timeout=self._rest())
                if path is None:
                    return
                heapq.heappush(self._jobs, _Job(time.monotonic(), path))
            while self._rest() == 0:
                self._do(heapq.heappop(self._jobs), cached)

    def _rest(self) -> float | None:
        """Seconds until the next is due; None: there is none."""
        return max(0.0, self._jobs[0].due - time.monotonic()) if self._jobs else None

    def _do(self, job: _Job, cached: Callable[[Cgroup], int]) -> None:
        if job.leftovers:
            if swept(job.path, cached):
                self._swept.discard(job.path)
            else:
                self._again(job, LEFTOVERS)
            return
        done, pinned = drained(job.path, cached, last=job.attempt + 1 == len(RETRIES))
        if not done:
            self._again(job, RETRIES)
        parent = os.path.dirname(job.path)
        if pinned and parent not in self._swept:
            self._swept.add(parent)
            heapq.heappush(self._jobs, _Job(time.monotonic() + LEFTOVERS[0], parent, leftovers=True))

    def _again(self, job: _Job, delays: Sequence[float]) -> None:
        attempt = min(job.attempt + 1, len(delays) - 1)
        heapq.heappush(self._jobs, _Job(time.monotonic() + delays[attempt], job.path, attempt, job.leftovers))


def kernel_reparents() -> bool:
    """Whether a removed cgroup gives its page cache to the parent (lru_reparent_memcg in mm/memcontrol.c)."""
    try:
        with open("/proc/kallsyms", "rb") as symbols:
            return any(line.endswith(b" lru_reparent_memcg\n") for line in symbols)
    except OSError:
        return False


def page_cache(group: Cgroup) -> int:
    """Bytes of page cache in a cgroup that nobody lives in; files of a tmpfs are none that reclaim could drop."""
    stat = group.keyed("memory.stat") if group.number("memory.current") else {}
    return stat.get("file", 0) - stat.get("shmem", 0)


def drained(path: str, cached: Callable[[Cgroup], int], last: bool) -> tuple[bool, bool]:
    """Remove an ended call's cgroup, once what `cached` finds in it is reclaimed. Whether it is gone, else it is to be
    tried again later (dirty pages, or still populated); and whether something still pins it.
    """
    group = Cgroup(path)
    if group.populated():
        return False, False
    left = cached(group)
    if left:
        group.try_write("memory.reclaim", left)
        left = cached(group)
    if left and not last:
        return False, False
    return cgroup.remove(group), left > 0


def swept(path: str, cached: Callable[[Cgroup], int]) -> bool:
    """Reclaim what pins removed cgroups below this one, while nothing runs there. False: look again later."""
    group = Cgroup(path)
    if group.populated():
        return False
    if group.keyed("cgroup.stat").get("nr_dying_descendants", 0) == 0:  # or the container has ended
        return True
    group.try_write("memory.reclaim", cached(group))
    return group.keyed("cgroup.stat").get("nr_dying_descendants", 0) == 0
