"""An independent checker of proof files: no image has an objective below the bound in the file.

    python proof_checker.py FILE...

It needs NumPy and safetensors, and nothing of the rest of convexlift: a copy of it runs alone.

A file states  J(x) = D(A x, y) + weight R(x)  over a box, with R(x) = <W_L, z_L>,
a_i = V_{i-1} x + sum_j W_{i-1,j} z_j + b_{i-1} and z_i = h_i(a_i) (+ z_{i-1}). Its dual variables
p_i give slopes s_i in dom h_i*. Backwards from t_L = weight W_L, with p_i = s_i t_i,
t_j += W_{i-1,j}^T p_i and c += V_{i-1}^T p_i,

    weight R(x') >= <c, x'> + sum_i <p_i, b_{i-1}> - <t_i, h_i*(s_i)>        for every image x',

as W >= 0 and every h_i that reads other layers is nondecreasing, which is checked. The conjugate
of the data term bounds the rest, inf D(A x') + <c, x'>, pixel by pixel. Every number is a ``Ball``:
a float64 value and a bound on its error by rounding, overflow and underflow (docs/proofs.md says
why, formula by formula). A ray transform is the float64 matrix that is built here.
"""

# ruff: noqa: E731 (formulas are lambdas)
from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

__all__ = ["ProofRejected", "Verdict", "verify"]

Array = NDArray[np.float64]
Shape = tuple[int, ...]
U = 2.0**-53  # the relative error of one operation
ROUNDINGS = 16 * U  # relative error of a short formula, if exp and log err by at most 4 ulp
LARGEST = 1e40  # larger numbers in files are refused
LARGE = 1e100  # a larger number on the way voids a proof
TINY = 1e-150  # the error of a short formula by underflow
NOTHING = 1e-100  # a difference that is as good as none
TOLERANCE = 1e-6  # tolerated shortfall of a proof behind its claims, relative to the objective
BUDGET = 2**30  # numbers that the maps of a problem may create; larger problems are refused
WORK = 2**40  # multiplications by the maps of a problem, each applied once
CALL = 10**5  # the cost of a call of NumPy, in multiplications
CHANGED = "was changed after the proof was written"
WEAK = "this proof is about a weakly convex problem, which versions from 0.2 on do not check"
PADDINGS: Any = {"zero": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}

CANONICAL: Any = {"sort_keys": True, "separators": (",", ":")}  # JSON text that has a digest

# All fields of a file, and all options of a part: others are refused, and none may be missing.
FILE = "format made_by problem claims radius sha256 network_sha256 digest"
PROBLEM = "image_shape weight box fidelity operator network"
LAYER = "activation channels skip previous links bias residual"
FIDELITIES = {"SquaredL2": "", "WeightedL2": "", "L1": "scale", "KullbackLeibler": ""}
SCAN = "image_size pixel_size angles bins"
OPERATORS = {
    "Identity": "",
    "Scaled": "factor operator",
    "Composition": "factors",
    "Sum": "terms",
    "Diagonal": "values",
    "Blur": "kernel boundary",
    "MRI": "mask maps channels",
    "ParallelBeam": SCAN,
    "FanBeam": f"{SCAN} source_distance detector_distance detector",
}
MAPS = {
    "Chain": "maps",
    "Convolution": "in_channels out_channels kernel_size stride padding",
    "Dense": "in_features out_features",
    "AveragePool": "size",
    "PixelSum": "mean",
    "ForwardDifferences": "",
}
ACTIVATIONS = dict.fromkeys(("Abs", "HalfSquare", "Linear", "ReLU"), "") | {
    "Huber": "delta",
    "HuberMixture": "widths",
    "QuadraticSpline": "knots even tail",
    "LeakyReLU": "slope",
    "SmoothedReLU": "slope smoothing",
    "SmoothedLeakyReLU": "slope smoothing",
    "GroupNorm": "size profile",
}


class ProofRejected(ValueError):
    """A proof file that is damaged, or proves less than it claims; one sentence says why."""


def require(condition: Any, reason: str) -> None:
    """Reject the file unless the condition holds."""
    if not condition:
        raise ProofRejected(reason)


def number(name: str, value: Any, low: float = 1 / LARGEST, high: float = LARGEST) -> float:
    """A number of the description, inside these limits; not NaN, nor True."""
    inside = type(value) in (int, float) and low <= value <= high
    require(inside, f"{name} is {str(value)[:40]!r}, not a number in [{low:g}, {high:g}]")
    return float(value)


def whole(name: str, value: Any, high: int = 2**20) -> int:
    """A whole number of the description, up to this one."""
    require(type(value) is int, f"{name} is {str(value)[:40]!r}, not a whole number")
    return int(number(name, value, 1, high))


def flag(name: str, value: Any) -> bool:
    """True or false."""
    require(type(value) is bool, f"{name} is {str(value)[:40]!r}, neither true nor false")
    return bool(value)


def fields(what: str, described: Any, names: str) -> list[Any]:
    """The values of an object of the description with exactly these names, in their order."""
    known = names.split()
    fits = type(described) is dict and described.keys() == set(known)
    require(fits, f"{what} is {str(described)[:40]!r}, not an object with the fields {known}")
    return [described[name] for name in known]


def part(what: str, described: Any, known: dict[str, str]) -> tuple[str, list[Any]]:
    """The name of a part, which is one of the known ones, and the values of its options."""
    fits = type(described) is dict and len(described) == 1 and {*described} <= {*known}
    require(fits, f"{what} is {str(described)[:40]!r}, which is unknown")
    ((kind, options),) = described.items()
    return kind, fields(f"{what}, a {kind},", options, known[kind])


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the description, no field of which occurs twice."""
    require(len(dict(pairs)) == len(pairs), "its description has a field twice")
    return dict(pairs)


def printable(text: str) -> str:
    """The text as a part of one line, without control sequences."""
    return "".join(each if each.isprintable() else "?" for each in text)


def size_of(a: Any) -> Array:
    """|a|, at least 1e-150 where a is not zero: products of sizes do not underflow."""
    return np.where(a != 0, np.maximum(np.abs(a), 1e-150), 0.0)


class Ball:
    """Numbers within ``error`` of ``value``; lower bounds are -inf where there is ``maybe_none``.

    Sums of products with zero have no error: unseen pixels, where c = 0, depend on it. Products
    of other numbers have one of at least 1e-300, above that of an underflow.
    """

    def __init__(self, value: Any, error: Any = 0.0, maybe_none: bool = False) -> None:
        self.value: Array = np.asarray(value, dtype=np.float64)
        self.error: Array = np.broadcast_to(error, self.value.shape)
        self.maybe_none, finite = maybe_none, np.bool_(True)
        if maybe_none:
            finite = self.value != -np.inf
            self.error = np.where(finite, self.error, 0.0)
        ends = self.value.min(where=finite, initial=0.0), self.value.max(), self.error.max()
        inside = ends[0] >= -LARGE and ends[1] <= LARGE and ends[2] <= LARGE  # NaN is not
        require(inside, f"a number on the way is above {LARGE:g}, or none; rescale the problem")

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error)

    def __add__(self, other: Ball) -> Ball:
        value = self.value + other.value
        error = (self.error + other.error + 2 * U * np.abs(value)) * (1 + ROUNDINGS)
        return Ball(value, error, self.maybe_none or other.maybe_none)

    def __mul__(self, other: Ball) -> Ball:
        a, b, r = size_of(self.value), size_of(other.value), other.error
        error = a * size_of(r + 2 * U * b) + size_of(self.error) * size_of(b + r)
        return Ball(self.value * other.value, error * (1 + ROUNDINGS))

    def ends(self) -> tuple[Array, Array]:
        """Floats below and above; the value itself if it is exact."""
        low = np.nextafter(self.value - self.error, np.where(self.error > 0, -np.inf, self.value))
        high = np.nextafter(self.value + self.error, np.where(self.error > 0, np.inf, self.value))
        return low, high

    def total(self) -> Ball:
        """The sum over all dimensions except the batch, (B, ...) -> (B,)."""
        value, error = (part.reshape(len(part), -1) for part in (self.value, self.error))
        require(np.isfinite(value).all(), "its bound is not finite")
        rows: Any = np.ascontiguousarray(value)
        sums = np.array([math.fsum(memoryview(each)) for each in rows])  # exact, then rounded
        return Ball(sums, (error.sum(1) + 2 * U * np.abs(sums)) * (1 + 4 * value.shape[1] * U))


def formula(*terms: Array, maybe_none: bool = False) -> Ball:
    """The sum of terms, each a short formula of exact numbers."""
    return Ball(sum(terms), ROUNDINGS * sum(map(np.abs, terms)) + TINY, maybe_none)


def choose(condition: Any, a: Ball, b: Ball) -> Ball:
    """The first ball where the condition holds, the second elsewhere."""
    value = np.where(condition, a.value, b.value)
    return Ball(value, np.where(condition, a.error, b.error), a.maybe_none or b.maybe_none)


def concave(function: Callable[[Array], Ball], at: Ball) -> Ball:
    """A concave function of a ball: it is lowest at one of the ends."""
    middle, *ends = (function(point) for point in (at.value, *at.ends()))
    lowest = reduce(np.minimum, [each.value - each.error for each in (middle, *ends)])
    slack = 4 * U * (np.abs(middle.value) + np.abs(lowest))
    value = np.where(lowest == -np.inf, lowest, middle.value)
    error = (middle.value - lowest + slack) * (1 + ROUNDINGS)
    return Ball(value, error, middle.maybe_none)


class Map(NamedTuple):
    """A linear map of balls with its adjoint; ``shape`` is an output's, without the batch."""

    shape: Shape
    push: Callable[[Ball], Ball]
    pull: Callable[[Ball], Ball]
    diagonal: bool = True  # it multiplies each pixel by a number
    nonnegative: bool = True  # all its weights are nonnegative

    def after(self, first: Map) -> Map:
        """The product of both."""
        ways = lambda x: self.push(first.push(x)), lambda y: first.pull(self.pull(y))
        both = self.diagonal and first.diagonal, self.nonnegative and first.nonnegative
        return Map(self.shape, *ways, *both)

    def plus(self, other: Map) -> Map:
        """The sum of both."""
        require(self.shape == other.shape, "its operator adds data of different shapes")
        ways = lambda x: self.push(x) + other.push(x), lambda y: self.pull(y) + other.pull(y)
        both = self.diagonal and other.diagonal, self.nonnegative and other.nonnegative
        return Map(self.shape, *ways, *both)


def linear(weight: Array, to: Shape, source: Shape, terms: int = 1,
           push: Any = np.multiply, pull: Any = np.multiply) -> Map:  # fmt: skip
    """A map with weights, by their products with a batch of inputs, or outputs for the adjoint.

    A sum of n products errs by at most gamma_n times the sum of their absolute values, in any
    order of summation; a second pass with absolute values bounds it. ``terms`` is the largest n.
    """
    sizes, gamma = size_of(weight), 2 * (terms + 8) * U

    def carried(ball: Ball, product: Any, shape: Shape) -> Ball:
        error = size_of(ball.error + gamma * size_of(ball.value))
        bound = product(sizes, error).reshape(-1, *shape) * (1 + gamma)
        return Ball(product(weight, ball.value).reshape(-1, *shape), bound)

    ways = lambda x: carried(x, push, to), lambda y: carried(y, pull, source)
    return Map(to, *ways, push is np.multiply, bool(weight.min() >= 0))


def fourier(shape: Shape, axis: int) -> Map:
    """The orthonormal Fourier transform along axis 3 or 4 of (batch, coils, 2, rows, columns).

    The origin of image and transform is in the middle. Angles are reduced as fractions of whole
    numbers, so that sines of small angles have small relative errors.
    """
    n = shape[axis - 2]
    places = np.arange(n) - n // 2
    quarters = 4 * np.outer(places, places) % (4 * n)  # multiples of the angle 2 pi / 4 n

    def sine(k: Any) -> Array:
        k, N = k % (4 * n), 4 * n
        sign, k = np.where(2 * k > N, -1.0, 1.0), np.minimum(k, N - k)
        return np.asarray(sign * np.sin(np.pi * np.minimum(2 * k, N - 2 * k) / N) / math.sqrt(n))

    c, s = sine(quarters + n), sine(quarters)
    weight = np.array([[c, s], [-s, c]]).transpose(0, 2, 1, 3)  # real form of exp(-i angle)
    split = (-1, shape[0] // 2, 2, *shape[1:])
    to, back = ("zkbqw->zkapw", "zkapw->zkbqw") if axis == 3 else ("zkbhq->zkahp", "zkahp->zkbhq")
    push = lambda w, x: np.einsum("apbq," + to, w, x.reshape(split), optimize=True)
    pull = lambda w, y: np.einsum("apbq," + back, w, y.reshape(split), optimize=True)
    return linear(weight, shape, shape, 2 * n + 8, push, pull)


def convolution(weight: Array, shape: Shape, stride: int, mode: Any) -> Map:
    """Correlation with kernels (out, in, sides ...); if in = 1, of each channel by itself."""
    (outputs, inputs, *kernel), size = weight.shape, [-(-n // stride) for n in shape[1:]]
    margins, sources = [(0, 0), (0, 0)], []  # sources: the pixel that is seen at each place
    for k, n in zip(kernel, shape[1:], strict=True):
        require(k % 2 and k < 2 * n + 128 if mode else n % k == 0, "its kernels do not fit")
        margins.append((k // 2, k // 2) if mode else (0, 0))
        sources.append(np.pad(np.arange(n), margins[-1], mode or "edge"))

    def seen(padded: Array, at: Shape) -> Array:
        sides = (slice(i, i + stride * n, stride) for i, n in zip(at, size, strict=True))
        return padded[(slice(None), slice(None), *sides)]

    def push(w: Array, x: Array) -> Any:
        padded = np.pad(x.reshape(-1, inputs, *shape[1:]), margins, mode or "edge")
        taps = ((w[(..., *at)], seen(padded, at)) for at in np.ndindex(*kernel))
        return sum(tap @ part.reshape(len(part), inputs, -1) for tap, part in taps)

    def pull(w: Array, y: Array) -> Any:
        planes = y.reshape(-1, outputs, math.prod(size))
        padded = np.zeros((len(planes), inputs, *map(len, sources)))
        for at in np.ndindex(*kernel):
            seen(padded, at)[...] += (w[(..., *at)].T @ planes).reshape(-1, inputs, *size)
        for axis, (n, source) in enumerate(zip(shape[1:], sources, strict=True), start=2):
            places, m = np.moveaxis(padded, axis, 0), (len(source) - n) // 2
            for i in (*range(m), *range(m + n, n + 2 * m)) if mode != "constant" else ():
                places[m + source[i]] += places[i]  # the margin goes to the pixels that it shows
            padded = np.moveaxis(places[m : m + n], 0, axis)
        return padded

    # A padded image holds at most as many copies of a pixel as the kernel has entries.
    terms = max(inputs, outputs + 1) * math.prod(kernel)
    return linear(weight, (outputs * shape[0] // inputs, *size), shape, terms, push, pull)


def differences() -> Array:
    """Kernels of the differences to the next neighbour in the column and in the row."""
    weight = np.zeros((2, 1, 3, 3))
    weight[:, 0, 1, 1], weight[0, 0, 2, 1], weight[1, 0, 1, 2] = -1, 1, 1
    return weight


def subtracted(V: Map, x: Ball) -> Ball:
    """Differences, each of which errs by one rounding: none in a constant image."""
    value, carried = V.push(x).value, V.push(Ball(0 * x.value, x.error)).error
    return Ball(value, (carried + 2 * U * np.abs(value)) * (1 + ROUNDINGS))


def rays(lines: Sequence[Array], size: Shape, pixel: Sequence[float]) -> Map:
    """Integrals along lines, given by x, y, dx, dy of a point and a unit vector, as Joseph does.

    A line that advances faster along the rows of pixels meets each of them once, between two
    pixels that share its length there; other lines go by columns. Row 0 is at the top.
    """
    shape, points = np.broadcast(*lines).shape, np.broadcast_arrays(*lines)
    x, y, dx, dy = (each.ravel() for each in points)
    row, down = (size[0] - 1) / 2 - y / pixel[0], -dy / pixel[0]
    column, right = x / pixel[1] + (size[1] - 1) / 2, dx / pixel[1]
    by_rows = np.abs(down) >= np.abs(right) * (1 - 1e-9)  # rays along diagonals too, by definition
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
    ray_of, pixel_of, weight = (np.concatenate(part) for part in zip(*found, strict=True))

    def sums(target: Any, source: Any, count: int) -> Any:
        add: Any = lambda w, z: np.bincount(target, w * z.ravel()[source], count)
        return lambda w, batch: np.array([add(w, z) for z in batch])

    push, pull = sums(ray_of, pixel_of, x.size), sums(pixel_of, ray_of, math.prod(size))
    terms = int(max(np.bincount(ray_of).max(), np.bincount(pixel_of).max()))
    return linear(weight, (1, *shape), (1, *size), terms, push, pull)


class Activation(NamedTuple):
    """h of numbers, or of the norms of groups of channels; dom h* = [low, high], or a ball."""

    low: float
    high: float
    value: Callable[[Array], list[Array]]  # terms of h(a)
    dual: Callable[[Array], list[Array]]  # terms of h*(s)
    group: int = 1
    steepest: Callable[[Array], Array] | None = None  # |h'| up to |a|, where slopes are unbounded
    formulas: int = 1  # short ones, in an evaluation of h or h*

    def norms(self, a: Array) -> Array:
        """|a_g|, for groups; a itself otherwise."""
        groups = a.reshape(len(a), -1, self.group, *a.shape[2:])
        return a if self.group == 1 else np.sqrt((groups**2).sum(2))

    def at(self, a: Ball) -> Ball:
        """h(a); the error of a grows by the steepest slope nearby."""
        if self.group > 1:
            norms = self.norms(a.value)  # whose squares may underflow
            a = Ball(norms, 2 * self.norms(a.error) + self.group * ROUNDINGS * norms + 1e-150)
        h = formula(*self.value(a.value))
        bound: Any = max(abs(self.low), abs(self.high))
        if not np.isfinite(bound):
            bound = self.steepest(np.abs(a.value) + a.error)  # type: ignore[misc]
        return Ball(h.value, (self.formulas * h.error + bound * a.error) * (1 + ROUNDINGS))

    def slope(self, p: Array, t: Array) -> Array:
        """p / t, moved into the domain of the conjugate, exactly in spite of rounding.

        Any slope in the domain proves something: none is so small or large that h* leaves the
        range of float64.
        """
        s: Array = np.clip(np.divide(p, t, out=np.zeros_like(p), where=t > 0), -LARGEST, LARGEST)
        s = np.where(np.abs(s) >= 1 / LARGEST, s, 0.0)
        if self.group == 1:
            return np.clip(s, self.low, self.high)
        norms = self.norms(s) * (1 + self.group * ROUNDINGS)
        shrink = np.where(norms > self.high, self.high / norms * (1 - 4 * U), 1.0)
        return s * shrink.repeat(self.group, axis=1)

    def conjugate(self, s: Array) -> Ball:
        """h*(s)."""
        h = formula(*self.dual(self.norms(s)))
        # Norms have errors of their own.
        return Ball(h.value, h.error * (self.group + 2) * self.formulas)


def mixture(t: Array, shares: Array) -> Activation:
    """sum_j c_j m (a - m/2) / t_j with m = clip(a, -t_j, t_j) and sum_j c_j = 1, j along axis 0.

    h'(a) = min_i A_i + k_i a for a >= 0, so h'(b) = s for b = max_i (s - A_i) / k_i, s >= 0.
    """
    c = shares / shares.sum(0)
    A, k = c.cumsum(0) - c, np.maximum((c / t)[::-1].cumsum(0)[::-1], 1e-300)
    clipped: Any = lambda a: zip(c / t, (np.clip(a, -each, each) for each in t), strict=True)

    def dual(s: Array) -> list[Array]:
        b = reduce(np.maximum, [(np.abs(s) - A[i]) / k[i] for i in range(len(t))])
        # b has a slope that differs from s by roundings, and h* from h*(s) by t_J times as much.
        most = np.where(s == 0, 0.0, t[-1])
        return [*(w * m**2 / 2 for w, m in clipped(b)), most, -most]

    value: Any = lambda a: [w * m * (a - m / 2) for w, m in clipped(a)]
    return Activation(-1.0, 1.0, value, dual, formulas=len(t))


def spline(t: Array, shares: Array, tail: float, even: bool) -> Activation:
    """sum_j c_j u_j(r) + tail (r - t_J)_+^2 / 2 with r = |a| or a_+ and sum_j c_j = 1.

    u_j rises from t_{j-1} on with m^2 / (2 w_j), w_j = t_j - t_{j-1}, and from t_j on by 1.
    h*(s) is the integral of b over the slopes h'(b) from 0 to s: with A_j = c_1 + ... + c_{j-1},
    the share j adds q t_{j-1} + q^2 w_j / (2 c_j) for q = clip(s - A_j, 0, c_j).
    """
    c, w, high = shares / shares.sum(0), np.diff(t), np.inf if tail else 1.0
    A, each = c.cumsum(0) - c, range(len(w))
    rate = w.reshape(-1, *[1] * (c.ndim - 1)) / np.where(c > 0, 2 * c, 1.0)
    side: Any = np.abs if even else lambda a: np.maximum(a, 0)
    rise: Any = lambda r, j: (
        np.clip(r - t[j], 0, w[j]) ** 2 / (2 * w[j]) + np.maximum(r - t[j + 1], 0)
    )
    bent: Any = lambda r: tail * np.maximum(r - t[-1], 0) ** 2 / 2
    value: Any = lambda a: [sum(c[j] * rise(side(a), j) for j in each) + bent(side(a))]

    def dual(s: Array) -> list[Array]:
        q, beyond = [np.clip(np.abs(s) - A[j], 0, c[j]) for j in each], np.maximum(np.abs(s) - 1, 0)
        parts = sum(q[j] * (t[j] + q[j] * rate[j]) for j in each)
        b = np.where(s == 0, 0.0, t[-1] + beyond / (tail or 1.0))
        # No h*'(s) is larger than b; A_j has errors, and h* b times these.
        return [parts + beyond * (t[-1] + beyond / (2 * tail or 1.0)), b, -b]

    steepest: Any = lambda a: 1 + tail * a
    return Activation(-high if even else 0.0, high, value, dual, 1, steepest, len(w) + 1)


def activation(described: Any, shares: Any = None) -> Activation:
    """The activation with this description; with J knots, ``shares(J)`` are (channels, J)."""
    kind, options = part("an activation", described, ACTIVATIONS)
    match kind, options:
        case ("HuberMixture", [knots]) | ("QuadraticSpline", [knots, _, _]):
            t = np.array([number(f"a knot of a {kind}", each) for each in knots])
            require((np.diff(t) > 0).all(), f"the knots of a {kind} do not increase")
            c = shares(t.size) if shares else np.ones((1, t.size))
            usable = c.shape[1] == t.size and (c >= 0).all() and c.any(1).all()
            require(usable, f"the shares of a {kind} are too few, negative, or zero")
            c = c.T.reshape(t.size, -1, 1, 1)
            if kind == "HuberMixture":
                return mixture(t.reshape(-1, 1, 1, 1), c)
            even, tail = flag("even", options[1]), number("tail", options[2], 0)
            return spline(np.append(0.0, t), c, tail, even)
        case "GroupNorm", [size, profile]:
            h = activation(profile)
            even = h.low == -h.high and h.group == 1  # h of a norm is convex for these
            require(even, "the profile of a GroupNorm is not even, or a group itself")
            return h._replace(group=whole("the size of a GroupNorm", size))
        case "HalfSquare", []:
            half_square: Any = lambda a: [a * a / 2]
            return Activation(-np.inf, np.inf, half_square, half_square, steepest=lambda a: a)
        case "Linear", []:
            return Activation(1.0, 1.0, lambda a: [a], lambda s: [0 * s])
    # k a + (1 - k) psi(a), or psi(|a|): psi rises from 0 with a^2 / (2 nu) on [0, nu], then by 1.
    even = kind in ("Abs", "Huber")
    q = dict(zip(ACTIVATIONS[kind].split(), options, strict=True))
    k = number("slope", q["slope"], 0, 1 - U) if "slope" in q else 0.0
    nu = sum(number(name, q[name]) for name in ("delta", "smoothing") if name in q)
    psi: Any = lambda r: [np.clip(r, 0, nu) ** 2 / (2 * nu or 1.0), np.maximum(r - nu, 0)]
    value = lambda a: [k * a, *((1 - k) * each for each in psi(np.abs(a) if even else a))]
    return Activation(-1.0 if even else k, 1.0, value, lambda s: [nu * (s - k) ** 2 / 2 / (1 - k)])


class Fidelity(NamedTuple):
    """D(w, y), a sum of convex functions f of one variable."""

    value: Callable[[Array], Ball]  # f(w)
    slope: Callable[[Array], Array]  # about the slope of f at w
    clip: Callable[[Array], Array]  # v in the domain of f*, exactly
    conjugate: Callable[[Array], Ball]  # f*(v)


def fidelity(kind: str, y: Array, q: Array) -> Fidelity:
    """The data term of data y; q are weights, the scale or the background."""
    if kind == "L1":
        value, slope = lambda w: formula(q * np.abs(w - y)), lambda w: q * np.sign(w - y)
        clip, conjugate = lambda v: np.clip(v, -q, q), lambda v: formula(v * y)
    elif kind == "KullbackLeibler":  # w + q - y + y log(y / (w + q)) where w + q > 0, or = y = 0
        mean: Any = lambda w: np.where((w + q > 0) | ((w + q == 0) & (y == 0)), w + q, np.inf)
        some = np.where(y > 0, y, 1.0)  # w + q - y + y log(y / (w + q)), without cancellation
        rho: Any = lambda w: (mean(w) - y) / some
        fraction: Any = lambda w: np.where(mean(w) / some > 1 / LARGE, mean(w) / some, 0.0)
        log: Any = lambda w, r: np.where(r < -0.5, np.log(fraction(w)), np.log1p(r))
        value = lambda w: formula(mean(w) - y, np.where(y > 0, -y * log(w, rho(w)), 0.0))
        slope = lambda w: np.where(w + q > 0, 1 - y / (w + q), -np.inf)
        clip = lambda v: np.clip(v, -LARGE, np.where(y > 0, 1 - U, 1.0))
        conjugate = lambda v: formula(-q * v, np.where(y > 0, -y * np.log1p(-v), 0.0))
    else:
        y, divisor = np.where(q > 0, y, 0.0), 2 * np.where(q > 0, q, 1.0)
        value, slope = lambda w: formula(q * (w - y) ** 2 / 2), lambda w: q * (w - y)
        clip = lambda v: np.where(q > 0, v, 0.0)
        conjugate = lambda v: formula(v * (v / divisor), v * y)
    return Fidelity(value, slope, clip, conjugate)


# h, maps with their j, bias, residual and p_i of z_i = h(sum of maps of z_j + bias) (+ z_{i-1})
Layer = tuple[Activation, list[tuple[int, Map]], Array, bool, Array]


class Proof:
    """A proof file whose digests match: the problem that it states, and its evidence."""

    budget, work = BUDGET, WORK

    def __init__(self, path: str | os.PathLike[str]) -> None:
        require(os.stat(path).st_size <= 8 * BUDGET, "it is too large to be checked")
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("convexlift_proof") or ""
            require(text, "it is not a proof file of convexlift")
            require(len(text) <= 2**24, "its description is too long to be checked")
            self.arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = json.loads(text, object_pairs_hook=distinct)
        canonical = json.dumps({n: head[n] for n in head if n != "digest"}, **CANONICAL)
        found = sha256(canonical.encode()).hexdigest()
        require(found == head["digest"], f"the description {CHANGED}")
        require(head["format"] == 1, f"its format is {head['format']!r}, not 1")
        require("concave" not in head["problem"]["network"], WEAK)
        _, made_by, problem, self.claims, radius, sums, network, _ = fields("it", head, FILE)
        shape, weight, (low, high), data, operator, described = fields("problem", problem, PROBLEM)
        others = sorted(sums.keys() ^ self.arrays.keys())
        require(not others, f"the tensors {others} are missing, or have no digest")
        for name, array in self.arrays.items():
            content = f"{array.dtype} {list(array.shape)} ".encode() + array.tobytes()
            require(sha256(content).hexdigest() == sums[name], f"the tensor {name!r} {CHANGED}")
        of_network = [described, {n: sums[n] for n in sums if n.startswith("network.")}]
        found = sha256(json.dumps(of_network, **CANONICAL).encode()).hexdigest()
        require(found == network, "network_sha256 is not the digest of the network")
        makers = [text for each in made_by.items() for text in each]
        fine = all(type(text) is str and text.isascii() and text.isprintable() for text in makers)
        require(fine and len("".join(makers)) < 400, "made_by must hold names and versions")
        self.unused = set(self.arrays)

        self.x = self.tensor("x")
        self.batch, *image = self.x.shape
        require(len(image) == 3 and image == shape, "'x' is not of image_shape")
        self.lower = -np.inf if low is None else number("an end of the box", low, -LARGEST)
        self.upper = np.inf if high is None else number("an end of the box", high, -LARGEST)
        inside = (self.x >= self.lower) & (self.x <= self.upper)
        require(inside.all() and self.lower < self.upper, "the tensor 'x' is outside the box")
        self.weight, self.radius = number("weight", weight), number("radius", radius)
        self.operator = self.map(operator, "", tuple(image))
        every = (self.batch, *self.operator.shape)
        self.v = None if self.operator.diagonal else self.tensor("dual.data", every)
        kind, scale = part("the data term", data, FIDELITIES)
        y, q = self.tensor("y", every), np.array(number("scale", scale[0]) if scale else 1.0)
        if kind in ("WeightedL2", "KullbackLeibler"):
            q = self.tensor("fidelity.weights" if kind == "WeightedL2" else "fidelity.background")
        require(np.min(q) >= 0, "weights or background of its data have negative entries")
        require(kind != "KullbackLeibler" or y.min() >= 0, "the tensor 'y' has negative counts")
        self.fidelity = fidelity(kind, y, np.broadcast_to(q, every))
        self.shapes: list[Shape] = [tuple(image)]
        layers, channels, size = fields("network", described, "layers in_channels image_size")
        fits = channels == image[0] and size in (None, image[1:])
        require(fits, f"its network is not made for images {image}")
        self.layers = [self.layer(*each) for each in enumerate(layers)]
        # Output, biases and factors of links have pixels where a guide read them off the data.
        given = [a for n, a in self.arrays.items() if n.startswith("network.") and n.count(".") < 2]
        read = any(math.prod(each.shape[2:]) > 1 for each in given)
        premise = "given the weights that the guide read from these data, " * read
        self.origin = made_by, network, premise
        self.output = self.everywhere("network.output", self.shapes[-1])
        require(self.output.min() >= 0, "the tensor 'network.output' has negative entries")
        self.theta, (h, _, _, residual, _) = self.tensor("theta", (self.batch,)), self.layers[-1]
        lowest = 0.0 if h.low <= 0 <= h.high and not residual else 1.0
        allowed = ((self.theta >= lowest) & (self.theta <= 1)).all()
        require(allowed, "the tensor 'theta' must be 1, or in [0, 1] if R is bounded below")
        require(not self.unused, f"the tensors {sorted(self.unused)} have no meaning")

    def tensor(self, name: str, shape: Shape | None = None) -> Array:
        """A tensor in float64, of this shape; each is used once."""
        require(name in self.unused, f"the tensor {name!r} is missing, or named twice")
        array = self.arrays[name]
        self.unused.discard(name)
        fits = shape in (None, array.shape)
        require(fits, f"the tensor {name!r} has the shape {array.shape}, not {shape}")
        usable = array.dtype in (np.float32, np.float64) and np.isfinite(array).all() and array.size
        require(usable, f"the tensor {name!r} must hold finite numbers in float32 or float64")
        most = float(np.abs(array).max())
        require(most <= LARGEST, f"{name} holds {most:g}; rescale the problem, up to {LARGEST:g}")
        return np.asarray(array, dtype=np.float64)

    def operand(self, name: Any) -> Array:
        """A tensor of the operator. Those of the network have names that follow from the layers."""
        fits = type(name) is str and name.startswith("operator.")
        require(fits, f"an operator has {str(name)[:40]!r} in place of a tensor operator.*")
        return self.tensor(name)

    def everywhere(self, name: str, shape: Shape) -> Array:
        """Numbers of each channel, or of each entry or channel of one image or of every one."""
        array, channels = self.tensor(name), (shape[0], *[1] * len(shape[1:]))
        array = array if array.ndim > 1 else array.reshape(1, -1, 1, 1)
        fits = len(array) in (1, self.batch) and array.shape[1:] in (shape, channels)
        require(fits, f"the tensor {name!r} does not fit {shape}")
        return np.broadcast_to(array, (self.batch, *shape))

    def spend(self, numbers: int, work: int = 0) -> None:
        """Account for memory and time before they are used."""
        self.budget -= 2**20 + numbers
        self.work -= numbers + work
        require(min(self.budget, self.work) > 0, "its problem is too large to be checked")

    def map(self, described: Any, name: str, shape: Shape) -> Map:
        """The linear map of inputs of this shape: an operator, or a map with a name of a network.

        The parameters of maps of networks have their names, and no other tensor makes such a map:
        the digest of the network covers all of them.
        """
        self.spend(self.batch * math.prod(shape))
        made = Map(shape, lambda x: x, lambda y: y)
        match part("a linear map", described, MAPS if name else OPERATORS):
            case "Chain", [maps]:
                for i, each in enumerate(maps):
                    made = self.map(each, f"{name}.maps.{i}", made.shape).after(made)
            case "Composition", [factors]:
                for each in reversed(factors):
                    made = self.map(each, "", made.shape).after(made)
            case "Sum", [terms]:
                made = reduce(Map.plus, [self.map(each, "", shape) for each in terms])
            case "Scaled", [factor, inner]:
                made = self.map(inner, "", shape)
                scale = np.array(number("the factor of Scaled", factor, -LARGEST))
                made = linear(scale, made.shape, made.shape).after(made)
            case "Diagonal", [values]:
                weight = np.broadcast_to(self.operand(values), (self.batch, *shape))
                made = linear(weight, shape, shape)
            case "Blur", [kernel, boundary]:
                weight = np.flip(self.operand(kernel))[None, None]
                made = self.convolution(weight, shape, 1, PADDINGS[boundary])
            case "Convolution", [inputs, outputs, k, stride, padding]:
                require(inputs == shape[0], f"{name} is not made for {shape[0]} channels")
                weight = self.tensor(f"network.{name}.weight", (outputs, inputs, k, k))
                stride = whole("a stride", stride)
                made = self.convolution(weight, shape, stride, PADDINGS[padding])
            case "AveragePool", [k]:
                k = whole("the size of an AveragePool", k, min(shape[1:]))
                made = self.convolution(np.full((1, 1, k, k), 1 / k**2), shape, k, None)
            case "ForwardDifferences", []:
                V = self.convolution(differences(), shape, 1, "edge")
                made = V._replace(push=lambda x: subtracted(V, x))
            case "PixelSum", [mean]:
                pixels = math.prod(shape[1:])
                weight = np.array([1 / pixels if flag("mean", mean) else 1.0])
                push = lambda w, x: w * x.sum((2, 3))
                pull = lambda w, y: np.broadcast_to(w * y, (len(y), *shape))
                made = linear(weight, (shape[0], 1, 1), shape, pixels, push, pull)
            case "Dense", [inputs, outputs]:
                require(inputs == math.prod(shape), f"{name} is not made for {shape}")
                weight = self.tensor(f"network.{name}.weight", (outputs, inputs))
                self.spend(2 * weight.size, self.batch * weight.size)
                push = lambda w, x: x.reshape(len(x), -1) @ w.T
                pull = lambda w, y: y.reshape(len(y), -1) @ w
                made = linear(weight, (outputs, 1, 1), shape, max(weight.shape), push, pull)
            case "MRI", [mask, maps, channels]:
                require(channels == shape[0] in (1, 2), "MRI does not fit images of this shape")
                made = self.coils(self.operand(maps), shape)
                for axis in (3, 4):
                    n = made.shape[axis - 2]
                    self.spend(16 * n * n, 4 * self.batch * n * math.prod(made.shape))
                    made = fourier(made.shape, axis).after(made)
                weight = np.broadcast_to(self.operand(mask), (self.batch, *made.shape))
                made = linear(weight, made.shape, made.shape).after(made)
            case "ParallelBeam", scan:
                made = self.scanner(scan, shape)
            case "FanBeam", [*scan, source, detector, surface]:
                source = number("source_distance", source)
                detector = number("detector_distance", detector, 0)
                require(surface in ("curved", "flat"), "a detector is neither flat nor curved")
                made = self.scanner(scan, shape, (source, detector, surface == "curved"))
        return made

    def convolution(self, weight: Array, shape: Shape, stride: int, mode: Any) -> Map:
        """Correlation with these kernels, if there is room and time for it."""
        fits = weight.ndim == 4 and len(shape) == 3
        require(fits, f"kernels {weight.shape} do not fit images {shape}")
        _, inputs, *kernel = weight.shape
        padded = math.prod(n + k for n, k in zip(shape[1:], kernel, strict=True))
        margins = self.batch * shape[0] * (padded - math.prod(shape[1:]))
        products = self.batch * shape[0] * weight.size // inputs * math.prod(shape[1:])
        self.spend(2 * weight.size + margins, CALL * math.prod(kernel) + products // stride**2)
        return convolution(weight, shape, stride, mode)

    def coils(self, maps: Array, shape: Shape) -> Map:
        """Products with complex sensitivities; complex numbers are two channels."""
        fits = maps.ndim == 4 and maps.shape[1] % 2 == 0 and maps.shape[2:] == shape[1:]
        require(fits and len(maps) in (1, self.batch), f"coils {maps.shape} do not fit {shape}")
        to = (maps.shape[1], *shape[1:])
        self.spend(8 * self.batch * math.prod(to))
        w = np.zeros((len(maps), to[0], 2, *shape[1:]))
        w[:, 0::2, 0], w[:, 0::2, 1] = maps[:, 0::2], -maps[:, 1::2]
        w[:, 1::2, 0], w[:, 1::2, 1] = maps[:, 1::2], maps[:, 0::2]
        push = lambda w, x: (w * x.reshape(-1, 1, *shape)).sum(2)
        pull = lambda w, y: (w * y.reshape(-1, to[0], 1, *shape[1:])).sum(1)
        return linear(w[:, :, : shape[0]], to, shape, to[0] + 2, push, pull)

    def scanner(self, scan: Any, shape: Shape, fan: Any = None) -> Map:
        """Parallel rays at angles, or rays from a source that moves around the image."""
        size, pixel, angles, bins = scan
        t, bins = self.operand(angles).reshape(-1, 1), self.operand(bins).ravel()
        require([*shape] == [1, *size], f"a scanner does not fit images {shape}")
        count = 4 * t.size * bins.size * sum(shape[1:])  # two pixels at each step of a ray
        self.spend(count, CALL * sum(shape[1:]) + self.batch * count)
        lines = [bins * np.cos(t), bins * np.sin(t), np.sin(t), -np.cos(t)]
        if fan:
            source, detector, curved = fan
            along = bins / (source + detector)
            toward = t - (along if curved else np.arctan(along))
            lines = [source * np.sin(t), -source * np.cos(t), -np.sin(toward), np.cos(toward)]
        height, width = (number("pixel_size", each) for each in pixel)
        return rays(lines, shape[1:], (height, width))

    def layer(self, i: int, described: Any) -> Layer:
        """Layer i, counted from 0; the shape of its z is added to ``shapes``."""
        name = f"layers.{i}"
        kind, stated, skip, previous, links, named, residual = fields(name, described, LAYER)
        sources = {"skip": (0, skip), "previous": (i, previous)}
        for j in links:
            require(j in map(str, range(1, i + 1)), f"{name}.links has {j!r}, not an earlier layer")
            sources[f"links.{j}"] = int(j), links[j]
        maps = []
        for which, (j, content) in sources.items():
            if content is not None:
                require(which == "skip" or j > 0, f"{name}.{which} is not an earlier layer")
                made = self.map(content, f"{name}.{which}", self.shapes[j])
                if j > 0 and (read := f"network.link_{i + 1}_{j}") in self.arrays:  # W diag(s)
                    factors = self.everywhere(read, self.shapes[j])
                    made = made.after(linear(factors, self.shapes[j], self.shapes[j]))
                maps.append((j, made))
                fine = j == 0 or made.nonnegative
                require(fine, f"{name}.{which} has negative weights, so R need not be convex")
        (shape,) = {each.shape for _, each in maps}  # one, or the file is malformed
        channels, *size = shape
        h = activation(kind, lambda J: self.tensor(f"network.{name}.shares", (channels, J)))
        self.spend((h.formulas - 1) * self.batch * math.prod(shape))
        alone = all(j == 0 for j, _ in maps)
        require(alone or h.low >= 0, f"{name}.activation decreases, and reads more than the image")
        fits = channels == stated and channels % h.group == 0
        require(fits, f"{name} has {channels} channels, which do not fit")
        z, residual = (channels // h.group, *size), flag(f"{name}.residual", residual)
        require(not residual or (i > 0 and self.shapes[-1] == z), f"{name} cannot be residual")
        self.shapes.append(z)
        p = self.tensor(f"dual.{i + 1}").reshape(self.batch, *shape)
        bias, read = np.zeros((channels, 1, 1)), f"network.bias_{i + 1}"
        if flag(f"{name}.bias", named):
            bias = self.tensor(f"network.{name}.bias", (channels,)).reshape(bias.shape)
        elif read in self.arrays:
            bias = self.everywhere(read, shape)
        return h, maps, bias, residual, p


def objective(proof: Proof) -> Ball:
    """J(x), for each image."""
    z = [Ball(proof.x)]
    for h, maps, bias, residual, _ in proof.layers:
        value = h.at(reduce(Ball.__add__, [each.push(z[j]) for j, each in maps]) + Ball(bias))
        z.append(value + z[-1] if residual else value)
    # f is convex: its maximum is at an end of the interval of A x.
    data = -concave(lambda w: -proof.fidelity.value(w), proof.operator.push(z[0]))
    return data.total() + (Ball(proof.output) * z[-1]).total() * Ball(proof.weight)


def minorant(proof: Proof) -> tuple[Ball, Ball]:
    """c and beta with weight R(x') >= <c, x'> + beta for every x', mixed with a constant by theta.

    The true t_i are nonnegative, whatever the rounding: W and the slopes of all layers that read
    others are. So t_i h_i(a) >= t_i (s a - h_i*(s)) for any s in the domain of h_i*.
    """
    t = [Ball(np.zeros((proof.batch, *shape))) for shape in proof.shapes]
    t[-1] = top = Ball(proof.output) * Ball(proof.weight)
    beta, one, theta = Ball(np.zeros(proof.batch)), Ball(np.ones(proof.batch)), Ball(proof.theta)
    for i, (h, maps, bias, residual, p) in reversed([*enumerate(proof.layers, start=1)]):
        spread = Ball(t[i].value.repeat(h.group, axis=1), t[i].error.repeat(h.group, axis=1))
        s = h.slope(p, spread.value)
        q = Ball(s) * spread
        beta = beta + (q * Ball(bias)).total() + -(h.conjugate(s) * t[i]).total()
        for j, each in maps:
            t[j] = t[j] + each.pull(q)
        if residual:
            t[i - 1] = t[i - 1] + t[i]
    h, _, _, _, p = proof.layers[-1]
    lowest = -(h.conjugate(h.slope(0 * p, p)) * top).total()  # weight times the minimum of R
    c = Ball(proof.theta.reshape(-1, *[1] * (t[0].value.ndim - 1))) * t[0]
    return c, theta * beta + (one + -theta) * lowest


def lowest(g: Array, low: Array, high: Array) -> Ball:
    """The infimum of g x over low <= x <= high, or -inf."""
    return formula(np.where(g == 0, 0.0, g * np.where(g > 0, low, high)), maybe_none=True)


def behind_diagonal(f: Fidelity, c: Ball, d: Ball, low: Array, high: Array) -> Ball:
    """inf f(d x') + c x' at each pixel: inf f(w) + k w with w = d x' and k = c / d."""
    k = c.value / d.value
    error = size_of(c.error + 4 * U * size_of(c.value) + size_of(k) * d.error)
    ends = np.sort([d.value * low, d.value * high], axis=0)
    wider = (d.error + 4 * U * np.abs(d.value)) * size_of(ends / d.value)
    left, right = np.where(np.isfinite(ends), [ends[0] - wider[0], ends[1] + wider[1]], ends)

    def infimum(k: Array) -> Ball:
        # f(w) >= v w - f*(v) for every v; the best is -k, or the slope of f at an end.
        v = f.clip(np.clip(-k, f.slope(left), f.slope(right)))
        return -f.conjugate(v) + lowest(v + k, left, right)

    return concave(infimum, Ball(k, error / (np.abs(d.value) - d.error) * (1 + ROUNDINGS)))


def lower_bound(proof: Proof) -> tuple[Ball, Any]:
    """A lower bound on J, and a mask of the images for which it holds near x only."""
    (c, beta), x, f, A, v = minorant(proof), proof.x, proof.fidelity, proof.operator, proof.v
    at_zero = f.slope(np.zeros((proof.batch, *A.shape)))  # infinite for counts without a mean
    slopes = f.clip(np.where(np.isfinite(at_zero), at_zero, 0.0) if v is None else v)
    # D(A x') >= <v, A x'> - f*(v) for these v, so D(A x') + <c, x'> >= <g, x'> - f*(v).
    g, d = A.pull(Ball(slopes)) + c, A.push(Ball(np.ones_like(x)))
    size = np.abs(d.value)  # sizes of the diagonal, if there is one
    known = (size > 2 * d.error) & (size > 1 / LARGEST) if v is None else np.False_
    safe = choose(known, d, Ball(1.0))

    def pixels(low: Array, high: Array) -> Ball:
        dual = concave(lambda g: lowest(g, low, high), g)
        direct = behind_diagonal(f, c, safe, low, high) if v is None else dual
        return choose(known, direct, dual)

    bounds = pixels(np.full_like(x, proof.lower), np.full_like(x, proof.upper))
    free = np.isinf(bounds.value)
    if free.any():
        low, high = np.nextafter(x - proof.radius, -np.inf), np.nextafter(x + proof.radius, np.inf)
        near = pixels(np.maximum(low, proof.lower), np.minimum(high, proof.upper))
        bounds = choose(free, near, bounds)
    constant = choose(known, Ball(0.0), -f.conjugate(slopes))
    return bounds.total() + constant.total() + beta, free.reshape(len(free), -1).any(1)


class Verdict(NamedTuple):
    """The statement that a file proves about one of its images, with rounding on the safe side."""

    objective: float  # the objective of x is at most this
    lower_bound: float  # no image has a lower objective, in the sense of guarantee
    gap: float  # (objective - lower_bound) / |objective|
    guarantee: str  # GLOBAL, or WITHIN_RADIUS of x on pixels that nothing else bounds
    radius: float
    made_by: dict[str, str]  # programs with their versions, as the file says
    network_sha256: str  # identifies the regularizer
    premise: str  # a clause of the bound if weights were read off the data, else empty

    def __str__(self) -> str:
        near = f"within {self.radius:g} of x on pixels that neither data nor box bound"
        none = (
            f"{self.premise}no image {near if self.guarantee == 'WITHIN_RADIUS' else 'in the box'}"
        )
        makers = ", ".join(f"{name} {version}" for name, version in self.made_by.items())
        return (
            f"objective {self.objective!r}; {none} is below {self.lower_bound!r} (gap "
            f"{self.gap:.3g}); network {self.network_sha256[:12]}; made by {makers}"
        )


def verdicts(proof: Proof) -> tuple[Verdict, ...]:
    """The proven numbers, if they confirm the claims."""
    (bound, near), J, found = lower_bound(proof), objective(proof), []
    for i, claim in zip(range(proof.batch), proof.claims, strict=True):
        guarantee, name = "WITHIN_RADIUS" if near[i] else "GLOBAL", f"claims[{i}]"
        above, below, gap, scope = fields(name, claim, "objective lower_bound gap guarantee")
        fine = scope in (guarantee, "WITHIN_RADIUS")
        require(fine, f"{name}.guarantee is {scope!r}, but {guarantee} is proved")
        above = number(f"{name}.objective", above, -LARGE, LARGE)
        below = number(f"{name}.lower_bound", below, -LARGE, above)
        gap = number(f"{name}.gap", gap, 0, LARGE) if gap is not None else math.inf
        least, high, low, most = (float(end[i]) for end in (*J.ends(), *bound.ends()))
        # About the same gap must be proved, up to rounding where the objective is 0. The bound
        # here need not be the best: one that is better by next to nothing is no contradiction.
        slack, rounding = 1e-11 * abs(high) + NOTHING, float(J.error[i] + bound.error[i])
        allowed = TOLERANCE * abs(high) + (above - below) + 2 * rounding + NOTHING
        require(low <= high, f"its bound {low!r} is above its objective {high!r}")
        require(least <= above, f"{name}.objective is {above!r}, but it is above {least!r}")
        require(below <= most + slack, f"{name}.lower_bound is {below!r}, but it is below {most!r}")
        fine = high <= above + allowed and below - allowed <= low
        require(fine, f"{name} span {[below, above]}, but only {[low, high]} is proved")
        fine = above - below <= (gap + TOLERANCE) * abs(above) + NOTHING
        require(gap == math.inf or fine, f"{name}.gap is {gap!r}, less than its numbers say")
        relative = (high - low) / abs(high) * (1 + 4 * U) if high else math.inf
        relative = 0.0 if high - low <= NOTHING else relative
        found.append(Verdict(high, low, relative, guarantee, proof.radius, *proof.origin))
    return tuple(found)


def verify(path: str | os.PathLike[str]) -> tuple[Verdict, ...]:
    """Check a proof file; returns a verdict for each of its images.

    Raises ProofRejected, with the file's name and the reason, if it is damaged or proves less
    than it claims, and OSError if it cannot be read.
    """
    try:
        with np.errstate(all="ignore"):  # numbers that are not finite are rejected
            return verdicts(Proof(path))
    except OSError:
        raise
    except Exception as error:  # hostile files must not raise anything else
        malformed = f"it is malformed ({type(error).__name__}: {error})"
        reason = str(error) if isinstance(error, ProofRejected) else malformed
        raise ProofRejected(f"{path}: {printable(reason[:300])}") from None


def main(paths: Sequence[str]) -> int:
    """Print a line for each image of each file; 1 if a file was rejected or could not be read."""
    status = 0
    for path in paths:
        try:
            print(*(printable(f"{path}: {verdict}") for verdict in verify(path)), sep="\n")
        except (ProofRejected, OSError) as error:
            status = 1
            print(printable(f"rejected: {error}"), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else "usage: python proof_checker.py FILE...")
