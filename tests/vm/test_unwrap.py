"""A container's package manager can replace bash after `agentcgroup unwrap`; the next start wraps the new one."""

from __future__ import annotations

from podman import Engine, governed, run, wait_for

# A package as the distribution would publish it, with the image's own bash and two bytes more.
BUILD = """
set -e
mkdir -p /tmp/new/DEBIAN /tmp/new/usr/bin
cp /dev/agentcgroup/real/bash /tmp/new/usr/bin/bash
echo >>/tmp/new/usr/bin/bash
cat >/tmp/new/DEBIAN/control <<EOF
Package: bash
Version: 99:1
Architecture: all
Multi-Arch: foreign
Essential: yes
Maintainer: tests <tests@example.org>
Description: a newer bash
EOF
dpkg-deb --build -Znone /tmp/new /tmp/bash.deb
"""
INSTALL = "dpkg --force-unsafe-io --install /tmp/bash.deb"
VERSION = "dpkg-query --show --showformat='${Version}' bash"


def test_bash_is_upgraded_after_unwrap_and_wrapped_again_at_the_next_start(engine: Engine) -> None:
    container = engine.start("--name=unwrap-box")
    built = container.call(BUILD)
    assert built.rc == 0, built.err
    refused = container.call(INSTALL)
    assert refused.rc != 0
    assert "./usr/bin/bash" in refused.err, refused.err
    assert not container.call(VERSION).out.startswith("99:")

    running = container.hold()
    unwrapped = run("agentcgroup", "unwrap", "unwrap-box").stdout
    assert "/usr/bin/bash: unwrapped until the next start" in unwrapped
    assert "/usr/bin/bash" not in container.wrapped()
    [row] = [line for line in run("agentcgroup", "ps").stdout.splitlines() if line.split()[1] == "unwrap-box"]
    assert row.endswith("shells unwrapped")
    installed = container.call(INSTALL)
    assert installed.rc == 0, installed.err
    assert container.call("cat /proc/self/cgroup; " + VERSION).out == "0::/agentcgroup/agent\n99:1"
    assert running.limit() == 256 << 20
    assert running.finish().rc == 7
    assert run("agentcgroup", "unwrap", "unwrap-box").stdout == "no shell of unwrap-box is wrapped\n"

    container.podman("restart", "-t", "0", container.id)
    wait_for(container.answers, 10, "the agent")
    assert container.wrapped() == ["/dev/agentcgroup/agentcgroup-hint", "/usr/bin/bash", "/usr/bin/dash"]
    governed(container)
    sizes = container.call("stat -c %s /tmp/new/usr/bin/bash /dev/agentcgroup/real/bash").out.split()
    assert sizes[0] == sizes[1]
