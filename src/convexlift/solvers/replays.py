"""Checks and claims on a GPU, replayed as CUDA graphs.

A check takes hundreds of launches, and each costs Python more than it costs the device. The first
call of a function is an ordinary one, in which decisions (``decisions``) are recorded. The second
is captured on copies of all its tensors, those of the problem included; later calls, also about
other problems of the same kind, copy their tensors in and replay. Flags of the decisions come back
with the numbers: where one differs, the result is thrown away and the call is an ordinary one.

Before a capture there is a rehearsal, in which an operation that the host would have to wait for,
or a tensor that is not one of the copies, is an error. So a graph reads nothing but what the call
gave it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from convexlift.decisions import Decisions
from convexlift.kernels.availability import current
from convexlift.problems.claims import InBoth
from convexlift.side_streams import beside
from convexlift.solvers.copies import Copies, Mailbox, clones
from convexlift.solvers.kinds import Unfit, builder, kind_of, rebuilt
from convexlift.solvers.rehearsal import Rehearsal

Function = Callable[..., tuple[Any, Sequence[Tensor]]]
"""(both, *given) -> results, and (B,) numbers for the host."""
Outcome = tuple[Any, tuple[Tensor, ...]]
"""Results, and numbers on the host."""
SHARE = 512
"""Tensors of a call are copied if they take at most this part of the device's memory."""
KEPT = 128
"""Copies that are kept for later problems take at most this part of it."""
TRIES = 3
"""Captures of a function whose decisions differ from call to call."""
RECORDINGS = 8
"""Functions and shapes that are remembered for problems of one kind."""


@dataclass(frozen=True, eq=False)
class Pending:
    """A call that has been launched.

    Attributes:
        found: its results, unless its decisions turn out to be others.
        wait: waits for the numbers, and gives the outcome.
    """

    found: Any
    wait: Callable[[], Outcome]

    def __call__(self) -> Outcome:
        """Wait."""
        return self.wait()


class CudaGraphs:
    """Captures launches; not again after a few captures that failed, which may leave traces."""

    def __init__(self) -> None:
        self.failures = 0

    def room(self, device: torch.device) -> int:
        """Bytes of memory, 0 where nothing can be captured."""
        if (
            self.failures >= TRIES
            or device.type != "cuda"
            or torch.cuda.is_current_stream_capturing()
        ):
            return 0
        return int(torch.cuda.get_device_properties(device).total_memory)

    def stream(self, device: torch.device) -> Hashable:
        """The stream on which calls must follow one another."""
        return torch.cuda.current_stream(device).cuda_stream

    def beside(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """A context for work that does not wait for launches after this call."""
        return beside(device)

    def capture(self, launch: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """The results of launches, and a function that computes them anew, in place."""
        try:
            graph, results = captured(launch)
        except BaseException:
            self.failures += 1
            raise
        return results, graph.replay


GRAPHS: CudaGraphs | None = CudaGraphs()
"""None: every call is an ordinary one."""


def captured(launch: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of launches, and what ``launch`` returned."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Other threads may use CUDA during the capture.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = launch()
        except BaseException:
            # Report the first error, not another one, nor a warning that the graph is empty.
            with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, results


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
                self.both.problem.regularizer.check_convexity()
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

    def launched(self, function: Function, *given: Any) -> Pending:
        """The same, without waiting for the numbers; ``given`` must not change until then."""
        with current(self._device), contextlib.suppress(Unfit):
            if self._workshop is not None and self.replays:
                return self._replayed(self._workshop, function, given)
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

    def _replayed(self, workshop: Workshop, function: Function, given: tuple[Any, ...]) -> Pending:
        words, tensors = kind_of(given, self._device)
        key = function, words
        known = workshop.recordings.get(key)
        if known is None:
            return self._recorded(workshop, key, 1, given)
        if known.tries > TRIES:
            raise Unfit("captured in vain")
        if known.copies is None:
            try:
                self._capture(workshop, known, function, given, tensors)
            except Exception as error:  # whatever it is, the ordinary call comes next
                known.tries, known.refusal = TRIES + 1, repr(error)
                raise Unfit(known.refusal) from error
        if not self._filled:  # once: nothing changes a problem while it is being solved
            assert workshop.problem is not None
            workshop.problem.fill(self._tensors)
            self._filled = True
        played, tries = known.play(tensors), known.tries + 1

        def waited() -> Outcome:
            with contextlib.suppress(_Changed):
                return played()
            return self._recorded(workshop, key, tries, given)()

        return Pending(played.found, waited)

    def _recorded(
        self, workshop: Workshop, key: tuple[Function, Any], tries: int, given: tuple[Any, ...]
    ) -> Pending:
        """An ordinary call, whose decisions are recorded."""
        with Decisions() as decisions:
            found, numbers = key[0](self.both, *given)
        if len(workshop.recordings) >= RECORDINGS:
            workshop.recordings.clear()
        workshop.recordings[key] = Recording(decisions.answers, tries)
        return Pending(found, lambda: (found, on_the_host(*numbers)))

    def _capture(
        self,
        workshop: Workshop,
        known: Recording,
        function: Function,
        given: tuple[Any, ...],
        tensors: list[Tensor],
    ) -> None:
        """Copy all tensors, rehearse and capture."""
        assert GRAPHS is not None
        if sum(tensor.nbytes for tensor in (*tensors, *self._tensors)) > self._room // SHARE:
            raise Unfit("too large")
        if workshop.problem is None:
            workshop.problem = Copies(self._tensors)
        held, copies, device = workshop.problem, Copies(tensors), self._device
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

        known.outcome, known.compute = GRAPHS.capture(launch_and_send)
        known.copies, known.mailbox = copies, mailbox


class Workshop:
    """Copies of the tensors of a problem, and the recordings that read them.

    Attributes:
        opening: the first call of the last solve, a function and what it is given: no tensors.
    """

    def __init__(self) -> None:
        self.opening: tuple[Function, tuple[Any, ...]] | None = None
        self.problem: Copies | None = None
        self.recordings: dict[Hashable, Recording] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all copies, without what graphs need beside them."""
        copies = [self.problem, *(each.copies for each in self.recordings.values())]
        return sum(each.nbytes for each in copies if each is not None)


class IdleWorkshops(dict[object, Workshop]):
    """Workshops to reuse, by kind.

    They do not belong to a network: ``problem.to(device=...)`` makes a new one each time.
    """

    def put(self, kind: object, workshop: Workshop, most: int) -> None:
        """Keep a workshop for later; the oldest ones are dropped beyond ``most`` bytes."""
        self[kind] = workshop
        while len(self) > 1 and sum(kept.nbytes for kept in list(self.values())) > most:
            self.pop(next(iter(self)), None)


IDLE = IdleWorkshops()
"""``IDLE.clear()`` frees the memory of all of them."""


class _Changed(Exception):
    """A decision is another one than in the recording."""


class Recording:
    """The decisions of a function on tensors of some shapes, and its graph, once there is one."""

    def __init__(self, answers: list[bool], tries: int) -> None:
        self.answers, self.tries = answers, tries
        self.refusal = ""  # why there is no graph
        self.copies: Copies | None = None
        self.outcome: tuple[Any, int]
        self.compute: Callable[[], None]
        self.mailbox: Mailbox

    @cached_property
    def _found(self) -> tuple[list[Tensor], list[int], Callable[[Iterator[Tensor]], Any]]:
        """The tensors of the results that are no inputs; where each part is, and what takes them.

        A tensor may be several parts: the dual variables of the best bound, here and everywhere.
        """
        assert self.copies is not None
        found, device = self.outcome[0], self.mailbox.source
        inputs, parts = self.copies.tensors, kind_of(found, device)[1]
        known = {id(each): each for each in (*inputs, *parts)}
        places = {name: place for place, name in enumerate(known)}
        own = list(known.values())[len(inputs) :]
        return own, [places[id(part)] for part in parts], builder(found, device)

    def play(self, tensors: list[Tensor]) -> Pending:
        """The results for these tensors; _Changed if they would have other decisions."""
        assert self.copies is not None
        self.mailbox.empty()
        self.copies.fill(tensors)
        self.compute()
        letter = self.mailbox.expected()
        count = self.outcome[1]
        own, places, made = self._found
        # Results that are inputs are handed back, and others copied: the next replay changes them.
        known = [*tensors, *clones(own)]
        results = made(known[place] for place in places)

        def waited() -> Outcome:
            found = letter.numbers
            end = len(found) - len(self.answers)
            if found[end:].tolist() != self.answers:
                raise _Changed
            return results, found[:end].reshape(count, -1).unbind() if count else ()

        return Pending(results, waited)


def on_the_host(*numbers: Tensor) -> tuple[Tensor, ...]:
    """Several (B,) tensors in double precision, in one transfer."""
    together = [number.to(torch.float64) for number in numbers]
    return torch.stack(together).cpu().unbind() if together else ()
