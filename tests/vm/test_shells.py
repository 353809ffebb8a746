"""Every way of starting bash and sh behaves in a governed container as without us, and is a call of its own.

The tests run in two containers: under podman's AppArmor profile, and without it, where sandboxes can be made.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest
from podman import Container, Engine, Result, wait_for

WHERE = "cat /proc/self/cgroup"
CALL = re.compile(r"0::/agentcgroup/calls/\d+")
EXEC = "import os, sys; os.execv({path!r}, {argv!r})"
#: A terminal in the container: runs argv on it, types ^C once it reads "ready", prints what came out and the status.
TERMINAL = r"""
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen, typed = b"", False
while True:
    try:
        block = os.read(terminal, 4096)
    except OSError:
        break
    if not block:
        break
    seen += block
    if b"ready" in seen and not typed:
        typed = True
        os.write(terminal, b"\x03")
print(seen.decode().replace("\r\n", "\n"), end="")
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
#: Sends a signal to the process group of argv once that has written "ready".
KILLPG = r"""
import os, signal, subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, start_new_session=True, text=True)
assert child.stdout.readline() == "ready\n"
time.sleep(1)
os.killpg(child.pid, int(sys.argv[1]))
print(child.stdout.read(), end="")
print("status", child.wait())
"""


@pytest.fixture(scope="module")
def boxes(file_engine: Engine) -> dict[str, Container]:
    return {
        "confined": file_engine.start(),
        "unconfined": file_engine.start("--security-opt=apparmor=unconfined"),
    }


@pytest.fixture(scope="module", params=["confined", "unconfined"])
def box(request: pytest.FixtureRequest, boxes: dict[str, Container]) -> Container:
    container = boxes[request.param]
    for name, text in (("terminal.py", TERMINAL), ("killpg.py", KILLPG)):
        (container.agent / name).write_text(text)
    return container


def in_a_call(result: Result, rest: str = "") -> bool:
    """Whether the output is the cgroup of a call and then `rest`."""
    line, _, after = result.out.partition("\n")
    return bool(CALL.fullmatch(line)) and after == rest


def under_another_name(path: str, argv: list[str]) -> list[str]:
    """An argv for the agent that execs `path` with `argv`, whose first word is its name."""
    return ["python3", "-c", EXEC.format(path=path, argv=argv)]


FORMS: dict[str, tuple[list[str], str, int]] = {
    "-c": (["bash", "-c", f"{WHERE}; exit 3"], "", 3),
    "-lc": (["bash", "-lc", f"{WHERE}; shopt -q login_shell"], "", 0),
    "-ec": (["bash", "-ec", f"{WHERE}; false; echo not reached"], "", 1),
    "-c -l": (["bash", "-c", "-l", f"{WHERE}; shopt -q login_shell"], "", 0),
    "-o pipefail -c": (["bash", "-o", "pipefail", "-c", f"{WHERE}; false | true"], "", 1),
    "+o pipefail -c": (["bash", "+o", "pipefail", "-c", f"{WHERE}; false | true"], "", 0),
    "-c with $0": (["bash", "-c", f'{WHERE}; [ "$0 $1 $#" = "zero one 1" ]', "zero", "one"], "", 0),
    "-c without $0": (["bash", "-c", f"{WHERE}; [ $0 = bash ]"], "", 0),
    "by path": (["/bin/bash", "-c", f"{WHERE}; [ $0 = /bin/bash ]"], "", 0),
    "-s": (["bash", "-s", "one"], f'{WHERE}; [ "$1" = one ]; exit 5', 5),
    "stdin": (["bash"], f"{WHERE}\nread line\nthe line\n[ \"$line\" = 'the line' ] && exit 6\n", 6),
    "--login stdin": (["bash", "--login"], f"{WHERE}; shopt -q login_shell && exit 7", 7),
    "-r": (["bash", "-r", "-c", f"{WHERE}; shopt -q restricted_shell"], "", 0),
    "sh -c": (["sh", "-c", f"{WHERE}; exit 8"], "", 8),
    "sh -ec": (["sh", "-ec", f"{WHERE}; false; echo not reached"], "", 1),
    "sh stdin": (["sh"], f"{WHERE}; exit 9\n", 9),
    "renamed": (under_another_name("/bin/bash", ["renamed", "-c", f"{WHERE}; [ $0 = renamed ]"]), "", 0),
    "login by name": (under_another_name("/bin/bash", ["-bash", "-c", f"{WHERE}; shopt -q login_shell"]), "", 0),
    "rbash by name": (under_another_name("/bin/bash", ["rbash", "-c", f"{WHERE}; shopt -q restricted_shell"]), "", 0),
    "rbash": (["rbash", "-c", f"{WHERE}; shopt -q restricted_shell"], "", 0),
    "sh by name": (under_another_name("/bin/bash", ["sh", "-c", f"{WHERE}; shopt -qo posix"]), "", 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_a_call_with_the_shells_own_status(box: Container, form: str) -> None:
    argv, stdin, status = FORMS[form]
    result = box.spawn(argv, stdin=stdin)
    assert in_a_call(result) and result.rc == status, result
    assert result.err == ""


def test_scripts_run_with_their_arguments(box: Container) -> None:
    scripts = {
        "s.bash": f'{WHERE}; [ "$0 $1 ${{#BASH_VERSION}}" != "$0 two 0" ] && exit 11',
        "s.sh": f'#!/bin/sh\n{WHERE}; [ "$1" = two ] && exit 12',
        "s.env": f'#!/usr/bin/env bash\n{WHERE}; [ "$1" = two ] && exit 13',
    }
    for name, text in scripts.items():
        (box.agent / name).write_text(text)
        (box.agent / name).chmod(0o755)
    starts = (["bash", "/agent/s.bash"], ["/agent/s.sh"], ["/agent/s.env"])
    results = [box.spawn([*argv, "two"]) for argv in starts]
    assert [r.rc for r in results] == [11, 12, 13]
    assert all(in_a_call(r) for r in results), results


def test_what_a_call_starts_stays_in_it(box: Container) -> None:
    inner = f"{WHERE}; (exec -a other bash -c '{WHERE}'); echo '{WHERE}' | sh; bash --norc -lc '{WHERE}'"
    inner += f"; setsid sh -c '{WHERE}'"
    places = box.call(inner).out.splitlines()
    assert len(places) == 5 and len(set(places)) == 1 and CALL.fullmatch(places[0]), places


def test_bash_env_is_read_once_and_the_version_is_the_images(box: Container) -> None:
    (box.agent / "env").write_text("echo read")
    assert box.call("echo body", env={"BASH_ENV": "/agent/env"}).out == "read\nbody\n"
    ours, theirs = box.spawn(["bash", "--version"]), box.spawn(["/dev/agentcgroup/real/bash", "--version"])
    assert (ours.rc, ours.out) == (0, theirs.out) and "GNU bash" in ours.out


def test_signals_that_end_the_shell_end_the_call(box: Container) -> None:
    for name, number in (("SEGV", 11), ("KILL", 9), ("TERM", 15), ("PIPE", 13)):
        result = box.call(f"kill -{name} $$")
        assert (result.rc, result.out) == (-number, ""), (name, result)
        assert not [line for line in result.err.splitlines() if not line.startswith("[agentcgroup]")], result


def test_pipes_and_closed_descriptors_are_as_the_caller_left_them(box: Container) -> None:
    piped = box.spawn(["bash", "-c", "wc -c; echo out; echo err >&2"], stdin="x" * 300_000)
    assert (piped.rc, piped.out, piped.err) == (0, "300000\nout\n", "err\n")
    check = "for fd in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && printf %s $fd >>/agent/open; done; exit 14"
    for closed in ("0", "1", "2", "0, 1, 2"):
        (box.agent / "open").write_text("")
        close = f"import os; [os.close(fd) for fd in ({closed},)]; os.execv('/bin/bash', ['bash', '-c', {check!r}])"
        assert box.spawn(["python3", "-c", close]).rc == 14
        ours = (box.agent / "open").read_text()
        (box.agent / "open").write_text("")
        real = close.replace("'/bin/bash'", "'/dev/agentcgroup/real/bash'")
        assert box.spawn(["python3", "-c", real]).rc == 14
        assert ours == (box.agent / "open").read_text()


def test_a_reader_of_the_calls_output_sees_its_end_when_the_shell_ends(box: Container) -> None:
    pipe = "import subprocess; p = subprocess.Popen(['bash', '-c', 'exec >&-; echo gone >/agent/gone; sleep 60'],"
    pipe += " stdout=subprocess.PIPE); print(p.stdout.read() == b'', p.poll()); p.kill()"
    assert box.spawn(["python3", "-c", pipe]).out == "True None\n"


def test_long_argument_lists_up_to_the_kernels_limit(box: Container) -> None:
    hundred = "x" * 100_000
    result = box.spawn(["bash", "-c", f"{WHERE}; echo ${{#1}} $#", "zero", hundred])
    assert in_a_call(result, "100000 1\n") and result.rc == 0, result.err
    longest = (
        "import os, subprocess, sys\n"
        "def fits(shell, n):\n"
        "    try:\n"
        "        done = subprocess.run([shell, '-c', 'echo $#', 'zero', *['x' * 1000] * n], capture_output=True)\n"
        "    except OSError:\n"
        "        return False\n"
        "    return done.stdout == b'%d\\n' % n\n"
        "low, high = 1000, 4000\n"
        "while high - low > 1:\n"
        "    middle = (low + high) // 2\n"
        "    low, high = (middle, high) if fits('/dev/agentcgroup/real/bash', middle) else (low, middle)\n"
        "print(low > 1500, fits('/bin/bash', low), fits('/bin/sh', low))\n"
    )
    assert box.spawn(["python3", "-c", longest]).out == "True True True\n"


def test_twenty_calls_at_once_are_twenty_calls(box: Container) -> None:
    running = [box.background(f"{WHERE}; sleep 1; exit {i}") for i in range(20)]
    results = [call.result() for call in running]
    assert [r.rc for r in results] == list(range(20))
    assert all(in_a_call(r) for r in results)
    assert len({r.out for r in results}) == 20


def test_an_interrupt_typed_on_a_terminal_arrives_once(box: Container) -> None:
    trap = "trap 'echo caught' INT; echo ready; sleep 3; sleep 3; exit 21"
    result = box.spawn(["python3", "/agent/terminal.py", "bash", "-c", trap])
    assert result.out.count("caught") == 1 and result.out.endswith("status 21\n"), result
    plain = box.spawn(["python3", "/agent/terminal.py", "bash", "-c", "echo ready; sleep 60"])
    assert plain.out.endswith("status -2\n"), plain


def test_an_interactive_shell_has_its_terminal_and_job_control(box: Container) -> None:
    inside = "[[ $- == *i*m* ]] && tty && exit 22"
    result = box.spawn(["python3", "/agent/terminal.py", "bash", "--norc", "-ic", inside])
    assert re.fullmatch(r"/dev/pts/\d+\nexit\nstatus 22\n", result.out), result


def test_a_signal_to_the_process_group_runs_the_trap_once(box: Container) -> None:
    trap = "trap 'echo caught' TERM; echo ready; sleep 30 & wait; wait; exit 23"
    result = box.spawn(["python3", "/agent/killpg.py", "15", "bash", "-c", trap])
    assert result.out == "caught\nstatus 23\n", result


def test_a_terminal_of_podman_exec_passes_the_interrupt_once(boxes: dict[str, Container]) -> None:
    container = boxes["confined"]
    trap = "trap 'echo caught' INT; echo ready; sleep 3; sleep 3; exit 24"
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*container.engine, "exec", "-it", container.id, "bash", "-c", trap], stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    os.set_blocking(parent, False)
    seen = b""

    def saw(text: bytes) -> bool:
        nonlocal seen
        try:
            seen += os.read(parent, 4096)
        except OSError:  # EAGAIN, or EIO at the end
            time.sleep(0.1)
        return text in seen

    wait_for(lambda: saw(b"ready"), 10, "the shell")
    os.write(parent, b"\x03")
    wait_for(lambda: saw(b"caught"), 10, "the trap")
    assert process.wait(300) == 24
    saw(b"caught")
    assert seen.count(b"caught") == 1
    os.close(parent)


SANDBOXES = {
    "own /dev": ["--bind", "/", "/", "--dev", "/dev"],
    "only /usr": ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
                  "--symlink", "usr/lib64", "/lib64"],
    "unshare all": ["--bind", "/", "/", "--unshare-all", "--dev", "/dev"],
    "tmpfs over /dev": ["--bind", "/", "/", "--tmpfs", "/dev"],
}  # fmt: skip


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_the_shells_work_in_a_sandbox(boxes: dict[str, Container], sandbox: str) -> None:
    container, bwrap = boxes["unconfined"], ["bwrap", "--unshare-user", *SANDBOXES[sandbox]]
    alone = container.spawn([*bwrap, "bash", "-c", 'echo "$0 $BASH_VERSION"; exit 31', "name"])
    assert alone.rc == 31 and re.fullmatch(r"name \d.*\n", alone.out), alone
    assert container.spawn([*bwrap, "/bin/sh", "-c", "exit 32"]).rc == 32
    assert container.spawn([*bwrap, "sh"], stdin="exit 33\n").rc == 33
    # Inside a call it stays in the call: the sandbox's pids are among the call's.
    gate = container.agent / "gate"
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    line = " ".join(bwrap)
    outer = container.background(f"{WHERE} >/agent/where; {line} bash -c 'read _; exit 34' </agent/gate")
    with open(gate, "w"):
        number = (container.agent / "where").read_text().strip().rpartition("/")[2]
        procs = container.tree / "calls" / number / "cgroup.procs"

        def comms() -> list[str]:
            return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in procs.read_text().split()]

        # Where the real shell is out of sight it runs from memory, and kernels name it memfd:bash.
        inside = lambda: "bwrap" in comms() and comms()[-1].endswith("bash")  # noqa: E731
        wait_for(inside, 10, lambda: f"the sandboxed shell in {comms()}")
    assert outer.result().rc == 34


def test_records_name_what_ran(boxes: dict[str, Container]) -> None:
    container = boxes["confined"]
    wait_for(lambda: not [d for d in (container.tree / "calls").iterdir() if d.is_dir()][9:], 20, "the calls to end")
    records = container.ledger()
    assert len({entry["number"] for entry in records}) == len(records)
    kinds = {(entry["kind"], entry["first_word"]) for entry in records}
    assert {("call", "cat"), ("call", "s.bash"), ("shell", "other")} <= kinds, kinds
    assert json.dumps(records)
