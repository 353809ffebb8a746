"""Slow writes on a thread of their own: owners take turns, results and faults come back on the loop's thread."""

import threading

from agentcgroup.loop import Loop
from agentcgroup.worker import MOST, Worker


def test_results_come_back_on_the_loops_thread() -> None:
    loop, results = Loop(lambda e: None), []
    worker = Worker(loop)
    worker.submit("a", threading.get_ident, lambda ident: results.append((ident, threading.get_ident())))
    loop.turn(30)
    assert results[0][0] != results[0][1] == threading.get_ident()
    worker.close()


def test_an_owner_with_much_to_do_does_not_keep_others_waiting() -> None:
    loop, order = Loop(lambda e: None), []
    worker, started, gate = Worker(loop), threading.Event(), threading.Event()
    worker.submit("hog", lambda: started.set() or gate.wait(), order.append)
    assert started.wait(10)  # it is off the queue
    accepted = [worker.submit("hog", lambda: "hog", order.append) for _ in range(MOST + 1)]
    assert worker.submit("other", lambda: "other", order.append)
    gate.set()
    worker.close()
    loop.turn(1)
    assert order.index("other") <= 2
    assert accepted == [True] * MOST + [False]
    assert order.count("hog") == MOST


def test_a_fault_in_the_work_is_reported_and_the_next_is_done() -> None:
    faults: list[BaseException] = []
    loop, done = Loop(faults.append), []
    worker = Worker(loop)
    worker.submit("a", lambda: 1 // 0, done.append)
    worker.submit("a", lambda: 2, done.append)
    worker.close()
    loop.turn(1)
    assert isinstance(faults[0], ZeroDivisionError) and done == [2]
