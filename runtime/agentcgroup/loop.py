"""The daemon's event loop: epoll, timers, work for idle moments, and results from the worker thread.

asyncio costs twice as much a request (docs/performance.md), so the call path uses epoll itself.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Handler = Callable[[int], None]
Action = Callable[[], object]


@dataclass(order=True)
class Timer:
    """A pending action; `cancel` makes the loop forget it."""

    when: float
    order: int
    action: Action | None = field(compare=False)

    def cancel(self) -> None:
        """Do not run it."""
        self.action = None


class Loop:
    """One thread, no locks; only `post` may be called from another thread."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._idle: deque[Action] = deque()
        self._posted: deque[Action] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._on_error = on_error
        self._running = True
        self.add(self._wake, select.EPOLLIN, lambda _events: self._drain())

    def add(self, fd: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` whenever `events` (EPOLL*) are ready on `fd`."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def remove(self, fd: int) -> None:
        """Forget `fd`; the caller closes it afterwards."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, action: Action) -> Timer:
        """Run `action` once, `seconds` from now."""
        timer = Timer(time.monotonic() + seconds, next(self._order), action)
        heapq.heappush(self._timers, timer)
        return timer

    def when_idle(self, action: Action) -> None:
        """Run `action` once when nothing else is ready."""
        self._idle.append(action)

    def post(self, action: Action) -> None:
        """Run `action` once on the loop's thread (thread-safe)."""
        self._posted.append(action)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make `run` return after the present turn."""
        self._running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._running:
            self.turn()

    def turn(self, longest: float = 3600.0) -> None:
        """Wait for events at most `longest` seconds, handle them, then timers, then one idle action."""
        timeout = 0.0 if self._idle else min(longest, self._next_timer())
        ready = self._epoll.poll(timeout, 64)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                self._guard(lambda handler=handler, events=events: handler(events))  # type: ignore[misc]
        self._run_timers()
        if self._idle and not ready:
            self._guard(self._idle.popleft())

    def close(self) -> None:
        """Give the file descriptors back."""
        self._epoll.close()
        os.close(self._wake)

    def _next_timer(self) -> float:
        while self._timers and self._timers[0].action is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0].when - time.monotonic()) if self._timers else 3600.0

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            action = heapq.heappop(self._timers).action
            if action is not None:
                self._guard(action)

    def _drain(self) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            self._guard(self._posted.popleft())

    def _guard(self, action: Action) -> None:
        """A fault in one handler must not end the daemon: it is reported and the loop goes on."""
        try:
            action()
        except Exception as error:  # reported in full by on_error
            self._on_error(error)
