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
from typing import ParamSpec

P = ParamSpec("P")
Handler = Callable[[int], None]
Action = Callable[[], object]

#: Work for idle moments waits no longer than this (seconds), however busy the loop is.
IDLE_PATIENCE = 0.02
GO = 0.002  # seconds that a group gets before it is the others' turn
REST = 0.05  # seconds that a group which has used up its share is left alone at least


@dataclass(order=True)
class Timer:
    """A pending action; `cancel` makes the loop forget it."""

    when: float
    order: int
    action: Action | None = field(compare=False)

    def cancel(self) -> None:
        """Do not run it."""
        self.action = None


class Group:
    """Descriptors of one owner that take turns with those of others: however busy it keeps us, nobody else waits
    longer than for one of its handlers, and beyond its share of our time it is left alone for a while.

    share: of the thread's CPU time in the long run, 1 is all; burst: seconds of it ahead of that.
    """

    def __init__(self, loop: Loop, share: float = 1.0, burst: float = 1.0) -> None:
        self._loop = loop
        self._share, self._burst = share, burst
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._credit, self._credited = burst, time.monotonic()
        loop.add(self._epoll.fileno(), select.EPOLLIN, lambda _events: self._go())

    def add(self, fd: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` whenever `events` (EPOLL*) are ready on `fd`."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def remove(self, fd: int) -> None:
        """Forget `fd`; the caller closes it afterwards."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Forget `fd`, which the caller closes at once: that takes it off the epoll instance."""
        self._handlers.pop(fd, None)

    def close(self) -> None:
        """Forget all descriptors; the caller closes them."""
        if not self._epoll.closed:
            self._loop.remove(self._epoll.fileno())
            self._epoll.close()
            self._handlers.clear()

    def _go(self) -> None:
        began, until = time.thread_time(), time.monotonic() + GO  # of the two clocks only this one is cheap to read
        for fd, events in self._epoll.poll(0, 64):
            handler = self._handlers.get(fd)
            if handler is not None:
                self._loop.guard(handler, events)
            if self._epoll.closed or time.monotonic() > until:
                break
        self._charge(time.thread_time() - began)

    def _charge(self, seconds: float) -> None:
        now = time.monotonic()
        self._credit = min(self._burst, self._credit + (now - self._credited) * self._share) - seconds
        self._credited = now
        if self._credit < 0 and not self._epoll.closed:
            self._loop.remove(self._epoll.fileno())
            self._loop.after(max(REST, -self._credit / self._share), self._return)

    def _return(self) -> None:
        if not self._epoll.closed:
            self._loop.add(self._epoll.fileno(), select.EPOLLIN, lambda _events: self._go())


class Loop:
    """One thread, no locks; only `post` may be called from another thread."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[Timer] = []
        self._tidy_at = 64
        self._order = itertools.count()
        self._idle: deque[Action] = deque()
        self._idle_since = 0.0
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
        if len(self._timers) > self._tidy_at:  # most time limits are cancelled long before they are due
            self._timers = [pending for pending in self._timers if pending.action is not None]
            heapq.heapify(self._timers)
            self._tidy_at = max(64, 2 * len(self._timers))
        return timer

    def when_idle(self, action: Action) -> None:
        """Run `action` once when nothing else is ready, or at the latest after IDLE_PATIENCE."""
        if not self._idle:
            self._idle_since = time.monotonic()
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
                self.guard(handler, events)
        self._run_timers()
        if self._idle and (not ready or time.monotonic() - self._idle_since > IDLE_PATIENCE):
            self.guard(self._idle.popleft())

    def guard(self, action: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """A fault in one handler must not end the daemon: it is reported and the loop goes on."""
        try:
            action(*args, **kwargs)
        except Exception as error:  # reported in full by on_error
            self._on_error(error)

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
                self.guard(action)

    def _drain(self) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            self.guard(self._posted.popleft())
