"""Scanners: parallel beams, and fans on flat or curved detectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.linear import Scaled
from convexlift.operators.tomography.filtered_backprojection import angle_shares, lags, ramp
from convexlift.operators.tomography.ray_transform import RayTransform
from convexlift.operators.tomography.rays import Floats, Grid, Lines

T = TypeVar("T")
Detector = Literal["flat", "curved"]
DETECTORS: tuple[Detector, ...] = ("flat", "curved")
"""Bins at equal distances on a line, or at equal angles as seen from the source."""
PAPER_BACKGROUND = 50.0
"""The counts r that are added to A x, in ``KullbackLeibler(y, background=r)``."""
PAPER_EXTENT = 256.0
"""The longer side of the image, in units of length."""
PAPER_UNIT = 0.1 * math.sqrt(2) * PAPER_EXTENT / 400
"""Integrals are divided by this, a tenth of the width of a bin, which makes the counts larger."""


class ParallelBeam(RayTransform, name="ParallelBeam"):
    """(A x)(t, s) = integral of x over the line {(p, q): p cos t + q sin t = s}.

    p points to the right and q up; the first row of an image is the upper one. At t = 0, rays run
    along the columns, and the first bin is at the left; at t = pi/2, it is at the bottom.

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
        grid = _checked_grid(name, image_size, extent)
        width = 2 * grid.radius / max(bins, 1) if bin_width is None else bin_width
        places = _checked_bins(name, bins, width, detector_offset)
        super().__init__(grid, _checked_angles(name, angles, math.pi), places)
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
        grid = _checked_grid(name, image_size, extent)
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
        places = _checked_bins(name, bins, bin_width, detector_offset)
        self.bin_width = bin_width
        if (steepest := float(np.abs(self.fan_angles(places)).max())) >= math.pi / 2:
            raise ValueError(
                f"{name} has rays that leave the source {math.degrees(steepest):.0f} degrees off "
                "its axis; make bin_width or detector_offset smaller"
            )
        super().__init__(grid, _checked_angles(name, angles, 2 * math.pi), places)

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
        """Whether the angles go all around."""
        return bool(self._covered >= 0.99 * self.turn)

    @property
    def _covered(self) -> float:
        return float(angle_shares(self.exact_angles, self.turn).sum())

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """The same integral in the fan's coordinates."""
        if not self.invertible:
            raise ValueError(
                f"fbp of a fan needs angles all around, not {math.degrees(self._covered):.0f} "
                "degrees of them; the weights of short scans are not implemented"
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


def paper_scanner(
    image_size: int | tuple[int, int] = 512, views: int = 200, bins: int = 400
) -> Scaled:
    """A = (ray transform) / ``PAPER_UNIT`` of the paper's experiments in tomography.

    Parallel beams at the angles (k + 1/2) pi / views - pi / 2, and bins over the diagonal of an
    image whose longer side is 256. Data are Poisson numbers of A x + ``PAPER_BACKGROUND``. The
    paper does not print scale and angles: these explain the counts that its authors released, with
    chi^2 / n = 1.0008.

    Args:
        image_size: N, or (height, width), in pixels; 512 in the paper, as the others' defaults.
        views: the number of angles.
        bins: the number of rays for each angle. Fewer, and wider, bins keep their scale.
    """
    height, width = _pair(image_size)
    pixel = PAPER_EXTENT / max(height, width)
    angles = [(k + 0.5) * math.pi / views - math.pi / 2 for k in range(views)]
    beam = ParallelBeam((height, width), angles, bins, (pixel * height, pixel * width))
    return beam * (1 / PAPER_UNIT)


def _checked_grid(
    name: str, image_size: int | tuple[int, int], extent: float | tuple[float, float] | None
) -> Grid:
    """Pixels of ``image_size`` = (height, width) over a rectangle of ``extent``."""
    sizes = _pair(image_size)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise ValueError(
            f"{name} needs image_size=N or (height, width) of whole numbers from 1, "
            f"got {image_size!r}"
        )
    height, width = sizes
    extents = (float(height), float(width)) if extent is None else _pair(extent)
    if not all(math.isfinite(e) and e > 0 for e in extents):
        raise ValueError(
            f"{name} needs extent > 0, the height and width of the image in units of length, "
            f"got {extent!r}"
        )
    return Grid(height, width, float(extents[0]) / height, float(extents[1]) / width)


def _checked_angles(name: str, angles: int | Tensor | Sequence[float], turn: float) -> Floats:
    """Angles in radians; ``angles`` = N means N angles spread evenly over [0, turn)."""
    if isinstance(angles, int) and not isinstance(angles, bool):
        if angles < 1:
            raise ValueError(f"{name} needs at least one angle, got angles={angles}")
        return np.arange(angles, dtype=np.float64) * (turn / angles)
    values = torch.as_tensor(angles, dtype=torch.float64).cpu()
    if values.requires_grad:
        raise ValueError(f"{name} is not differentiable in its angles; write angles.detach()")
    if values.ndim != 1 or values.numel() == 0:
        raise ValueError(
            f"{name} needs angles=N or a list of angles in radians, got the shape "
            f"{tuple(values.shape)}"
        )
    if not (finite := torch.isfinite(values)).all():
        place = int((~finite).nonzero()[0])
        raise ValueError(f"{name} got angles[{place}] = {float(values[place])}")
    return values.numpy().copy()


def _checked_bins(name: str, bins: int, bin_width: float, offset: float) -> Floats:
    """The centres of the bins, on a detector whose middle is at ``offset``."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"{name} needs bins=N, a whole number from 1, got {bins!r}")
    if not (math.isfinite(bin_width) and bin_width > 0):
        raise ValueError(f"{name} needs bin_width > 0, got {bin_width}")
    if not math.isfinite(offset):
        raise ValueError(f"{name} needs a finite detector_offset, got {offset}")
    return (np.arange(bins, dtype=np.float64) - (bins - 1) / 2) * bin_width + offset


def _pair(value: T | tuple[T, T]) -> tuple[T, T]:
    if not isinstance(value, tuple):
        return (value, value)
    if len(value) != 2:
        raise ValueError(f"a number or a pair (height, width) was expected, got {value!r}")
    return value
