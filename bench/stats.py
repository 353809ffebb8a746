"""Figures of a benchmark: the median with its 95 % interval, for measurements that are not normally distributed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median from order statistics (binomial, normal approximation)."""
    ordered, n = sorted(values), len(values)
    spread = 1.96 * math.sqrt(n) / 2
    low, high = math.floor(n / 2 - spread), math.ceil(n / 2 + spread)
    return ordered[max(low, 0)], ordered[min(high, n - 1)]


def summary(values: Sequence[float], unit: str) -> str:
    """`p50 1.23 ms [1.20, 1.27], n 100`."""
    low, high = interval(values)
    return f"p50 {statistics.median(values):.3f} {unit} [{low:.3f}, {high:.3f}], n {len(values)}"
