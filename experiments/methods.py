"""The methods of the experiments, with labels, and a family that sets the colour in figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import convexlift as cl
from experiments.paper import PaperInpainting
from experiments.runner.parts import Parts

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Competitor:
    """A method as it appears in figures and tables."""

    key: str  # names its parts
    family: str  # its colour, a key of ``figures.STYLES``
    label: str  # for people
    method: cl.Method  # with its step sizes
    # whether it starts where ``cl.solve`` does by itself, rather than from the data as in the
    # paper
    own_start: bool = False
    printed: bool = True  # whether its step sizes are the paper's

    @property
    def parameters(self) -> Numbers:
        """The chosen step sizes, or (c_1, ..., c_L); empty for a method without."""
        if isinstance(self.method, cl.PDHG) and isinstance(self.method.steps, cl.PaperSteps):
            return self.method.steps.c
        if isinstance(self.method, cl.Subgradient | cl.NMAPG):
            return (self.method.step,)
        return ()


@dataclass(frozen=True)
class Chosen:
    """A competitor whose step sizes follow from earlier parts."""

    key: str  # names its parts
    label: str  # for people
    choose: Callable[[Parts], Competitor]  # the competitor, from the parts of ``needs``
    needs: tuple[str, ...]  # full names of those parts


def proposed(c: Sequence[float]) -> Competitor:
    """The paper's PDHG with its parameters c."""
    return Competitor("proposed", "paper", "Proposed", cl.PDHG(steps=cl.PaperSteps(tuple(c))))


def constant(step: float, *, printed: bool = True) -> Competitor:
    """SM-C."""
    method = cl.Subgradient(step)
    return Competitor(f"sm-c-{step:g}", "sm-c", f"SM-C, {step:g}", method, printed=printed)


def diminishing(step: float, *, printed: bool = True) -> Competitor:
    """SM-D."""
    method = cl.Subgradient(step, diminishing=True)
    return Competitor(f"sm-d-{step:g}", "sm-d", f"SM-D, {step:g}", method, printed=printed)


DEFAULT = Competitor("default", "default", "Our default", cl.PDHG(), own_start=True)
"""``cl.solve(problem)``: nothing to tune, and a start of its own."""
DEFAULT_SAME_START = Competitor(
    "default-same-start", "default", "Our default, same start", cl.PDHG()
)
L_BFGS = Competitor("lbfgs", "lbfgs", "L-BFGS", cl.LBFGS())


def papers_four(values: PaperInpainting) -> list[Competitor]:
    """The methods of section 5.3, with its step sizes."""
    return [
        proposed(values.c),
        constant(values.sm_c),
        diminishing(values.sm_d),
        Competitor("nmapg", "nmapg", "NMAPG", cl.NMAPG(step=values.nmapg)),
    ]
