"""Phantoms: images and exact sinograms of sums of ellipses.

The ellipses lie in the square from -1 to 1; x points to the right, y up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.tomography.ray_transform import RayTransform


@dataclass(frozen=True)
class Ellipse:
    """``value`` where (x/a)^2 + (y/b)^2 <= 1, rotated by ``degrees`` and moved to (x, y).

    Attributes:
        value: the value added inside.
        a: the semi-axis along x, before rotation.
        b: the semi-axis along y.
        x: the first coordinate of the centre.
        y: the second coordinate of the centre.
        degrees: the angle, counterclockwise.
    """

    value: float
    a: float
    b: float
    x: float = 0.0
    y: float = 0.0
    degrees: float = 0.0


SHEPP_LOGAN = (
    Ellipse(1.0, 0.69, 0.92),
    Ellipse(-0.8, 0.6624, 0.874, 0.0, -0.0184),
    Ellipse(-0.2, 0.11, 0.31, 0.22, 0.0, -18.0),
    Ellipse(-0.2, 0.16, 0.41, -0.22, 0.0, 18.0),
    Ellipse(0.1, 0.21, 0.25, 0.0, 0.35),
    Ellipse(0.1, 0.046, 0.046, 0.0, 0.1),
    Ellipse(0.1, 0.046, 0.046, 0.0, -0.1),
    Ellipse(0.1, 0.046, 0.023, -0.08, -0.605),
    Ellipse(0.1, 0.023, 0.023, 0.0, -0.606),
    Ellipse(0.1, 0.023, 0.046, 0.06, -0.605),
)
"""The head of Shepp and Logan with Toft's contrast: values between 0 and 1."""


def shepp_logan(size: int, samples: int = 4) -> Tensor:
    """The Shepp-Logan phantom, (1, 1, size, size); see ``ellipse_image``."""
    return ellipse_image(SHEPP_LOGAN, size, samples)


def ellipse_image(ellipses: Sequence[Ellipse], size: int, samples: int = 4) -> Tensor:
    """The sum of the ellipses, (1, 1, size, size); a pixel is the mean of samples^2 points."""
    if size < 1 or samples < 1:
        raise ValueError(f"a phantom needs size >= 1 and samples >= 1, got {size} and {samples}")
    fine = size * samples
    places = (2 * torch.arange(fine, dtype=torch.float64) + 1) / fine - 1
    x, y = places[None, :], places.flip(0)[:, None]
    image = torch.zeros((fine, fine), dtype=torch.float64)
    for e in ellipses:
        cos, sin = math.cos(math.radians(e.degrees)), math.sin(math.radians(e.degrees))
        along = ((x - e.x) * cos + (y - e.y) * sin) / e.a
        across = ((y - e.y) * cos - (x - e.x) * sin) / e.b
        image += e.value * (along**2 + across**2 <= 1)
    means = image.reshape(size, samples, size, samples).mean((1, 3))
    return means.to(torch.get_default_dtype())[None, None]


def ellipse_sinogram(operator: RayTransform, ellipses: Sequence[Ellipse] = SHEPP_LOGAN) -> Tensor:
    """Exact integrals of the ellipses along the operator's rays, (1, 1, angles, bins).

    A line at distance s from the centre of an ellipse, with the normal at angle t to its first
    axis, meets it on a length 2 a b sqrt(w^2 - s^2) / w^2 where w^2 = a^2 cos^2 t + b^2 sin^2 t.
    The square from -1 to 1 is the largest square around the centre of the operator's image.
    """
    grid, lines = operator.grid, operator.lines()
    half = min(grid.height * grid.pixel_height, grid.width * grid.pixel_width) / 2
    normal_x, normal_y = -lines.dy, lines.dx
    distance = (lines.x * normal_x + lines.y * normal_y) / half
    angle = np.arctan2(normal_y, normal_x)
    total = np.zeros_like(distance)
    for e in ellipses:
        turned = angle - math.radians(e.degrees)
        width = (e.a * np.cos(turned)) ** 2 + (e.b * np.sin(turned)) ** 2
        s = distance - e.x * normal_x - e.y * normal_y
        total += e.value * 2 * e.a * e.b * np.sqrt(np.maximum(width - s**2, 0)) / width
    return torch.from_numpy(half * total).to(operator.angles)[None, None]
