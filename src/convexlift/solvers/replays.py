"""Checks and claims on a GPU, replayed as CUDA graphs.

A check takes hundreds of launches, and each costs Python more than it costs the device. The first
call of a function is an ordinary one, in which decisions (``decisions``) are recorded. The second
is captured on copies of all its tensors, those of the problem included; later calls, also about
other problems of the same kind, copy their tensors in and replay. Flags of the decisions come back
with the numbers: where one differs, the result is thrown away and the call is an ordinary one.

Before a capture there is a rehearsal, in which an operation that the host would have to wait for,
or a tensor that is not one of the copies, is an error. So a graph reads nothing but what the call
gave it. Tensors that are copies of buffers with fixed addresses, and have ``mirrors`` there, are
not copied again: the graph reads the buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from convexlift.decisions import Decisions
from convexlift.kernels.availability import current
from convexlift.problems.claims import InBoth
from convexlift.solvers.copies import Copies, Mailbox
from convexlift.solvers.cuda_graphs import TRIES, CudaGraphs
from convexlift.solvers.kinds import Unfit, kind_of, rebuilt
from convexlift.solvers.recordings import (
    Changed,
    Function,
    IdleWorkshops,
    Key,
    Mirrors,
    Outcome,
    Pending,
    Recording,
    Workshop,
    addresses,
)
from convexlift.solvers.rehearsal import Rehearsal

SHARE = 512
"""Calls are captured if their tensors take at most this part of the device's memory."""
KEPT = 128
"""Recordings that are kept for later problems take at most this part of it, beside their graphs."""
GRAPHS: CudaGraphs | None = CudaGraphs()
"""None: every call is an ordinary one."""


class Replays:
    """Calls about one problem: f(both, *given) -> (results, numbers on the host)."""

    def __init__(self, both: InBoth) -> None:
        self.both, self._workshop, self._filled = both, None, False
        self._opened: tuple[tuple[Any, ...], Pending] | None = None
        self._device = both.problem.fidelity.y.device
        self._room = 0 if GRAPHS is None else GRAPHS.room(self._device)
        if GRAPHS is None or not self._room:
            return
        try:
            words, self._tensors = kind_of(both.problem, self._device)
        except Unfit:
            return
        modes = (torch.get_default_dtype(), torch.is_inference_mode_enabled(),
                 torch.are_deterministic_algorithms_enabled())  # fmt: skip
        self._kind = words, modes, GRAPHS.stream(self._device)
        self._workshop = IDLE.pop(self._kind, None) or Workshop()  # now owned by this object

    def __enter__(self) -> Replays:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    @contextlib.contextmanager
    def opened(self, *, launch: bool) -> Iterator[None]:
        """Perhaps launch what the last solve of this kind began with, so that a GPU works at once.

        What is computed in the context does not wait for it.
        """
        context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if launch and self._workshop is not None and self.replays and self._workshop.opening:
            function, given = self._workshop.opening
            if (name := self._named(function, given)) is not None:
                assert GRAPHS is not None
                context = GRAPHS.beside(self._device)
                self._opened = name, self.launched(function, *given)
        try:
            with context:
                yield
        except Exception:
            if self.is_open:  # the reason, if its flag has not been looked at
                self.both.problem.require_sound_numbers()
            raise

    @property
    def is_open(self) -> bool:
        """Whether a call has been launched that nobody has asked for so far."""
        return self._opened is not None

    def first(self, function: Function, *given: Any) -> Pending:
        """As ``launched``, for the first call of a solve: it may have been launched already."""
        (opened, self._opened), name = (self._opened, None), self._named(function, given)
        if opened is not None and opened[0] == name:
            return opened[1]
        if self._workshop is not None:
            self._workshop.opening = None if name is None else (function, given)
        return self.launched(function, *given)

    def _named(self, function: Function, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What tells calls apart that are given no tensors; None for others."""
        with contextlib.suppress(Unfit):
            words, tensors = kind_of(given, self._device)
            if not tensors:
                return function, words
        return None

    def __call__(self, function: Function, *given: Any) -> Outcome:
        """Compute, capture or replay."""
        return self.launched(function, *given)()

    def launched(self, function: Function, *given: Any, mirrors: Mirrors = ()) -> Pending:
        """The same, without waiting for the numbers; ``given`` must not change until then."""
        with current(self._device), contextlib.suppress(Unfit):
            if self._workshop is not None and self.replays:
                return self._replayed(self._workshop, function, given, mirrors)
        found, numbers = function(self.both, *given)
        return Pending(found, lambda: (found, on_the_host(*numbers)))

    @property
    def replays(self) -> bool:
        """Whether calls may be replayed."""
        return self._workshop is not None and not torch.is_grad_enabled()

    def release(self) -> None:
        """Leave the copies and graphs to later problems; later calls are ordinary ones."""
        if self._workshop is not None:
            if self._opened is not None:  # in vain
                self._workshop.opening = None
            IDLE.put(self._kind, self._workshop, self._room // KEPT)
        self._workshop = None

    def _replayed(
        self, workshop: Workshop, function: Function, given: tuple[Any, ...], mirrors: Mirrors
    ) -> Pending:
        words, tensors = kind_of(given, self._device)
        buffers = workshop.buffers(tensors, mirrors)
        key = function, words, addresses(buffers)
        known = workshop.known(key)
        if known is None:
            return self._recorded(workshop, key, 1, given)
        if known.tries > TRIES:
            raise Unfit("captured in vain")
        if known.copies is None:
            try:
                self._capture(workshop, known, function, given, tensors, buffers)
            except Exception as error:  # whatever it is, the ordinary call comes next
                known.tries, known.refusal = TRIES + 1, repr(error)
                raise Unfit(known.refusal) from error
        if not self._filled:  # once: nothing changes a problem while it is being solved
            assert workshop.problem is not None
            workshop.problem.fill(self._tensors)
            self._filled = True
        played, tries = known.play(tensors), known.tries + 1

        def waited() -> Outcome:
            with contextlib.suppress(Changed):
                return played()
            return self._recorded(workshop, key, tries, given)()

        return Pending(played.found, waited, played.mirrors)

    def _recorded(
        self, workshop: Workshop, key: Key, tries: int, given: tuple[Any, ...]
    ) -> Pending:
        """An ordinary call, whose decisions are recorded."""
        with Decisions() as decisions:
            found, numbers = key[0](self.both, *given)
        workshop.keep(key, Recording(decisions.answers, tries))
        return Pending(found, lambda: (found, on_the_host(*numbers)))

    def _capture(
        self,
        workshop: Workshop,
        known: Recording,
        function: Function,
        given: tuple[Any, ...],
        tensors: list[Tensor],
        buffers: list[Tensor | None],
    ) -> None:
        """Copy all tensors that have no buffers, rehearse and capture."""
        assert GRAPHS is not None
        if sum(tensor.nbytes for tensor in (*tensors, *self._tensors)) > self._room // SHARE:
            raise Unfit("too large")
        if workshop.problem is None:
            workshop.problem = Copies(self._tensors)
        held, copies, device = workshop.problem, Copies(tensors, buffers), self._device
        placed = rebuilt(given, iter(copies.tensors), device)
        twin = rebuilt(self.both.problem, iter(held.tensors), device)

        def launch() -> tuple[Any, int, Tensor]:
            both = InBoth(rebuilt(twin, iter(held.tensors), device))  # nothing cached
            with Decisions(known.answers) as decisions:
                found, numbers = function(both, *placed)
            if len(decisions.flags) < len(known.answers):
                raise Unfit("other decisions")
            rows = [number.to(torch.float64) for number in numbers]
            flags = [torch.stack(decisions.flags).to(torch.float64)] if decisions.flags else []
            none = held.tensors[0].new_empty(0, dtype=torch.float64)
            return found, len(numbers), torch.cat([none, *rows, *flags])

        with Rehearsal([*held.tensors, *copies.tensors]):
            _, _, together = launch()
        mailbox = Mailbox(together)

        def launch_and_send() -> tuple[Any, int]:
            found, count, together = launch()
            mailbox.send(together)
            return found, count

        made, compute = GRAPHS.capture(launch_and_send)
        known.take(copies, mailbox, compute, made)


IDLE = IdleWorkshops()
"""``IDLE.clear()`` frees the memory of all of them."""


def on_the_host(*numbers: Tensor) -> tuple[Tensor, ...]:
    """Several (B,) tensors in double precision, in one transfer."""
    together = [number.to(torch.float64) for number in numbers]
    return torch.stack(together).cpu().unbind() if together else ()
