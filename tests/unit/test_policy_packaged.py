"""The packaged policies: they load, and their rules tell servers, agents and heavy commands from their look-alikes."""

import time
from pathlib import Path

import pytest
from agentcgroup.policy.load import load_policies
from agentcgroup.policy.model import GIB, MIB, Policy, Size

PACKAGED = Path(__file__).resolve().parents[2] / "oci-config" / "policies.d"
SET = load_policies([PACKAGED])


@pytest.fixture
def agent() -> Policy:
    return SET.get("coding-agent")


def test_all_packaged_policies_load() -> None:
    assert SET.errors == {}
    assert list(SET.policies) == ["batch", "coding-agent", "interactive", "observe"]
    assert all(policy.description for policy in SET.policies.values())


def test_the_policies_differ_in_what_their_names_promise() -> None:
    modes = {name: (policy.mode, policy.priority) for name, policy in SET.policies.items()}
    assert modes == {
        "batch": ("enforce", "batch"),
        "coding-agent": ("enforce", "normal"),
        "interactive": ("enforce", "interactive"),
        "observe": ("observe", "normal"),
    }
    stall = {name: policy.call.stall_deadline for name, policy in SET.policies.items()}
    assert stall["interactive"] < stall["coding-agent"] < stall["batch"]


def test_the_agent_is_protected_from_its_calls(agent: Policy) -> None:
    """claude-code#13126, evener#496: the agent was killed for what its call had taken."""
    assert agent.memory.agent_min == Size(256 * MIB)
    assert agent.memory.max == Size(percent=75.0), "the host keeps a quarter (vm0#34175)"
    assert agent.call.time_max is not None, "a call ends some day (A3S-Lab/Code#67)"
    assert agent.call.pids_max < (agent.pids_max or 0), "a fork bomb leaves the agent processes (claude-code#57)"
    assert agent.call.memory.medium == Size(4 * GIB), "the largest recorded test run took 3.9 GB"


HELPERS = [
    "npx -y @modelcontextprotocol/server-filesystem /srv",
    'mcp-server-filesystem "/srv"',
    "uvx mcp-server-git --repository .",
    "uvx --from git+https://example.org/serena serena start-mcp-server",
    "npx @playwright/mcp@latest",
    "npx -y @upstash/context7-mcp",
    "context7-mcp --stdio",
    "node /opt/github-mcp-server/dist/index.js",
    "python -m mcp_server_git",
    "exec python3 /opt/tools/mcp_server.py",
    "docker run -i --rm mcp/github",
    "claude mcp serve",
    "codex mcp-server",
    "fastmcp run server.py",
    "typescript-language-server --stdio",
    "npx -y typescript-language-server --stdio",
    "node_modules/.bin/pyright-langserver --stdio",
    "gopls",
    "gopls serve",
    "gopls -mode=stdio",
    "clangd --background-index",
    "/usr/lib/rust/rust-analyzer",
    "exec pylsp",
    "ruff server",
]
AGENTS = [
    "claude -p 'fix the build'",
    "/usr/local/bin/codex exec 'write tests'",
    "npx -y @anthropic-ai/claude-code -p 'x'",
    "exec opencode run x",
]
HEAVY = [
    ("pytest -x", "memory:medium"),
    ("cd /repo && pytest tests", "memory:medium"),
    ("python -m pytest", "memory:medium"),
    ("uv run pytest", "memory:medium"),
    ("timeout 120 pytest", "memory:medium"),
    ("CI=1 npx vitest run", "memory:medium"),
    ("set -e\nmake -j8", "memory:medium"),
    ("npm ci", "memory:medium"),
    ("pnpm run build", "memory:medium"),
    ("next build", "memory:medium"),
    ("go test ./...", "memory:medium"),
    ("(cd x; ninja)", "memory:medium"),
    ("cargo build --release", "memory:high"),
    ("cargo +nightly test", "memory:high"),
    ("timeout 10m cargo clippy", "memory:high"),
    ("./gradlew assemble", "memory:high"),
    ("docker build .", "memory:high"),
]
ORDINARY = [
    "grep -rn mcp-server .",
    "pip install mcp-server-git",
    "git clone https://example.org/foo-mcp",
    "cat foo-mcp",
    "python test_mcp.py",
    "clangd --version",
    "rust-analyzer --help",
    "ruff check .",
    "cat mypy.ini",
    "cat Makefile",
    'git commit -m "make it work"',
    "grep cargo README.md",
    "echo claude",
    "ls ~/.claude",
    "npm run lint",
    "node server.js",
    "git log --oneline",
]


@pytest.mark.parametrize("command", HELPERS)
def test_servers_that_the_agent_keeps_are_helpers(agent: Policy, command: str) -> None:
    rule = agent.rule_for(command)
    assert rule is not None and rule.as_ == "helper"


@pytest.mark.parametrize("command", AGENTS)
def test_an_agent_started_through_a_shell_stays_an_agent(agent: Policy, command: str) -> None:
    rule = agent.rule_for(command)
    assert rule is not None and rule.as_ == "agent"


@pytest.mark.parametrize(("command", "hint"), HEAVY)
def test_heavy_commands_have_a_hint(agent: Policy, command: str, hint: str) -> None:
    rule = agent.rule_for(command)
    assert rule is not None and (rule.hint, rule.as_) == (hint, None)


@pytest.mark.parametrize("command", ORDINARY)
def test_look_alikes_match_no_rule(agent: Policy, command: str) -> None:
    assert agent.rule_for(command) is None


@pytest.mark.parametrize("comm", ["make", "ninja", "cargo", "npm", "npm run build", "pytest", "pip"])
def test_build_drivers_are_known_by_their_process_name(agent: Policy, comm: str) -> None:
    assert agent.takes_exec(comm)


@pytest.mark.parametrize("comm", ["node", "bun", "python3", "claude", "codex", "java", "bash", "npmx"])
def test_what_may_be_an_agent_is_no_build_driver(agent: Policy, comm: str) -> None:
    assert not agent.takes_exec(comm)


HOSTILE = [
    "=",
    "= ",
    "npx ",
    "node ",
    "-mcp",
    "a",
    "a-",
    " ",
    "1s ",
    "\n ",
    "=a",
    "x/",
    "mcp_",
    "(;",
    "cargo +a ",
    "pytes",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_makes_the_rules_slow(agent: Policy, piece: str) -> None:
    """The text is the container's, the time the daemon's. 0.1 s is some ten times what the worst of these takes."""
    text = (piece * 4096)[:4096]
    best = min(_seconds(agent, prefix + text) for prefix in ("", "npx ", "node ", "exec ") for _ in range(2))
    assert best < 0.1


def _seconds(policy: Policy, text: str) -> float:
    start = time.process_time()
    policy.rule_for(text)
    return time.process_time() - start
