"""`agentcgroup run -- CMD`: one command in a call domain of its own, on a host without containers and without
the daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from agentcgroup import admission, cgroup, commandline, feedback, paths, peer, subtree
from agentcgroup import hint as hints
from agentcgroup.call import kernel_path
from agentcgroup.cgroup import Cgroup
from agentcgroup.errors import UserError
from agentcgroup.kmsg import OomLog
from agentcgroup.outcome import Outcome
from agentcgroup.policy.load import load_policies
from agentcgroup.policy.model import Policy

_INSIDE = "AGENTCGROUP_RUN_SCOPE"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    run_ = commands.add_parser(
        "run",
        help="run one command in a call domain",
        description="Run one command as a tool call in a systemd scope of its own, limits and feedback included.",
    )
    run_.add_argument("--policy", default="coding-agent", help="policy to run under (default: %(default)s)")
    run_.add_argument(
        "--hint", default=os.environ.get("AGENT_RESOURCE_HINT", ""), help="for example memory:2g,time:90s"
    )
    run_.add_argument("--json", action="store_true", help="print the record of the call on stderr as JSON")
    run_.add_argument("command", nargs="+", metavar="CMD", help="the command and its arguments, after --")
    run_.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit status, or 128 + signal."""
    if _INSIDE not in os.environ:
        _enter_scope()
    del os.environ[_INSIDE]
    policy = load_policies(paths.POLICY_DIRS).get(options.policy)
    domain = _Domain(policy, hints.parse(options.hint), options.command)
    status = domain.run()
    outcome = domain.outcome(status)
    domain.remove()
    for line in feedback.compose(outcome, domain.limits.call(policy.call.memory.max)):
        print(line, file=sys.stderr)
    if options.json:
        print(feedback.twin(outcome, []), file=sys.stderr)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _enter_scope() -> None:
    """Become a systemd scope with delegation: the only place of a host where cgroups may be made (systemd,
    CGROUP_DELEGATION.md).
    """
    systemd_run = shutil.which("systemd-run")
    if systemd_run is None or not Path("/run/systemd/system").is_dir():
        raise UserError("agentcgroup run needs systemd as the host's init, to get a delegated scope")
    user = [] if os.geteuid() == 0 else ["--user"]
    scope = ["--scope", "--quiet", "--collect", "--property=Delegate=yes"]
    os.environ[_INSIDE] = "1"
    os.execv(systemd_run, [systemd_run, *user, *scope, "--", sys.executable, "-m", "agentcgroup.cli", *sys.argv[1:]])


class _Domain:
    """agent/ (this process) and calls/1 (the command) below our scope."""

    def __init__(self, policy: Policy, hint: hints.Hint, command: list[str]) -> None:
        self.policy, self.hint, self.command = policy, hint, command
        self.top = cgroup.mount_point()
        own = peer.look(os.getpid())
        assert own is not None
        self.base = Cgroup(f"{self.top}{own.cgroup}")
        self.tree = self.base.child("agentcgroup")
        self.call = self.tree.child("calls/1")
        self.limits = subtree.compute(policy, self.base, self.top)
        self.grant = admission.grant(policy, self.limits, "call", hint, "hint")
        self.oom = OomLog()
        self.ended_by_time = False
        self._build()

    def _build(self) -> None:
        for name in ("agent", "helpers", "calls"):
            os.makedirs(f"{self.tree.path}/{name}", exist_ok=True)
        self.tree.child("agent").write("cgroup.procs", os.getpid())
        for group in (self.base, self.tree, self.tree.child("calls")):
            for controller in ("cpu", "memory", "pids", "io"):
                group.try_write("cgroup.subtree_control", f"+{controller}")
        subtree.apply(self.policy, self.limits, self.tree)
        os.makedirs(self.call.path, exist_ok=True)
        if self.policy.mode == "enforce":
            for name, value in (*admission.directory_files(self.policy, self.limits), *self.grant.writes()):
                self.call.try_write(name, value)

    def run(self) -> int:
        """The command's wait status."""
        self.started, self.began = time.time(), time.monotonic()
        child = os.fork()
        if child == 0:
            self._exec()
        old = {
            n: signal.signal(n, lambda _n, _f: None) for n in (signal.SIGINT, signal.SIGQUIT)
        }  # the tty tells the child
        old |= {n: signal.signal(n, lambda n, _f: os.kill(child, n)) for n in (signal.SIGTERM, signal.SIGHUP)}
        if self.grant.time is not None and self.policy.mode == "enforce":
            signal.signal(signal.SIGALRM, lambda _n, _f: self._out_of_time())
            signal.setitimer(signal.ITIMER_REAL, self.grant.time)
        status = os.waitpid(child, 0)[1]
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in old.items():
            signal.signal(number, handler)
        return status

    def _exec(self) -> None:
        try:
            self.call.write("cgroup.procs", os.getpid())
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("500")
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would the command
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            print(f"agentcgroup: {self.command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def _out_of_time(self) -> None:
        """TERM first, after the grace SIGKILL; the timer runs twice."""
        if self.ended_by_time:
            self.call.kill()
            return
        self.ended_by_time = True
        self.call.signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, max(self.policy.call.grace, 0.001))  # 0 would stop it

    def outcome(self, status: int) -> Outcome:
        """What became of it."""
        events = self.call.keyed("memory.events")
        victims = tuple(kill.task for kill in self.oom.take(kernel_path(self.call.path, str(self.top))))
        return Outcome(
            container="host",
            name="host",
            number=1,
            policy=self.policy.name,
            mode=self.policy.mode,
            command=commandline.analyse(["sh", "-c", shlex.join(self.command)], False),
            started=self.started,
            duration_s=time.monotonic() - self.began,
            status=status,
            peak_bytes=self.call.number("memory.peak"),
            limit_bytes=self.grant.memory,
            limit_source=self.grant.source,
            pids_peak=self.call.number("pids.peak"),
            pids_limit=self.grant.pids,
            pids_denied=self.call.keyed("pids.events").get("max", 0),
            cpu_s=self.call.keyed("cpu.stat").get("usage_usec", 0) / 1e6,
            oom_kills=max(events.get("oom_kill", 0) - events.get("oom_group_kill", 0), len(victims)),
            oom_victims=victims,
            high_events=events.get("high", 0),
            throttled_s=cgroup.pressure_total(self.call, "memory.pressure"),
            ended="time" if self.ended_by_time else None,
            time_limit_s=self.grant.time,
            hint=self.hint,
            clamps=self.grant.clamps,
        )

    def remove(self) -> None:
        """End what the command left behind and take the tree down; the scope goes with this process."""
        self.call.kill()
        for group in (self.call, self.tree.child("calls"), self.tree.child("helpers")):
            cgroup.remove(group, patience=2.0)
