"""Decisions that a computation takes from its numbers, such as "is any pixel unbounded?".

On a GPU, each of them waits for the device. A computation that is replayed (``solvers.replays``)
takes them as it did before, and hands out their flags, which tell afterwards whether it still may.
"""

from __future__ import annotations

import threading
from types import TracebackType

from torch import Tensor

_CURRENT = threading.local()


def decided(flag: Tensor) -> bool:
    """Whether a flag, a tensor with one entry, is true."""
    decisions: Decisions | None = getattr(_CURRENT, "decisions", None)
    return bool(flag) if decisions is None else decisions.take(flag)


class Decisions:
    """The answers of one computation, in order: recorded, or taken from an earlier recording.

    As a context, it applies to the calls of ``decided`` inside, in this thread. ``flags`` are those
    that were not looked at.
    """

    def __init__(self, known: list[bool] | None = None) -> None:
        self.answers: list[bool] = [] if known is None else known
        self.flags: list[Tensor] = []
        self._known = known is not None
        self._outer: Decisions | None = None

    def take(self, flag: Tensor) -> bool:
        """The next answer."""
        if not self._known:
            self.answers.append(bool(flag))
            return self.answers[-1]
        self.flags.append(flag)
        return self.answers[len(self.flags) - 1]

    def __enter__(self) -> Decisions:
        self._outer = getattr(_CURRENT, "decisions", None)
        _CURRENT.decisions = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CURRENT.decisions = self._outer
