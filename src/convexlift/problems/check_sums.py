"""The numbers of a check on a GPU from sums alone, those of data in a kernel (``data_checks.cu``).

    D(d x),    sum f(d x) + c x - min_{lower <= x' <= upper} (f(d x') + c x'),

and whether x is finite and in the box: what ``Evaluation`` and ``data_bound`` compute for a
diagonal operator in a bounded box, in fifty passes over the image. Bounds hold everywhere there,
and nothing is repaired: in the loop of a solver, nobody reads the local terms of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from convexlift.kernels import first_layer, rigorous_pass
from convexlift.kernels.availability import current
from convexlift.problems.one_pass import OnePass
from convexlift.problems.rigorous_data import PixelData
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks


def check_sums(
    problem: VariationalProblem, x: Tensor, duals: Blocks
) -> tuple[Blocks, tuple[Tensor, ...]] | None:
    """The witness of the bound and ``Evaluation.numbers``; None if there is no kernel."""
    data = CheckedData.of(problem, x)
    one_pass = None if data is None else OnePass.of(problem.network)
    if data is None or one_pass is None:
        return None
    regularizer, minorant, last = one_pass(problem.weight, x, duals)
    data_term, excess, indicator, wild = data(x, minorant.c)
    # NaN in x makes the data term NaN, which stays visible.
    objective = data_term + problem.weight * regularizer + indicator
    gap = excess + minorant.slack
    numbers = wild == 0, objective, data_term, regularizer, gap, gap, excess
    if len(problem.network.layers) == 1:
        return minorant.witness, numbers
    assert last is not None
    return minorant.witness, (*numbers, problem.network.saturated(last))


@dataclass(frozen=True, eq=False)
class CheckedData:
    """Data of single pixels in single precision, with squared or absolute errors, and a box."""

    kernel: Any
    data: PixelData
    box: tuple[float, float]

    @staticmethod
    def of(problem: VariationalProblem, x: Tensor) -> CheckedData | None:
        """For these images, if there is a kernel for the data; else None."""
        box, y = problem.bounds, problem.fidelity.y
        if not box.is_bounded or x.dtype != torch.float32 or y.dtype != torch.float32:
            return None
        kernel = rigorous_pass.data_kernel(y.device, "data_checks")
        if kernel is None:
            return None
        data = PixelData.of(problem.fidelity, problem.operator, x.shape)
        ends = float(box.lower), float(box.upper)
        return None if data is None else CheckedData(kernel, data, ends)

    def __call__(self, x: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        """D(A x), the excess, 0 or +inf outside the box, and the pixels that are not finite.

        (B,) each, in double precision.
        """
        data, batch, size = self.data, len(x), x[0].numel()
        programs = rigorous_pass.data_programs(size)
        totals = x.new_empty((2, batch, programs, 2), dtype=torch.float64)
        with current(x.device):
            self.kernel(
                grid=(programs, batch, 1), block=first_layer.BLOCK,
                args=[x.contiguous(), c.contiguous(), data.y, data.d, *totals,
                      data.scale, *self.box, data.kind, size, *data.strides],
            )  # fmt: skip
        return tuple(sums for pair in totals.sum(2) for sums in pair.unbind(1))
