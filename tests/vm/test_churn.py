"""Hundreds of calls leave nothing behind, whoever is killed meanwhile; `make soak` makes thousands."""

from __future__ import annotations

import pytest
from churn import churn, nothing_is_left
from podman import Container, Engine


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start("--init")  # an agent that reaps nobody keeps the cgroups of its dead orphans


def test_three_hundred_calls_with_random_kills_leave_nothing(box: Container) -> None:
    known = {entry["number"] for entry in box.ledger()}
    with nothing_is_left(box):
        done = churn(box, calls=300, seed=1, workers=4, daemon_kills=2)
    killed = done.kills["shim"] + done.kills["shell"]
    assert 0 < len(done.spoiled) <= killed, (done.kills, done.spoiled)
    assert done.kills["daemon"] == 2
    numbers = [entry["number"] for entry in box.ledger() if entry["number"] not in known]
    assert len(numbers) == len(set(numbers))
