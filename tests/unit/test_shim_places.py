"""Shells that are no call, and places where /dev/agentcgroup is out of sight: whatever fails, a shell runs."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcgroup import judge
from shim_harness import BASH, Box, Daemon, needs_cgroups, patch, refuse, run, short_folder, wait_until

pytest_plugins = ["shim_fixtures"]

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(os.uname().machine, 319)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
# PID 1 of a namespace, under the name given first, runs the rest and waits.
PID_1 = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
child = os.fork()
if not child:
    os.execv(sys.argv[2], ["bash", *sys.argv[3:]])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def in_namespace(*command: str) -> bytes:
    return subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *command], capture_output=True, timeout=30
    ).stdout


@needs_root
class TestAgent:
    def test_pid_1_is_never_a_call(self, box: Box, daemon: Daemon) -> None:
        assert in_namespace(str(box.shim), "-c", "echo $$; :") == b"1\n"
        assert not daemon.starts

    @pytest.mark.parametrize("name", ["tini", "catatonit", "podman-init", "docker-init", "dumb-init", "systemd"])
    def test_a_child_of_an_init_program_is_the_agent(self, box: Box, daemon: Daemon, name: str) -> None:
        assert in_namespace("python3", "-c", PID_1, name, str(box.shim), "-c", "echo $PPID") == b"1\n"
        assert not daemon.starts

    def test_a_child_of_an_agent_that_is_pid_1_is_a_call(self, box: Box, daemon: Daemon) -> None:
        assert in_namespace("python3", "-c", PID_1, "node", str(box.shim), "-c", "echo $PPID") != b"1\n"
        wait_until(lambda: len(daemon.starts) == 1)

    def test_an_entrypoint_script_starts_the_agent(self, box: Box, daemon: Daemon) -> None:
        assert in_namespace(BASH, "-c", f"{box.shim} -c 'echo $PPID; :'; :") == b"1\n"
        assert not daemon.starts

    @pytest.mark.parametrize("options", [[], ["-i"], ["-l"], ["-il"]], ids=str)
    def test_an_interactive_shell_as_pid_1_is_an_agent(
        self,
        box: Box,
        daemon: Daemon,
        options: list[str],
    ) -> None:
        subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", BASH, *options],
            input=f"{box.shim} -c 'echo $PPID; :'\n".encode(),
            capture_output=True,
            timeout=30,
            start_new_session=True,
        )
        wait_until(lambda: len(daemon.starts) == 1)

    def test_a_shell_that_is_started_from_outside_is_a_call(self, box: Box, daemon: Daemon) -> None:
        """podman exec: the parent reads as 0, like PID 1's own."""
        holder = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", "echo up; exec sleep 30"],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout and holder.stdout.readline()
        inner = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
        done = subprocess.run(
            ["nsenter", "-t", inner, "-p", "-m", box.shim, "-c", "echo $PPID"], capture_output=True, timeout=30
        )
        holder.kill()
        holder.wait()
        assert done.stdout.strip() not in (b"", b"0")
        assert [start.get("t") for start in daemon.starts] == ["0"]  # it may be a health check


class TestHiddenFolder:
    """A sandbox with a /dev of its own, or where only /usr is bound (bwrap --dev /dev)."""

    @pytest.fixture
    def carrier(self, compiled: tuple[Path, Path]) -> Iterator[Path]:
        """The shim with bash behind it, and no folder for it."""
        with short_folder() as base:
            yield patch(compiled[1], base / "bash", Path(BASH).resolve())

    TEXT = 'printf "%s|" "$0" "$@" "$BASH_VERSION"; cat; exit 5'

    def expect_same(self, carrier: Path, **options: object) -> None:
        plain = run(BASH, "-c", self.TEXT, "zero", "one two", input=b"in", stdin=None)
        assert run(carrier, "-c", self.TEXT, "zero", "one two", input=b"in", stdin=None, **options) == plain
        assert plain.status == 5

    def test_the_copy_runs_from_memory(self, carrier: Path) -> None:
        self.expect_same(carrier)
        assert run(carrier, "-c", "readlink /proc/$$/exe; :").out == b"/memfd:bash (deleted)\n"

    def test_no_descriptor_is_left_to_the_shell(self, carrier: Path) -> None:
        listing = "exec ls /proc/self/fd"
        assert run(carrier, "-c", listing).out == run(BASH, "-c", listing).out

    def test_a_kernel_without_executable_memory_gets_a_file(self, carrier: Path, tmp_path: Path) -> None:
        self.expect_same(
            carrier,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            preexec_fn=lambda: refuse(MEMFD_CREATE, error=errno.EACCES),
        )
        assert not list(tmp_path.iterdir())

    @needs_root
    @pytest.mark.parametrize(
        ("prepare", "program"),
        [
            (
                "for d in /tmp /dev/shm /var/tmp; do mount -t tmpfs -o noexec none $d || exit 1; done",
                "ld-linux|ld-musl",
            ),
            ("mount --move /proc /mnt/proc", "/tmp/"),
        ],
        ids=["no folder may execute", "no proc"],
    )
    def test_where_memory_may_not_execute(self, carrier: Path, prepare: str, program: str) -> None:
        """vm.memfd_noexec=2 (a PID namespace has its own): a temporary file, or the shell's loader maps the copy."""
        text = 'echo "$0" "$1"; P=/mnt/proc; [ -e $P/1 ] || P=/proc; readlink $P/$$/exe; exit 5'
        script = (
            f"mount -t tmpfs none /mnt && mkdir /mnt/proc && cp {carrier} /mnt/bash || exit 1\n"
            f"echo 2 > /proc/sys/vm/memfd_noexec || exit 77\n{prepare}\n/mnt/bash -c '{text}' zero 'one two'"
        )
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "/bin/sh", "-c", script],
            capture_output=True,
            timeout=30,
        )
        if done.returncode == 77:
            pytest.skip("no vm.memfd_noexec here")
        assert (done.returncode, done.stderr) == (5, b"")
        greeting, exe = done.stdout.decode().splitlines()
        assert greeting == "zero one two" and re.search(program, exe)

    def test_without_any_shell_one_line_says_so(self, compiled: tuple[Path, Path]) -> None:
        done = run(compiled[1], "-c", "true")
        assert (done.status, done.out, done.err, len(done.said)) == (126, b"", b"", 1)
        assert "cannot run the image's shell" in done.said[0]

    def test_arguments_of_nearly_the_greatest_size_arrive(self, carrier: Path) -> None:
        done = run(carrier, "-c", "echo $#", "bash", *["x" * 100_000] * 18, env={})
        assert (done.status, done.out) == (0, b"18\n")

    @needs_cgroups
    def test_a_call_without_the_mounted_shell_runs_the_copy(self, box: Box, daemon: Daemon, carrier: Path) -> None:
        (box.folder / "real" / "bash").unlink()
        assert run(carrier, "-c", "tail -1 /proc/self/cgroup").out.endswith(b"/agentcgroup/calls/1\n")


def test_the_payload_is_patched_by_its_magic(compiled: tuple[Path, Path], box: Box, tmp_path: Path) -> None:
    """The name decides which of the image's shells is run."""
    (box.folder / "real" / "dash").symlink_to("/bin/echo")
    shim = patch(compiled[1], tmp_path / "dash", None, name="dash")
    assert run(shim, "hello").out == b"hello\n"


def test_the_daemon_knows_the_same_inits_and_shells() -> None:
    source = (Path(judge.__file__).parents[1] / "shim" / "place.c").read_text()
    lists = {
        name: set(re.findall(r'"([^"]+)"', body))
        for name, body in re.findall(r"(\w+)\[\] = \{(.*?)\};", source, re.DOTALL)
    }
    assert lists == {"inits": judge.INITS, "shells": judge.SHELLS, "interactive": judge.INTERACTIVE}
