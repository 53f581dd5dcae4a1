"""Numbers for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

SMALLEST = 2.0**-40


def floats(low: float, high: float, width: int = 64) -> st.SearchStrategy[float]:
    """Numbers between two ends, zero among them, but none so small that products are subnormal.

    Processors may flush subnormal numbers to zero, and differ in when they do.
    """
    drawn = st.floats(low, high, width=width, allow_subnormal=False)
    return drawn.map(lambda number: number if abs(number) >= SMALLEST else 0.0)
