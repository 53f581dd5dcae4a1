"""The data term of a claim on a GPU, in one kernel (``rigorous_data.cu``).

    sum f(d x), rounded up,    and    sum inf f(d x) + c x over lower <= x <= upper, rounded down,

pixel by pixel as in ``Fidelity.density_above`` and ``rigorous_bounds``, whose hundred passes over
the image take longer than the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.kernels.availability import current
from convexlift.operators.linear import LinearOperator
from convexlift.problems.rounding import Rounded, gamma
from convexlift.tensors import Shape, converted, is_own

KINDS = {"squared": 1, "absolute": 2}


@dataclass(frozen=True, eq=False)
class PixelData:
    """Data of single pixels, A = diag(d), with squared or absolute errors, as kernels read them.

    ``strides`` are the distances between the entries of d for two images, and for two pixels.
    """

    y: Tensor
    d: Tensor
    kind: int
    scale: float
    strides: tuple[int, int]

    @staticmethod
    def of(fidelity: Fidelity, operator: LinearOperator, shape: Shape) -> PixelData | None:
        """For images of a shape, if the data are of this kind; else None."""
        d, y, f = operator.diagonal, fidelity.y, fidelity.kernel
        if d is None or f is None or f.kind not in KINDS or f.pull or not is_own(fidelity):
            return None
        if y.shape != shape or y[0].numel() >= first_layer.LARGEST or not y.is_contiguous():
            return None
        d = converted(d, y)
        if d.numel() > 1:
            d = d.expand(-1 if d.ndim == y.ndim else 1, *shape[1:]).contiguous()
        size = y[0].numel()
        strides = size if d.numel() > size else 0, int(d.numel() > 1)
        return PixelData(y, d, KINDS[f.kind], f.scale, strides)


@dataclass(frozen=True, eq=False)
class RigorousData:
    """The kernel for some data."""

    kernel: Any
    fidelity: Fidelity
    data: PixelData
    roundings: int

    @staticmethod
    def of(fidelity: Fidelity, operator: LinearOperator, shape: Shape) -> RigorousData | None:
        """For images of a shape, if there is a kernel for these data; else None."""
        kernel = rigorous_pass.data_kernel(fidelity.y.device, "data_bounds")
        data = None if kernel is None else PixelData.of(fidelity, operator, shape)
        # One factor: products of several have more rounding errors.
        if data is None or len(operator.steps(shape[1:])) > 1:
            return None
        return RigorousData(kernel, fidelity, data, operator.roundings(shape[1:]))

    def above(self, x: Tensor) -> Tensor:
        """D(d x) for each image, rounded up."""
        totals, rate = self._totals(x.contiguous(), x.new_zeros(1), Box(0.0, 1.0), below=False)
        return totals[:, 0] + rate * totals[:, 1]

    def below(self, c: Rounded, box: Box) -> Tensor:
        """inf D(d x) + <c, x> over the box, which is bounded and holds no negative numbers."""
        error = c.error.flatten(1)
        assert error.shape[1] == 1
        totals, rate = self._totals(c.value.contiguous(), error, box, below=True)
        return totals[:, 0] - rate * totals[:, 1]

    def _totals(
        self, image: Tensor, error: Tensor, box: Box, *, below: bool
    ) -> tuple[Tensor, float]:
        """Sums and those of absolute values, (B, 2); the rate of their rounding errors."""
        f, data, size, batch = self.fidelity, self.data, image[0].numel(), len(image)
        programs = rigorous_pass.data_programs(size)
        totals = image.new_empty((batch, programs, 2))
        with current(image.device):
            self.kernel(
                grid=(programs, batch, 1), block=first_layer.BLOCK,
                args=[image, image, error, data.y, data.d, totals,
                      data.scale, f.density_rounding, f.conjugate_rounding, gamma(self.roundings),
                      float(box.lower), float(box.upper),
                      data.kind, int(below), size, *data.strides, int(len(error) > 1)],
            )  # fmt: skip
        # Over the pixels of a thread, the threads of a program as a tree, and all programs.
        threads = math.prod(first_layer.BLOCK)
        return totals.sum(1), gamma(rigorous_pass.PIXELS + threads.bit_length() + programs)
