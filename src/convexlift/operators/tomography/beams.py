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
from convexlift.operators.spectral import frequencies
from convexlift.operators.tomography.arguments import checked_angles, checked_bins, checked_grid
from convexlift.operators.tomography.filtered_backprojection import (
    angle_shares,
    filtered,
    interpolated,
    lags,
    ramp,
)
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
    turn: float
    """The angles that tell all of an image, in radians: half a turn or a whole one."""

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
        """Weights of the bins, the filter |w| with the spacing of its lags."""

    @abstractmethod
    def _seen_from(self, t: float, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | float]:
        """Where rays through points meet the detector at angle t, and their weights."""

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """Filtered back projection: the sum over angles of filtered rows, interpolated."""
        shape = self.output_shape(self._resolve(None))
        if tuple(y.shape[1:]) != shape:
            raise ValueError(
                f"fbp expects sinograms of shape (batch, {', '.join(map(str, shape))}), "
                f"got {tuple(y.shape)}"
            )
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
        """1/|w|, up to the lowest frequency of the image."""
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


class ParallelBeam(RayTransform, name="ParallelBeam"):
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

    turn = math.pi
    invertible = True

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

    def _weighted_ramp(self) -> tuple[Floats, Floats, float]:
        return np.ones_like(self.bins), ramp(len(self.bins), self.bin_width), self.bin_width

    def _seen_from(self, t: float, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        return x * math.cos(t) + y * math.sin(t), 1.0


class FanBeam(RayTransform, name="FanBeam"):
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

    turn = 2 * math.pi

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

    @property
    def invertible(self) -> bool:  # type: ignore[override]
        """If the angles go all around."""
        return bool(self._covered >= 0.99 * self.turn)

    @property
    def _covered(self) -> float:
        return float(angle_shares(self.exact_angles, self.turn).sum())

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """The same integral in the fan's coordinates."""
        if not self.invertible:
            raise ValueError(
                f"fbp of a fan needs angles all around, not {math.degrees(self._covered):.0f} "
                "degrees of them; a short scan would need weights that are not here yet"
            )
        return super().approximate_inverse(y, window)

    def _weighted_ramp(self) -> tuple[Floats, Floats, float]:
        """The detector as if it were in the centre of the image (flat), or angles (curved)."""
        r, cosines = self.source_distance, np.cos(self.fan_angles(self.bins))
        distance = r + self.detector_distance
        if self.detector == "flat":
            spacing = self.bin_width * (r / distance)
            return cosines, ramp(len(self.bins), spacing), spacing
        spacing = self.bin_width * (1 / distance)
        kernel = ramp(len(self.bins), spacing)
        lag = lags(len(kernel)) * spacing
        bent = np.where(lag == 0, 1.0, lag / np.where(lag == 0, 1.0, np.sin(lag))) ** 2
        return r * cosines, kernel * bent, spacing

    def _seen_from(self, t: float, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        r, distance = self.source_distance, self.source_distance + self.detector_distance
        along = x * math.cos(t) + y * math.sin(t)
        depth = r - x * math.sin(t) + y * math.cos(t)  # from the source, on its axis
        if self.detector == "flat":
            return distance * (along / depth), (r / depth) ** 2
        return distance * torch.atan(along / depth), 1 / (along**2 + depth**2)

    def arguments(self) -> dict[str, Any]:
        """The geometry, with the source and the detector."""
        return super().arguments() | {
            "source_distance": self.source_distance,
            "detector_distance": self.detector_distance,
            "detector": self.detector,
        }


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
