"""agentcgroupd: reads policies and configuration, serves the hook, governs containers until it is told to stop."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcgroup import __version__, cgroup, control, hookserver, journal, paths, systemd
from agentcgroup import config as configs
from agentcgroup.errors import UserError
from agentcgroup.governor import Governor, prepare_run_dir
from agentcgroup.loop import Loop
from agentcgroup.policy import annotations as choices
from agentcgroup.policy import load
from agentcgroup.policy.model import Policy
from agentcgroup.records import Ledger

if TYPE_CHECKING:
    from agentcgroup.bpf.libbpf import Libbpf
    from agentcgroup.metrics.server import Server

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4  # mlockall(2)


class Daemon:
    """Everything that lives as long as the process."""

    def __init__(self, config_file: Path, run_dir: Path, state_dir: Path, policy_dirs: Sequence[Path]) -> None:
        self.loop = Loop(_report)
        self.config_file = config_file
        self.policy_dirs = policy_dirs
        self.required_dir = state_dir / "required"
        self.config = config = configs.load(config_file)
        journal.set_level(config.log_level)
        self.policies = load.load_policies(policy_dirs)
        prepare_run_dir(run_dir)
        records = config.records
        ledger = Ledger(records.dir, records.max_size, records.keep)
        self.governor = Governor(self.loop, config, self.policy_for, ledger, run_dir, cgroup.mount_point())
        self._say_broken()
        self._mark_required(self.policies)
        # Before the adoption: a hook that finds no socket writes its record in time for it, another is heard later.
        self._servers = [
            hookserver.MessageServer(self.loop, _hook_listener(run_dir), self.answer_hook),
            hookserver.MessageServer(
                self.loop, hookserver.listen(run_dir / "control.sock", 0o600), control.Control(self).answer
            ),
        ]
        self._use_bpf(config.bpf)
        self._metrics: Server | None = None
        self._serve_metrics(None)
        self.governor.adopt()
        self.governor.schedule(config.scheduler)
        self._watch_signals()
        self._keep_watchdog_fed()

    def _use_bpf(self, wanted: bool) -> None:
        """Without it everything works as well, by cgroup files alone."""
        from agentcgroup.bpf import kernel, libbpf, loader
        from agentcgroup.scheduling import Scheduling

        try:
            if not wanted:
                loader.detach()
                return
            lib = libbpf.Libbpf()
            if loader.loaded() != loader.build_of(paths.BPF_DIR):
                loader.attach(lib, paths.BPF_DIR)
            self._try_memcg_ops(lib)
            ours = self.governor
            scheduling = Scheduling(lib, self.loop, ours.top, ours.worker, ours.containers)
            ours.know(kernel.Kernel(lib, ours.kernel_event), scheduling)
        except (UserError, OSError) as error:
            journal.send(f"calls are accounted for by cgroup files alone: {error}", 5)

    def _serve_metrics(self, before: configs.MetricsAddress | None) -> None:
        """Where the configuration wants them now. Whatever is wrong with that, all else goes on."""
        wanted = self.config.metrics
        if wanted == before and (wanted is None or self._metrics is not None):
            return
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = self.governor.counts = None
        try:
            if wanted is not None:
                self._start_metrics(wanted)
        except ImportError:
            journal.send("metrics are off: the Python package prometheus_client is missing: install it", 4)
        except (UserError, OSError) as error:
            journal.send(f"metrics are off: {error}: see metrics in {self.config_file}", 4)

    def _start_metrics(self, address: configs.MetricsAddress) -> None:
        from agentcgroup.metrics.counts import Counts
        from agentcgroup.metrics.exporter import Exporter
        from agentcgroup.metrics.server import Server

        counts = Counts()
        self._metrics = Server(self.loop, address, Exporter(self.governor, counts).text)
        self.governor.counts = counts

    def _try_memcg_ops(self, lib: Libbpf) -> None:
        """Experimental: whatever is wrong with it, all else goes on."""
        from agentcgroup.bpf import memcg_ops

        try:
            memcg_ops.load(lib, paths.BPF_DIR)
        except (OSError, KeyError) as error:
            journal.send(f"memcg_ops (experimental) is left out: {error}", 5)

    # --- policies ---------------------------------------------------------------------------------------------

    def policy_for(self, notes: dict[str, str], engine: str) -> Policy:
        """The policy that a container's annotations name, overrides applied. Raises UserError."""
        choice = choices.choose(notes, engine, self.config)
        if choice is None:
            raise UserError("no policy is meant for this container")
        policy = self.policies.get(choice.policy_name)
        return choices.apply_overrides(policy, choice.overrides, choice.tighten_only) if choice.overrides else policy

    def reload(self) -> None:
        """SIGHUP: read configuration and policies again, beside the calls; what cannot be read leaves the old ones in
        force.
        """
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        self.governor.worker.submit("", self._read, self._use)

    def _read(self) -> tuple[configs.Config | None, load.PolicySet | None]:
        config = policies = None
        try:
            config = configs.load(self.config_file)
        except (UserError, OSError) as error:
            journal.send(f"the old configuration stays in force: {error}", 3)
        try:
            policies = load.load_policies(self.policy_dirs)
            self._mark_required(policies)
        except (UserError, OSError) as error:
            journal.send(f"the old policies stay in force: {error}", 3)
        return config, policies

    def _use(self, found: tuple[configs.Config | None, load.PolicySet | None]) -> None:
        before = self.config.metrics
        self.config = self.governor.config = found[0] or self.config
        self.policies = found[1] or self.policies
        journal.set_level(self.config.log_level)
        self._serve_metrics(before)
        self._say_broken()
        for container in list(self.governor.containers.values()):
            self._reload_container(container.record.id)
        self.governor.schedule(self.config.scheduler)
        systemd.notify("READY=1")

    def _reload_container(self, container_id: str) -> None:
        container = self.governor.containers[container_id]
        try:
            container.change_policy(self.policy_for(container.record.annotations, container.record.engine))
        except (UserError, OSError) as error:
            journal.send(
                f"{container.record.name} keeps its policy as it was: {error}", 4, AGENTCGROUP_CONTAINER=container_id
            )

    def _say_broken(self) -> None:
        for error in self.policies.errors.values():
            for line in str(error).splitlines():
                journal.send(line, 3)

    def _mark_required(self, policies: load.PolicySet) -> None:
        """Which policies are `required` must be known to the hook even when this daemon is down."""
        directory = self.required_dir
        directory.mkdir(parents=True, exist_ok=True)
        wanted = {name for name, policy in policies.policies.items() if policy.required}
        for name in wanted:
            (directory / name).touch()
        for marker in directory.iterdir():
            if marker.name not in wanted and marker.name not in policies.errors:
                marker.unlink(missing_ok=True)

    # --- the hook ---------------------------------------------------------------------------------------------

    def answer_hook(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """One message of the hook protocol."""
        op = request.get("op")
        if op == "plan":
            return self._plan(request)
        if op == "register":
            return self._register(str(request.get("id")))
        if op == "ready":
            took_us = request.get("us")
            seconds = took_us / 1e6 if isinstance(took_us, int) else 0.0
            self.governor.ready(str(request.get("id")), _texts(request, "injected"), _texts(request, "notes"), seconds)
            return None
        if op == "stop":
            self.governor.stopped(str(request.get("id")))
            return None
        return {"refuse": f"unknown request {str(op)[:40]!r}", "required": False}

    def _plan(self, request: dict[str, Any]) -> dict[str, Any]:
        self.governor.look_for_end(str(request.get("id")))
        notes = {str(k): str(v) for k, v in dict(request.get("annotations") or {}).items()}
        engine = str(request.get("engine") or "other")
        name, required = choices.demanded(notes)
        required = required or self._is_required(name or "")
        try:
            if choices.choose(notes, engine, self.config) is None:
                return {"refuse": "the annotation is for another container", "required": False, "quiet": True}
            policy = self.policy_for(notes, engine)
        except UserError as error:
            return {"refuse": str(error), "required": required}
        cooperative = _texts(request, "cooperative")
        if required and cooperative:
            why = ", ".join(cooperative)
            text = f'policy "{policy.name}": limits would be cooperative, the container could undo them: {why}'
            return {"refuse": text, "required": True}
        return {
            "policy": policy.name,
            "required": required,
            "inject": True,
            "shells": list(policy.shells),
            "ack_ms": self.config.ack_ms,
        }

    def _is_required(self, name: str) -> bool:
        """A broken policy that was required stays so."""
        if name in self.policies.errors:
            return (self.required_dir / name).exists()
        return name in self.policies.policies and self.policies.policies[name].required

    def _register(self, container_id: str) -> dict[str, Any]:
        try:
            notes = self.governor.register(container_id)
        except (UserError, OSError) as error:
            journal.send(
                f"container {container_id[:12]}: not registered: {error}", 3, AGENTCGROUP_CONTAINER=container_id
            )
            return {"refuse": str(error), "required": False}
        for note in notes:
            name = self.governor.containers[container_id].record.name
            journal.send(f"container {name}: {note}", 5, AGENTCGROUP_CONTAINER=container_id)
        return {"ok": True, "notes": notes}

    # --- the process ------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _n, _f: None)
        self._signal_ends = (reader, writer)
        self.loop.add(reader.fileno(), select.EPOLLIN, lambda _e: self._signals(reader))

    def _signals(self, reader: socket.socket) -> None:
        for number in reader.recv(64):
            if number == signal.SIGHUP:
                self.reload()
            elif number in (signal.SIGTERM, signal.SIGINT):
                self.loop.stop()

    def _keep_watchdog_fed(self) -> None:
        interval = systemd.watchdog_interval()
        if interval:
            systemd.notify("WATCHDOG=1")
            self.loop.after(interval / 2, self._keep_watchdog_fed)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        systemd.notify("READY=1", f"STATUS={len(self.governor.containers)} containers")
        gc.freeze()  # start-up objects need no more looking at: shorter pauses on the call path
        self.loop.run()
        systemd.notify("STOPPING=1")
        self.governor.close()
        for server in self._servers:
            server.close()
        if self._metrics is not None:
            self._metrics.close()


def _hook_listener(run_dir: Path) -> socket.socket:
    """The socket that systemd holds for us, so that containers started during a restart wait; else our own."""
    inherited = systemd.listen_sockets()
    return inherited[0] if inherited else hookserver.listen(run_dir / "hook.sock", 0o600)


def _texts(request: dict[str, Any], key: str) -> list[str]:
    value = request.get(key)
    return [str(item)[:4096] for item in value[:64]] if isinstance(value, list) else []


def _report(error: BaseException) -> None:
    """A fault in a handler: whole in the journal, and the daemon goes on."""
    text = "".join(traceback.format_exception(error))
    journal.send(f"fault in the daemon, it goes on: {error}", 3, AGENTCGROUP_TRACEBACK=text)


def protect() -> None:
    """An agent's memory pressure must not reach the one who handles it: no paging, last to be OOM-killed, many
    files.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT)
    try:
        Path("/proc/self/oom_score_adj").write_text("-900")
    except OSError:
        journal.send("oom_score_adj could not be lowered", 5)
    # A call does not wait for us, so its shell shall not be preempted when it wakes us (docs/performance.md).
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `agentcgroupd`."""
    parser = argparse.ArgumentParser(prog="agentcgroupd", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--config", type=Path, default=paths.CONFIG_FILE, help="configuration file (default: %(default)s)"
    )
    parser.add_argument("--run-dir", type=Path, default=paths.RUN_DIR, help="sockets and state (default: %(default)s)")
    parser.add_argument(
        "--state-dir", type=Path, default=paths.LIB_DIR, help="what outlives a reboot (default: %(default)s)"
    )
    parser.add_argument(
        "--policies", type=Path, action="append", help="policy directory, may be repeated; later ones win"
    )
    options = parser.parse_args(argv)
    try:
        os.umask(0o022)
        policies = options.policies or paths.POLICY_DIRS
        daemon = Daemon(options.config, options.run_dir, options.state_dir, policies)
    except (UserError, OSError) as error:
        print(f"agentcgroupd: {error}", file=sys.stderr)
        return 1
    protect()
    daemon.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
