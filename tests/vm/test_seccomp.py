"""Where the shim cannot clone its child into place, the daemon moves it: a seccomp profile that answers clone3 with
ENOSYS, as CRI-O's default does, and a cgroup namespace deeper than the view of calls/.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import service
from podman import Container, Engine, wait_for

DEFAULT_PROFILE = Path("/usr/share/containers/seccomp.json")
ENOSYS = 38
POOL = 8
WHERE = "cat /proc/self/cgroup"
CLONE3 = (
    "python3 -c 'import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.syscall(435, None, 0);"
    " print(ctypes.get_errno())'"
)
#: A shim whose child is heard before it: the ticket is its own, the child asks to be moved, then comes its own word.
CHILD_FIRST = """
import os, socket, struct, time
def dial():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("/dev/agentcgroup/sock")
    return connection
tickets = os.open("/dev/agentcgroup/tickets", os.O_RDONLY | os.O_NONBLOCK)
[number] = struct.unpack("I", os.read(tickets, 4))
if not os.fork():
    child = dial()
    child.send(b"AGC1\\0m=%d\\0" % number)
    print(number, child.recv(64).decode(), open("/proc/self/cgroup").read(), end="", flush=True)
    os._exit(0)
time.sleep(0.3)
word = dial()
word.send(b"AGC1\\0t=%d\\0a=bash\\0a=-c\\0a=true\\0" % number)
os.wait()
"""


def without_clone3() -> dict[str, object]:
    """podman's default profile, except for clone3."""
    profile = json.loads(DEFAULT_PROFILE.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name != "clone3"]
    profile["syscalls"].append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS, "errno": "ENOSYS"})
    return profile


@pytest.fixture(scope="module")
def box(file_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Container:
    profile = tmp_path_factory.mktemp("seccomp") / "no-clone3.json"
    profile.write_text(json.dumps(without_clone3()))
    return file_engine.start(f"--security-opt=seccomp={profile}")


def directories(box: Container) -> set[str]:
    return {path.name for path in (box.tree / "calls").iterdir() if path.is_dir()}


def test_the_profile_does_refuse_clone3(box: Container) -> None:
    assert box.call(CLONE3).out == f"{ENOSYS}\n"


def test_thirty_calls_are_moved_into_domains_of_their_own_and_no_slot_is_lost(box: Container) -> None:
    known = len(box.ledger())
    places = [box.call(f"{WHERE}; exit {i}") for i in range(10)]
    for twenty in range(0, 20, 5):
        places += [call.result() for call in [box.background(f"{WHERE}; exit {twenty + i}") for i in range(5)]]
    found = [re.fullmatch(r"0::/agentcgroup/calls/(\d+)\n", place.out) for place in places]
    assert all(found), [place.out for place in places]
    assert len({match[1] for match in found if match}) == 30
    assert [place.rc for place in places] == [*range(10), *range(20)]
    records = box.settled(known + 30)[known:]
    assert sorted(entry["number"] for entry in records) == sorted(int(match[1]) for match in found if match)
    wait_for(lambda: len(directories(box)) == POOL + 1, 20, "the calls' directories to go")
    assert "fallback" in directories(box)
    assert service.calls(box.id) == []


def test_a_child_that_is_heard_before_its_shim_comes_into_their_call(box: Container) -> None:
    known = len(box.ledger())
    result = box.spawn(["python3", "-c", CHILD_FIRST])
    number, rest = result.out.split(" ", 1)
    assert rest == f"moved 0::/agentcgroup/calls/{number}\n", result
    assert [entry["number"] for entry in box.settled(known + 1)[known:]] == [int(number)]


def test_limit_feedback_and_hint_are_as_usual(box: Container) -> None:
    hog = box.call("python3 -c 'b = bytearray(400 << 20)'; echo survived")
    assert (hog.rc, hog.out) == (-9, "")
    assert any("256 MiB" in line for line in hog.feedback), hog.err
    hinted = box.call("AGENT_RESOURCE_HINT=memory:high python3 -c 'b = bytearray(400 << 20)'; echo survived")
    assert (hinted.rc, hinted.out) == (0, "survived\n"), hinted.err
    assert box.call("echo alive").out == "alive\n"
    kills = [(entry["result"], entry["limit_bytes"] >> 20) for entry in box.settled(33)[-3:]]
    assert kills[0] == ("oom", 256) and kills[1][1] == 512


def test_a_moved_call_raises_its_oom_score_and_its_children_are_nested(box: Container) -> None:
    result = box.call(f"cat /proc/self/oom_score_adj; {WHERE}; bash -c '{WHERE}'; sh -c '{WHERE}'")
    score, *places = result.out.splitlines()
    assert int(score) >= 500
    assert len(places) == 3 and len(set(places)) == 1


def test_a_call_from_a_deeper_cgroup_namespace_is_moved(file_engine: Engine) -> None:
    container = file_engine.start("--security-opt=apparmor=unconfined")
    inside = container.spawn(["unshare", "--user", "--map-root-user", "--cgroup", "bash", "-c", f"{WHERE}; exit 3"])
    assert inside.rc == 3, inside.err
    # Its own cgroup namespace begins at agent/, so calls/ lies beside it.
    assert re.fullmatch(r"0::/\.\./calls/\d+\n", inside.out), inside
    [record] = container.settled(1)
    assert (record["first_word"], record["result"]) == ("cat", "exit 3")
