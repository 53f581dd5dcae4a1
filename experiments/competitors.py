"""Who is compared: methods with their labels, and the colour of each family in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convexlift.solvers.lbfgs import LBFGS
from convexlift.solvers.method import Method
from convexlift.solvers.nmapg import NMAPG
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.step_sizes import PaperSteps
from convexlift.solvers.subgradient import Subgradient
from experiments.paper import PaperInpainting


@dataclass(frozen=True)
class Competitor:
    """A method as it appears in figures and tables.

    Attributes:
        key: names its parts.
        family: its colour, a key of ``benchmark.styles.STYLES``.
        label: for people.
        method: with its step sizes.
        own_start: whether it starts where ``cl.solve`` does by itself, rather than from the data
            as in the paper.
        printed: whether its step sizes are the paper's.
    """

    key: str
    family: str
    label: str
    method: Method
    own_start: bool = False
    printed: bool = True

    @property
    def parameters(self) -> tuple[float, ...]:
        """The step sizes, or (c_1, ..., c_L), that somebody chose; empty where there are none."""
        if isinstance(self.method, PDHG) and isinstance(self.method.steps, PaperSteps):
            return self.method.steps.c
        if isinstance(self.method, Subgradient | NMAPG):
            return (self.method.step,)
        return ()


def proposed(c: Sequence[float]) -> Competitor:
    """The paper's PDHG with its parameters c."""
    return Competitor("proposed", "paper", "Proposed", PDHG(steps=PaperSteps(tuple(c))))


def constant(step: float, *, printed: bool = True) -> Competitor:
    """SM-C."""
    return Competitor(
        f"sm-c-{step:g}", "sm-c", f"SM-C, {step:g}", Subgradient(step), printed=printed
    )


def diminishing(step: float, *, printed: bool = True) -> Competitor:
    """SM-D."""
    method = Subgradient(step, diminishing=True)
    return Competitor(f"sm-d-{step:g}", "sm-d", f"SM-D, {step:g}", method, printed=printed)


DEFAULT = Competitor("default", "default", "Our default", PDHG(), own_start=True)
"""``cl.solve(problem)``: nothing to tune, and a start of its own."""
DEFAULT_SAME_START = Competitor("default-same-start", "default", "Our default, same start", PDHG())
L_BFGS = Competitor("lbfgs", "lbfgs", "L-BFGS", LBFGS())


def accelerated(step: float) -> Competitor:
    """NMAPG with its first step."""
    return Competitor("nmapg", "nmapg", "NMAPG", NMAPG(step=step))


def papers_four(values: PaperInpainting) -> list[Competitor]:
    """Those of section 5.3, with its step sizes."""
    return [
        proposed(values.c),
        constant(values.sm_c),
        diminishing(values.sm_d),
        accelerated(values.nmapg),
    ]
