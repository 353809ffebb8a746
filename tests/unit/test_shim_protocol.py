"""What the shim says to the daemon, and what it does with each answer and with none (docs/architecture.md)."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shim_harness import Box, Daemon, needs_cgroups, patch, refuse, run, wait_until

pytest_plugins = ["shim_fixtures"]

CLONE3, CLOSE_RANGE = 435, 436  # on every architecture
CLONE = 56 if os.uname().machine == "x86_64" else 220
WHERE = "tail -1 /proc/self/cgroup; cat /proc/self/oom_score_adj; echo ${AGENTCGROUP_CALL-none}"


def where(box: Box, name: int | str, *, oom: int = 500) -> bytes:
    """What WHERE prints in a call."""
    assert box.cgroup
    feedback = f"{box.folder}/feedback/{name}.json" if isinstance(name, int) else "none"
    return f"0::/{box.cgroup.name}/agentcgroup/calls/{name}\n{oom}\n{feedback}\n".encode()


def outside() -> bytes:
    """What WHERE prints for a shell that was not made a call."""
    here = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    return f"{here}\n{Path('/proc/self/oom_score_adj').read_text()}none\n".encode()


@needs_cgroups
class TestPlace:
    def test_a_ticket_is_a_cgroup_without_waiting(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, "-c", WHERE, "name", "two words")
        assert done.out == where(box, 1)
        daemon.settle(1)
        [start] = daemon.starts
        assert start.fields == [("t", "1"), ("a", "bash"), ("a", "-c"), ("a", WHERE), ("a", "name"), ("a", "two words")]
        [end] = daemon.ends
        assert end.fields == [("e", "0"), ("q", "1")]

    def test_tickets_are_taken_in_order_and_once(self, box: Box, daemon: Daemon) -> None:
        assert [run(box.shim, "-c", WHERE).out for _ in range(3)] == [where(box, n) for n in (1, 2, 3)]

    def test_an_empty_pool_is_asked_for(self, box: Box) -> None:
        box.serve(tickets=0).verdict = lambda message: ["run 4"]
        assert run(box.shim, "-c", WHERE).out == where(box, 4)
        assert box.daemon and box.daemon.starts[0].get("t") == "0"

    def test_a_missing_pool_is_asked_for(self, box: Box, daemon: Daemon) -> None:
        (box.folder / "tickets").unlink()
        daemon.verdict = lambda message: ["run 5"]
        assert run(box.shim, "-c", WHERE).out == where(box, 5)

    @pytest.mark.parametrize(
        ("command", "environment", "hint"),
        [
            ("true", {"AGENT_RESOURCE_HINT": "memory:2g"}, "memory:2g"),
            ("true", {"AGENT_RESOURCE_HINT": ""}, ""),
            ("AGENT_RESOURCE_HINT=memory:2g true", {}, None),
            ("cd /tmp && AGENT_RESOURCE_HINT='cpu:high' true", {}, None),
        ],
    )
    def test_a_hint_is_shown_to_the_daemon_first(
        self,
        box: Box,
        daemon: Daemon,
        command: str,
        environment: dict[str, str],
        hint: str | None,
    ) -> None:
        daemon.verdict = lambda message: ["run 7"]
        done = run(box.shim, "-c", f"{command}; {WHERE}", env={**os.environ, **environment})
        assert done.out == where(box, 7)
        assert (daemon.starts[0].get("t"), daemon.starts[0].get("h")) == ("0", hint)

    def test_a_name_far_down_the_text_is_no_hint(self, box: Box, daemon: Daemon) -> None:
        text = f"{WHERE} #{'x' * 5000} AGENT_RESOURCE_HINT=1"
        assert run(box.shim, "-c", text).out == where(box, 1)

    @pytest.mark.parametrize("answers", [["wait", "run 2"], ["run 2"]], ids=str)
    def test_a_verdict_is_obeyed(self, box: Box, answers: list[str]) -> None:
        box.serve(tickets=0).verdict = lambda message: answers
        assert run(box.shim, "-c", WHERE).out == where(box, 2)

    def test_a_queued_call_waits_as_long_as_it_must(self, box: Box) -> None:
        def queue(message: object) -> list[str]:
            return ["wait"]

        served = box.serve(tickets=0)
        original = served._answers

        def slowly(message):  # type: ignore[no-untyped-def]
            yield from original(message)
            if message.get("t") == "0":
                time.sleep(0.8)
                yield "run 3"

        served.verdict, served._answers = queue, slowly  # type: ignore[method-assign]
        assert run(box.shim, "-c", WHERE).out == where(box, 3)

    def test_exec_runs_the_shell_in_place(self, box: Box) -> None:
        served = box.serve(tickets=0)
        served.verdict = lambda message: ["exec"]
        assert run(box.shim, "-c", WHERE).out == outside()
        served.settle(1)

    def test_move_forks_and_asks_from_the_child(self, box: Box) -> None:
        served = box.serve(tickets=0)
        served.verdict = lambda message: ["move 6"]
        done = run(box.shim, "-c", WHERE + "; exit 3")
        assert (done.status, done.out) == (3, where(box, 6))
        assert served.moves[0].get("m") == "6" and served.moves[0].pid != served.starts[0].pid
        served.settle(2)

    @pytest.mark.parametrize(
        ("answer", "expected"), [("exec", outside), (None, None)], ids=["nested after all", "no answer"]
    )
    def test_a_move_that_does_not_happen_still_runs(
        self,
        box: Box,
        answer: str | None,
        expected: Callable[[], bytes] | None,
    ) -> None:
        served = box.serve(tickets=0)
        served.verdict = lambda message: ["move 6"]
        served.move = lambda message: answer
        done = run(box.shim, "-c", WHERE)
        assert done.status == 0
        assert done.out == expected() if expected else b"\n500\n" in done.out

    def test_a_number_without_a_directory_goes_to_fallback(self, box: Box) -> None:
        box.serve(tickets=0).issue(4711)
        assert run(box.shim, "-c", WHERE).out == where(box, "fallback")

    @pytest.mark.parametrize(
        "error", [errno.ENOSYS, errno.ENOENT, errno.EBUSY, errno.EACCES, errno.EAGAIN, errno.EPERM]
    )
    def test_a_refused_clone3_becomes_a_move(self, box: Box, daemon: Daemon, error: int) -> None:
        """CRI-O's RuntimeDefault profile answers clone3 with ENOSYS; the number that was claimed is moved to."""
        done = run(box.shim, "-c", WHERE, preexec_fn=lambda: refuse(CLONE3, CLOSE_RANGE, error=error))
        assert done.out == where(box, 1)
        daemon.settle(2)
        assert [m.get("m") for m in daemon.moves] == ["1"] and daemon.starts[0].get("t") == "1"

    def test_a_refused_clone3_without_a_daemon_runs_in_place(self, box: Box) -> None:
        assert run(box.shim, "-c", WHERE, preexec_fn=lambda: refuse(CLONE3)).out == outside()

    def test_where_no_process_can_be_made_the_shell_takes_the_shims_place(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, "-c", "echo $PPID", preexec_fn=lambda: refuse(CLONE3, CLONE, error=errno.EAGAIN))
        assert (done.status, done.out) == (0, f"{os.getpid()}\n".encode())
        daemon.settle(1)

    def test_without_a_view_the_daemon_moves(self, box: Box, daemon: Daemon) -> None:
        (box.folder / "calls").unlink()
        done = run(box.shim, "-c", WHERE)
        assert done.out == where(box, 1)
        assert [m.get("m") for m in daemon.moves] == ["1"]

    def test_a_shell_in_a_call_stays_in_it(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, "-c", f"{box.shim} -c '{WHERE}'; env -i {box.shim} -c 'tail -1 /proc/self/cgroup'")
        assert done.out == where(box, 1) + where(box, 1).splitlines(keepends=True)[0]
        daemon.settle(1)
        assert len(daemon.starts) == 1

    def test_the_daemons_variable_replaces_an_older_one(self, box: Box, daemon: Daemon) -> None:
        done = run(
            box.shim,
            "-c",
            r"tr '\0' '\n' < /proc/$$/environ | grep AGENTCGROUP_CALL",
            env={**os.environ, "AGENTCGROUP_CALL": "old"},
        )
        assert done.out == f"AGENTCGROUP_CALL={box.folder}/feedback/1.json\n".encode()

    @pytest.mark.parametrize(("before", "after"), [(0, 500), (300, 800), (700, 1000), (1000, 1000)])
    def test_the_shells_oom_score_is_raised_by_500(self, box: Box, daemon: Daemon, before: int, after: int) -> None:
        """And only the shell's: until exec it shares its memory with the shim."""
        done = run(
            box.shim,
            "-c",
            WHERE + "; cat /proc/$PPID/oom_score_adj",
            preexec_fn=lambda: Path("/proc/self/oom_score_adj").write_text(str(before)),
        )
        assert done.out == where(box, 1, oom=after) + b"%d\n" % before


@needs_cgroups
class TestNoDaemon:
    def test_a_dead_daemon_means_fallback(self, box: Box) -> None:
        assert run(box.shim, "-c", WHERE).out == where(box, "fallback")

    def test_a_dead_daemons_socket_means_fallback_at_once(self, box: Box, daemon: Daemon) -> None:
        daemon.close()
        began = time.monotonic()
        assert run(box.shim, "-c", WHERE).out == where(box, "fallback")
        assert time.monotonic() - began < 2
        daemon.listener, box.daemon = daemon.listener, None

    @pytest.mark.parametrize("ack_ms", [50, 400])
    def test_a_silent_daemon_costs_the_ack_time(self, box: Box, tmp_path: Path, ack_ms: int) -> None:
        served = box.serve(tickets=0)
        served.verdict = lambda message: []
        shim = patch(box.shim, tmp_path / "shim", None, ack_ms)
        began = time.monotonic()
        assert run(shim, "-c", WHERE).out == where(box, "fallback")
        assert ack_ms / 1000 <= time.monotonic() - began < ack_ms / 1000 + 2
        served.settle(1)

    def test_a_late_answer_is_given_back_by_a_hangup(self, box: Box) -> None:
        served = box.serve(tickets=0)
        served.delay = 0.5
        call = subprocess.Popen(["bash", "-c", "sleep 2"], executable=box.shim)
        wait_until(lambda: served.hangups == 1)
        assert call.poll() is None
        call.kill()
        call.wait()

    @pytest.mark.parametrize(
        "answer", ["", "run", "run ", "run x", "run 0", "run 1 ", "run 99999999999", "move", "x" * 9000, "\0", "exec "]
    )
    def test_nonsense_is_no_verdict(self, box: Box, answer: str) -> None:
        box.serve(tickets=0).verdict = lambda message: [answer]
        assert run(box.shim, "-c", WHERE).out == where(box, "fallback")

    def test_a_hangup_while_queued_means_fallback(self, box: Box) -> None:
        served = box.serve(tickets=0)

        def leave(message: object) -> list[str]:
            raise OSError

        original = served._answers
        served.verdict = leave

        def wait_and_leave(message):  # type: ignore[no-untyped-def]
            yield "wait"
            yield from original(message)

        served._answers = wait_and_leave  # type: ignore[method-assign]
        assert run(box.shim, "-c", WHERE).out == where(box, "fallback")

    def test_without_any_cgroup_the_shell_runs_in_place(self, box: Box) -> None:
        (box.folder / "calls").unlink()
        done = run(box.shim, "-c", WHERE + "; exit 4")
        assert (done.status, done.out, done.err, done.said) == (4, outside(), b"", [])


class TestMessages:
    def test_a_long_command_is_cut_and_says_so(self, box: Box, daemon: Daemon) -> None:
        run(box.shim, "-c", "true", "x" * 10_000, "y" * 10_000, "z")
        daemon.settle(1)
        [start] = daemon.starts
        assert [key for key, _ in start.fields][:2] == ["t", "x"]
        assert [len(a) for a in start.argv][:4] == [4, 2, 4, 10_000]
        assert sum(len(k) + len(v) + 2 for k, v in start.fields) + 5 <= 16384

    @pytest.mark.parametrize("spare", range(-2, 3))
    def test_the_cut_begins_exactly_at_16_kib(self, box: Box, daemon: Daemon, spare: int) -> None:
        fixed = len("AGC1") + 1 + len("t=1") + 1 + sum(len(f"a={a}") + 1 for a in ("bash", "-c", "true", ""))
        run(box.shim, "-c", "true", "x" * (16384 - len("x=1") - 1 - fixed - spare))
        daemon.settle(1)
        assert daemon.starts[0].get("x") == (None if spare >= 0 else "1")

    def test_bytes_that_are_no_text_pass(self, box: Box, daemon: Daemon) -> None:
        run(box.shim, "-c", "true", os.fsdecode(b"\xff\xfe"))
        daemon.settle(1)
        assert os.fsencode(daemon.starts[0].argv[-1]) == b"\xff\xfe"

    def test_a_long_hint_is_cut(self, box: Box, daemon: Daemon) -> None:
        run(box.shim, "-c", "true", env={**os.environ, "AGENT_RESOURCE_HINT": "m" * 5000})
        hint = daemon.starts[0].get("h")
        assert hint and 900 < len(hint) <= 1024 and daemon.starts[0].argv == ["bash", "-c", "true"]


class TestEnd:
    def test_a_long_call_prints_what_the_daemon_says(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: "[agentcgroup] slowed\n"
        done = run(box.shim, "-c", "sleep 0.3; echo own >&2; exit 3")
        assert (done.status, done.err, done.said) == (3, b"own\n", ["[agentcgroup] slowed\n"])
        assert daemon.ends[0].get("e") == str(3 << 8)

    def test_a_short_call_says_nothing(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: "[agentcgroup] never\n"
        assert run(box.shim, "-c", "exit 1").said == []
        daemon.settle(1)
        assert daemon.ends[0].fields == [("e", str(1 << 8)), ("q", "1")]

    def test_a_status_that_reports_a_signal_is_news(self, box: Box, daemon: Daemon) -> None:
        """exit 137 with no OOM anywhere: podman#10825 (P061)."""
        daemon.feedback = lambda message: "[agentcgroup] killed\n"
        assert run(box.shim, "-c", "exit 137").said == ["[agentcgroup] killed\n"]
        assert daemon.ends[0].get("e") == str(137 << 8)

    def test_a_signal_is_news(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: "[agentcgroup] killed\n"
        assert run(box.shim, "-c", "kill -9 $$").said == ["[agentcgroup] killed\n"]
        assert daemon.ends[0].get("e") == str(signal.SIGKILL.value)

    @pytest.mark.parametrize("hint", [{"AGENT_RESOURCE_HINT": "memory:9g"}, {}], ids=["environment", "text"])
    def test_what_became_of_a_hint_is_news(self, box: Box, daemon: Daemon, hint: dict[str, str]) -> None:
        daemon.feedback = lambda message: "[agentcgroup] clamped\n"
        text = "exit 1" if hint else "AGENT_RESOURCE_HINT=memory:9g; exit 1"
        assert run(box.shim, "-c", text, env={**os.environ, **hint}).said == ["[agentcgroup] clamped\n"]

    @needs_cgroups
    def test_what_is_left_behind_is_news(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: "[agentcgroup] left behind\n"
        done = run(box.shim, "-c", "sleep 5 >/dev/null 2>&1 & exit 0")
        assert (done.status, done.said) == (0, ["[agentcgroup] left behind\n"])

    def test_an_empty_text_prints_nothing(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, "-c", "sleep 0.3")
        assert (done.err, done.said) == (b"", []) and daemon.ends

    def test_a_silent_daemon_delays_the_end_by_the_ack_time_only(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: None
        began = time.monotonic()
        assert run(box.shim, "-c", "sleep 0.3; exit 6").status == 6
        assert time.monotonic() - began < 2

    @needs_cgroups
    @pytest.mark.parametrize(("status", "acks"), [(1, 1), (137, 10)])
    def test_without_the_view_only_a_signals_status_is_worth_a_long_wait(
        self, box: Box, daemon: Daemon, tmp_path: Path, status: int, acks: int
    ) -> None:
        """A grep that finds nothing exits 1 in every container; a daemon that hangs must not cost it the long wait."""
        (box.folder / "calls").unlink()
        daemon.feedback = lambda message: None
        shim = patch(box.shim, tmp_path / "shim", None, 200)
        began = time.monotonic()
        assert run(shim, "-c", f"exit {status}").status == status
        assert 0.2 * acks <= time.monotonic() - began < 0.2 * acks + 1.5
        daemon.settle(1)
        assert daemon.ends[0].fields == [("e", str(status << 8))]

    def test_a_daemon_that_died_meanwhile_is_not_missed(self, box: Box, daemon: Daemon) -> None:
        def leave(message: object) -> str:
            raise OSError

        daemon.feedback = leave
        assert run(box.shim, "-c", "sleep 0.3; exit 6").status == 6

    def test_nothing_is_printed_where_standard_error_was_closed(
        self,
        box: Box,
        daemon: Daemon,
        tmp_path: Path,
    ) -> None:
        daemon.feedback = lambda message: "[agentcgroup] text\n"
        with (tmp_path / "out").open("wb") as out:
            call = subprocess.Popen(
                ["bash", "-c", "sleep 0.3"], executable=box.shim, stdout=out, preexec_fn=lambda: os.close(2)
            )
            assert call.wait(10) == 0
        assert (tmp_path / "out").read_bytes() == b"" and daemon.ends

    def test_a_full_pipe_does_not_hold_the_end(self, box: Box, daemon: Daemon) -> None:
        daemon.feedback = lambda message: "[agentcgroup] text\n"
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        assert (
            subprocess.run(["bash", "-c", "sleep 0.3"], executable=box.shim, stderr=writer, timeout=5).returncode == 0
        )
        os.close(reader)
        os.close(writer)


class TestHint:
    def test_the_words_are_sent_and_the_answer_printed(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, "memory:2g", "time:90s", argv0="/dev/agentcgroup/agentcgroup-hint")
        assert (done.status, done.out, done.err) == (0, b"noted\n", b"")
        assert daemon.hints == ["memory:2g time:90s"]

    def test_without_a_daemon_one_line_says_so(self, box: Box) -> None:
        done = run(box.shim, "memory:2g", argv0="agentcgroup-hint")
        assert (done.status, done.out) == (1, b"")
        assert done.err.startswith(b"agentcgroup-hint: no daemon at ") and done.err.count(b"\n") == 1

    def test_without_words_it_shows_how(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, argv0="agentcgroup-hint")
        assert done.status == 1 and done.err.startswith(b"usage: ")

    def test_more_than_a_message_holds_is_refused(self, box: Box, daemon: Daemon) -> None:
        done = run(box.shim, *["x" * 9000] * 2, argv0="agentcgroup-hint")
        assert (done.status, daemon.hints) == (1, [])


def test_without_close_range_nothing_of_the_callers_is_held(box: Box, daemon: Daemon) -> None:
    """A descriptor may be above RLIMIT_NOFILE: it was opened before the limit was lowered."""
    reader, writer = os.pipe()
    os.dup2(writer, 900)

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        refuse(CLOSE_RANGE)

    command = ["bash", "-c", "exec 900>&-; exec sleep 60"]
    call = subprocess.Popen(command, executable=box.shim, preexec_fn=prepare, pass_fds=[900])
    os.close(writer)
    os.close(900)
    assert select.select([reader], [], [], 10)[0] and os.read(reader, 1) == b""
    os.close(reader)
    call.kill()
    call.wait()


@needs_cgroups
def test_200_calls_at_once_leak_neither_descriptors_nor_cgroups(box: Box) -> None:
    box.make(*range(9, 201))
    served = box.serve(tickets=200)
    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(40) as pool:
        done = list(pool.map(lambda i: run(box.shim, "-c", f"echo $(({i} + 1)); exit {i % 100}"), range(200)))
    assert [(d.status, d.out) for d in done] == [(i % 100, f"{i + 1}\n".encode()) for i in range(200)]
    served.settle(200)
    assert sorted(int(m.get("t") or 0) for m in served.starts) == list(range(1, 201))
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert "populated 0" in (box.calls / "cgroup.events").read_text()


def test_a_waiting_shim_is_small(box: Box, daemon: Daemon) -> None:
    """Private memory of a shim that waits, with its witness."""
    call = subprocess.Popen(["bash", "-c", "sleep 5"], executable=box.shim)
    time.sleep(0.3)
    lines = Path(f"/proc/{call.pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
    call.kill()
    call.wait()
    assert private < 120, "KiB"
    assert box.shim.stat().st_size < 100_000
