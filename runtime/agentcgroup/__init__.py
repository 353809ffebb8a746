"""agentcgroup: a cgroup for every tool call of an agent in a container."""

__version__ = "0.1.0"
