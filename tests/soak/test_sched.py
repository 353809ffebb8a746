"""By hand, `make soak`: a minute each of what schedulers have fallen over, with every task of the host in our hands.

Linux 7 alone has a scheduler to load. stress-ng is no part of the VM's image; where it was put into the VM, it is run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduling
from podman import Engine, run, wait_for

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not scheduling.STATE.exists(), reason="this kernel has no sched_ext"),
]
SECONDS = 60

#: As hackbench does: groups of ten who send to ten who receive, on socket pairs.
MESSAGES = f"""
import os, socket, time
end, pids = time.monotonic() + {SECONDS}, []
for group in range(4):
    pairs = [socket.socketpair() for _ in range(10)]
    for reader, writer in pairs:
        if not (pid := os.fork()):
            for _, other in pairs:
                other.close()
            while reader.recv(100):
                pass
            os._exit(0)
        pids.append(pid)
    for _ in range(10):
        if not (pid := os.fork()):
            while time.monotonic() < end:
                for _, writer in pairs:
                    writer.send(b"x" * 100)
            os._exit(0)
        pids.append(pid)
    for reader, writer in pairs:
        reader.close(), writer.close()
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"""
FORKS = f"e=$((SECONDS + {SECONDS})); while [ $SECONDS -lt $e ]; do /bin/true & /bin/true & /bin/true & wait; done"
STRESS = "--cpu 4 --fork 4 --switch 4 --yield 4 --futex 2 --pipe 4 --nice 2 --affinity 2"


@pytest.fixture(scope="module", autouse=True)
def full(daemon: None) -> Iterator[None]:
    scheduling.policies()
    scheduling.switch("full")
    yield
    scheduling.switch("off")


def still_there() -> None:
    assert (scheduling.owner(), scheduling.status()) == ("agentcgroup", ("full", ""))


def test_messages_between_eighty_processes() -> None:
    run("python3", "-c", MESSAGES)
    still_there()


def test_forks_in_three_containers_and_on_the_host(engine: Engine) -> None:
    boxes = [engine.start(policy=f"sched-{priority}") for priority in ("interactive", "normal", "batch")]
    calls = [box.background(FORKS) for box in boxes]
    run("bash", "-c", FORKS)
    assert [call.result().rc for call in calls] == [0, 0, 0]
    still_there()


@pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed here")
def test_stress_ng() -> None:
    run("stress-ng", "--quiet", f"--timeout={SECONDS}", *STRESS.split())
    still_there()


@pytest.mark.skipif(os.cpu_count() == 1, reason="this VM has one CPU")
def test_a_cpu_that_goes_and_comes_takes_it_out_for_a_moment() -> None:
    online = Path("/sys/devices/system/cpu/cpu1/online")
    for state in ("0", "1"):
        online.write_text(state)
        wait_for(lambda: "cpu 1 going o" in scheduling.status()[1], 5, lambda: f"a reason: {scheduling.status()}")
        wait_for(lambda: scheduling.status() == ("full", ""), 30, lambda: f"its return: {scheduling.status()}")
    still_there()
