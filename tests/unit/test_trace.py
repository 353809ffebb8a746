"""What `agentcgroup trace` says, and when it cannot; tests/vm/test_trace.py has it at work."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from agentcgroup import paths, trace
from agentcgroup.cli import main
from agentcgroup.cli.trace import as_json, text
from agentcgroup.trace import Call, Syscall, Trace

ID = "c" * 64
SLEEP = Syscall("clock_nanosleep", 1, 2.0)
BUSY = Call("7", 16421, 0.35, 2.0, 0.0004, (SLEEP, Syscall("read", 900, 0.000021)))


def trace_of(*calls: Call) -> Trace:
    return Trace(10.0, 0, calls)


def test_people_read_a_block_for_each_call() -> None:
    idle = Call("", 0, 0.0, 0.0, 0.0, ())
    assert list(text(trace_of(BUSY, idle), "box")) == [
        "call 7 of box, in 10 s",
        "  faults   16421 in 350 ms",
        "  off CPU  2 s: 2 s blocked, 400 us waiting for a CPU",
        "  syscalls clock_nanosleep: 1 in 2 s",
        "           read: 900 in 21 us",
        "call ? of box, in 10 s",
        "  faults   0 in 0 s",
        "  off CPU  0 s: 0 s blocked, 0 s waiting for a CPU",
    ]


def test_syscalls_beyond_the_longest_are_added_up() -> None:
    many = tuple(Syscall(f"s{n}", 2, 1.0) for n in range(12))
    lines = list(text(trace_of(Call("1", 0, 0.0, 0.0, 0.0, many)), "box"))
    assert lines[-2:] == ["           s7: 2 in 1 s", "           4 others: 8 in 4 s"]


def test_that_nothing_happened_is_said() -> None:
    assert list(text(trace_of(), "box")) == ["no call of box did anything in 10 s"]


def test_programs_read_all_of_it() -> None:
    found = json.loads(json.dumps(as_json(trace_of(BUSY, Call("fallback", 1, 0.1, 0.0, 0.0, ())))))
    assert (found["seconds"], found["lost"]) == (10.0, 0)
    busy, fallback = found["calls"]
    assert busy == {
        "call": 7,
        "off_cpu_s": 2.0004,
        "faults": 16421,
        "fault_s": 0.35,
        "blocked_s": 2.0,
        "runnable_s": 0.0004,
        "syscalls": [
            {"name": "clock_nanosleep", "count": 1, "seconds": 2.0},
            {"name": "read", "count": 900, "seconds": 0.000021},
        ],
    }
    assert fallback["call"] == "fallback"


def test_calls_are_in_the_order_of_their_numbers_and_syscalls_of_their_time() -> None:
    sums = {30: [5, 2_000_000_000, 0, 0], 10: [1, 0, 500_000_000, 0], 20: [0, 0, 0, 1_000_000_000]}
    spent = {40: {0: [1, 10]}, 30: {0: [3, 1_000_000_000], 999: [1, 3_000_000_000]}}
    found = trace.summary(sums, spent, {10: "12", 20: "fallback", 30: "9"}, {0: "read"})
    assert [call.name for call in found] == ["9", "12", "fallback", ""]
    assert found[0] == Call("9", 5, 2.0, 0.0, 0.0, (Syscall("syscall 999", 1, 3.0), Syscall("read", 3, 1.0)))
    assert (found[1].blocked_s, found[2].runnable_s, found[3].syscalls) == (0.5, 1.0, (Syscall("read", 1, 1e-8),))


def test_syscalls_have_the_names_of_the_headers(tmp_path: Path) -> None:
    header = tmp_path / "arch/x86/include/generated/uapi/asm/unistd_64.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        "#ifndef _U\n#define __NR_read 0\n#define __NR_clone3 435\n#define __NR_syscalls 500 + 1\n#endif\n"
    )
    assert trace.syscall_names(tmp_path) == {0: "read", 435: "clone3"}
    assert trace.syscall_names(tmp_path / "none") == {}


def test_a_kernel_that_takes_no_programs_is_named_with_the_remedy() -> None:
    assert trace.refusal("6.12.1", headers=False) == (
        "the headers of the running kernel are missing: "
        "install linux-headers-6.12.1 (Debian) or kernel-devel-6.12.1 (Fedora, RHEL)"
    )
    assert trace.refusal("6.12.1", headers=True) == (
        "bcc could not put the programs into kernel 6.12.1: agentcgroup --debug trace ... shows why"
    )


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cgroup of a container, which need not be one of the kernel's to be missed."""
    monkeypatch.setattr(paths, "RUN_DIR", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "containers").mkdir()
    record = {"v": 1, "id": ID, "pid": 1, "base": str(tmp_path / "base"), "called": "box"}
    (tmp_path / "containers" / f"{ID}.json").write_text(json.dumps(record))
    return tmp_path / "base"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line of a command that fails."""
    assert main(["trace", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("agentcgroup: ") and err.count("\n") == 1
    return err.removeprefix("agentcgroup: ").removesuffix("\n")


def test_what_cannot_be_traced_is_said_in_one_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "bix") == 'no governed container "bix": agentcgroup ps lists them'
    assert said(capsys, "box") == 'container "box" is not running'
    (base / "agentcgroup/calls/7").mkdir(parents=True)
    assert said(capsys, "box", "--call", "8") == "box has no call 8 now: agentcgroup calls box lists those that run"


@pytest.mark.skipif(importlib.util.find_spec("bcc") is not None, reason="bcc is here")
def test_without_bcc_its_package_is_named(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "agentcgroup/calls/7").mkdir(parents=True)
    for argv in (("box",), (ID[:12], "--call", "7")):
        assert said(capsys, *argv) == "there is no bcc: install python3-bpfcc (Debian) or python3-bcc (Fedora, RHEL)"


def test_others_than_root_are_told(base: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert said(capsys, "box") == "agentcgroup trace puts programs into the kernel: run this as root"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_that_is_none_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["trace", "box", f"--seconds={seconds}"])
    assert "--seconds" in capsys.readouterr().err
