"""The event loop: one handler's fault is reported and the others go on."""

import os
import select
import threading
import time

from agentcgroup.loop import Group, Loop


def test_a_fault_in_a_handler_is_reported_and_the_loop_goes_on() -> None:
    faults: list[BaseException] = []
    done: list[str] = []
    loop = Loop(faults.append)
    loop.when_idle(lambda: 1 / 0)
    loop.when_idle(lambda: done.append("idle"))
    loop.turn(0)
    loop.turn(0)
    assert isinstance(faults[0], ZeroDivisionError) and done == ["idle"]
    loop.close()


def test_timers_run_in_order_and_cancelled_ones_do_not() -> None:
    loop, ran = Loop(lambda e: None), []
    loop.after(0.02, lambda: ran.append("late"))
    loop.after(0.0, lambda: ran.append("soon"))
    loop.after(0.01, lambda: ran.append("never")).cancel()
    while len(ran) < 2:
        loop.turn(1)
    assert ran == ["soon", "late"]
    loop.close()


def test_posted_work_from_another_thread_wakes_the_loop() -> None:
    loop, ran = Loop(lambda e: None), []
    threading.Timer(0.05, lambda: loop.post(lambda: ran.append(1))).start()
    loop.turn(30)
    assert ran == [1]
    loop.close()


def test_a_removed_descriptor_is_not_handled() -> None:
    loop, ran = Loop(lambda e: None), []
    reader, writer = os.pipe()
    loop.add(reader, select.EPOLLIN, lambda events: ran.append(events))
    os.write(writer, b"x")
    loop.turn(1)
    loop.remove(reader)
    loop.remove(reader)
    loop.turn(0)
    assert ran == [select.EPOLLIN]
    loop.close()


def test_idle_work_is_done_though_something_is_always_ready() -> None:
    loop, ran = Loop(lambda e: None), []
    reader, writer = os.pipe()
    loop.add(reader, select.EPOLLIN, lambda events: None)
    os.write(writer, b"x")
    loop.when_idle(lambda: ran.append(1))
    end = time.monotonic() + 10
    while not ran and time.monotonic() < end:
        loop.turn(0)
    assert ran == [1]
    loop.close()


def test_timers_that_were_cancelled_are_not_kept_until_they_are_due() -> None:
    loop = Loop(lambda e: None)
    for _ in range(10000):
        loop.after(3600, lambda: None).cancel()
    kept = [loop.after(3600, lambda: None) for _ in range(100)]
    assert len(loop._timers) < 2 * len(kept) + 64
    loop.close()


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def always_ready(group: Group, handler: object) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    group.add(reader, select.EPOLLIN, handler)  # type: ignore[arg-type]


def test_a_busy_group_leaves_the_others_their_turns() -> None:
    loop, order = Loop(lambda e: None), []
    hog, other = Group(loop), Group(loop)
    for _ in range(50):
        always_ready(hog, lambda events: (busy(0.005), order.append("hog")))
    always_ready(other, lambda events: order.append("other"))
    for _ in range(6):
        loop.turn(1)
    assert order.count("other") == 6 and order.count("hog") == 6
    loop.close()


def test_a_group_that_has_used_up_its_share_rests_and_comes_back() -> None:
    loop, ran = Loop(lambda e: None), []
    group = Group(loop, share=0.5, burst=0.05)
    always_ready(group, lambda events: (busy(0.01), ran.append(time.monotonic())))
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        loop.turn(0.05)
    used = len(ran) * 0.01
    assert 0.1 < used < 0.05 + 1.5 * 0.5 + 0.02, used
    loop.close()


def test_a_group_may_be_closed_by_its_own_handler() -> None:
    faults: list[BaseException] = []
    loop = Loop(faults.append)
    group = Group(loop)
    always_ready(group, lambda events: group.close())
    always_ready(group, lambda events: group.close())
    loop.turn(1)
    loop.turn(0)
    assert faults == []
    loop.close()
