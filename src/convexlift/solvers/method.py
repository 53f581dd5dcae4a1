"""What a method is: frozen options, which meet a problem and then step from state to state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from convexlift.problems.variational import Evaluation, VariationalProblem
from convexlift.tensors import Blocks


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


StateT = TypeVar("StateT", bound=State)


class Solver(ABC, Generic[StateT]):
    """A method applied to one problem. Images of a batch do not influence each other."""

    @property
    def block(self) -> int:
        """How many iterations are best done at once, with ``advance``."""
        return 1

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What was decided for this problem, for ``explain``."""
        return ()

    @abstractmethod
    def start(self, x: Tensor) -> StateT:
        """The state from which to iterate, for initial images x."""

    @abstractmethod
    def resume(self, state: State) -> StateT | None:
        """The state to go on from, if ``state`` is of this method or has duals that fit."""

    @abstractmethod
    def step(self, state: StateT) -> StateT:
        """One iteration; the old state stays as it is."""

    def advance(self, state: StateT, iterations: int) -> StateT:
        """Several iterations without intermediate checks."""
        for _ in range(iterations):
            state = self.step(state)
        return state

    def reconsider(self, state: StateT, evaluation: Evaluation) -> StateT:
        """Called at every check with what the objective is at the images of ``state``."""
        return state


class Method(ABC):
    """Options of an algorithm."""

    @abstractmethod
    def solver(self, problem: VariationalProblem) -> Solver[State]:
        """Prepare for one problem; raises ValueError where the method does not apply."""
