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


def test_a_host_wide_kill_has_no_cgroup_whose_limit_was_hit() -> None:
    assert log(HOST).take("/m.slice/x.scope/container/agentcgroup/calls/4")[0].at == ""


def test_other_lines_are_passed_over_and_the_log_is_bounded() -> None:
    oom = log(b"6,1,1;usb 1-1: new device\n", *(MEMCG.replace(b"calls/3", b"calls/%d" % n) for n in range(1000)))
    assert oom.take("/m.slice/x.scope/container/agentcgroup/calls/0") == []
    assert len(oom.take("/m.slice/x.scope/container/agentcgroup/calls/999")) == 1
