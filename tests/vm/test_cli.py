"""The commands of an operator, with and without --json, with the daemon up and down."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from podman import CGROUPFS, Container, Engine, fill, run, wait_for

MIB = 1 << 20


@pytest.fixture(scope="module")
def container(file_engine: Engine) -> Iterator[Container]:
    yield file_engine.start("--name=looked-at")


def cli(*argv: str) -> subprocess.CompletedProcess[str]:
    return run("agentcgroup", *argv, check=False)


def test_ps_lists_a_container_with_its_figures(container: Container) -> None:
    rows = json.loads(cli("ps", "--json").stdout)
    row = next(row for row in rows if row["id"] == container.id)
    assert (row["policy"], row["mode"], row["memory_max"], row["cooperative"]) == ("test", "enforce", 1024 * MIB, [])
    assert 0 < row["agent_memory"] <= row["memory"]
    line = next(line for line in cli("ps").stdout.splitlines() if line.startswith(container.id[:12]))
    assert "test" in line.split() and "1 GiB" in line


def test_calls_shows_a_running_call(container: Container) -> None:
    call = container.hold()
    number = int(call.directory.name)
    rows = json.loads(cli("calls", container.id[:12], "--json").stdout)
    assert [(row["call"], row["limit"], row["kind"]) for row in rows] == [(number, 256 * MIB, "call")]
    assert cli("calls", container.id).stdout.splitlines()[1].split()[:2] == [str(number), "call"]
    call.finish()


def test_why_says_what_became_of_a_call_also_when_the_container_is_gone(file_engine: Engine) -> None:
    gone = file_engine.start()
    gone.call(fill(300))
    record = gone.settled(1)[0]
    file_engine.podman("rm", "-f", "-t", "0", gone.id)
    said = cli("why", f"{gone.id[:12]}/{record['number']}")
    assert said.returncode == 0 and "ended for memory" in said.stdout and "256 MiB" in said.stdout
    assert json.loads(cli("why", gone.id, "--json").stdout.splitlines()[0])["oom_kills"] > 0


def test_policy_commands(tmp_path: Path) -> None:
    shown = json.loads(cli("policy", "show", "coding-agent", "--json").stdout)
    assert "call" in json.dumps(shown)
    broken = tmp_path / "ci.yaml"
    broken.write_text("mode: enforce\nmemroy: {max: 4G}\n")
    check = cli("policy", "check", str(broken))
    assert check.returncode == 1
    assert "ci.yaml:2" in check.stderr + check.stdout and "memory" in check.stderr + check.stdout
    assert "coding-agent" in cli("policy", "list").stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("calls", "nobody"), 'container "nobody" is not governed'),
        (("policy", "show", "codingagent"), "coding-agent"),
        (("why", "x/y"), "call number"),
        (("unwrap", "nobody"), "nobody"),
    ],
)
def test_a_wrong_name_is_one_line_without_a_traceback(container: Container, argv: tuple[str, ...], words: str) -> None:
    said = cli(*argv)
    assert said.returncode == 1
    assert words in said.stderr and len(said.stderr.splitlines()) == 1 and said.stderr.startswith("agentcgroup: ")


def test_without_the_daemon_ps_says_how_to_start_it_and_why_still_works(container: Container) -> None:
    run("systemctl", "stop", "agentcgroupd.socket", "agentcgroupd.service")
    try:
        said = cli("ps")
        assert said.returncode == 1
        assert said.stderr == "agentcgroup: agentcgroupd is not running: systemctl start agentcgroupd\n"
        assert cli("why", container.id[:12]).returncode == 0
        assert cli("policy", "list").returncode == 0
    finally:
        run("systemctl", "start", "agentcgroupd.socket", "agentcgroupd.service")


def test_run_gives_one_command_a_domain_on_a_host_without_containers() -> None:
    done = cli("run", "--policy", "test", "--", "python3", "-c", "b = bytearray(300 << 20)")
    assert done.returncode == 137, done.stderr
    assert "out of memory" in done.stderr and "limit 256 MiB" in done.stderr
    fine = cli("run", "--policy", "test", "--hint", "memory:400m", "--", "python3", "-c", "b = bytearray(300 << 20)")
    assert (fine.returncode, fine.stderr) == (0, "")
    missing = cli("run", "--policy", "test", "--", "no-such-command")
    assert (missing.returncode, missing.stderr) == (127, "agentcgroup: no-such-command: No such file or directory\n")
    wait_for(lambda: not list(CGROUPFS.glob("system.slice/run-*.scope/agentcgroup")), 5, "the scopes to go")
