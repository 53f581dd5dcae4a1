"""A matrix of step sizes: for images of few pixels behind an operator that mixes them.

    T = SAFETY (sum_i sigma_i K_i* D_i K_i + tiny I)^-1,    S_i = sigma_i D_i,

over all primal blocks together, is the largest T with ||S^(1/2) K T^(1/2)|| < 1 up to the tiny
part. Each step in u then solves a least-squares problem exactly, as in ADMM and the
Douglas-Rachford method, and the condition numbers of A and of the layers do not matter any more.
The inverse is computed anew at every restart. The box is dualised, as in ``spectral_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from convexlift.problems.lifting import DATA_DUAL, SaddlePointProblem
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Choice, DoesNotApply
from convexlift.solvers.primal_dual import SAFETY
from convexlift.solvers.scaled_steps import ScaledCoupling
from convexlift.tensors import Blocks

LARGEST = 2048
"""Unknowns up to which the matrix is made: its inverse costs as much as a few hundred products."""
ENTRIES = 2**25
"""Entries of the matrices of a whole batch (256 MB in double precision)."""
TINY = 0.03
"""Times the root of the unit of rounding and the largest diagonal entry: for directions that no
row of K sees. Less would amplify the rounding errors of K* v."""
LEAST = 1e-8
"""Smallest factor, also of data that were not measured, whose dual variables are zero."""
STEPS = "T"


class MatrixSteps(Blocks):
    """T (B, N, N), as the block "T", and sigma (B,) of all rows, from which it was made."""

    __slots__ = ()

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """T u."""
        assert isinstance(other, Blocks)
        together = torch.cat([part.flatten(1) for part in other.values()], 1)
        moved = (self[STEPS] @ together.unsqueeze(-1)).squeeze(-1)
        sizes = [part[0].numel() for part in other.values()]
        pieces = zip(other.items(), moved.split(sizes, 1), strict=True)
        return Blocks({name: piece.reshape(part.shape) for (name, part), piece in pieces})

    def step(self, name: str, like: Tensor) -> Tensor:
        """No term of g may need a number: all but linear ones are dualised."""
        raise AssertionError(f"{name} has a matrix of steps")


class MatrixCoupling(ScaledCoupling):
    """The matrices K_i* D_i K_i, (1, N, N) or (B, N, N) each."""

    recent = True
    choice = Choice(
        "steps", "a matrix for all unknowns", "few unknowns behind an operator that mixes pixels"
    )

    def __init__(
        self, saddle: SaddlePointProblem, problem: VariationalProblem, factors: Mapping[str, Tensor]
    ) -> None:
        _require_small(saddle, problem)
        self.saddle, self.factors = saddle, factors
        self.grams = dict(_grams(saddle, factors, problem.fidelity.y))
        self.weights, first = {v: {} for v in saddle.K.rows}, 0
        for name, shape in saddle.K.shapes.items():
            last = first + math.prod(shape)
            for v, row in saddle.K.rows.items():
                if name in row:  # for moves of unknown direction
                    squares = self.grams[v].diagonal(dim1=1, dim2=2)[:, first:last]
                    self.weights[v][name] = float(squares.mean())
            first = last

    def tau(self, sigma: Blocks) -> Blocks:
        """SAFETY (sum_i sigma_i K_i* D_i K_i + tiny I)^-1."""
        metric = sum(sigma[v].double()[:, None, None] * gram for v, gram in self.grams.items())
        assert isinstance(metric, Tensor)
        largest = metric.diagonal(dim1=1, dim2=2).amax(1)
        tiny = TINY * torch.finfo(sigma[DATA_DUAL].dtype).eps ** 0.5
        metric.diagonal(dim1=1, dim2=2).add_(tiny * largest[:, None])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(metric))
        return MatrixSteps({STEPS: (SAFETY * inverse).to(sigma[DATA_DUAL]), **sigma})

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """||D_i^(1/2) K_i (u - other)|| for every row i."""
        rows = self.saddle.K(u - other)
        scaled = {n: p * self.factors[n].sqrt() if n in self.factors else p for n, p in rows.items()}
        return Blocks(scaled).norms()

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """<du, T^-1 du>, row by row of K."""
        ways = self.way(du, 0 * du)
        return Blocks({v: tau[v] * way.square() for v, way in ways.items()})


def _require_small(saddle: SaddlePointProblem, problem: VariationalProblem) -> None:
    """Raise DoesNotApply for other problems."""
    count = sum(math.prod(shape) for shape in saddle.K.shapes.values())
    if DATA_DUAL not in saddle.K.rows:
        raise DoesNotApply("the data term has a closed-form prox")
    if count > LARGEST or problem.batch_size * count**2 > ENTRIES:
        raise DoesNotApply(f"{count} unknowns are too many for a matrix")
    if problem.operator.select(torch.tensor([0])) is None:
        raise DoesNotApply("an operator that may treat the images of a batch differently")
    seed = torch.Generator().manual_seed(0)
    probe = torch.randn(problem.image_shape, generator=seed).to(problem.fidelity.y)
    rows = problem.operator(probe.expand(problem.batch_size, *probe.shape))
    if not torch.allclose(rows, rows[:1].expand_as(rows), rtol=1e-4, atol=1e-4 * float(rows.abs().max())):
        raise DoesNotApply("an operator that treats the images of a batch differently")


def _grams(
    saddle: SaddlePointProblem, factors: Mapping[str, Tensor], like: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """K_i* D_i K_i for every row i, in double precision."""
    sizes = {name: math.prod(shape) for name, shape in saddle.K.shapes.items()}
    for v, row in saddle.K.rows.items():
        columns = []  # of the transpose of K_i
        for name, size in sizes.items():
            if name in row:
                basis = torch.eye(size, dtype=like.dtype, device=like.device)
                columns.append(row[name](basis.reshape(size, *saddle.K.shapes[name])).flatten(1))
            else:
                columns.append(like.new_zeros(size, 1))
        length = max(part.shape[1] for part in columns)
        matrix = torch.cat([part.expand(-1, length) for part in columns]).double()
        scaled = matrix[None]
        if v in factors:
            shape = next(K.output_shape(saddle.K.shapes[name]) for name, K in row.items())
            d = factors[v].expand(len(factors[v]), *shape)
            scaled = matrix * d.flatten(1)[:, None]
        yield v, scaled @ matrix.T



def data_factors(problem: VariationalProblem) -> dict[str, Tensor]:
    """The curvature of quadratic data terms with weights, as factors of v_0; the largest is 1.

    There v_0 = omega (A x - y), and S_0 = sigma_0 omega measures all data in units of their noise.
    """
    omega = problem.fidelity.curvature
    if not isinstance(omega, Tensor) or not bool((omega > 0).any()):
        return {}
    return {DATA_DUAL: (omega / omega.max()).clamp_min(LEAST).expand_as(problem.fidelity.y)}
