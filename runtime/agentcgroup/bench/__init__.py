"""`agentcgroup bench`: agents' memory over time, replayed in real containers (docs/benchmarks.md)."""
