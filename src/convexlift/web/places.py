"""Places in Gradio's queue: how many events a visitor, and all of them, may have there."""

from __future__ import annotations

from typing import Any

from convexlift.web.limits import Limits
from convexlift.web.payloads import Refused

RUNS, SMALL = "runs", "small"
"""Groups of events: those that compute for long, and uploads and everything else."""
RUNS_EACH = 2
_SMALL_EACH, _SMALL_ALL = 16, 400


class Places:
    """The queue of a page, seen from outside.

    Args:
        blocks: Gradio's page.
        limits: how many runs may wait.
    """

    def __init__(self, blocks: Any, limits: Limits) -> None:
        self.blocks, self.limits = blocks, limits

    def require(self, event: object, visitor: str) -> None:
        """Refuse an event for which there is no place.

        Raises:
            Refused: with what to do.
        """
        waiting, active = self._events(self._group(event))
        mine = sum(e.session_hash.startswith(f"{visitor}-") for e in (*waiting, *active))
        if self._group(event) == RUNS:
            if mine >= RUNS_EACH:
                sentence = f"You have {mine} runs in the queue: wait for one to end, or press Stop."
                raise Refused(429, sentence)
            if len(waiting) >= self.limits.waiting:
                raise Refused(503, f"{len(waiting)} runs are waiting already: try again later.")
        elif mine >= _SMALL_EACH or len(waiting) >= _SMALL_ALL:
            raise Refused(429, "Too many requests are waiting: try again in a moment.")

    def _group(self, event: object) -> str:
        function = self.blocks.fns.get(event) if isinstance(event, int) else None
        return SMALL if function is None else str(function.concurrency_id)

    def _events(self, group: str) -> tuple[list[Any], list[Any]]:
        queue = self.blocks._queue  # there is no other way to see who waits
        line = queue.event_queue_per_concurrency_id.get(group)
        active = [e for job in queue.active_jobs if job is not None for e in job]
        return (
            [] if line is None else list(line.queue),
            [e for e in active if e.concurrency_id == group],
        )
