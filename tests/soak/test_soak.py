"""By hand, `make soak`: tests/vm/test_churn.py and test_dying.py by the thousand. It prints what it measured; a run's
figures are in docs/soak.md.
"""

from __future__ import annotations

import time

import pytest
import service
from churn import Many, churn, dying, nothing_is_left, percpu
from podman import CGROUPFS, Container, Engine

pytestmark = pytest.mark.timeout(2 * 3600)


@pytest.fixture
def box(engine: Engine) -> Container:
    return engine.start("--init")


def figures(container: Container) -> str:
    return (
        f"dying cgroups {dying(container.tree)} (of the host {dying(CGROUPFS)}), percpu {percpu(container)} bytes,"
        f" daemon {service.resident_kib()} KiB and {len(service.descriptors())} files"
    )


def test_two_thousand_calls_with_random_kills_leave_nothing(box: Container) -> None:
    with nothing_is_left(box):
        print("\nbefore:", figures(box))
        began = time.monotonic()
        done = churn(box, calls=2000, seed=int(time.time()), workers=4, daemon_kills=12)
        seconds = time.monotonic() - began
    print("after:", figures(box))
    print(f"2000 calls in {seconds:.0f} s; killed {done.kills}; {len(done.spoiled)} calls ended otherwise")
    assert len(done.spoiled) <= done.kills["shim"] + done.kills["shell"], done
    numbers = [entry["number"] for entry in box.ledger()]
    assert len(numbers) == len(set(numbers))


def test_five_thousand_calls_that_each_write_a_file_leave_the_host_as_it_was(box: Container) -> None:
    with nothing_is_left(box):
        bytes_before, kib_before = percpu(box), service.resident_kib()
        for thousand in range(5):
            print(f"\nafter {thousand}000:", figures(box))
            names = [f"/tmp/file.{thousand}.{i}" for i in range(1000)]
            writers = [(["bash", "-c", f"printf '%200000s' x >{name}"], 0) for name in names]
            assert Many(box, writers, workers=4).spoiled() == []
            box.spawn(["rm", *names])  # the VM's disk is small; the page cache of what is gone pins nothing
    print("after 5000:", figures(box))
    assert percpu(box) <= bytes_before * 1.1
    assert service.resident_kib() <= kib_before + 8192
    recorded = {entry["number"] for entry in box.ledger()}
    assert len(recorded) >= 5000
