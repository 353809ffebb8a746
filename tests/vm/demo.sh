#!/bin/bash
# The main job in two minutes: an agent in a container, one light and one heavy tool call, the agent's reaction.
set -eu

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@" || true; }

systemctl start agentcgroupd
cat >/root/agent.py <<'AGENT'
"""An agent that is PID 1: it makes tool calls, reads what it is told, and follows the advice."""
import re, subprocess, time

def call(command):
    print(f"agent (pid 1) runs: bash -c {command!r}", flush=True)
    done = subprocess.run(["bash", "-c", command], text=True, capture_output=True)
    print(f"  exit {done.returncode}  {done.stdout.strip()}", *(f"  {l}" for l in done.stderr.splitlines() if "[agentcgroup]" in l), sep="\n", flush=True)
    return done

heavy = "python3 -c 'b = bytearray(700 << 20); print(len(b) >> 20, \"MiB held\")'"
call("cat /proc/self/cgroup")
told = call(heavy).stderr
hint = re.search(r"AGENT_RESOURCE_HINT=\S+", told)
if hint:
    call(f"{hint[0]} {heavy}")
call("echo the agent is alive, pid $PPID")
time.sleep(3600)
AGENT
mkdir -p /etc/agentcgroup/policies.d
cat >/etc/agentcgroup/policies.d/demo.yaml <<'POLICY'
extends: coding-agent
description: small limits, so that the demo is quick
call:
  memory: {low: 128M, default: 256M, medium: 512M, high: 1G, max: 1G}
POLICY
systemctl reload agentcgroupd

say "a container whose agent is governed by the policy \"demo\" (256 MiB a call without a hint)"
show podman run -d --name agent --network=none --annotation agentcgroup.policy=demo -v /root/agent.py:/agent.py:ro localhost/debian python3 /agent.py
for _ in $(seq 300); do podman logs agent 2>/dev/null | grep -q "is alive" && break; sleep 1; done

say "what the agent did and was told"
show podman logs agent

say "what the operator sees"
show agentcgroup ps
show agentcgroup why "$(podman inspect --format '{{.Id}}' agent)"
podman rm -f -t 0 agent >/dev/null
