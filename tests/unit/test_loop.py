"""The event loop: one handler's fault is reported and the others go on."""

import os
import select
import threading

from agentcgroup.loop import Loop


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
