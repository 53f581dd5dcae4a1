"""A direction d of data variables with A* d > 0: it makes one-sided bounds on x prove something.

For x >= lower alone, <A* v + c, x> is bounded below only where A* v + c >= 0, and a solver's v
misses that by a little somewhere. v + delta d does not, for a small delta.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape, choose_images, expand_per_image, sum_per_image

ITERATIONS = 300
"""Products with A and A*, at most; none where ones are enough."""


def upward(A: LinearOperator, measured: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """d with |d| <= 1, zero for data that were not measured, and A* d, as positive as we can.

    d = 1, or -1, wherever that is enough. Kernels with negative weights see some pixels with the
    wrong sign; then d is sought with A* d >= 1/2, before it is scaled to |d| <= 1.
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
