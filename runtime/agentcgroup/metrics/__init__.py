"""Figures for Prometheus, off unless agentcgroup.yaml says `metrics` (docs/metrics.md)."""
