"""Who is a tool call: decided from host pids and the host's /proc alone (design: section 4, "Who is a call")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentcgroup.cgroup import Cgroup
from agentcgroup.peer import Peer, read_proc, strings, write_proc

if TYPE_CHECKING:
    from agentcgroup.call import Call
    from agentcgroup.container import Container

Verdict = Literal["call", "nested", "agent", "helper", "stranger"]

#: What may be PID 1 of a container and start the agent. As in the shim (place.c), which lets their children alone.
INITS = frozenset((
    "catatonit", "podman-init", "docker-init", "tini", "tini-static", "dumb-init", "s6-svscan", "systemd", "init",
    "openrc-init", "runit", "supervisord",
))  # fmt: skip
SHELLS = frozenset(("bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "busybox", "fish"))
INTERACTIVE = frozenset(("-i", "-l", "-il", "-li", "--login"))
DEEPEST = 16  # shells between PID 1 and the agent that are looked at
#: What a helper's oom_score_adj is above the agent's: an OOM takes calls (500) first, then helpers (vm0#34175).
HELPER_OOM = 250
ROUNDS = 16  # of moving all that is in a cgroup


def judge(peer: Peer | None, container: Container) -> Verdict:
    """What the process at the socket is. A `stranger` is gone or not of this container."""
    if peer is None:
        return "stranger"
    if not _is_inside(peer, container):
        return "stranger"
    below = _below(peer.cgroup, container.proc_path) or ""
    if below.startswith("/calls/"):
        return "nested"
    if below.startswith("/helpers"):
        return "helper"
    parent = peer.parent
    if peer.pid == container.record.pid or _is_healthcheck(parent, container) or _leads_to_agent(parent, container):
        return "agent"
    return "call"


def _is_inside(peer: Peer, container: Container) -> bool:
    """Whether its cgroup is the container's. Engines may execute in one beside our subtree (crun exec --cgroup)."""
    return _below(peer.cgroup, container.proc_path.removesuffix("/agentcgroup")) is not None


def _below(cgroup: str, tree: str) -> str | None:
    """The part of a cgroup path below the subtree; None outside of it."""
    if cgroup == tree:
        return ""
    return cgroup[len(tree) :] if cgroup.startswith(tree + "/") else None


def shim_of(shell: Peer, container: Container) -> Peer | None:
    """The first process above a call's shell that is not in the call. None once the shim has ended: the orphans are
    PID 1's, or of a process outside of the container where that shares its pid namespace.
    """
    parent = shell.parent
    while parent is not None and parent.cgroup == shell.cgroup:
        parent = parent.parent
    if parent is None or parent.pid == container.record.pid or not _is_inside(parent, container):
        return None
    return parent


def _leads_to_agent(parent: Peer | None, container: Container) -> bool:
    """Whether only shells stand between it and PID 1, and that is an init or a shell with something to do: then it
    prepares the container, or starts the agent.
    """
    for _ in range(DEEPEST):
        if parent is None:
            return False
        if parent.pid == container.record.pid:
            arguments = strings(parent.pid, "cmdline")[1:]
            return parent.comm in INITS or (parent.comm in SHELLS and not INTERACTIVE.issuperset(arguments))
        if parent.comm not in SHELLS:
            return False
        parent = parent.parent
    return False


def _is_healthcheck(parent: Peer | None, container: Container) -> bool:
    """A probe of the engine: podman runs it from a transient unit named after the container
    (libpod/healthcheck_linux.go), and there its parent, conmon, stays.
    """
    unit = parent.cgroup.rpartition("/")[2] if parent else ""
    return unit.startswith(container.record.id) and unit.endswith(".service")


def place(call: Call, peer: Peer | None = None) -> None:
    """Move what is no call of its own to where it belongs; called when it is admitted and again when its process
    appears.
    """
    container = call.container
    if call.grant.kind in ("helper", "agent"):
        is_helper = call.grant.kind == "helper"
        target = container.tree.child("helpers" if is_helper else "agent")
        score = int(read_proc(call.shim_pid, "oom_score_adj").strip() or 0) + (HELPER_OOM if is_helper else 0)
        container.moving(lambda: _move_all(call.cgroup, target, score), call.was_moved)
    elif peer is not None:
        _adopt_driver(call, peer)


def _move_all(group: Cgroup, target: Cgroup, score: int) -> bool:
    """Whether it is empty now and something was moved; what forks meanwhile leaves its child behind."""
    moved = False
    for _ in range(ROUNDS):
        pids = group.pids()
        if not pids:
            return moved
        moved |= any([_move(pid, target, score) for pid in pids])
    return False


def _move(pid: int, target: Cgroup, score: int) -> bool:
    moved = target.try_write("cgroup.procs", pid)
    if moved:
        write_proc(pid, "oom_score_adj", min(score, 1000))  # the shim took it for a call and raised it
    return moved


def _adopt_driver(call: Call, peer: Peer) -> None:
    """A build driver that the agent started without a shell joins the call of its first shell: what it starts is
    nested then.
    """
    if not call.container.policy.exec_match:
        return
    parent = peer.parent
    if parent is None or parent.pid == call.container.record.pid:
        return
    if _below(parent.cgroup, call.container.proc_path) == "/agent" and call.container.policy.takes_exec(parent.comm):
        container, driver = call.container, parent
        container.moving(
            lambda: driver.lives() and call.cgroup.try_write("cgroup.procs", driver.pid),
            lambda moved: call.drive(driver, moved),
        )
