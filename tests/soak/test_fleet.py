"""By hand, `make soak`: daemons killed while calls are held."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import fleet
import pytest
import service
from bpftool import dumped, links, programs
from podman import Background, Engine, wait_for

pytestmark = pytest.mark.timeout(2 * 3600)
KILLS = 50


@pytest.fixture
def two(engine: Engine) -> Iterator[fleet.Fleet]:
    fleet.policies(fleet.SMALL, "600s")
    with fleet.budget(fleet.SMALL.budget):
        yield fleet.start(engine, fleet.SMALL)
        engine.clean()


def test_fifty_killed_daemons_leave_one_copy_in_the_kernel_and_nobody_held(two: fleet.Fleet) -> None:
    interactive, batch, _ = two.containers
    before, order, calls = (links(), programs()), random.Random(time.time()), []
    held = 0
    under_way: list[Background] = []
    for _ in range(KILLS):
        if not any(call.running for call in under_way):
            under_way = [batch.background(fleet.hog(250)), interactive.background(fleet.busy(25))]
            calls += under_way
        time.sleep(order.uniform(0.5, 8))
        held += any(row["held"] for row in service.calls(batch.id))
        service.kill()
        assert (links(), programs()) == before
    assert [call.result().rc for call in calls] == [0] * len(calls)
    print(f"\n{KILLS} daemons killed, {held} of them while a call was held; {len(calls)} calls, all ended well")
    wait_for(lambda: dumped("calls") == [], 10, "nothing of a call to be in the kernel's maps")
    for box in two.containers:
        frozen = [path for path in box.tree.rglob("cgroup.freeze") if path.read_text() != "0\n"]
        assert frozen == []
