"""Signals reach the shell once, stops are mirrored, and a terminal's job control works through the shim."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shim_harness import BASH, Box, Daemon, wait_until

pytest_plugins = ["shim_fixtures"]

# A shell with traps that waits without a child.
TRAPS = 'for s in HUP INT TERM USR1 USR2 CONT WINCH; do trap "echo got $s" $s; done; echo ready; '
LOOP = TRAPS + "n=0; while [ $n -lt 40 ]; do read -t 0.05; n=$((n+1)); done; echo end"
# Where the witness cannot be seen: it is hired after 10 ms, the loaded machine gets more.
SETTLED = 0.3


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


class Shell:
    """A running shell whose output lines are collected."""

    def __init__(self, program: Path | str, text: str, **options: object) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", text], executable=str(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
        )  # type: ignore[call-overload]
        self.out = b""

    def read_until(self, text: bytes, limit: float = 10.0) -> None:
        end = time.monotonic() + limit
        while text not in self.out:
            assert select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0], self.out
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, self.out
            self.out += data

    def read_ready(self) -> None:
        while select.select([self.process.stdout], [], [], 0)[0] and (
            data := os.read(self.process.stdout.fileno(), 65536)
        ):
            self.out += data

    def settle(self) -> None:
        """Waits for the witness."""
        wait_until(lambda: "agc-witness" in map(comm, children(self.process.pid)))

    def finish(self) -> int:
        self.out += self.process.stdout.read()
        return self.process.wait(10)

    @property
    def child(self) -> int:
        """The pid of the real shell behind the shim."""
        return next(pid for pid in children(self.process.pid) if comm(pid) == "bash")


@pytest.fixture
def shell(box: Box, daemon: Daemon) -> Iterator[Callable[..., Shell]]:
    running: list[Shell] = []

    def start(text: str = LOOP, **options: object) -> Shell:
        running.append(Shell(box.shim, text, **options))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()


@pytest.mark.parametrize("leader", [True, False], ids=["group leader", "group member"])
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "USR1", "USR2", "CONT", "WINCH"])
@pytest.mark.parametrize("target", ["group", "pid"])
def test_a_trap_runs_once(shell: Callable[..., Shell], target: str, name: str, leader: bool) -> None:
    """killpg(TERM) ran a trap twice in 4 of 5 runs of a prototype: shim and group both delivered."""
    keeper = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.setpgid(0, 0))
    call = shell(preexec_fn=os.setsid if leader else lambda: os.setpgid(0, keeper.pid))
    call.read_until(b"ready\n")
    call.settle()
    number = getattr(signal, f"SIG{name}")
    for _ in range(3):
        call.out = b""
        if target == "pid":
            os.kill(call.process.pid, number)
        else:
            os.killpg(os.getpgid(call.process.pid), number)
        call.read_until(b"got")
        time.sleep(0.1)
        call.read_ready()
        assert call.out.count(b"got") == 1, call.out
    keeper.kill()
    keeper.wait()


def test_group_and_pid_signals_in_turn_are_each_delivered(shell: Callable[..., Shell]) -> None:
    """What the witness of one signal remembers must not swallow the next one."""
    call = shell(start_new_session=True)
    call.read_until(b"ready\n")
    call.settle()
    for i in range(10):
        send = os.killpg if i % 2 else os.kill
        call.out = b""
        send(call.process.pid, signal.SIGUSR1)
        call.read_until(b"got USR1\n")
        time.sleep(0.02)
        assert call.out.count(b"got") <= 1
    os.kill(call.process.pid, signal.SIGKILL)
    assert call.finish() == -signal.SIGKILL


def test_pkill_like_signals_to_every_process_run_a_trap_once(shell: Callable[..., Shell]) -> None:
    """pkill -f and kill -1 signal the oldest first: shim, shell, then the witness. A busy machine may part them."""
    traps = []
    for _ in range(5):
        call = shell(start_new_session=True)
        call.read_until(b"ready\n")
        call.settle()
        everyone = [str(pid) for pid in [call.process.pid, *children(call.process.pid)]]
        subprocess.run([BASH, "-c", 'kill "$@"', "bash", *everyone], check=True)
        call.read_until(b"got TERM")
        time.sleep(0.1)
        call.read_ready()
        traps.append(call.out.count(b"got TERM"))
    assert traps.count(1) >= 3, traps


def test_the_daemon_hears_of_each_signal(shell: Callable[..., Shell], daemon: Daemon) -> None:
    """A held call is frozen and acts on nothing: the daemon releases it for its grace."""
    call = shell(start_new_session=True)
    call.read_until(b"ready\n")
    call.settle()
    os.killpg(call.process.pid, signal.SIGUSR1)
    wait_until(lambda: daemon.signals == [signal.SIGUSR1])
    os.kill(call.process.pid, signal.SIGTERM)
    wait_until(lambda: daemon.signals == [signal.SIGUSR1, signal.SIGTERM])


def test_a_term_ends_a_shell_without_traps(shell: Callable[..., Shell]) -> None:
    call = shell("echo ready; exec sleep 30")
    call.read_until(b"ready")
    call.process.terminate()
    assert call.finish() == -signal.SIGTERM


def test_a_signal_in_the_first_instant_is_not_lost(shell: Callable[..., Shell]) -> None:
    for i in range(20):
        call = shell("sleep 5", start_new_session=True)
        time.sleep(i * 0.0005)
        (os.killpg if i % 2 else os.kill)(call.process.pid, signal.SIGTERM)
        assert call.finish() == -signal.SIGTERM


def test_an_alarm_that_the_caller_has_set_rings(shell: Callable[..., Shell]) -> None:
    """`alarm N; exec bash` is an old way to say timeout: the timer stays with the shim."""
    call = shell("exec sleep 10", preexec_fn=lambda: signal.alarm(1))
    assert call.finish() == -signal.SIGALRM


def test_a_queued_signal_keeps_its_value(shell: Callable[..., Shell]) -> None:
    reader = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN}); print('ready', flush=True);"
        "info = signal.sigwaitinfo({signal.SIGRTMIN}); print(info.si_code, info.si_pid)"
    )
    call = shell(f'exec python3 -c "{reader}"')
    call.read_until(b"ready\n")
    subprocess.run([BASH, "-c", f"/bin/kill -q 7 -s RTMIN {call.process.pid}"], check=True)
    assert call.finish() == 0
    code, sender = call.out.split()[-2:]
    assert int(code) == -1 and int(sender) not in (call.process.pid, 0)


def test_a_killed_shim_takes_its_shell_along(shell: Callable[..., Shell]) -> None:
    call = shell("echo ready; read -t 60")
    call.read_until(b"ready\n")
    child = call.child
    call.process.kill()
    call.process.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(f"/proc/{child}/status").read_text())


def test_a_stop_is_mirrored_and_a_continue_passed_on(shell: Callable[..., Shell]) -> None:
    call = shell(start_new_session=False, process_group=0)  # TSTP stops no group that nobody could continue
    call.read_until(b"ready\n")
    call.settle()
    for send_stop, send_cont in ((call.child, call.process.pid), (call.process.pid, call.process.pid)):
        os.kill(send_stop, signal.SIGTSTP)
        _, status = os.waitpid(call.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTSTP
        assert "State:\tT" in Path(f"/proc/{call.child}/status").read_text()
        call.out = b""
        os.kill(send_cont, signal.SIGCONT)
        call.read_until(b"got CONT\n")
    assert call.finish() == 0


def test_a_stopped_group_continues_by_pid(shell: Callable[..., Shell]) -> None:
    call = shell(start_new_session=True)
    call.read_until(b"ready\n")
    call.settle()
    os.killpg(call.process.pid, signal.SIGSTOP)
    os.waitpid(call.process.pid, os.WUNTRACED)
    os.kill(call.process.pid, signal.SIGCONT)
    assert call.finish() == 0
    assert call.out.count(b"got CONT") == 1


def test_a_shell_that_is_killed_while_stopped_ends_the_call(shell: Callable[..., Shell]) -> None:
    """The shim is stopped too then and cannot see it: a watch wakes it."""
    call = shell()
    call.read_until(b"ready\n")
    child = call.child
    os.kill(child, signal.SIGSTOP)
    os.waitpid(call.process.pid, os.WUNTRACED)
    os.kill(child, signal.SIGKILL)
    assert call.finish() == -signal.SIGKILL


def test_no_helper_is_left_behind(shell: Callable[..., Shell]) -> None:
    call = shell("sleep 0.3", start_new_session=True)
    call.settle()
    helpers = children(call.process.pid)
    assert call.finish() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in helpers)


def test_orphans_become_the_shims_and_are_reaped_while_the_call_runs(shell: Callable[..., Shell]) -> None:
    """Zombies under a PID 1 that does not reap have filled pids.max (opencomputer 194, subfloor 644)."""
    call = shell("(sleep 60 >/dev/null & echo $!); echo ready; read -t 60")
    call.read_until(b"ready\n")
    orphan = int(call.out.split()[0])
    wait_until(lambda: orphan in children(call.process.pid))
    os.kill(orphan, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{orphan}").exists())
    call.process.stdin.write(b"\n")
    call.process.stdin.flush()
    assert call.finish() == 0


class Terminal:
    """An interactive bash on a terminal of its own, with prompts that can be waited for."""

    def __init__(self, program: Path | str, *args: str) -> None:
        self.out = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="@> ", TERM="dumb", HISTFILE="/dev/null")
            os.execv(program, ["bash", "--norc", "--noprofile", "--noediting", *args])

    def expect(self, pattern: str, limit: float = 10.0) -> str:
        """Everything up to a match."""
        end = time.monotonic() + limit
        while not (match := re.search(pattern, self.out)):
            assert select.select([self.fd], [], [], max(0, end - time.monotonic()))[0], self.out
            self.out += os.read(self.fd, 65536).decode(errors="replace").replace("\r", "")
        seen, self.out = self.out[: match.end()], self.out[match.end() :]
        return seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> int:
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(box: Box, daemon: Daemon) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(program: Path | str, *args: str) -> Terminal:
        opened.append(Terminal(program, *args))
        opened[-1].expect("@> ")
        return opened[-1]

    yield start
    for one in opened:
        try:
            os.kill(one.pid, signal.SIGKILL)
            one.close()
        except (ProcessLookupError, ChildProcessError, OSError):
            pass


def test_an_interrupt_from_the_terminal_arrives_once(box: Box, terminal: Callable[..., Terminal]) -> None:
    outer = terminal(BASH)
    outer.type(f"{box.shim} -c '{TRAPS} n=0; while [ $n -lt 8 ]; do read -t 0.1; n=$((n+1)); done; echo over'\n")
    outer.expect("ready\n")
    time.sleep(SETTLED)
    outer.type("\x03")
    seen = outer.expect("over\n")
    assert seen.count("got INT") == 1


def test_stop_and_foreground_work_from_an_outer_shell(box: Box, terminal: Callable[..., Terminal]) -> None:
    outer = terminal(BASH)
    outer.type(f"{box.shim} -c 'echo ready; sleep 1; echo over'\n")
    outer.expect("ready\n")
    time.sleep(SETTLED)
    outer.type("\x1a")
    outer.expect("Stopped")
    outer.expect("@> ")
    outer.type("jobs; fg\n")
    outer.expect("over\n")
    outer.type("echo status $?\n")
    outer.expect("status 0\n")


def test_an_interactive_shell_has_job_control(box: Box, terminal: Callable[..., Terminal]) -> None:
    inner = terminal(box.shim, "-i")
    inner.type("sleep 30\n")
    time.sleep(0.5)
    inner.type("\x1a")
    inner.expect("Stopped")
    inner.expect("@> ")
    inner.type("bg; kill %1; wait %1; echo status $?\n")
    inner.expect("status 143\n")
    inner.type("sleep 30\n")
    time.sleep(0.3)
    inner.type("\x03")
    inner.expect("@> ")
    inner.type("exit 9\n")
    assert os.waitstatus_to_exitcode(os.waitpid(inner.pid, 0)[1]) == 9


def test_an_interactive_shell_can_be_suspended(box: Box, terminal: Callable[..., Terminal]) -> None:
    outer = terminal(BASH)
    outer.type(f"PS1='inner> ' {box.shim} --norc --noediting -i\n")
    outer.expect("inner> ")
    outer.type("suspend\n")
    outer.expect("Stopped")
    outer.expect("@> ")
    outer.type("fg\n")
    outer.type("echo back $((40+2))\n")
    outer.expect("back 42\n")


def test_a_hangup_reaches_the_shell_of_a_session_leader(box: Box, daemon: Daemon) -> None:
    """The kernel tells the session leader alone, and that is the shim."""
    for program in (BASH, box.shim):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(program, ["bash", "-c", "echo ready; sleep 30; :"])
        assert b"ready" in os.read(terminal, 100)
        time.sleep(SETTLED)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGHUP


def test_a_hangup_ends_an_interactive_session_leader(box: Box, terminal: Callable[..., Terminal]) -> None:
    """By the signal, or with 0 when the end of file is seen first."""
    assert terminal(box.shim, "-i").close() in (0, -signal.SIGHUP)
