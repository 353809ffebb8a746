"""What the kernel counts by itself, daemon or not: processes and traffic of a call, and who leaves its container."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scheduling
import service
from bpftool import PINS, dumped, links, programs
from churn import Many, come_to_rest
from podman import CGROUPFS, Container, Engine, run, wait_for


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start()


def status() -> dict[str, Any]:
    return json.loads(run("agentcgroup", "bpf", "status", "--json").stdout)


def states() -> set[str]:
    """Of all programs but those for kernels that only have them by patches."""
    return {feature["state"] for feature in status()["features"] if feature["name"] != "memcg_ops"}


def recorded(box: Container, text: str) -> dict[str, Any]:
    """The record of a call that is made now."""
    known = len(box.ledger())
    box.call(text)
    return box.settled(known + 1)[-1]


def test_all_is_at_work(box: Container) -> None:
    found = status()
    assert states() == {"active"}, found
    assert found["build"] and len(links()) == 7


def test_what_only_a_patched_kernel_has_is_left_out_and_that_is_said() -> None:
    [found] = [feature for feature in status()["features"] if feature["name"] == "memcg_ops"]
    assert (found["state"], found["target"]) == ("skipped", "struct_ops/memcg_bpf_ops")
    assert found["why"] == "this kernel has no memcg_bpf_ops (experimental, not in Linux)"


@pytest.mark.skipif(scheduling.STATE.exists(), reason="this kernel has sched_ext")
def test_a_scheduler_that_the_kernel_cannot_have_is_refused_in_words(journal) -> None:
    scheduling.configure("partial")
    why = "this kernel has no sched_ext: Linux 7.1 or newer with CONFIG_SCHED_CLASS_EXT is needed"
    wait_for(lambda: scheduling.status() == ("off", why), 10, lambda: f"the refusal, but it is {scheduling.status()}")
    assert f"scheduler: partial: CPUs are shared by cpu.weight alone: {why}" in journal.text()
    scheduling.configure("off")
    wait_for(lambda: scheduling.status() == ("off", ""), 10, "nothing to be wanted")


def test_the_kernel_counts_processes_and_traffic_of_a_call(box: Container) -> None:
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); "
        "[s.sendto(bytes(1000), s.getsockname()) for _ in range(50)]"
    )
    record = recorded(box, f'for i in 1 2 3; do /bin/true; done; python3 -c "{send}"; exit 4')
    assert (record["exit"], record["processes"]) == (4, 5)
    assert record["egress_bytes"] == record["ingress_bytes"] == 50 * (1000 + 28)
    quiet = recorded(box, "exit 0")
    assert (quiet["processes"], quiet["egress_bytes"], quiet["ingress_bytes"]) == (1, 0, 0)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A cgroup that is no container's."""
    path = CGROUPFS / "agentcgroup-test-elsewhere"
    path.mkdir()
    yield path
    wait_for(lambda: not (path / "cgroup.procs").read_text(), 10, "nobody to be elsewhere")
    path.rmdir()


def test_who_leaves_the_container_is_told(box: Container, journal, elsewhere: Path) -> None:
    call = box.hold()
    pid = int((call.directory / "cgroup.procs").read_text().split()[0])
    (elsewhere / "cgroup.procs").write_text(str(pid))
    said = f"process {pid} (bash) has left for the cgroup with the inode {elsewhere.stat().st_ino}"
    wait_for(lambda: said in journal.text(), 10, "the escape in the journal")
    (call.directory / "cgroup.procs").write_text(str(pid))
    call.finish()


def test_who_starts_outside_is_told_as_well(engine: Engine, journal, elsewhere: Path) -> None:
    """clone3 with CLONE_INTO_CGROUP: nobody is moved."""
    box = engine.start()
    call = box.hold()
    leave = f"""import ctypes, os, time
with open("{call.directory}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
folder = os.open("{elsewhere}", os.O_RDONLY)
arguments = (ctypes.c_uint64 * 11)(0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, folder)  # CLONE_INTO_CGROUP, SIGCHLD
pid = ctypes.CDLL(None).syscall(435, arguments, ctypes.sizeof(arguments))
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print(pid)
"""
    pid = run("python3", "-c", leave).stdout.strip()
    said = f"process {pid} (python3) has left for the cgroup with the inode {elsewhere.stat().st_ino}"
    wait_for(lambda: said in journal.text(), 10, "the escape in the journal")
    assert call.finish().rc == 7


def test_many_small_calls_leave_nothing_in_the_maps(box: Container) -> None:
    calls = [(["bash", "-c", "/bin/true & wait; exit 3"], 3)] * 40
    known = len(box.ledger())
    assert Many(box, calls, workers=8).spoiled() == []
    records = box.settled(known + len(calls))[known:]
    counted = [record["processes"] for record in records if record["kind"] == "call"]
    assert max(counted) == 2 and counted.count(2) >= 0.9 * len(calls)  # a preempted program counts no other process
    for name in ("calls", "refusals"):
        wait_for(lambda name=name: dumped(name) == [], 10, f"the end of what is in {name}")


def wakeups() -> int:
    """How often a thread of the daemon has gone to sleep and been woken, so far."""
    states = [path.read_text() for path in Path(f"/proc/{service.pid()}/task").glob("*/status")]
    return sum(int(line.split()[1]) for text in states for line in text.splitlines() if line.startswith("voluntary"))


def test_an_idle_container_costs_no_wake_ups(box: Container) -> None:
    """But for the word to systemd's watchdog, twice in its time."""
    come_to_rest(box)
    time.sleep(5)
    watchdog = int(run("systemctl", "show", "--property=WatchdogUSec", "--value", service.SERVICE).stdout.rstrip("s\n"))
    before = wakeups()
    time.sleep(watchdog / 2)
    assert wakeups() - before <= 2


def test_a_killed_daemon_leaves_it_at_work_and_the_next_one_takes_it_over(box: Container) -> None:
    before = links(), programs()
    call = box.hold()
    service.kill()
    call.finish()
    assert (links(), programs()) == before
    record = recorded(box, "/bin/true; exit 3")
    assert (record["exit"], record["processes"]) == (3, 2)


def test_what_keeps_it_from_the_kernel_is_said_in_one_line_and_nothing_is_changed(box: Container) -> None:
    before = links()
    hide = "mount -t tmpfs none /sys/kernel/btf; mount -t tmpfs none /boot; mount -t tmpfs none /lib/modules"
    for argv, said in (
        (("unshare", "-m", "sh", "-c", f"{hide}; agentcgroup bpf attach"), "the kernel has no BTF: one with"),
        (
            ("setpriv", "--bounding-set=-bpf,-sys_admin", "--", "agentcgroup", "bpf", "attach"),
            "the kernel refuses BPF: ",
        ),
    ):
        done = run(*argv, check=False)
        assert done.returncode == 1 and done.stderr.startswith(f"agentcgroup: {said}"), done
        assert done.stderr.count("\n") == 1
    assert links() == before


def test_a_program_that_the_verifier_refuses_is_said_to_be_and_the_others_are_at_work(box: Container) -> None:
    path = Path("/usr/share/agentcgroup/bpf/memwatch.o")
    good = path.read_bytes()
    at = section(good, "fexit/page_counter_try_charge")
    path.write_bytes(good[:at] + b"\x79\x90" + bytes(6) + good[at + 8 :])  # r0 = *(u64 *)(r9 + 0), and r9 is not set
    try:
        restart()
        why = {feature["name"]: feature["why"] for feature in status()["features"] if feature["state"] == "skipped"}
        assert why["charged"] == "the kernel's verifier refuses a program: please report this with `uname -r`"
        assert set(why) == {"charged", "memcg_ops"}
        record = recorded(box, "/bin/true; exit 3")
        assert (record["exit"], record["processes"]) == (3, 2)
    finally:
        path.write_bytes(good)
        restart()
    assert states() == {"active"}


def restart() -> None:
    run("systemctl", "restart", "agentcgroupd")
    wait_for(service.answers, 20, "the daemon")


def section(elf: bytes, name: str) -> int:
    """Where that section of a 64-bit ELF file begins (elf(5))."""
    (table,) = struct.unpack_from("Q", elf, 0x28)
    size, count, names = struct.unpack_from("3H", elf, 0x3A)
    headers = [struct.unpack_from("=I20xQ", elf, table + n * size) for n in range(count)]
    return next(at for label, at in headers if elf.startswith(name.encode() + b"\0", headers[names][1] + label))


def test_what_is_in_a_map_of_another_layout_is_carried_over(box: Container) -> None:
    """A hash of an earlier version whose values were shorter."""
    run("systemctl", "stop", "agentcgroupd.socket", "agentcgroupd")
    pin = str(PINS / "refusals")
    run("agentcgroup", "bpf", "detach")
    PINS.mkdir()
    layout = ("type", "hash", "key", "8", "value", "8", "entries", "16384", "flags", "1", "name", "refusals")
    run("bpftool", "map", "create", pin, *layout)
    run("bpftool", "map", "update", "pinned", pin, "key", "7", *"0000000", "value", "9", *"0000000")
    run("agentcgroup", "bpf", "attach")
    [entry] = json.loads(run("bpftool", "-j", "map", "dump", "pinned", pin).stdout)
    assert (entry["key"], entry["value"]) == (hexes(7, 8), hexes(9, 16))
    run("systemctl", "start", "agentcgroupd.socket", "agentcgroupd")
    wait_for(service.answers, 10, "the daemon")
    record = recorded(box, "/bin/true; exit 3")
    assert (record["exit"], record["processes"]) == (3, 2)


def hexes(number: int, size: int) -> list[str]:
    """As bpftool shows bytes."""
    return [f"0x{byte:02x}" for byte in number.to_bytes(size, "little")]


def test_detached_nothing_is_left_and_calls_go_on(box: Container) -> None:
    run("agentcgroup", "bpf", "detach")
    assert not PINS.exists()
    assert states() == {"off"}
    record = recorded(box, "exit 3")
    assert (record["exit"], record["processes"]) == (3, None)
    restart()
    assert states() == {"active"}
    record = recorded(box, "/bin/true; exit 3")
    assert (record["exit"], record["processes"]) == (3, 2)
