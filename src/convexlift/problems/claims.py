"""Claims: objectives and lower bounds of images, each number computed rigorously."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.functionals.fidelity import Fidelity
from convexlift.operators.linear import LinearOperator
from convexlift.problems.data_bound import Scopes, can_hold_everywhere
from convexlift.problems.minorant import proving_duals
from convexlift.problems.network_duals import feasible_duals
from convexlift.problems.packed_slopes import CODES
from convexlift.problems.rigorous_bounds import ProvenBound, bounds_below
from convexlift.problems.rigorous_data import RigorousData
from convexlift.problems.rigorous_regularizer import regularizer_above
from convexlift.problems.rounding import (
    Rounded,
    gamma,
    product,
    total,
)
from convexlift.problems.variational import VariationalProblem
from convexlift.side_streams import together
from convexlift.tensors import (
    Blocks,
    Shape,
    TensorRecord,
    choose_images,
    foreign_parts,
    named_numbers,
)

RADIUS = 1.0
"""The default radius of local guarantees: the full range of images with values in [0, 1]."""

UNDERFLOW = 1e-120
"""More than the sum of all products that underflow, and a few sums of roundings of tiny numbers."""
TINIEST = 1e-250
"""The smallest product of numbers in an objective that is 0, so that it is 0 without underflow."""


class InconsistentBounds(ArithmeticError):
    """A lower bound above the objective of an image: a part of the problem is wrong."""


class Guarantee(Enum):
    """The scope of a lower bound."""

    GLOBAL = "no image in the box has an objective below the lower bound"
    WITHIN_RADIUS = (
        "no image in the box has an objective below the lower bound that stays within the radius "
        "of x on the pixels which neither data nor box bound; give the problem a box for a "
        "global guarantee"
    )
    NONE = "no lower bound: the objective is not finite"


CAVEAT = "It does not say that the picture is true."
"""No certificate speaks of the truth: only of the data, the model of the damage and R."""

FAR = 0.1
"""Above this gap, messages speak of pictures that could fit better, not of a solved problem."""


def in_words(gap: float | None, guarantee: Guarantee, premise: str = "") -> tuple[str, str]:
    """A certified gap in plain words: a heading, and its meaning.

    Percentages are rounded up, so that the statement stays true. None is an infinite gap, as in
    the JSON of records.
    """
    near = "" if guarantee is Guarantee.GLOBAL else " close to this one"
    if guarantee is Guarantee.NONE or gap is None or not math.isfinite(gap):
        return "Nothing is proved yet", "there is no lower bound."
    if gap >= 1:
        return "Not solved yet", f"how much better a picture{near} could fit is not known."
    if gap > FAR:
        better = f"another picture{near} may fit this model up to {percent(gap)} better."
        return "Not solved yet", f"{premise}{better}"
    claim = f"{premise}no picture{near} fits this model better by more than that."
    return f"Solved to within {percent(gap)}", f"{claim} {CAVEAT}"


def worst_in_words(
    claims: Iterable[tuple[float | None, Guarantee]], premise: str = ""
) -> tuple[str, str]:
    """Plain words that hold for every image: the largest gap and the weakest guarantee."""
    gaps, guarantees = zip(*claims, strict=True)
    gap = None if None in gaps else max(gaps)
    return in_words(gap, max(guarantees, key=list(Guarantee).index), premise)


def percent(gap: float) -> str:
    """A gap with two digits, rounded up; at least 0.001 %."""
    value = max(100 * gap, 1e-3)
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale - 1e-9) / scale:g} %"


@dataclass(frozen=True, eq=False)
class Claim(TensorRecord):
    """An objective and a lower bound for each image of a batch, true in spite of rounding.

    Attributes:
        x: the images.
        objective: the objective at x, rounded up.
        lower_bound: no image has a smaller objective, in the sense of ``guarantee``; rounded down.
        gap: (objective - lower_bound) / |objective|.
        guarantee: the scope of the bound.
        radius: the radius of local guarantees.
        duals: the feasible dual variables p_i that prove the bound.
        theta: (B,), the share of the minorant that they define; the rest is weight min R.
        data_dual: the dual variable v of the data in double precision; None behind a diagonal
            operator.
    """

    x: Tensor
    objective: Tensor
    lower_bound: Tensor
    gap: Tensor
    guarantee: tuple[Guarantee, ...]
    radius: float
    duals: Blocks
    theta: Tensor
    data_dual: Tensor | None


class InSinglePrecision(LinearOperator):
    """A x for x in double precision, by an operator that takes single precision only."""

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator
        self.input_shape = operator.input_shape
        self.nonnegative = operator.nonnegative

    def forward(self, x: Tensor) -> Tensor:
        """A x, in single precision."""
        return self.operator(x.float())

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y, in single precision."""
        return self.operator.adjoint(y.float())

    def output_shape(self, input_shape: Shape) -> Shape:
        """The output shape of A."""
        return self.operator.output_shape(input_shape)

    @property
    def diagonal(self) -> Tensor | None:
        """The diagonal of A, if it has one; products with it are in double precision."""
        return self.operator.diagonal

    def select(self, images: Tensor) -> LinearOperator | None:
        """A for some images, if it can be divided."""
        some = self.operator.select(images)
        return None if some is None else InSinglePrecision(some)


def in_double(problem: VariationalProblem) -> VariationalProblem:
    """The same problem in double precision, with the same numbers.

    A user's operator that cannot take double precision is used in single precision, with the
    rounding errors of single precision.
    """
    double = problem.to(dtype=torch.float64)
    if any(True for _ in foreign_parts(double.operator)):
        zero = double.fidelity.y.new_zeros((double.batch_size, *double.image_shape))
        try:
            double.operator.adjoint(double.operator(zero))
        except (RuntimeError, TypeError, ValueError):
            object.__setattr__(double, "operator", InSinglePrecision(problem.operator))
    return double


def claim(
    problem: VariationalProblem,
    double: VariationalProblem,
    x: Tensor,
    witness: Blocks,
    *,
    tolerance: float,
    radius: float = RADIUS,
) -> Claim:
    """The claim about x that dual variables, the witness, prove once they are feasible.

    ``double`` is the problem from ``in_double``. A local guarantee, for this radius, is given only
    where the global gap is above the tolerance.
    """
    both = InBoth(problem, lambda: double)
    return unpacked(problem, stated(x, *proved(both, x, witness, tolerance, radius), radius))


def unpacked(problem: VariationalProblem, claim: Claim) -> Claim:
    """The claim with its dual variables as numbers."""
    if all(part.dtype is not CODES for part in claim.duals.values()):
        return claim
    x = claim.x.to(problem.fidelity.y.dtype)
    return replace(claim, duals=feasible_duals(problem.network, problem.weight, x, claim.duals))


class InBoth:
    """A problem in its own precision and, once that is needed, in double precision."""

    def __init__(
        self,
        problem: VariationalProblem,
        convert: Callable[[], VariationalProblem | None] | None = None,
    ) -> None:
        self.problem = problem
        self._convert = convert or partial(in_double, problem)

    @cached_property
    def double(self) -> VariationalProblem:
        """The same problem in double precision."""
        double = self._convert()
        assert double is not None
        return double

    def select(self, images: Tensor) -> InBoth | None:
        """The problems of some images of the batch; None if they cannot be separated."""
        some = self.problem.select(images)
        return None if some is None else InBoth(some, lambda: self.double.select(images))


Proved = tuple[Tensor, Tensor, Tensor, Blocks, Tensor, Tensor | None]
"""Objective, lower bound, gap, p_i (which may be packed), theta and v of a claim."""


def stated(x: Tensor, found: Proved, scopes: Sequence[Tensor], radius: float = RADIUS) -> Claim:
    """The claim, from the numbers of ``proved``, which may have been brought to the host."""
    *_, near, proven = (numbers.tolist() for numbers in scopes)
    guarantee = tuple(
        Guarantee.NONE if not ok else Guarantee.WITHIN_RADIUS if local else Guarantee.GLOBAL
        for ok, local in zip(proven, near, strict=True)
    )
    objective, lower, gap, duals, theta, v = found
    return Claim(x, objective, lower, gap, guarantee, radius, duals, theta, v)


def proved(
    both: InBoth, x: Tensor, witness: Blocks, tolerance: float, radius: float = RADIUS
) -> tuple[Proved, tuple[Tensor, ...]]:
    """The parts of a claim, without decisions that need the host.

    Again as numbers: objective, lower bound, gap, whether the bound is local, whether it is finite.
    """
    problem, double = both.problem, both.double
    y = problem.fidelity.y
    witness = Blocks(
        {n: part if part.dtype is CODES else part.to(y.dtype) for n, part in witness.items()}
    )
    precise = x.double()
    double.network  # noqa: B018  bound here, since both calls below read it

    def below() -> tuple[Blocks, Scopes[ProvenBound]]:
        duals, numbers = proving_duals(problem, x.to(y.dtype), witness)
        return duals, bounds_below(double, precise, numbers, radius)

    (duals, bounds), objective = together(below, partial(objective_above, double, precise))
    bound, near = bounds.everywhere, torch.zeros_like(objective, dtype=torch.bool)
    if bounds.near is not bounds.everywhere:
        everywhere, local = (
            relative_gap(objective, _number(each.value))
            for each in (bounds.everywhere, bounds.near)
        )
        near = prefer_near(can_hold_everywhere(problem), everywhere, local, tolerance)
        bound = choose_images(near, bounds.near, bounds.everywhere)
    lower = _number(bound.value)
    zero = objective == 0
    if decided(((lower > objective + 2 * UNDERFLOW) | zero).any()):
        _require_consistent(objective, lower)
        zero = zero & _without_underflow(double, precise)
    objective = torch.where(zero, objective, objective + UNDERFLOW)
    # A bound of 0 below an objective of 0 needs no duals: nothing in it is negative.
    lower = torch.where(zero & (lower == 0), lower, lower - UNDERFLOW)
    proven = (objective.abs() < math.inf) & (lower.abs() < math.inf)
    lower = torch.where(proven, lower, -math.inf)
    gap = relative_gap(objective, lower)
    found = objective, lower, gap, duals, bound.theta, bound.v
    return found, (objective, lower, gap, near, proven)


def _without_underflow(problem: VariationalProblem, x: Tensor) -> Tensor:
    """Whether an objective of 0 is exactly 0, since no number is so small that products vanish."""
    parts = x, problem.weight, problem.fidelity, problem.operator, problem.network
    numbers = [each for part in parts for _, each in named_numbers(part, "")]
    least = TINIEST ** (1 / (len(problem.network.layers) + 4))
    sizes = [each.abs() if isinstance(each, Tensor) else x.new_full((), abs(each))
             for each in numbers]  # fmt: skip
    faint = [((size > 0) & (size < least)).any() for size in sizes]
    return ~torch.stack(faint).any()


def objective_above(problem: VariationalProblem, x: Tensor) -> Tensor:
    """J(x) for each image, rounded up; +inf outside the box. Problem and x in double precision."""
    regularizer = regularizer_above(problem, x)
    data_term = data_term_above(problem.fidelity, problem.operator, x)
    objective = (data_term + regularizer) + gamma(4) * (data_term + regularizer.abs())
    return torch.where(problem.bounds.contains(x), objective, math.inf)


def data_term_above(fidelity: Fidelity, operator: LinearOperator, x: Tensor) -> Tensor:
    """D(A x) for each image, rounded up."""
    fused = RigorousData.of(fidelity, operator, x.shape)
    if fused is not None:
        return fused.above(x)
    w = product(operator, Rounded.exact(x), tuple(x.shape[1:]))
    value, error = total(fidelity.density_above(w.value, w.error))
    return value + error


def last_digit(double: VariationalProblem, x: Tensor) -> Tensor:
    """The relative change of the objective if every pixel moves by one unit of its last place.

    An image of that precision cannot be expected to have a smaller gap. 0 for images on the edge of
    the domain of the data term, which leave it: this says nothing about images inside.
    """
    # Drawn on the CPU, so that every device gets the same signs.
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)
    upwards = torch.where(signs > 0, math.inf, -math.inf).to(x.dtype)
    moved = double.bounds.project(torch.nextafter(x, upwards))
    # The same upper bound for both, so that their difference means something.
    before, after = (objective_above(double, image.double()) for image in (x, moved))
    known = (before < math.inf) & (after < math.inf)
    return torch.where(known, (after - before).abs() / before.abs(), 0.0)


def prefer_near(holds: bool, everywhere: Tensor, near: Tensor, tolerance: float) -> Tensor:
    """A mask of the images that get a local guarantee, from the two relative gaps.

    Only in problems without tight global bounds in general (``can_hold_everywhere`` not
    ``holds``), and there only where the global gap is above the tolerance and the local one
    smaller.
    """
    if holds:
        return torch.zeros_like(everywhere, dtype=torch.bool)
    return (everywhere > tolerance) & (near < everywhere)


def relative_gap(objective: Tensor, lower_bound: Tensor) -> Tensor:
    """(objective - lower bound) / |objective|, zero where rounding puts the bound above."""
    absolute, size = (objective - lower_bound).clamp_min(0), objective.abs()
    relative = torch.where(absolute == 0, absolute, absolute / size)
    return torch.where(size < math.inf, relative, math.inf)


def _number(bound: Tensor) -> Tensor:
    """A bound, or -inf in place of NaN."""
    return torch.where(bound.isnan(), -math.inf, bound)


def _require_consistent(objective: Tensor, lower_bound: Tensor) -> None:
    """Raise if a bound is above an objective: rounding is accounted for, so a part is wrong."""
    wrong = lower_bound > objective + 2 * UNDERFLOW
    if decided(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise InconsistentBounds(
            f"the lower bound {float(lower_bound[i]):g} is above the objective "
            f"{float(objective[i]):g} of image {i}: a conjugate, proximal map, slope or adjoint of "
            "the problem is wrong. Examine parts of your own with cl.check_functional, "
            "cl.check_activation and cl.check_operator"
        )
