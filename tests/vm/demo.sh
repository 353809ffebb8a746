#!/bin/bash
# The main job in two minutes: an agent in a container, one light and one heavy tool call, and what the agent makes of it.
# usage: demo.sh [host]    host: install on this host for the time of the demo, and remove it again
set -eu

here=$(dirname "$(realpath "$0")")
image=${IMAGE:-localhost/debian}
work=$(mktemp -d)

die() { printf 'demo: %s\n' "$*" >&2; exit 1; }
say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@" || true; }

use_this_host() {
	[ "$(id -u)" = 0 ] || die "HOST=1 needs root: the hook and the daemon act on the host's cgroups"
	[ -e /sys/fs/cgroup/cgroup.controllers ] || die "HOST=1 needs cgroup v2 at /sys/fs/cgroup: run make demo without HOST=1"
	[ -d /run/systemd/system ] || die "HOST=1 needs systemd as init: run make demo without HOST=1"
	command -v podman >/dev/null || die "HOST=1 needs podman: install it, or run make demo without HOST=1"
	[ ! -e /usr/libexec/agentcgroup ] || die "agentcgroup is installed here already: use it, or make uninstall first"
	image=${IMAGE:-docker.io/library/python:3-slim}
	podman image exists "$image" || podman pull -q "$image" || die "no image $image here: IMAGE= names one with python3 and bash"
	make -s -C "$here/../.." install
	systemctl daemon-reload
}

finish() {
	podman rm -f -t 0 agentcgroup-demo >/dev/null 2>&1 || true
	rm -rf "$work" /etc/agentcgroup/policies.d/demo.yaml
	[ "${1:-}" = host ] || return 0
	systemctl stop agentcgroupd.socket agentcgroupd.service 2>/dev/null || true
	make -s -C "$here/../.." uninstall
	systemctl daemon-reload
}

cat >"$work/agent.py" <<'AGENT'
"""An agent: it makes tool calls, reads what it is told, and follows the advice."""
import os, re, subprocess, time

def call(command):
    print(f"agent> bash -c {command!r}", flush=True)
    done = subprocess.run(["bash", "-c", command], text=True, capture_output=True)
    told = [line for line in done.stderr.splitlines() if line.startswith("[agentcgroup]")]
    print(f"  exit {done.returncode}  {done.stdout.strip()}", *(f"  {line}" for line in told), sep="\n", flush=True)
    return "\n".join(told)

heavy = "python3 -c 'b = bytearray(300 << 20); print(len(b) >> 20, \"MiB held\")'"
call("cat /proc/self/cgroup")
hint = re.search(r"AGENT_RESOURCE_HINT=\S+", call(heavy))
if hint:
    call(f"{hint[0]} {heavy}")
call("echo one more light call")
print(f"the agent is alive: pid {os.getpid()}", flush=True)
time.sleep(3600)
AGENT

[ "${1:-}" != host ] || use_this_host
trap 'finish "$@"' EXIT
mkdir -p /etc/agentcgroup/policies.d
cat >/etc/agentcgroup/policies.d/demo.yaml <<'POLICY'
extends: coding-agent
description: small limits, so that the demo is quick
call:
  memory: {low: 128M, default: 256M, medium: 512M, high: 1G, max: 1G}
POLICY
# An emulated CPU answers late.
[ "${1:-}" = host ] || echo 'ack_ms: 2000' >/etc/agentcgroup/agentcgroup.yaml
systemctl restart agentcgroupd

say "a container whose agent is governed by the policy \"demo\": 256 MiB a call without a hint"
show podman run -d --name agentcgroup-demo --network=none --annotation agentcgroup.policy=demo \
	-v "$work/agent.py:/agent.py:ro" "$image" python3 /agent.py
for _ in $(seq 300); do
	podman logs agentcgroup-demo 2>/dev/null | grep -q "is alive" && break
	sleep 1
done

say "what the agent did, and was told"
show podman logs agentcgroup-demo

say "what the operator sees"
show agentcgroup ps
show agentcgroup why "$(podman inspect --format '{{.Id}}' agentcgroup-demo | cut -c1-12)"
