"""Calls that write files leave page cache, for which some kernels keep their cgroups; `make soak` makes thousands."""

from __future__ import annotations

from churn import Many, nothing_is_left, percpu
from podman import Engine


def test_calls_that_each_write_a_file_leave_no_dying_cgroups(engine: Engine) -> None:
    box = engine.start("--init")
    bytes_before = percpu(box)
    with nothing_is_left(box):
        writers = [(["bash", "-c", f"printf '%200000s' x >/tmp/file.{i}"], 0) for i in range(80)]
        assert Many(box, writers, workers=4).spoiled() == []
    assert percpu(box) <= bytes_before * 1.1
