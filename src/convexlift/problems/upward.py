"""A direction d of the data with A* d > 0, which makes bounds provable in one-sided boxes.

For x >= lower alone, <A* v + c, x> is bounded below only if A* v + c >= 0, which a solver's v
violates a little at some pixels. v + delta d does not, for a small delta.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape, choose_images, expand_per_image, sum_per_image

ITERATIONS = 300
"""The most products with A and A*; none if d = 1 or -1 suffices."""


def upward(A: LinearOperator, measured: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """d with |d| <= 1, zero for data that were not measured, and A* d, positive if possible.

    d = 1 or -1 if that suffices. Kernels with negative weights see some pixels with the wrong sign;
    then d is sought with A* d >= 1/2, before it is scaled to |d| <= 1.
    """
    push = A.adjoint(measured)
    sign = torch.where(sum_per_image(push) < 0, -1.0, 1.0).to(push)
    d, push = expand_per_image(sign, measured) * measured, expand_per_image(sign, push) * push
    if bool((push >= 0).all()):
        return d, push
    solved = _search(A, measured, push.new_ones((len(measured), *shape)), A.norm(shape))
    largest = solved.abs().flatten(1).amax(1).clamp_min(torch.finfo(solved.dtype).tiny)
    solved = solved / expand_per_image(largest, solved)
    reached = A.adjoint(solved)
    better = reached.flatten(1).amin(1) > push.flatten(1).amin(1)
    return choose_images(better, solved, d), choose_images(better, reached, push)


def _search(A: LinearOperator, measured: Tensor, target: Tensor, norm: float) -> Tensor:
    """argmin ||(target - A* d)_+||^2 over measured data, by Nesterov's method."""
    d = ahead = torch.zeros_like(measured)
    for k in range(ITERATIONS):
        short = (target - A.adjoint(ahead)).clamp_min(0)
        if bool((short < target / 2).all()):
            return ahead
        d, before = ahead + measured * A(short) / norm**2, d
        ahead = d + k / (k + 3) * (d - before)
    return ahead
