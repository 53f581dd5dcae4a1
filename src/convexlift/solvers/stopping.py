"""Stopping criteria."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StopWhen:
    """Stop an image as soon as one of these criteria holds.

    On ``CONVERGED``, objective - lower_bound <= gap |objective|.

    Args:
        gap: relative certified gap; None to run to a limit.
        max_iterations: limit on iterations; 0 only evaluates the start.
        seconds: limit on the time, or None.
        check_every: iterations between evaluations of objective and certificate. Small values
            give a fine history, large ones cost less.
    """

    gap: float | None = 1e-3
    max_iterations: int = 10_000
    seconds: float | None = None
    check_every: int = 10

    def __post_init__(self) -> None:
        if self.gap is not None and not self.gap >= 0:
            raise ValueError(f"gap must be nonnegative or None, got {self.gap}")
        if self.max_iterations < 0:
            raise ValueError(f"max_iterations must be at least 0, got {self.max_iterations}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be positive or None, got {self.seconds}")
        if self.check_every < 1:
            raise ValueError(f"check_every must be at least 1, got {self.check_every}")

    def until_check(self, iteration: int) -> int:
        """Number of iterations from this one to the next check."""
        return min(self.check_every - iteration % self.check_every, self.max_iterations - iteration)
