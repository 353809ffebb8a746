"""Writes that may wait in the kernel, on threads of their own, so that the loop never waits.

Moving a process waits for an RCU grace period (4 to 30 ms, docs/performance.md); lowering a memory limit reclaims, for
seconds where there is much. A shim waits for a move, nobody for a limit: each kind has its thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

from agentcgroup.loop import Loop

T = TypeVar("T")
MOST = 256  # jobs of one owner that may wait


class Worker:
    """Does jobs one after the other; owners take turns. `submit` is for the loop's thread only."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def submit(self, owner: str, work: Callable[[], T], done: Callable[[T], object]) -> bool:
        """Call `work()` on the thread, then `done(result)` on the loop's. False: the owner has too much waiting."""
        with self._changed:
            jobs = self._jobs.setdefault(owner, deque())
            if len(jobs) >= MOST:
                return False
            jobs.append(lambda: self._do(work, done))
            self._changed.notify()
        return True

    def close(self) -> None:
        """Finish what waits, 5 seconds long at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._jobs)
            if not self._jobs:
                return None
            owner, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[owner] = jobs
            return job

    def _do(self, work: Callable[[], T], done: Callable[[T], object]) -> None:
        try:
            result = work()
        except Exception as error:  # raised where faults are reported
            self._loop.post(lambda error=error: _raise(error))  # type: ignore[misc]
            return
        self._loop.post(lambda: done(result))


def _raise(error: Exception) -> None:
    raise error
