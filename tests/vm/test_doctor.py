"""`agentcgroup doctor` on a sound host, with either kernel; test_doctor_breaks.py breaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import doctor
import pytest


@pytest.fixture(scope="module", autouse=True)
def installed(daemon: None) -> Iterator[None]:
    with doctor.installed():
        yield


def test_a_sound_host_is_told_so_whatever_its_kernel_lacks() -> None:
    done = doctor.command()
    assert done.returncode == 0 and done.stdout.endswith("nothing is wrong\n"), done.stdout
    told = json.loads(doctor.command("--json").stdout)
    assert told["status"] == 0 and {finding["level"] for finding in told["findings"]} == {"note"}
    lacks = any("no sched_ext" in finding["what"] for finding in told["findings"])
    assert lacks is not Path("/sys/kernel/sched_ext").exists()


def test_who_is_not_root_is_told_what_was_left_out() -> None:
    done = doctor.command(user="agent")
    assert done.returncode == 0, done
    assert "not looked at, for that is root's: bpf-programs, scheduler, daemon" in done.stdout
    assert doctor.command("--jsno").returncode == 2
