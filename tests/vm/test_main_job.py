"""The main job on a real engine: each tool call in a cgroup of its own, and the agent outlives a heavy one."""

from podman import Engine

HOG = "x=$(head -c {size}M /dev/zero | tr '\\0' x); echo ${{#x}}"
FILL = 'python3 -c "import time; b = bytearray({size} << 20); time.sleep({seconds})"'


def test_three_parallel_calls_have_three_domains_with_their_own_peaks(any_engine: Engine) -> None:
    container = any_engine.start()
    sizes = (40, 80, 160)
    running = [container.background(FILL.format(size=size, seconds=3)) for size in sizes]
    assert [r.result().rc for r in running] == [0, 0, 0]
    peaks = sorted(entry["peak_bytes"] >> 20 for entry in container.settled(3))
    baseline = container.call(FILL.format(size=0, seconds=0)) and container.settled(4)[-1]["peak_bytes"] >> 20
    for peak, size in zip(peaks, sizes, strict=True):
        assert abs(peak - baseline - size) <= size * 0.1, (peaks, baseline)


def test_a_hog_in_one_call_is_ended_and_the_agent_and_a_second_call_go_on(each_end: Engine, journal) -> None:
    container = each_end.start()
    agent = container.call("true").pid
    second = container.background("sleep 5; echo done")
    hog = container.call(FILL.format(size=400, seconds=0))
    assert hog.rc in (137, -9)
    assert any("256 MiB" in line for line in hog.feedback), hog.err
    assert second.result().out == "done\n"
    assert container.call("echo alive").out == "alive\n"
    assert container.call("true").pid == agent
    record = next(entry for entry in container.settled(5) if entry["oom_kills"])
    assert record["limit_bytes"] == 256 << 20
    victims = [line for line in journal.kernel().splitlines() if "oom-kill:" in line]
    assert victims and all("/agentcgroup/calls/" in line for line in victims), victims


def test_a_container_without_our_annotation_is_not_touched(each_end: Engine) -> None:
    container = each_end.start(policy=None)
    assert "agentcgroup" not in container.call("cat /proc/self/cgroup /proc/self/mountinfo; ls /dev").out
