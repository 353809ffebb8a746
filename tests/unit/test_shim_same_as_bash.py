"""Whoever calls the shell sees no difference: the same table of cases through bash and through the shim."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shim_harness import BASH, Box, Daemon, Result, run, wait_until

pytest_plugins = ["shim_fixtures"]

OWN = "env | grep -v -e ^AGENTCGROUP_CALL= -e ^_= | sort"
CASES: dict[str, list[str]] = {
    "nothing to do": ["-c", "true"],
    "exit 1": ["-c", "false"],
    "exit 7": ["-c", "exit 7"],
    "exit 255": ["-c", "exit 255"],
    "unknown command": ["-c", "no-such-command-here"],
    "syntax error": ["-c", "if"],
    "unknown option": ["--no-such-option"],
    "version": ["--version"],
    "arguments": ["-c", 'printf "<%s>" "$0" "$@"', "zero", "one two", "", "-c", "\u00fc"],
    "combined options": ["-ec", "false; echo not reached"],
    "split options": ["-c", "-e", "echo $-; false; echo not reached"],
    "option with value": ["-o", "pipefail", "-c", "false | true"],
    "environment": ["-c", OWN],
    "empty environment": ["-c", "exec env -i " + BASH + " -c '" + OWN + "'"],
    "standard input": ["-c", "cat; echo end"],
    "standard input as script": [],
    "standard input as script with arguments": ["-s", "one", "two"],
    "a pipe": ["-c", "seq 100000 | sort -rn | head -3"],
    "much output": ["-c", "head -c 2000000 /dev/zero | tr '\\0' x"],
    "both outputs": ["-c", "echo out; echo err >&2"],
    "exit trap once": ["-c", "trap 'echo bye' EXIT; echo hi"],
    "umask, folder, limits": ["-c", "umask; pwd; ulimit -a"],
    "shell variables": ["-c", 'echo "$BASH_VERSION $SHLVL $- $BASH_ARGV0 $BASH"'],
    "disowned background job": ["-c", "sleep 0.05 >/dev/null 2>&1 & echo started"],
    "exec in place": ["-c", "exec sh -c 'exit 5'"],
}
INPUT = b"echo from stdin $1 $2\nexit 3\n"


@pytest.fixture
def both(box: Box, daemon: Daemon) -> Callable[..., tuple[Result, Result]]:
    def compare(*args: str, **options: object) -> tuple[Result, Result]:
        return run(BASH, *args, **options), run(box.shim, *args, **options)

    return compare


@pytest.mark.parametrize("case", CASES)
def test_a_command_gives_the_same_status_and_output(both: Callable[..., tuple[Result, Result]], case: str) -> None:
    plain, shimmed = both(*CASES[case], input=INPUT, stdin=None)
    assert shimmed == plain


@pytest.mark.parametrize("name", ["HUP", "INT", "ILL", "ABRT", "FPE", "KILL", "SEGV", "TERM", "USR1", "RTMIN"])
def test_a_shell_that_dies_by_a_signal_dies_by_it(both: Callable[..., tuple[Result, Result]], name: str) -> None:
    plain, shimmed = both("-c", f"ulimit -c 0; kill -{name} $$; sleep 5")
    assert plain.status == -getattr(signal, f"SIG{name}")
    assert shimmed.status == plain.status


@pytest.mark.parametrize("argv0", ["sh", "/bin/sh", "rbash", "-bash", "/usr/bin/bash", "some other name", "-sh"])
def test_the_name_it_is_called_by_reaches_the_shell(both: Callable[..., tuple[Result, Result]], argv0: str) -> None:
    plain, shimmed = both("-c", 'echo "$0" $-; shopt -p login_shell; shopt -po posix; cd /tmp', argv0=argv0)
    assert shimmed == plain


def test_bash_env_and_scripts_are_left_alone(box: Box, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("echo sourced\n")
    results = []
    for shell in (BASH, box.shim):
        script = tmp_path / "script"
        script.write_text(f'#!{shell} -u\necho "$0" "$@" $-\necho $undefined\n')
        script.chmod(0o755)
        done = subprocess.run(
            [script, "one", "two three"], capture_output=True, env={**os.environ, "BASH_ENV": str(tmp_path / "env")}
        )
        results.append((done.returncode, done.stdout, done.stderr))
    assert results[0] == results[1]
    assert b"sourced" in results[1][1]


def test_arguments_of_nearly_the_greatest_size_arrive(both: Callable[..., tuple[Result, Result]]) -> None:
    words = ["x" * 100_000] * 18
    plain, shimmed = both("-c", "echo $# ${#1}", "bash", *words, env={"PATH": os.environ["PATH"]})
    assert (plain.status, plain.out) == (0, b"18 100000\n")
    assert shimmed == plain


def test_the_largest_environment_that_bash_bears_is_borne(both: Callable[..., tuple[Result, Result]]) -> None:
    """Our own variable does not fit any more: it is left out, the call still runs."""
    low, high = 0, 4 << 20
    while high - low > 1:
        size = (low + high) // 2
        chunks = [f"{i:04d}={'x' * 100_000}" for i in range(size // 100_008)]
        env = dict(x.split("=", 1) for x in [*chunks, f"rest={'y' * (size % 100_008)}"])
        try:
            low = size if run(BASH, "-c", "", env=env).status == 0 else low
            high = high if low == size else size
        except OSError:
            high = size
    chunks = [f"{i:04d}={'x' * 100_000}" for i in range((low - 64) // 100_008)]
    env = dict(x.split("=", 1) for x in [*chunks, f"rest={'y' * ((low - 64) % 100_008)}"])
    plain, shimmed = both("-c", "echo ${#rest} ${AGENTCGROUP_CALL-none}", env=env)
    assert plain.status == 0
    assert shimmed == plain


def disposition(**state: object) -> Callable[[], None]:
    def set_up() -> None:
        for number in state.get("ignored", ()):  # type: ignore[union-attr]
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, state.get("blocked", ()))  # type: ignore[arg-type]

    return set_up


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"ignored": [signal.SIGPIPE, signal.SIGHUP, signal.SIGINT]},
        {"ignored": [signal.SIGCHLD]},
        {"blocked": [signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGRTMIN, signal.SIGRTMAX]},
    ],
    ids=["standard", "ignored", "ignored children", "blocked"],
)
def test_signal_masks_and_dispositions_are_inherited(
    both: Callable[..., tuple[Result, Result]], state: dict[str, object]
) -> None:
    plain, shimmed = both(
        "-c",
        "exec grep -E '^(SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp|Umask|Groups)' /proc/self/status",
        preexec_fn=disposition(**state),
        restore_signals=False,
    )
    assert plain.out
    assert shimmed == plain


@pytest.mark.parametrize("closed", [[], [0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
def test_the_shell_has_exactly_the_callers_descriptors(
    box: Box,
    daemon: Daemon,
    tmp_path: Path,
    closed: list[int],
) -> None:
    seen = {}
    for name, program in {"plain": BASH, "shim": box.shim}.items():
        out = tmp_path / name
        pid = os.posix_spawn(
            program,
            ["bash", "-c", f"exec 9>{out}; ls -l /proc/$$/fd >&9; exit 0"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/zero", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/full", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 7, "/dev/zero", os.O_RDONLY, 0),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in closed),
            ],
        )
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        seen[name] = re.findall(r"\d+ -> \S+", out.read_text().replace(str(out), "OUT"))
    assert "7 -> /dev/zero" in seen["plain"]
    assert seen["shim"] == seen["plain"]
    wait_until(lambda: daemon.starts)


def test_the_process_group_session_and_terminal_are_the_callers(both: Callable[..., tuple[Result, Result]]) -> None:
    plain, shimmed = both("-c", "exec cut -d' ' -f5-8 /proc/self/stat")
    assert shimmed == plain


def test_a_reader_that_leaves_ends_the_writer(both: Callable[..., tuple[Result, Result]]) -> None:
    plain, shimmed = both("-c", 'yes | head -1; echo "${PIPESTATUS[@]}"')
    assert plain.out == b"y\n141 0\n"
    assert shimmed == plain


def test_pipes_end_when_the_shell_closes_them(box: Box, daemon: Daemon) -> None:
    """The waiting shim holds neither standard output nor standard input."""
    call = subprocess.Popen(
        ["bash", "-c", "exec </dev/null; exec >&-; sleep 30"],
        executable=box.shim,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    began = time.monotonic()
    assert call.stdout and call.stdin
    assert call.stdout.read() == b""
    with pytest.raises(BrokenPipeError):
        for _ in range(200):
            call.stdin.write(b"x" * 4096)
    assert time.monotonic() - began < 20, "the pipes ended with the call"
    call.kill()
    call.wait()
