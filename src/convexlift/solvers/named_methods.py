"""Methods by name, as on the command line, each with a grid of step sizes to choose from.

The paper tunes its methods by hand; the grids surround its values. ``default`` has nothing to tune.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convexlift.functionals.data_terms import L1
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.lbfgs import LBFGS
from convexlift.solvers.method import Method
from convexlift.solvers.nmapg import NMAPG
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.solve import suitable_method
from convexlift.solvers.step_sizes import PaperSteps
from convexlift.solvers.subgradient import Subgradient

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
        name: of the method.
        grid: the candidate methods for a problem; fewer if coarse.
        bounded: whether it solves the problem with its box, or without.
    """

    name: str
    grid: Grid
    bounded: bool = True


def paper_grid(problem: VariationalProblem, coarse: bool) -> Sequence[PDHG]:
    """PDHG with the paper's steps: pairs (c_1, c_L), geometric in between.

    Scaling the objective by a factor gives the same iterates if c is scaled by it too.
    """
    layers = len(problem.regularizer.layers)
    factor = 1.0
    first: tuple[float, ...] = C_FIRST_L2
    last: tuple[float, ...] = C_LAST_L2
    if isinstance(problem.fidelity, L1):
        factor, first, last = problem.fidelity.scale / PAPER_L1, C_FIRST_L1, C_LAST_L1
    if layers == 1:
        first = tuple(sorted({*first, *last}))
        return [PDHG(steps=PaperSteps((factor * c,))) for c in _thinned(first, coarse)]
    return [
        PDHG(steps=PaperSteps(tuple(factor * c for c in _geometric(a, b, layers))))
        for a in _thinned(first, coarse)
        for b in _thinned(last, coarse)
    ]


def subgradient_grid(diminishing: bool) -> Grid:
    """SM-C or SM-D with the paper's steps, divided by the scale of the objective."""

    def grid(problem: VariationalProblem, coarse: bool) -> Sequence[Subgradient]:
        factor = 1.0
        steps: tuple[float, ...] = SM_D_L2 if diminishing else SM_C_L2
        if isinstance(problem.fidelity, L1):
            factor = problem.fidelity.scale / PAPER_L1
            steps = SM_D_L1 if diminishing else SM_C_L1
        return [Subgradient(step / factor, diminishing) for step in steps]

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
    if isinstance(method, PDHG) and isinstance(method.steps, PaperSteps):
        return f"c = ({', '.join(f'{c:.3g}' for c in method.steps.c)})"
    if isinstance(method, Subgradient):
        return f"step {method.step:.3g}{' / (k + 1)' if method.diminishing else ''}"
    return "nothing to tune"


def _thinned(values: tuple[float, ...], coarse: bool) -> tuple[float, ...]:
    return values[::2] if coarse else values


def _geometric(first: float, last: float, count: int) -> tuple[float, ...]:
    ratio = (last / first) ** (1 / (count - 1))
    return tuple(first * ratio**i for i in range(count))
