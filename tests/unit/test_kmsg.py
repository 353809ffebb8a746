"""Victims are read from the kernel's own summary line (texts as printed by Linux 6.12 and 7.3)."""

from agentcgroup.kmsg import Kill, OomLog

MEMCG = (
    b"4,812,5;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=container,mems_allowed=0,"
    b"oom_memcg=/m.slice/x.scope/container/agentcgroup/calls/3,task_memcg=/m.slice/x.scope/container/agentcgroup/calls/3,"
    b"task=my,odd task,pid=4711,uid=0\n"
)
HOST = (
    b"4,813,6;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    b"task_memcg=/m.slice/x.scope/container/agentcgroup/calls/4,task=hog,pid=12,uid=1000\n"
)


GROUP = (
    b"3,814,5;Memory cgroup out of memory: Killed process 4711 (my,odd task) total-vm:424080kB, anon-rss:261540kB\n",
    b"6,815,5;Tasks in /m.slice/x.scope/container/agentcgroup/calls/3 are going to be killed due to memory.oom.group"
    b" set\n",
    b"3,816,5;Memory cgroup out of memory: Killed process 4711 (my,odd task) total-vm:424080kB, anon-rss:261540kB\n",
    b"3,817,5;Memory cgroup out of memory: Killed process 4710 (bash) total-vm:4080kB, anon-rss:540kB, UID:0\n",
)


def log(*lines: bytes) -> OomLog:
    oom = OomLog()
    oom.fd = -1
    for line in lines:
        oom.feed(line)
    return oom


def test_a_victim_is_found_by_its_cgroup_and_told_once() -> None:
    oom = log(MEMCG)
    path = "/m.slice/x.scope/container/agentcgroup/calls/3"
    assert oom.take(path) == [Kill("my,odd task", 4711, path, path)]
    assert oom.take(path) == []


def test_all_of_a_group_are_named_once() -> None:
    path = "/m.slice/x.scope/container/agentcgroup/calls/3"
    alone = b"3,820,5;Memory cgroup out of memory: Killed process 99 (other) total-vm:1kB\n"
    oom = log(MEMCG, *GROUP, alone, HOST, alone)
    assert [(kill.task, kill.pid, kill.at) for kill in oom.take(path)] == [
        ("my,odd task", 4711, path), ("bash", 4710, path),
    ]  # fmt: skip
    assert [kill.task for kill in oom.take(path.replace("/3", "/4"))] == ["hog"]


def test_a_host_wide_kill_has_no_cgroup_whose_limit_was_hit() -> None:
    assert log(HOST).take("/m.slice/x.scope/container/agentcgroup/calls/4")[0].at == ""


def test_other_lines_are_passed_over_and_the_log_is_bounded() -> None:
    oom = log(b"6,1,1;usb 1-1: new device\n", *(MEMCG.replace(b"calls/3", b"calls/%d" % n) for n in range(1000)))
    assert oom.take("/m.slice/x.scope/container/agentcgroup/calls/0") == []
    assert len(oom.take("/m.slice/x.scope/container/agentcgroup/calls/999")) == 1
