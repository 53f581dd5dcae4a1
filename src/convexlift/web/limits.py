"""Limits on uploads, runs and visitors, and errors that the page shows to its visitors."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEGABYTE = 1 << 20
SCALABLE = 24
"""Pictures with up to this many times the pixels of the limit are scaled down."""
PREVIEW_PIXELS = 512 * 512
"""The most pixels of a picture scaled down or cut: its run takes a minute, not an hour."""
LEAST_SIDE = 16
"""The least side in pixels: filters are 7 x 7."""


class PageError(Exception):
    """An error that the visitor can correct: a sentence that names it, and a hint."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(f"{sentence} {hint}")
        self.sentence, self.hint = sentence, hint


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on uploads, runs and visitors.

    Args:
        upload_bytes: size of the largest file.
        pixels: height times width of the largest picture that is solved at once. Uploads with up to
            ``SCALABLE`` times as many, checked before decoding, are scaled down, cut, or solved in
            tiles.
        seconds: time limit of a run, which then ends with its latest image and the proof for it.
            Larger pictures have more time, in proportion to their pixels.
        runs: number of simultaneous runs.
        waiting: number of runs that may wait for their turn.
        sessions: number of sessions kept; the one idle for longest is closed first, and none whose
            events still wait or run.
        idle_seconds: a session without events for this long is closed, and its files deleted.
    """

    upload_bytes: int = 16 * MEGABYTE
    pixels: int = 1024 * 1024
    seconds: float = 120.0
    runs: int = 2
    waiting: int = 16
    sessions: int = 50
    idle_seconds: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("upload_bytes", "runs", "waiting", "sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pixels < LEAST_SIDE**2:
            raise ValueError(f"pixels must be at least {LEAST_SIDE**2}, got {self.pixels}")
        for name in ("seconds", "idle_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    def seconds_for(self, height: int, width: int) -> float:
        """The time limit for a picture."""
        return self.seconds * max(1.0, height * width / self.pixels)

    def check_bytes(self, count: int, name: str) -> None:
        """Raise PageError for a file that is too large."""
        if count > self.upload_bytes:
            raise PageError(
                f"{name} has {count / MEGABYTE:.1f} MB.",
                f"The limit is {self.upload_bytes / MEGABYTE:.3g} MB: make it smaller.",
            )

    def check_size(self, height: int, width: int, name: str) -> None:
        """Raise PageError for a picture with too many pixels, or too few."""
        if height * width > self.pixels:
            raise PageError(
                f"{name} has {width} x {height} pixels.",
                f"The limit is {self.pixels:,} pixels: scale it down, or crop it.",
            )
        self.check_least(height, width, name)

    def check_least(self, height: int, width: int, name: str) -> None:
        """Raise PageError for a picture with too few pixels."""
        if min(height, width) < LEAST_SIDE:
            raise PageError(
                f"{name} has {width} x {height} pixels.",
                f"Each side needs at least {LEAST_SIDE}.",
            )
