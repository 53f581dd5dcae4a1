"""What a method is: frozen options, which meet a problem and then step from state to state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from convexlift.problems.variational import VariationalProblem
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


StateT = TypeVar("StateT", bound=State)


class Solver(ABC, Generic[StateT]):
    """A method applied to one problem. Images of a batch do not influence each other."""

    @abstractmethod
    def start(self, x: Tensor) -> StateT:
        """The state from which to iterate, for initial images x."""

    @abstractmethod
    def resume(self, state: State) -> StateT | None:
        """The state to go on from, if ``state`` is of this method and problem, else None."""

    @abstractmethod
    def step(self, state: StateT) -> StateT:
        """One iteration; the old state stays as it is."""


class Method(ABC):
    """Options of an algorithm."""

    @abstractmethod
    def solver(self, problem: VariationalProblem) -> Solver[State]:
        """Prepare for one problem; raises ValueError where the method does not apply."""
