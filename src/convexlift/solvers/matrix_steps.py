"""A matrix of step sizes, for images of few pixels behind an operator that mixes them.

    T = SAFETY (sum_i sigma_i K_i* D_i K_i + tiny I)^-1,    S_i = sigma_i D_i,

over all primal blocks together, is the largest T with ||S^(1/2) K T^(1/2)|| < 1, up to the tiny
part. A step in u then solves a least-squares problem exactly, as in ADMM and the Douglas-Rachford
method, however badly A and the layers are conditioned. D_0 holds the weights omega of a weighted
data term, where v_0 = omega (A x - y): all data are measured in units of their noise. The other
D_i are I. T is computed anew at every restart, in double precision. The box is dualised, as in
``spectral_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.operators.linear import LinearOperator
from convexlift.problems.lifting import SaddlePointProblem, lift
from convexlift.problems.network_duals import DATA_DUAL
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.coupling import SAFETY
from convexlift.solvers.method import Choice, DoesNotApply
from convexlift.solvers.scaled_steps import ScaledCoupling
from convexlift.tensors import Blocks, Shape, expand_per_image

LARGEST = 512
"""The most unknowns for which T is formed; inverses of larger matrices cost more than they save."""
LARGEST_SPARSE = 1024
"""The limit for at most half as many data as pixels, where other steps converge slowly."""
LARGEST_FEW, FEW = 2048, 20
"""The limit for at most a FEW-th as many data as pixels, where other steps hardly converge."""
ENTRIES = 2**25
"""The most entries of T for a whole batch (256 MB)."""
TINY = 1e-9
"""tiny, relative to the largest diagonal entry, for directions that no row of K sees."""
LEAST = 1e-8
"""The smallest factor, also for data that were not measured, whose dual variables are zero."""
STEPS = "T"


class MatrixSteps(Blocks):
    """T (B, N, N), as the block "T", and the sigma (B,) of all rows from which it was made."""

    __slots__ = ()

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """T u."""
        assert isinstance(other, Blocks)
        together = torch.cat([part.flatten(1) for part in other.values()], 1)
        moved = (self[STEPS] @ together.unsqueeze(-1)).squeeze(-1)
        sizes = [part[0].numel() for part in other.values()]
        pieces = zip(other.items(), torch.split(moved, sizes, 1), strict=True)
        return Blocks({name: piece.reshape(part.shape) for (name, part), piece in pieces})

    def step(self, name: str, like: Tensor) -> Tensor:
        """Not available, nor needed: all terms of g except linear ones are dualised."""
        raise AssertionError(f"{name} has a matrix of steps")


class MatrixCoupling(ScaledCoupling):
    """K_i* D_i K_i for every row i, (1, N, N) or (B, N, N). ``DoesNotApply`` if N is large."""

    recent = True
    choice = Choice(
        "steps", "a matrix for all unknowns", "they are few, behind an operator that mixes pixels"
    )

    def __init__(self, saddle: SaddlePointProblem, problem: VariationalProblem) -> None:
        require_few_unknowns(saddle, problem)
        for row in saddle.K.rows.values():
            for name, operator in row.items():  # factors of links, from each image's data
                _require_one_for_all(operator, saddle.K.shapes[name], problem)
        self.saddle, self.factors = saddle, data_factors(problem)
        self.grams = {v: self._gram(v, problem.fidelity.y) for v in saddle.K.rows}
        self.weights = {v: {} for v in saddle.K.rows}
        for name, part in self._slices():
            for v, row in saddle.K.rows.items():
                if name in row:  # for moves of unknown direction
                    squares = self.grams[v].diagonal(dim1=1, dim2=2)[:, part]
                    self.weights[v][name] = squares.mean(1)

    def _slices(self) -> Iterator[tuple[str, slice]]:
        """The positions of the primal blocks among the N unknowns."""
        first = 0
        for name, shape in self.saddle.K.shapes.items():
            last = first + math.prod(shape)
            yield name, slice(first, last)
            first = last

    def _gram(self, v: str, like: Tensor) -> Tensor:
        """K_i* D_i K_i, from the images of all unit vectors."""
        K = self.saddle.K
        blocks = {}
        for name, operator in K.rows[v].items():
            size = math.prod(K.shapes[name])
            basis = torch.eye(size, dtype=like.dtype, device=like.device)
            blocks[name] = operator(basis.reshape(size, *K.shapes[name]))
        one, *_ = blocks.values()
        missing = {n: one.new_zeros(math.prod(s), *one.shape[1:]) for n, s in K.shapes.items()}
        transposed = torch.cat([blocks.get(n, zeros) for n, zeros in missing.items()])
        weighted = transposed[None] * self.factors.get(v, one.new_ones(1)).unsqueeze(1)
        return weighted.flatten(2) @ transposed.flatten(1).T

    def tau(self, sigma: Blocks) -> Blocks:
        """SAFETY (sum_i sigma_i K_i* D_i K_i + tiny I)^-1."""
        (first, gram), *others = self.grams.items()
        metric = sigma[first][:, None, None] * gram
        for v, gram in others:  # one after the other, since they are large
            metric += sigma[v][:, None, None] * gram
        diagonal = metric.diagonal(dim1=1, dim2=2)
        diagonal += TINY * diagonal.amax(1, keepdim=True)
        factor, failed = torch.linalg.cholesky_ex(metric)
        if decided((failed != 0).any()):
            raise ValueError(
                "no step sizes can be computed, since the operator and the filters of this problem "
                "have entries of too different sizes; rescale them, or give another method"
            )
        inverse = torch.cholesky_inverse(factor)
        return MatrixSteps({STEPS: SAFETY * inverse, **sigma})

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """||D_i^(1/2) K_i (u - other)|| for every row i."""
        return self._moved(u - other).norms()

    def _moved(self, du: Blocks) -> Blocks:
        """D_i^(1/2) K_i du for every row i."""
        return Blocks({v: self.factors[v].sqrt() * part if v in self.factors else part
                       for v, part in self.saddle.K(du).items()})  # fmt: skip

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """<du, T^-1 du> = sum_i sigma_i ||D_i^(1/2) K_i du||^2, of all blocks together."""
        parts = {v: tau[v] * part for v, part in self._moved(du).squares().items()}
        return Blocks({STEPS: Blocks(parts).total()})

    def whitened_moves(self, du: Blocks, tau: Blocks) -> Iterator[Tensor]:
        """sigma_i^(1/2) D_i^(1/2) K_i du for every row i."""
        for v, part in self._moved(du).items():
            yield expand_per_image(tau[v].sqrt(), part) * part


def require_few_pixels(problem: VariationalProblem) -> None:
    """Raise DoesNotApply if a matrix is out of the question, before anything is computed."""
    pixels = math.prod(problem.image_shape)
    if pixels > most_unknowns(problem):
        raise DoesNotApply(f"{pixels} pixels are too many for a matrix")
    if problem.operator.select(torch.tensor([0])) is None:
        raise DoesNotApply("the operator may treat every image of a batch differently")
    _require_one_for_all(problem.operator, problem.image_shape, problem)


def require_few_unknowns(saddle: SaddlePointProblem, problem: VariationalProblem) -> None:
    """Raise DoesNotApply if a lift has too many unknowns for a matrix, or needs none."""
    count = sum(math.prod(shape) for shape in saddle.K.shapes.values())
    if DATA_DUAL not in saddle.K.rows:
        raise DoesNotApply("the data term has a closed-form prox")
    if count > most_unknowns(problem) or problem.batch_size * count**2 > ENTRIES:
        raise DoesNotApply(f"{count} unknowns are too many for a matrix")


def has_matrix(problem: VariationalProblem) -> bool:
    """Whether PDHG would take a matrix of steps, found out without computing it."""
    try:
        require_few_pixels(problem)
        require_few_unknowns(lift(problem, dualise_box=True), problem)
    except DoesNotApply:
        return False
    return True


def most_unknowns(problem: VariationalProblem) -> int:
    """The most unknowns for which a matrix is worthwhile."""
    data, pixels = problem.fidelity.y[0].numel(), math.prod(problem.image_shape)
    if FEW * data <= pixels:
        return LARGEST_FEW
    return LARGEST_SPARSE if 2 * data <= pixels else LARGEST


def _require_one_for_all(
    operator: LinearOperator, shape: Shape, problem: VariationalProblem
) -> None:
    """Raise DoesNotApply if the operator differs from image to image."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(problem.fidelity.y)
    rows = operator(noise.expand(problem.batch_size, *shape))
    if float((rows - rows[:1]).abs().max()) > 1e-4 * float(rows.abs().max()):
        raise DoesNotApply("the operator treats the images of a batch differently")


def data_factors(problem: VariationalProblem) -> dict[str, Tensor]:
    """D_0: the weights of a quadratic data term, scaled to a maximum of 1 for each image."""
    y, omega = problem.fidelity.y, problem.fidelity.curvature
    if not isinstance(omega, Tensor):
        return {}
    omega = omega.expand_as(y)
    largest = omega.flatten(1).amax(1)
    shares = omega / expand_per_image(torch.where(largest > 0, largest, 1.0), omega)
    return {DATA_DUAL: shares.clamp_min(LEAST)}
