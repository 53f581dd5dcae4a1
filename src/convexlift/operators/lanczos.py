"""Norms of linear operators, estimated from products with A and A*."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convexlift.tensors import Shape

if TYPE_CHECKING:
    from convexlift.operators.linear import LinearOperator

FIRST_STEPS = 6
"""Before these, an estimate that does not move may be a coincidence."""
SETTLED = 1e-5
"""An estimate that moves by less, relatively, is good enough."""
EXHAUSTED = 1e-6
"""A residual this small, relatively, is rounding: the estimate is exact."""


def lanczos_norm(operator: LinearOperator, shape: Shape, steps: int = 40) -> float:
    """A lower estimate of ||A||: the largest Ritz value of A* A from a fixed random start.

    Where power iteration needs hundreds of products, Lanczos' method needs tens. Operators that
    act differently on the images of a batch (a mask for each image) give the largest norm among
    them. After ``steps`` products with A* A, or once the estimate moves by less than
    ``SETTLED``, relatively, it ends.
    """
    example = next((t for t in operator.tensors() if t.is_floating_point()), torch.ones(()))
    with torch.no_grad():
        batch = operator(example.new_zeros((1, *shape))).shape[0]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((batch, *shape), generator=generator, dtype=torch.float64)
    # A positive offset: nonnegative operators have nonnegative leading singular vectors.
    residual = (start + 0.5).to(example).flatten(1)
    basis: list[Tensor] = []
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    estimate = 0.0
    with torch.no_grad():
        for _ in range(min(steps, math.prod(shape))):
            length = torch.linalg.vector_norm(residual, dim=1, keepdim=True)
            beside.append(length[:, 0])
            # An image whose Krylov space is exhausted goes on with zeros.
            basis.append(residual / length.clamp_min(torch.finfo(length.dtype).tiny))
            unit = basis[-1].reshape(-1, *shape)
            product = operator.adjoint(operator(unit)).flatten(1)
            diagonal.append((product * basis[-1]).sum(1))
            known = torch.stack(basis, 1)
            residual = product.to(known)
            for _ in range(2):  # once leaves rounding errors along the leading vectors
                residual = residual - ((known @ residual[..., None]).mT @ known)[:, 0]
            previous, estimate = estimate, _largest_ritz_value(diagonal, beside[1:])
            exhausted = float(residual.abs().max()) <= EXHAUSTED * estimate
            settled = estimate - previous <= SETTLED * estimate and len(basis) >= FIRST_STEPS
            if exhausted or settled or estimate == math.inf:
                break
    return math.sqrt(max(estimate, 0.0))


def _largest_ritz_value(diagonal: list[Tensor], beside: list[Tensor]) -> float:
    """The largest eigenvalue among tridiagonal matrices, one for each image."""
    matrix = torch.diag_embed(torch.stack(diagonal, -1).cpu().double())
    if not bool(torch.isfinite(matrix).all()):
        return math.inf  # the products overflowed
    if beside:
        off = torch.stack(beside, -1).cpu().double()
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return float(torch.linalg.eigvalsh(matrix).max())
