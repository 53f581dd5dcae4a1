"""Linear maps of balls: weights for each pixel, convolutions, ray transforms, and their algebra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from .balls import Array, Ball, U, size_of

Shape = tuple[int, ...]
Product = Callable[[Array, Array], Array]
"""Of the weights of a map and a batch of inputs."""
PADDINGS: dict[str, Callable[[Any, int], Any]] = {
    "none": lambda p, n: p,
    "zero": lambda p, n: np.where((p < 0) | (p >= n), n, p),
    "circular": lambda p, n: p % n,
    "reflect": lambda p, n: n - 1 - np.abs(n - 1 - np.abs(p)),
    "replicate": lambda p, n: np.clip(p, 0, n - 1),
}
"""Which of n pixels is number p of a padded row, p < 0 and p >= n included; n itself is a zero."""
DIAGONAL_TOLERANCE = 1e-9
"""Rays this close to a pixel's diagonal step from row to row: the operator is defined so."""


@dataclass(frozen=True)
class Map:
    """A linear map, and its adjoint.

    Attributes:
        shape: of one output, without the batch.
        push: the map.
        pull: its adjoint.
        diagonal: whether it multiplies each pixel by a number.
    """

    shape: Shape
    push: Callable[[Ball], Ball]
    pull: Callable[[Ball], Ball]
    diagonal: bool = False


def linear(
    weight: Array,
    shapes: tuple[Shape, Shape],
    products: tuple[Product, Product],
    terms: tuple[int, int],
) -> Map:
    """The map with these weights.

    A sum of n products errs by at most gamma_n times the sum of their absolute values, in any
    order of summation; a second pass with absolute values bounds it.

    Args:
        weight: what ``products`` multiply by.
        shapes: of an output and of an input.
        products: the map and its adjoint.
        terms: how many roundings a term meets in either.
    """

    def carried(ball: Ball, k: int) -> Ball:
        gamma = 2 * (terms[k] + 8) * U
        error = np.broadcast_to(size_of(ball.error + gamma * size_of(ball.value)), ball.value.shape)
        value = products[k](weight, ball.value).reshape(-1, *shapes[k])
        bound = products[k](size_of(weight), error).reshape(-1, *shapes[k])
        return Ball(value, bound * (1 + gamma))

    return Map(shapes[0], lambda x: carried(x, 0), lambda y: carried(y, 1))


def diagonal(weight: Array, shape: Shape) -> Map:
    """A number for each pixel, or one for all."""
    each = linear(weight, (shape, shape), (np.multiply, np.multiply), (1, 1))
    return Map(shape, each.push, each.pull, diagonal=True)


def chain(maps: Sequence[Map], shape: Shape) -> Map:
    """Maps one after the other; the identity if there are none."""
    return Map(
        maps[-1].shape if maps else shape,
        lambda x: reduce(lambda ball, each: each.push(ball), maps, x),
        lambda y: reduce(lambda ball, each: each.pull(ball), reversed(maps), y),
        all(each.diagonal for each in maps),
    )


def added(maps: Sequence[Map]) -> Map:
    """The sum of maps."""
    return Map(
        maps[0].shape,
        lambda x: reduce(Ball.__add__, [each.push(x) for each in maps]),
        lambda y: reduce(Ball.__add__, [each.pull(y) for each in maps]),
        all(each.diagonal for each in maps),
    )


def dense(weight: Array, shape: Shape) -> Map:
    """A matrix (out, in) times the flattened input."""
    outputs, inputs = weight.shape

    def apply(w: Array, x: Array) -> Array:
        return x.reshape(len(x), -1) @ w.T

    def adjoint(w: Array, y: Array) -> Array:
        return y.reshape(len(y), -1) @ w

    return linear(weight, ((outputs, 1, 1), shape), (apply, adjoint), (inputs, outputs))


def average_pool(size: int, shape: Shape) -> Map:
    """The means of blocks of pixels."""
    kernel = np.full((1, 1, size, size), 1 / size**2)
    return convolution(kernel, shape, stride=size, padding="none")


def differences(shape: Shape) -> Map:
    """For each channel its differences down and to the right, zero past the last pixels."""
    kernels = np.zeros((2, 1, 3, 3))
    kernels[:, 0, 1, 1] = -1
    kernels[0, 0, 2, 1] = kernels[1, 0, 1, 2] = 1
    return convolution(kernels, shape, padding="replicate")


def convolution(weight: Array, shape: Shape, stride: int = 1, padding: str = "zero") -> Map:
    """Correlation with kernels (out, in, rows, columns); if in = 1, of each channel by itself."""
    outputs, inputs, *kernel = weight.shape
    height, width = shape[1:]
    size = (-(-height // stride), -(-width // stride))
    margins = [0 if padding == "none" else k // 2 for k in kernel]
    rows = PADDINGS[padding](np.arange(-margins[0], height + margins[0]), height)
    columns = PADDINGS[padding](np.arange(-margins[1], width + margins[1]), width)
    index = rows[:, None] * (width + 1) + columns  # in images with a row and a column of zeros

    def seen(padded: Array, i: int, j: int) -> Array:
        return padded[:, :, i : i + stride * size[0] : stride, j : j + stride * size[1] : stride]

    def apply(w: Array, x: Array) -> Array:
        planes = np.pad(x.reshape(-1, inputs, height, width), ((0, 0), (0, 0), (0, 1), (0, 1)))
        padded = planes.reshape(len(planes), inputs, -1)[:, :, index]
        result = np.zeros((len(planes), outputs, math.prod(size)))
        for i, j in np.ndindex(*kernel):
            result += w[:, :, i, j] @ seen(padded, i, j).reshape(len(planes), inputs, -1)
        return result

    def adjoint(w: Array, y: Array) -> Array:
        planes = y.reshape(-1, outputs, math.prod(size))
        padded = np.zeros((len(planes), inputs, *index.shape))
        for i, j in np.ndindex(*kernel):
            part = w[:, :, i, j].T @ planes
            seen(padded, i, j)[...] += part.reshape(len(planes), inputs, *size)
        images = np.zeros((len(planes) * inputs, (height + 1) * (width + 1)))
        copies: Any = (slice(None), index.ravel())
        np.add.at(images, copies, padded.reshape(len(images), -1))
        return images.reshape(-1, height + 1, width + 1)[:, :-1, :-1]

    # A padded image holds at most as many copies of a pixel as the kernel has entries.
    return linear(
        weight,
        ((outputs * shape[0] // inputs, *size), shape),
        (apply, adjoint),
        (weight[0].size, weight.size // inputs + math.prod(kernel)),
    )


def rays(lines: Sequence[Array], size: tuple[int, int], pixel: Sequence[float]) -> Map:
    """Integrals along lines by Joseph's method.

    A line that advances faster along the rows of pixels meets each of them once, between two
    pixels that share its length there; other lines go by columns. Row 0 is at the top.

    Args:
        lines: x, y, dx, dy of a point and of the unit direction, for all angles and bins.
        size: rows and columns.
        pixel: their distances.
    """
    x, y, dx, dy = np.broadcast_arrays(*lines)
    row, down = (size[0] - 1) / 2 - y.ravel() / pixel[0], -dy.ravel() / pixel[0]
    column, right = x.ravel() / pixel[1] + (size[1] - 1) / 2, dx.ravel() / pixel[1]
    by_rows = np.abs(down) >= np.abs(right) * (1 - DIAGONAL_TOLERANCE)
    found: list[tuple[Any, Any, Array]] = []  # rays, pixels and weights
    for chosen, along, across, advance, drift, (steps, width), strides in (
        (by_rows, row, column, down, right, size, (size[1], 1)),
        (~by_rows, column, row, right, down, size[::-1], (1, size[1])),
    ):
        ray = np.flatnonzero(chosen)
        slope, length = drift[ray] / advance[ray], np.abs(1 / advance[ray])
        for step in range(steps):
            crossing = across[ray] - along[ray] * slope + slope * step
            left = np.floor(np.clip(crossing, -2, width + 1))
            for place, share in ((left, left + 1 - crossing), (left + 1, crossing - left)):
                hit = (place >= 0) & (place < width) & (share > 0) & (share <= 1)
                cell = step * strides[0] + place[hit].astype(np.int64) * strides[1]
                found.append((ray[hit], cell, share[hit] * length[hit]))
    rays_of, pixel_of, weight = (np.concatenate(part) for part in zip(*found, strict=True))

    def sums(target: Any, source: Any, count: int) -> Product:
        return lambda w, values: np.stack(
            [np.bincount(target, w * value.ravel()[source], count) for value in values]
        )

    return linear(
        weight,
        ((1, *x.shape), (1, *size)),
        (sums(rays_of, pixel_of, x.size), sums(pixel_of, rays_of, size[0] * size[1])),
        (
            int(np.bincount(rays_of, minlength=1).max()),
            int(np.bincount(pixel_of, minlength=1).max()),
        ),
    )
