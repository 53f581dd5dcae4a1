"""What is kept of calls that are replayed: decisions, graphs, copies and buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from convexlift.solvers.copies import Copies, Mailbox, clones
from convexlift.solvers.kinds import builder, kind_of

Function = Callable[..., tuple[Any, Sequence[Tensor]]]
"""(both, *given) -> results, and (B,) numbers for the host."""
Outcome = tuple[Any, tuple[Tensor, ...]]
"""Results, and numbers on the host."""
Key = tuple[Function, Any, tuple[int | None, ...]]
"""A function, the kind of what it is given, and the addresses of buffers."""
Mirrors = Sequence[tuple[Tensor, Tensor]]
"""Tensors, and buffers that hold the same numbers until more work of the same solve is launched."""
RECORDINGS = 16
"""Functions, shapes and buffers that are remembered for problems of one kind."""
MOVES = 6
"""Sets of buffers that recordings for problems of one kind read; later ones are copied."""


@dataclass(frozen=True, eq=False)
class Pending:
    """A call that has been launched.

    Attributes:
        found: its results, unless its decisions turn out to be others.
        wait: waits for the numbers, and gives the outcome.
        mirrors: of tensors among its results, until the next call of the function.
    """

    found: Any
    wait: Callable[[], Outcome]
    mirrors: Mirrors = ()

    def __call__(self) -> Outcome:
        """Wait."""
        return self.wait()


class Changed(Exception):
    """A decision is another one than in the recording."""


class Recording:
    """The decisions of a function on tensors of some shapes, and its graph, once there is one."""

    def __init__(self, answers: list[bool], tries: int) -> None:
        self.answers, self.tries = answers, tries
        self.refusal = ""  # why there is no graph
        self.copies: Copies | None = None

    def take(
        self, copies: Copies, mailbox: Mailbox, compute: Callable[[], None], made: tuple[Any, int]
    ) -> None:
        """Keep a graph, and what replays need of its results.

        ``made``: these, and how many rows of numbers the graph sends. A tensor may be several parts
        of the results: the dual variables of the best bound, near x and everywhere. Buffers among
        them are not kept alive, since a replay is given them again.
        """
        found, self._numbers = made
        inputs, parts = copies.tensors, kind_of(found, mailbox.source)[1]
        known = {id(each): each for each in (*inputs, *parts)}
        positions = {name: position for position, name in enumerate(known)}
        self._own = list(known.values())[len(inputs) :]
        self._positions = [positions[id(part)] for part in parts]
        self._build = builder(found, mailbox.source)
        self.copies, self._mailbox, self._compute = copies, mailbox, compute
        copies.tensors = []

    @property
    def nbytes(self) -> int:
        """Bytes of what the call reads and returns; without those of the graph, about as many."""
        if self.copies is None:
            return 0
        return self.copies.nbytes + sum(tensor.nbytes for tensor in self._own)

    def play(self, tensors: list[Tensor]) -> Pending:
        """The results for these tensors; Changed if they would have other decisions."""
        assert self.copies is not None
        self._mailbox.empty()
        self.copies.fill(tensors)
        self._compute()
        letter, count = self._mailbox.expected(), self._numbers
        # Results that are inputs are handed back, and others copied: the next replay changes them.
        copied = clones(self._own)
        known = [*tensors, *copied]
        results = self._build(known[position] for position in self._positions)

        def waited() -> Outcome:
            found = letter.numbers
            end = len(found) - len(self.answers)
            if found[end:].tolist() != self.answers:
                raise Changed
            return results, found[:end].reshape(count, -1).unbind() if count else ()

        return Pending(results, waited, list(zip(copied, self._own, strict=True)))


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether a graph may read one in place of the other."""
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()


def addresses(buffers: Sequence[Tensor | None]) -> tuple[int | None, ...]:
    """Where the buffers are."""
    return tuple(None if held is None else held.data_ptr() for held in buffers)


class Workshop:
    """Copies of the tensors of a problem, and the recordings that read them.

    Attributes:
        opening: the first call of the last solve, a function and what it is given: no tensors.
    """

    def __init__(self) -> None:
        self.opening: tuple[Function, tuple[Any, ...]] | None = None
        self.problem: Copies | None = None
        self.recordings: dict[Key, Recording] = {}

    def known(self, key: Key) -> Recording | None:
        """The recording; a new one, if decisions are known from calls about other buffers."""
        if key not in self.recordings:
            others = [each for name, each in self.recordings.items() if name[:2] == key[:2]]
            if not others:
                return None
            self.keep(key, Recording(others[-1].answers, others[-1].tries))
        return self.recordings[key]

    def keep(self, key: Key, recording: Recording) -> None:
        """Remember a recording, in place of all others if there are too many."""
        if len(self.recordings) >= RECORDINGS:
            self.recordings.clear()
        self.recordings[key] = recording

    def buffers(self, tensors: list[Tensor], mirrors: Mirrors) -> list[Tensor | None]:
        """The buffers of these tensors; none once there are recordings of too many sets."""
        there = [
            next((held for given, held in mirrors if given is tensor and alike(given, held)), None)
            for tensor in tensors
        ]
        known = {key[2] for key in self.recordings if any(key[2])}
        if addresses(there) not in known and len(known) >= MOVES:
            return [None] * len(tensors)
        return there

    @property
    def nbytes(self) -> int:
        """Bytes of the problem and of all recordings."""
        problem = 0 if self.problem is None else self.problem.nbytes
        return problem + sum(each.nbytes for each in self.recordings.values())


class IdleWorkshops(dict[object, Workshop]):
    """Workshops to reuse, by kind.

    They do not belong to a network: ``problem.to(device=...)`` makes a new one each time.
    """

    def put(self, kind: object, workshop: Workshop, most: int) -> None:
        """Keep a workshop for later; the oldest ones are dropped beyond ``most`` bytes."""
        self[kind] = workshop
        while len(self) > 1 and sum(kept.nbytes for kept in list(self.values())) > most:
            self.pop(next(iter(self)), None)
