"""How gaps shrink, and what follows from it: wait, expect the end, or try for a proof.

Decisions about the round after a check use the numbers of earlier checks only, so that a GPU need
not wait for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from convexlift.solvers.best import Mask, Numbers

USUAL = 0.1
"""How much a gap shrinks from check to check, as long as nothing is known (measured)."""
SLOWING = 0.8
"""A gap that the last round shrank by a factor p shrinks by p^0.8 in the next one (measured)."""
PATIENCE, PROGRESS = 3, 0.5
"""A gap that is larger than PROGRESS times that PATIENCE checks ago has stalled (measured)."""
LEFT, LEFT_OF_LAYERS = 0.1, 1.2
"""The part of a gap that an attempt leaves, and the multiple of what is not in data (measured)."""
MARGIN = 1.05
"""Attempts should end below the tolerance by this factor."""
MANY = 5
"""Rounds to go, as far as can be told, from which an attempt is made to see what it leaves."""
FIRST = 5
"""Checks before the first such attempt; later ones come after half as many again."""
HALF = 0.6
"""With one layer, an attempt that leaves more than this is not made to see what it leaves."""


@dataclass
class Course:
    """What is known about one image.

    Attributes:
        several: whether there are several layers: nothing is known about attempts there.
        gaps: the least so far, at each check of an ordinary round.
        left: the part of the gap that an attempt leaves: the last one did, or would be expected to.
        due: checks after which an attempt is made in any case, if many rounds are to go.
        trying: whether the round to be noted next is an attempt.
        tried: whether there was an attempt.
    """

    several: bool = False
    gaps: list[float] = field(default_factory=list)
    left: float = 1.0
    due: int = FIRST
    trying: bool = False
    tried: bool = False

    def note(self, gap: float, in_data: float = 1.0) -> None:
        """Take over the gap of a check, and the part of it that is in the data."""
        least = self.gaps[-1] if self.gaps else math.inf
        if self.trying:
            self.left, self.due = min(gap / least, 1.0), len(self.gaps) * 3 // 2
            self.tried = True
            return
        self.gaps.append(gap if gap < least else least)  # the latter for NaN
        if not self.tried:
            self.left = LEFT + LEFT_OF_LAYERS * (1 - in_data)

    @property
    def pace(self) -> float:
        """How much the last round shrank the gap."""
        if len(self.gaps) < 2:
            return USUAL
        before = self.gaps[-2]
        return self.gaps[-1] / before if 0 < before < math.inf else 1.0

    def expected(self) -> float:
        """The gap at the next check."""
        return self.gaps[-1] * (self.left if self.trying else self.pace**SLOWING)

    def is_worth_trying(self, tolerance: float) -> bool:
        """Whether the round after the next check should be an attempt."""
        if self.trying or len(self.gaps) < 2 or not 0 < self.gaps[-1] < math.inf:
            return False
        gap, pace = self.expected(), self.pace
        if gap * pace**SLOWING**2 <= tolerance:
            return False  # an ordinary round will do
        if MARGIN * self.left * gap <= tolerance:
            return True
        if len(self.gaps) < self.due or (self.left > HALF and not self.several):
            return False
        return math.log(tolerance / gap) / math.log(min(pace, 0.99)) >= MANY

    @property
    def has_stalled(self) -> bool:
        """Whether the gap has not halved in the last checks."""
        return len(self.gaps) > PATIENCE and self.gaps[-1] > PROGRESS * self.gaps[-1 - PATIENCE]


class Forecast:
    """The courses of all images of a batch; without a tolerance, nothing is expected."""

    def __init__(self, batch: int, tolerance: float | None, *, several: bool = False) -> None:
        self._tolerance = tolerance
        self.courses = [Course(several) for _ in range(batch)]
        self._next: Mask = [False] * batch

    def note(self, objective: Numbers, gaps: Numbers, in_data: Numbers) -> None:
        """Take over absolute gaps of a check, which its own dual variables prove, and parts."""
        rows = zip(self.courses, objective, gaps, in_data, self._next, strict=True)
        for course, J, gap, part, trying in rows:
            course.note(gap / abs(J) if J else math.inf, part / gap if gap > 0 else 1.0)
            course.trying = trying

    def worth_trying(self, running: Mask) -> Mask:
        """The images whose round after the check to be noted next should be an attempt."""
        tolerance = self._tolerance or 0.0
        pairs = zip(running, self.courses, strict=True)
        return [on and tolerance > 0 and c.is_worth_trying(tolerance) for on, c in pairs]

    def announce(self, attempts: Mask) -> None:
        """The images whose round after that check is an attempt."""
        self._next = attempts

    def forget_attempts(self) -> None:
        """Estimate anew what attempts leave: earlier ones had more rounding."""
        for course in self.courses:
            course.tried = False

    def expects_more(self, running: Mask) -> bool:
        """Whether no image is expected to converge at the next check."""
        if self._tolerance is None:
            return True
        courses = (c for on, c in zip(running, self.courses, strict=True) if on and c.gaps)
        return not any(c.expected() <= self._tolerance for c in courses)

    def stalled(self, running: Mask) -> Mask:
        """A mask of the running images whose gap has not halved in the last checks."""
        if self._tolerance is None:
            return [False] * len(self.courses)
        return [on and c.has_stalled for on, c in zip(running, self.courses, strict=True)]

    def doubtful(self, running: Mask, *, wary: bool) -> bool:
        """Whether some gap below 1 has stalled, or need not have if ``wary``."""
        if self._tolerance is None:
            return False
        slow = running if wary else self.stalled(running)
        return any(here and c.gaps[-1] < 1 for here, c in zip(slow, self.courses, strict=True))
