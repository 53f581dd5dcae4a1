"""Joseph's method: sums of images along rays, and their exact transposes.

A ray that meets every row once, row i at column c_i, has the integral

    (A x)_k = length_k sum_i (1 - f_i) x[i, j_i] + f_i x[i, j_i + 1],   c_i = j_i + f_i

with j_i = floor(c_i) and zeros around the image; others go by columns. Weights are computed while
they are used, in pieces that stay in a cache: a matrix of them would be hundreds of times the size
of an image. The transpose adds up with the very same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from convexlift.operators.tomography.rays import Crossings, Grid, Lines, crossings

SAMPLES = {"cpu": 2**18, "cuda": 2**23}
"""Crossings processed at a time: as many as fit a cache, or keep a GPU busy."""
MARGIN = 3
"""Zeros beyond each row: one before it, and two after."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring rays, and the steps that at least one of them takes."""

    ray: Tensor
    start: Tensor
    slope: Tensor
    length: Tensor
    steps: Tensor
    offsets: Tensor

    def weights(self, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The left neighbours, as places in the padded image, and f; rays x steps, flat."""
        # In double precision: single precision is 3e-5 pixels wrong at the end of a row.
        crossing = torch.addcmul(self.start, self.slope, self.steps).clamp_(0, size + 1)
        left = crossing.to(torch.int32)
        return left.add_(self.offsets).flatten(), crossing.frac_().to(dtype).flatten()


class Joseph:
    """Products with A and its transpose, for given lines, on one device."""

    def __init__(self, lines: Lines, grid: Grid, device: torch.device) -> None:
        self.grid = grid
        self.sinogram_shape = lines.x.shape
        by_rows, by_columns = crossings(lines, grid)
        bins = lines.x.shape[1]
        self._rows = tuple(_pieces(by_rows, grid.width, bins, device))
        self._columns = tuple(_pieces(by_columns, grid.height, bins, device))

    def project(self, x: Tensor) -> Tensor:
        """A x: (B, H, W) -> (B, angles, bins)."""
        y = x.new_zeros((x.shape[0], int(np.prod(self.sinogram_shape))))
        for image, pieces in ((x, self._rows), (x.mT, self._columns)):
            if pieces:
                size = image.shape[-1]
                _project(torch.nn.functional.pad(image, (1, 2)).flatten(1), pieces, size, y)
        return y.reshape(-1, *self.sinogram_shape)

    def backproject(self, y: Tensor) -> Tensor:
        """A* y: (B, angles, bins) -> (B, H, W)."""
        height, width = self.grid.height, self.grid.width
        flat = y.flatten(1)
        x = y.new_zeros((y.shape[0], height, width))
        for image, pieces in ((x, self._rows), (x.mT, self._columns)):
            if pieces:
                steps, size = image.shape[-2:]
                padded = y.new_zeros((y.shape[0], steps * (size + MARGIN)))
                _backproject(flat, pieces, size, padded)
                image += padded.reshape(-1, steps, size + MARGIN)[..., 1:-2]
        return x


def _project(padded: Tensor, pieces: tuple[Piece, ...], size: int, y: Tensor) -> None:
    for piece in pieces:
        left, fraction = piece.weights(size, padded.dtype)
        length = piece.length.to(padded.dtype)
        for image, integrals in zip(padded, y, strict=True):
            values = torch.lerp(
                image.index_select(0, left), image[1:].index_select(0, left), fraction
            )
            integrals[piece.ray] = length * values.reshape(len(piece.ray), -1).sum(1)


def _backproject(y: Tensor, pieces: tuple[Piece, ...], size: int, padded: Tensor) -> None:
    for piece in pieces:
        left, fraction = piece.weights(size, padded.dtype)
        length = piece.length.to(padded.dtype)
        fraction = fraction.reshape(len(piece.ray), -1)
        for image, integrals in zip(padded, y, strict=True):
            whole = (length * integrals[piece.ray])[:, None]
            right = whole * fraction
            image.index_add_(0, left, (whole - right).flatten())
            image[1:].index_add_(0, left, right.flatten())


def _pieces(rays: Crossings, size: int, bins: int, device: torch.device) -> Iterator[Piece]:
    """Neighbouring rays together: they cross nearly the same steps."""
    most = int((rays.last - rays.first).max(initial=1))
    count = max(1, SAMPLES.get(device.type, SAMPLES["cuda"]) // most)
    # Pieces on a CPU end with their angle, where the next ray is at the other end of the image.
    angle = rays.ray // bins if count < bins else np.zeros_like(rays.ray)
    for group in np.split(np.arange(len(rays.ray)), np.flatnonzero(np.diff(angle)) + 1):
        for part in np.array_split(group, max(1, -(-len(group) // count))):
            if len(part):
                yield _piece(rays[slice(part[0], part[-1] + 1)], size, device)


def _piece(rays: Crossings, size: int, device: torch.device) -> Piece:
    steps = torch.arange(int(rays.first.min()), int(rays.last.max()), device=device)

    def column(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device)[:, None]

    return Piece(
        ray=torch.from_numpy(rays.ray).to(device),
        start=column(rays.start + 1),  # of the padded image
        slope=column(rays.slope),
        length=torch.from_numpy(rays.length).to(device),
        steps=steps.to(torch.float64),
        offsets=(steps * (size + MARGIN)).to(torch.int32),
    )
