"""Integrals along the rays of a scanner as a linear operator, and how they are computed."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.operators.spectral import frequencies
from convexlift.operators.tomography.filtered_backprojection import (
    angle_shares,
    filtered,
    interpolated,
)
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.rays import Floats, Grid, Lines
from convexlift.operators.tomography.sparse_projector import Tables, tables
from convexlift.operators.tomography.triton_projector import RayKernels
from convexlift.precision import near_double
from convexlift.tensors import Shape

TABLE_BYTES = 2**29
"""The most memory for tables of weights; larger ones are computed at each product instead."""
Projector = Tables | RayKernels | Joseph
"""Products with A, ``project``, and with its exact transpose, ``backproject``."""


def projector(lines: Lines, grid: Grid, device: torch.device, dtype: torch.dtype) -> Projector:
    """Tables on a CPU, if they are small and torch has MKL's sparse products; kernels on a GPU.

    ``Joseph`` in all other cases.
    """
    sparse = device.type == "cpu" and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    if sparse and dtype in (torch.float32, torch.float64):
        found = tables(lines, grid, dtype, TABLE_BYTES)
        if found is not None:
            return found
    return RayKernels.of(lines, grid, device, dtype) or Joseph(lines, grid, device)


class RayTransform(LinearOperator):
    """(A x)_{a, b} = integral of x along ray b of angle a, by Joseph's method.

    Images (B, 1, H, W) become sinograms (B, 1, angles, bins). The adjoint is the exact transpose;
    both can be differentiated any number of times. On a GPU without Triton, adjoints are added up
    in no fixed order, so their last digits may vary from call to call.

    Attributes:
        grid: the pixels, in units of length.
        angles: in radians, in the operator's precision and on its device.
        exact_angles: the same in double precision.
        bins: the places of the bins on the detector.
        bin_width: their distance.
        turn: the range of angles that determines an image, in radians: a half or a full turn.
    """

    nonnegative = True
    bin_width: float
    turn: float

    def __init__(self, grid: Grid, angles: Floats, bins: Floats) -> None:
        self.grid = grid
        self.input_shape = (1, grid.height, grid.width)
        # Geometry stays in double precision; the tensor follows `to` and says where images are.
        self.exact_angles = angles
        self.bins = bins
        self.angles = torch.from_numpy(angles).to(torch.get_default_dtype())
        self._shared = _Shared()

    @abstractmethod
    def lines(self) -> Lines:
        """The rays."""

    @abstractmethod
    def _weighted_ramp(self) -> tuple[Floats, Floats, float]:
        """Weights of the bins, the filter |xi| with the spacing of its lags."""

    @abstractmethod
    def _seen_from(self, t: float, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | float]:
        """Where rays through points meet the detector at angle t, and their weights."""

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """Filtered back projection: the sum over angles of filtered rows, interpolated."""
        self._check_sinograms(y, "fbp")
        weights, kernel, spacing = self._weighted_ramp()
        rows = filtered(y[:, 0] * torch.from_numpy(weights).to(y), kernel, spacing, window)
        across, up = (torch.from_numpy(centres).to(y) for centres in self.grid.centres())
        image = y.new_zeros((y.shape[0], len(up), len(across)))
        shares = angle_shares(self.exact_angles, self.turn) * (math.pi / self.turn)
        for k, (t, share) in enumerate(zip(self.exact_angles, shares, strict=True)):
            place, weight = self._seen_from(t, across, up[:, None])
            position = (place - self.bins[0]) / self.bin_width
            image += share * weight * interpolated(rows[:, k], position)
        return image[:, None]

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor | None:
        """1/|xi|, up to the lowest frequency of the image."""
        if not self.invertible:
            return None
        lowest = 0.5 / max(height, width)
        return 1 / (frequencies(height, width, like.dtype, like.device) + lowest)

    def arguments(self) -> dict[str, Any]:
        """The geometry itself, in double precision."""
        return {
            "image_size": [self.grid.height, self.grid.width],
            "pixel_size": [self.grid.pixel_height, self.grid.pixel_width],
            "angles": self.exact_angles,
            "bins": self.bins,
        }

    def _projector(self, dtype: torch.dtype) -> Projector:
        device = near_double(self.angles).device  # paths of rays are in double precision
        known = self._shared.projectors
        if (device, dtype) not in known:
            known[device, dtype] = projector(self.lines(), self.grid, device, dtype)
        return known[device, dtype]

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return self._apply(x, False)

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        self._check_sinograms(y, f"{type(self).__name__}.adjoint")
        return self._apply(y, True)

    def _check_sinograms(self, y: Tensor, user: str) -> None:
        shape = self.output_shape(self._resolve(None))
        if tuple(y.shape[1:]) != shape:
            raise ValueError(
                f"{user} expects sinograms of shape (batch, {', '.join(map(str, shape))}), "
                f"got {tuple(y.shape)}"
            )

    def output_shape(self, input_shape: Shape) -> Shape:
        """(1, angles, bins)."""
        if tuple(input_shape) != self.input_shape:
            raise ValueError(
                f"{type(self).__name__} takes images of {self.input_shape}, got {input_shape}"
            )
        return (1, len(self.exact_angles), len(self.bins))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Times the longest path of a ray, or the largest sum of lengths through a pixel."""
        if not adjoint:
            steps = max(self.grid.height, self.grid.width) + 2
            longest = steps * math.hypot(self.grid.pixel_height, self.grid.pixel_width)
            return longest * bound
        if self._shared.densest is None:
            ones = torch.ones(1, *self.output_shape(input_shape), dtype=torch.float64)
            self._shared.densest = 1.01 * float(self.adjoint(ones.to(self.angles.device)).max())
        return self._shared.densest * bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """Four for each of the crossings of a ray; for each of the rays that may meet a pixel."""
        angles, bins = len(self.exact_angles), len(self.bins)
        return 4 * (angles * bins if adjoint else max(self.grid.height, self.grid.width) + 2)

    def __repr__(self) -> str:
        size = f"{self.grid.height} x {self.grid.width} pixels"
        return (
            f"{type(self).__name__}({size}, {len(self.exact_angles)} angles, {len(self.bins)} bins)"
        )

    def _apply(self, data: Tensor, transposed: bool) -> Tensor:
        if not data.is_floating_point():
            raise ValueError(f"{type(self).__name__} takes real numbers, got {data.dtype}")
        if data.device != self.angles.device:
            raise ValueError(
                f"{type(self).__name__} is on {self.angles.device} and its argument on "
                f"{data.device}; write operator.to(device={str(data.device)!r})"
            )
        values = near_double(data[:, 0])
        result: Tensor = _Product.apply(values, self._projector(data.dtype), transposed)  # type: ignore[no-untyped-call]
        return result[:, None].to(data.device)


@dataclass(eq=False)
class _Shared:
    """Results shared by copies of an operator in other precisions and on other devices."""

    projectors: dict[tuple[torch.device, torch.dtype], Projector] = field(default_factory=dict)
    densest: float | None = None


class _Product(torch.autograd.Function):
    """A x or A* y. Each is the derivative of the other, so both may be differentiated again."""

    @staticmethod
    def forward(data: Tensor, projector: Projector, transposed: bool) -> Tensor:
        return projector.backproject(data) if transposed else projector.project(data)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.projector, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        product = _Product.apply(gradients[0], ctx.projector, not ctx.transposed)  # type: ignore[no-untyped-call]
        return product, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Product.apply(tangents[0], ctx.projector, ctx.transposed)  # type: ignore[no-untyped-call]
