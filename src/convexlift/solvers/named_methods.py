"""Methods by name, as on the command line, each with a grid of step sizes to choose from.

The paper tunes its methods by hand; the grids surround its values. ``default`` has nothing to tune.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.gradient_methods import LBFGS, Subgradient
from convexlift.solvers.loop import suitable_method
from convexlift.solvers.method import Method
from convexlift.solvers.nmapg import NMAPG
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.primal_dual import PaperSteps

PAPER_L1 = 0.02
"""Factor from our denoising objective, whose L1 data term has the factor 1, to the paper's."""

C_FIRST_L1 = (5e-3, 1e-2, 5e-2, 1e-1, 5e-1, 1.0, 5.0)
C_LAST_L1 = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3)
"""The paper's 49 pairs (c_1, c_2) for denoising (section 5.1)."""

C_FIRST_L2 = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
C_LAST_L2 = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""49 pairs around the paper's single pair for inpainting, (0.01, 0.001)."""

SM_C_L1, SM_D_L1 = (0.1, 0.5, 1.0, 2.0), (1.0, 3.0, 5.0, 10.0, 30.0, 100.0)
SM_C_L2, SM_D_L2 = (0.015, 0.05, 0.15, 0.5, 1.5), (0.15, 0.5, 1.5, 5.0, 15.0, 50.0)
"""The paper's steps for denoising and larger first ones (L1); up to its inpainting steps (L2)."""

Grid = Callable[[VariationalProblem, bool], Sequence[Method]]


@dataclass(frozen=True)
class NamedMethod:
    """A method with step sizes to choose from.

    Attributes:
        name: the name on the command line.
        grid: the candidate methods for a problem; fewer if coarse.
        bounded: whether it solves the problem with its box, or without.
    """

    name: str
    grid: Grid
    bounded: bool = True


def paper_grid(problem: VariationalProblem, coarse: bool) -> Sequence[PDHG]:
    """PDHG with the paper's steps: pairs (c_1, c_L), geometric in between.

    Scaling the objective by a factor gives the same iterates if c is scaled by it too. As in the
    default, the duals start from our backward pass, not from the released start.
    """
    layers, every = len(problem.regularizer.layers), 2 if coarse else 1
    factor = _paper_scale(problem)
    first, last = (C_FIRST_L2, C_LAST_L2) if factor is None else (C_FIRST_L1, C_LAST_L1)
    if layers == 1:
        found: list[tuple[float, ...]] = [(c,) for c in sorted({*first, *last})[::every]]
    else:
        found = [_geometric(a, b, layers) for a in first[::every] for b in last[::every]]
    return [PDHG(steps=PaperSteps(tuple((factor or 1.0) * c for c in steps))) for steps in found]


def subgradient_grid(diminishing: bool) -> Grid:
    """SM-C or SM-D with the paper's steps, divided by the scale of the objective."""

    def grid(problem: VariationalProblem, coarse: bool) -> Sequence[Subgradient]:
        factor = _paper_scale(problem)
        l2, l1 = (SM_D_L2, SM_D_L1) if diminishing else (SM_C_L2, SM_C_L1)
        steps = l2 if factor is None else l1
        return [Subgradient(step / (factor or 1.0), diminishing) for step in steps]

    return grid


METHODS: dict[str, NamedMethod] = {
    each.name: each
    for each in (
        NamedMethod("default", lambda problem, coarse: [suitable_method(problem)]),
        NamedMethod("paper", paper_grid),
        NamedMethod("nmapg", lambda problem, coarse: [NMAPG()]),
        NamedMethod("lbfgs", lambda problem, coarse: [LBFGS()]),
        NamedMethod("sm-c", subgradient_grid(diminishing=False), bounded=False),
        NamedMethod("sm-d", subgradient_grid(diminishing=True), bounded=False),
    )
}
"""Methods by name: ``METHODS[name].grid(problem, coarse)`` are the candidates."""


def describe_steps(method: Method) -> str:
    """A short description of the step sizes of a method."""
    return method.tuned


def _paper_scale(problem: VariationalProblem) -> float | None:
    """The factor from the paper's L1 objective to this one; None for other data terms.

    The slopes of lambda |w - y| fill the interval (-lambda, lambda), and other data terms have
    unbounded slopes.
    """
    low, high = problem.fidelity.conjugate_domain
    return high / PAPER_L1 if math.isfinite(low) and math.isfinite(high) else None


def _geometric(first: float, last: float, count: int) -> tuple[float, ...]:
    ratio = (last / first) ** (1 / (count - 1))
    return tuple(first * ratio**i for i in range(count))
