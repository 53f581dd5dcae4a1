"""Scanners as operators: parallel beams, and fans on flat or curved detectors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.operators.tomography.arguments import checked_angles, checked_bins, checked_grid
from convexlift.operators.tomography.projector import Projector, projector
from convexlift.operators.tomography.rays import Floats, Grid, Lines
from convexlift.tensors import Shape

Detector = Literal["flat", "curved"]
DETECTORS: tuple[Detector, ...] = ("flat", "curved")
"""Bins at equal distances on a line, or at equal angles as seen from the source."""


class RayTransform(LinearOperator):
    """(A x)_{a, b} = integral of x along ray b of angle a, by Joseph's method.

    Images (B, 1, H, W) become sinograms (B, 1, angles, bins). The adjoint is the exact transpose;
    both can be differentiated as often as you like. On a GPU without Triton, sums of adjoints come
    in any order, so their last digits may vary from call to call.

    Attributes:
        grid: the pixels, in units of length.
        angles: in radians, in the operator's precision and on its device.
        exact_angles: the same in double precision.
        bins: the places of the bins on the detector.
        bin_width: their distance.
    """

    nonnegative = True
    bin_width: float

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

    def _projector(self, dtype: torch.dtype) -> Projector:
        key = self.angles.device, dtype
        known = self._shared.projectors
        if key not in known:
            known[key] = projector(self.lines(), self.grid, self.angles.device, dtype)
        return known[key]

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return self._apply(x, False)

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        shape = self.output_shape((1, self.grid.height, self.grid.width))
        if tuple(y.shape[1:]) != shape:
            raise ValueError(
                f"{type(self).__name__}.adjoint expects sinograms of shape (batch, "
                f"{', '.join(map(str, shape))}), got {tuple(y.shape)}"
            )
        return self._apply(y, True)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(1, angles, bins)."""
        if tuple(input_shape) != self.input_shape:
            raise ValueError(
                f"{type(self).__name__} takes images of {self.input_shape}, got {input_shape}"
            )
        return (1, len(self.exact_angles), len(self.bins))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Times the longest way of a ray, or the largest sum of lengths through a pixel."""
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
        result: Tensor = _Product.apply(data[:, 0], self._projector(data.dtype), transposed)  # type: ignore[no-untyped-call]
        return result[:, None]


class ParallelBeam(RayTransform):
    """(A x)(t, s) = integral of x over the line {(p, q): p cos t + q sin t = s}.

    p points to the right and q up; the first row of an image is the upper one. At t = 0, rays run
    along the columns.

    Args:
        image_size: N, or (height, width), in pixels.
        angles: in radians, or their number, spread evenly over [0, pi).
        bins: the number of rays for each angle.
        extent: height and width of the image in units of length (or one number for both); the
            default makes pixels of size 1.
        bin_width: the distance of two rays; the default is a detector as long as the diagonal.
        detector_offset: s in the middle of the detector.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        angles: int | Tensor | Sequence[float],
        bins: int,
        extent: float | tuple[float, float] | None = None,
        *,
        bin_width: float | None = None,
        detector_offset: float = 0.0,
    ) -> None:
        name = type(self).__name__
        grid = checked_grid(name, image_size, extent)
        width = 2 * grid.radius / max(bins, 1) if bin_width is None else bin_width
        places = checked_bins(name, bins, width, detector_offset)
        super().__init__(grid, checked_angles(name, angles, math.pi), places)
        self.bin_width = width

    def lines(self) -> Lines:
        """Through s (cos t, sin t), with the direction (sin t, -cos t)."""
        cos, sin = np.cos(self.exact_angles)[:, None], np.sin(self.exact_angles)[:, None]
        one = np.ones_like(self.bins)
        return Lines(self.bins * cos, self.bins * sin, sin * one, -cos * one)


class FanBeam(RayTransform):
    """(A x)(t, s) = integral of x over the line from the source at angle t to bin s.

    The source is at r (sin t, -cos t), the middle of the detector opposite, at -d (sin t, -cos t);
    s counts along (cos t, sin t). On a curved detector, a part of a circle around the source, s is
    the length of the arc. Far away sources give ``ParallelBeam``.

    Args:
        image_size: N, or (height, width), in pixels.
        angles: in radians, or their number, spread evenly over [0, 2 pi).
        bins: the number of rays for each angle.
        source_distance: r, from the source to the centre of the image.
        detector_distance: d, from the centre to the detector.
        extent: height and width of the image in units of length (or one number for both); the
            default makes pixels of size 1.
        detector: ``flat`` or ``curved``.
        bin_width: the distance of two bins on the detector; the default sees the whole image.
        detector_offset: s in the middle of the detector.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        angles: int | Tensor | Sequence[float],
        bins: int,
        source_distance: float,
        detector_distance: float,
        extent: float | tuple[float, float] | None = None,
        *,
        detector: Detector = "flat",
        bin_width: float | None = None,
        detector_offset: float = 0.0,
    ) -> None:
        name = type(self).__name__
        grid = checked_grid(name, image_size, extent)
        if detector not in DETECTORS:
            raise ValueError(f"detector must be one of {DETECTORS}, got {detector!r}")
        if not (math.isfinite(source_distance) and source_distance > grid.radius):
            raise ValueError(
                f"{name} needs its source outside the object: source_distance must exceed "
                f"{grid.radius:g}, where the corners of the image are, got {source_distance}"
            )
        if not (math.isfinite(detector_distance) and detector_distance >= 0):
            raise ValueError(f"{name} needs detector_distance >= 0, got {detector_distance}")
        self.source_distance = float(source_distance)
        self.detector_distance = float(detector_distance)
        self.detector: Detector = detector
        if bin_width is None:
            angle = math.asin(grid.radius / source_distance)
            reach = math.tan(angle) if detector == "flat" else angle
            bin_width = 2 * (source_distance + detector_distance) * reach / max(bins, 1)
        places = checked_bins(name, bins, bin_width, detector_offset)
        self.bin_width = bin_width
        if (steepest := float(np.abs(self.fan_angles(places)).max())) >= math.pi / 2:
            raise ValueError(
                f"{name} has rays that leave the source {math.degrees(steepest):.0f} degrees off "
                "its axis; make bin_width or detector_offset smaller"
            )
        super().__init__(grid, checked_angles(name, angles, 2 * math.pi), places)

    def fan_angles(self, places: Floats) -> Floats:
        """The angle at the source between the axis and the ray to each place on the detector."""
        along = places / (self.source_distance + self.detector_distance)
        return np.arctan(along) if self.detector == "flat" else along

    def lines(self) -> Lines:
        """From the source, turned by the fan's angles."""
        angles = self.exact_angles[:, None]
        fan = angles - self.fan_angles(self.bins)  # the detector's axis is clockwise of the ray's
        zero = np.zeros_like(self.bins)
        return Lines(
            self.source_distance * np.sin(angles) + zero,
            -self.source_distance * np.cos(angles) + zero,
            -np.sin(fan),
            np.cos(fan),
        )


@dataclass(eq=False)
class _Shared:
    """What copies of an operator in other precisions and on other devices have in common."""

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
