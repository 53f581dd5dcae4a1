"""Methods: frozen options that are applied to a problem and then step from state to state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from convexlift.problems.claims import InBoth
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.recordings import Mirrors
from convexlift.solvers.replays import Replays
from convexlift.tensors import Blocks, choose_images


class State(Protocol):
    """The iterate of a method: a dataclass of tensors with a batch dimension."""

    @property
    def x(self) -> Tensor:
        """The current images."""
        ...

    @property
    def duals(self) -> Blocks | None:
        """Dual variables for the certificate, or None."""
        ...


@dataclass(frozen=True)
class Choice:
    """A decision about how to solve a problem, and the reason for it."""

    about: str
    chosen: str
    why: str


class DoesNotApply(Exception):
    """An implementation cannot be used for a problem; the message says why."""


StateT = TypeVar("StateT", bound=State)


class Solver(ABC, Generic[StateT]):
    """A method applied to one problem. Images of a batch do not influence each other."""

    @property
    def block(self) -> int:
        """Preferred number of iterations per call of ``advance``."""
        return 1

    @property
    def wary(self) -> bool:
        """Whether ``in_double`` is to be asked before a gap stalls."""
        return False

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The decisions made for this problem, for ``explain``."""
        return ()

    @abstractmethod
    def start(self, x: Tensor) -> StateT:
        """The state from which to iterate, for initial images x."""

    def first(self, calls: Replays) -> StateT:
        """The state from which to iterate, at the initial image of the problem."""
        return self.start(calls(guessed)[0])

    def settled(self, state: StateT) -> StateT:
        """The ``first`` state, once a GPU has decided about it: this one, as a rule."""
        return state

    @abstractmethod
    def resume(self, state: State) -> StateT | None:
        """The state to continue from, or None if ``state`` neither fits nor has duals that fit."""

    @abstractmethod
    def step(self, state: StateT) -> StateT:
        """One iteration; the old state is not modified."""

    def advance(self, state: StateT, iterations: int, active: Tensor | None = None) -> StateT:
        """Several iterations without intermediate checks.

        Images that are not ``active`` (B,), on the CPU, keep their state.
        """
        after = state
        for _ in range(iterations):
            after = self.step(after)
        if active is not None:
            after = choose_images(active, after, state)
        return after

    @property
    def mirrors(self) -> Mirrors:
        """Buffers that hold tensors of the last state until the next iterations."""
        return ()

    def provable(self, state: StateT) -> list[bool]:
        """Images for which ``proving`` is worth trying."""
        return [False] * len(state.x)

    def proving(self, state: StateT, iterations: int, images: Tensor, active: Tensor) -> StateT:
        """As ``advance``, but some ``images`` keep theirs and get better dual variables for them.

        Iterations that follow continue from the state before this round. ``images`` are active.
        Where none is ``provable``, this is ``advance``.
        """
        return self.advance(state, iterations, active)

    def runs_ahead(self, state: StateT) -> bool:
        """Whether ``advance`` only launches its iterations, and this state stays as it is."""
        return False

    def reconsider(self, state: StateT, saturated: Tensor | None) -> StateT:
        """Adapt the state at a check, which found out about the last of several layers.

        ``saturated``: whether all its units have their steepest slope at the images, (B,).
        """
        return state

    def finished(self, state: StateT) -> StateT:
        """The state of a solution, without tensors that only its own iterations need."""
        return state

    def more_precise(self, state: StateT) -> tuple[Solver[Any], State] | None:
        """A solver that rounds less, with its state, for images that rounding keeps from a gap.

        None where there is no such solver, or where rounding does not matter.
        """
        return None


def guessed(both: InBoth) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The initial image; no numbers."""
    return both.problem.initial_image(), ()


class Method(ABC):
    """Options of an algorithm."""

    @property
    def tuned(self) -> str:
        """The numbers that a user has to choose, in words."""
        return "nothing to tune"

    @abstractmethod
    def solver(self, problem: VariationalProblem) -> Solver[Any]:
        """A solver for one problem; raises ValueError if the method does not apply."""
