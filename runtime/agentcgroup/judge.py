"""Who is a tool call: decided from host pids and the host's /proc alone (design: section 4, "Who is a call")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentcgroup.peer import Peer, look

if TYPE_CHECKING:
    from agentcgroup.call import Call
    from agentcgroup.container import Container

Verdict = Literal["call", "nested", "agent", "stranger"]


def judge(peer: Peer | None, container: Container) -> Verdict:
    """What the process at the socket is. A `stranger` is gone or not of this container."""
    if peer is None:
        return "stranger"
    below = _below(peer.cgroup, container.proc_path)
    if below is None:
        return "stranger"
    if below.startswith("/calls/"):
        return "nested"
    if peer.pid == container.record.pid or below.startswith("/helpers") or _is_healthcheck(peer, container):
        return "agent"
    return "call"


def _below(cgroup: str, tree: str) -> str | None:
    """The part of a cgroup path below the subtree; None outside of it."""
    if cgroup == tree:
        return ""
    return cgroup[len(tree) :] if cgroup.startswith(tree + "/") else None


def _is_healthcheck(peer: Peer, container: Container) -> bool:
    """A probe of the engine: podman runs it from a transient unit named after the container
    (libpod/healthcheck_linux.go), and there its parent, conmon, stays.
    """
    parent = look(peer.ppid)
    unit = parent.cgroup.rpartition("/")[2] if parent else ""
    return unit.startswith(container.record.id) and unit.endswith(".service")


def place(call: Call, peer: Peer | None = None) -> None:
    """Move what is no call of its own to where it belongs; called when it is admitted and again when its process
    appears.
    """
    container = call.container
    if call.grant.kind in ("helper", "agent"):
        target = container.tree.child("helpers" if call.grant.kind == "helper" else "agent")
        container.slowly(
            lambda: any([target.try_write("cgroup.procs", pid) for pid in call.cgroup.pids()]), call.was_moved
        )
    elif peer is not None:
        _adopt_driver(call, peer)


def _adopt_driver(call: Call, peer: Peer) -> None:
    """A build driver that the agent started without a shell joins the call of its first shell: what it starts is
    nested then.
    """
    if not call.container.policy.exec_match:
        return
    parent = look(peer.ppid)
    if parent is None or parent.pid == call.container.record.pid:
        return
    if _below(parent.cgroup, call.container.proc_path) == "/agent" and call.container.policy.takes_exec(parent.comm):
        container, driver = call.container, parent
        container.slowly(
            lambda: driver.lives() and call.cgroup.try_write("cgroup.procs", driver.pid),
            lambda moved: call.drive(driver, moved),
        )
