"""An independent checker of proof files: no image has an objective below the bound in the file.

    python -m convexlift.proof_checker FILE...    or, with NumPy and safetensors alone, a copy of
    python proof_checker.py FILE...               this file: it imports nothing of convexlift.

The file states  J(x) = D(A x, y) + weight R(x)  over a box, with R(x) = <w, z_L>,
a_i = V_i x + sum_j W_ij z_j + b_i and z_i = h_i(a_i) (+ z_{i-1}). Its dual variables p_i give slopes
s_i in dom h_i*. Backwards from t_L = weight w, with p_i = s_i t_i, t_j += W_ij^T p_i, c += V_i^T p_i,

    weight R(x') >= <c, x'> + sum_i <p_i, b_i> - <t_i, h_i*(s_i)>        for every image x',

as W, w >= 0 and h_2, ..., h_L are nondecreasing, which is checked. The conjugate of the data term
bounds the rest, inf D(A x') + <c, x'>, pixel by pixel. Every number is a ``Ball``: a float64 value
and a bound on its rounding error. (A ray transform is the float64 matrix that is built here.)
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Array = NDArray[np.float64]
Shape = tuple[int, ...]
U = 2.0**-53  # the relative error of one operation
ROUNDINGS = 16 * U  # the error of a short formula relative to its terms; exp and log err by 4 ulp
TINY = 1e-200  # the error that underflow makes in a short formula
BLOCK = 64  # numbers that are added in any order; the sums of blocks are added exactly
TOLERANCE = 1e-6  # how much less than its claims a file may prove, relative to the objective
MOST_WORK = 2**42  # sums and products in all maps together
# fmt: off
LIMITS: dict[str, tuple[float, float]] = {  # of numbers by name; an integer asks for whole ones
    **dict.fromkeys(("size", "stride", "format", "kernel_size", "channels"), (1, 2**40)),
    **dict.fromkeys(("smoothing", "delta", "sharpness", "scale", "weight", "radius",
                     "source_distance"), (1e-100, 1e100)),
    **dict.fromkeys(("objective", "lower_bound", "gap", "factor"), (-1e300, 1e300)),
    "slope": (0.0, 1 - U), "alpha": (1e-100, 1.0), "detector_distance": (0.0, 1e100),
}
PARTS = {  # the fields of each part of a problem
    "ReLU": "", "LeakyReLU": "slope", "Abs": "", "HalfSquare": "", "SmoothedReLU": "slope smoothing",
    "SmoothedLeakyReLU": "slope smoothing", "Huber": "delta", "Softplus": "sharpness",
    "ELU": "alpha", "GroupNorm": "size profile",
    "Convolution": "in_channels out_channels kernel_size stride padding", "AveragePool": "size",
    "Dense": "in_features out_features", "ForwardDifferences": "", "Chain": "maps",
    "Identity": "", "Diagonal": "values", "Blur": "kernel boundary", "Scaled": "factor operator",
    "Composition": "factors", "Sum": "terms",
    "ParallelBeam": "image_size pixel_size angles bins",
    "FanBeam": "image_size pixel_size angles bins source_distance detector_distance detector",
    "SquaredL2": "", "WeightedL2": "", "L1": "scale", "KullbackLeibler": "",
}
PADDINGS: dict[str, Any] = {  # where pixel p of a padded row lies in one of n pixels and a zero
    "none": lambda p, n: p,
    "zero": lambda p, n: np.where((p < 0) | (p >= n), n, p),
    "circular": lambda p, n: p % n,
    "reflect": lambda p, n: n - 1 - np.abs(n - 1 - np.abs(p)),
    "replicate": lambda p, n: np.clip(p, 0, n - 1),
}
ACTIVATIONS: dict[str, Any] = {  # the slopes, the terms of h(a), and the terms of h*(s)
    "ReLU": (lambda: (0.0, 1.0), lambda a: [np.maximum(a, 0)], lambda s: [0 * s]),
    "LeakyReLU": (lambda k: (k, 1.0), lambda a, k: [np.maximum(k * a, a)], lambda s, k: [0 * s]),
    "Abs": (lambda: (-1.0, 1.0), lambda a: [np.abs(a)], lambda s: [0 * s]),
    "HalfSquare": (lambda: (-np.inf, np.inf), lambda a: [a * a / 2], lambda s: [s * s / 2]),
    "Huber": (
        lambda d: (-1.0, 1.0),
        lambda a, d: [np.minimum(np.abs(a), d) ** 2 / (2 * d), np.maximum(np.abs(a) - d, 0)],
        lambda s, d: [d * s * s / 2]),
    "SmoothedLeakyReLU": (
        lambda k, n: (k, 1.0),
        lambda a, k, n: [k * a, (1 - k) * np.clip(a, 0, n) ** 2 / (2 * n),
                         (1 - k) * np.maximum(a - n, 0)],
        lambda s, k, n: [n * (s - k) ** 2 / (2 * (1 - k))]),
    "Softplus": (
        lambda b: (0.0, 1.0),
        lambda a, b: [np.abs(a) / 2, a / 2, np.log1p(np.exp(-b * np.abs(a))) / b],
        lambda s, b: [s * np.log(np.maximum(s, 1e-300)) / b,
                      (1 - s) * np.log1p(-np.minimum(s, 1 - U)) / b]),
    "ELU": (
        lambda k: (0.0, 1.0),
        lambda a, k: [np.where(a > 0, a, k * np.expm1(np.minimum(a, 0)))],
        lambda s, k: [np.minimum(s, k) * np.log(np.clip(s, 1e-300, k) / k), -np.minimum(s, k),
                      np.full_like(s, k)]),
}
ACTIVATIONS["SmoothedReLU"] = ACTIVATIONS["SmoothedLeakyReLU"]
FIDELITIES: dict[str, Any] = {  # the terms of f(w), a slope of f, v in dom f*, the terms of f*(v)
    "WeightedL2": (
        lambda w, y, q: [q * (w - y) ** 2 / 2], lambda w, y, q: q * (w - y),
        lambda v, y, q: np.where(q > 0, v, 0.0),
        lambda v, y, q: [v * (v / (2 * np.where(q > 0, q, 1.0))), v * y]),
    "L1": (
        lambda w, y, q: [q * np.abs(w - y)], lambda w, y, q: q * np.sign(w - y),
        lambda v, y, q: np.clip(v, -q, q), lambda v, y, q: [v * y]),
    "KullbackLeibler": (
        lambda w, y, q: [np.where((w + q > 0) | (w + q == 0) & (y == 0), w + q, np.inf), -y,
                         np.where(y > 0, y * np.log(y / (w + q)), 0.0)],
        lambda w, y, q: np.where(w + q > 0, 1 - y / (w + q), -np.inf),
        lambda v, y, q: np.clip(v, -1e100, np.where(y > 0, 1 - U, 1.0)),
        lambda v, y, q: [-q * v, np.where(y > 0, -y * np.log1p(-v), 0.0)]),
}
FIDELITIES["SquaredL2"] = FIDELITIES["WeightedL2"]
# fmt: on


class ProofRejected(ValueError):
    """A proof file that is damaged, or proves less than it claims; one sentence says why."""


@dataclass(frozen=True)
class Verdict:
    """What a file proves about one of its images, with rounding on the safe side."""

    objective: float
    lower_bound: float
    gap: float
    guarantee: str
    radius: float
    made_by: dict[str, str]
    network_sha256: str

    def __str__(self) -> str:
        near = f"within {self.radius:g} of x on pixels that neither data nor box bound"
        scope = "in the box" if self.guarantee == "GLOBAL" else near
        makers = ", ".join(f"{name} {version}" for name, version in self.made_by.items())
        return (
            f"objective {self.objective!r}; no image {scope} is below {self.lower_bound!r} (gap "
            f"{self.gap:.3g}); network {self.network_sha256[:12]}; made by {makers}"
        )


def require(condition: Any, reason: str) -> None:
    """Refuse the file unless the condition holds."""
    if not condition:
        raise ProofRejected(reason)


def size_of(a: Array | float) -> Array:
    """|a|, at least 1e-150 where a is not zero: products of sizes do not underflow."""
    return np.where(a != 0, np.maximum(np.abs(a), 1e-150), 0.0)


@dataclass(frozen=True)
class Ball:
    """Numbers within ``error`` of ``value``; sums of products with zero are exact."""

    value: Array
    error: Array | float = 0.0

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error)

    def __add__(self, other: Ball) -> Ball:
        value = self.value + other.value
        return Ball(value, (self.error + other.error + 2 * U * np.abs(value)) * (1 + ROUNDINGS))

    def __mul__(self, other: Ball) -> Ball:
        a, b = size_of(self.value), size_of(other.value)
        error = a * size_of(other.error + 2 * U * b)
        if np.any(self.error):
            error = error + size_of(self.error) * size_of(b + other.error)
        return Ball(self.value * other.value, error * (1 + ROUNDINGS))

    def total(self) -> Ball:
        """The sum over everything but the batch, (B, ...) -> (B,)."""
        flat = self.value.reshape(len(self.value), -1)
        error = np.broadcast_to(self.error, self.value.shape).reshape(flat.shape)
        finite = np.isfinite(flat).all() and np.isfinite(error).all()
        require(finite, "its objective or its lower bound is not finite")
        blocks = np.pad(flat, ((0, 0), (0, -flat.shape[1] % BLOCK))).reshape(len(flat), -1, BLOCK)
        value = np.array([math.fsum(sums) for sums in blocks.sum(-1)])
        errors = 2 * BLOCK * U * np.abs(flat).sum(1) + error.sum(1) + 2 * U * np.abs(value)
        return Ball(value, errors * (1 + 4 * flat.shape[1] * U))


def formula(terms: Sequence[Array]) -> Ball:
    """The sum of terms that are short formulas of exact numbers."""
    return Ball(reduce(np.add, terms), ROUNDINGS * reduce(np.add, map(np.abs, terms)) + TINY)


def concave(function: Callable[[Array], Ball], at: Ball) -> Ball:
    """A concave function of a ball: it is lowest at one of the ends."""
    ends = [np.nextafter(at.value + sign * at.error, sign * np.inf) for sign in (-1, 1)]
    exact = np.equal(at.error, 0)
    found = [function(np.where(exact, at.value, point)) for point in (at.value, *ends)]
    low, middle = reduce(np.minimum, [end.value - end.error for end in found]), found[0].value
    return Ball(middle, (middle - low + 4 * U * (np.abs(middle) + np.abs(low))) * (1 + ROUNDINGS))


@dataclass(frozen=True)
class Map:
    """A linear map of balls, and its adjoint; ``shape`` is one output's without the batch."""

    shape: Shape
    push: Callable[[Ball], Ball]
    pull: Callable[[Ball], Ball]
    diagonal: bool = False


def linear(weight: Array, shapes: Sequence[Shape], products: Any, terms: Sequence[int]) -> Map:
    """A map with weights, from its products and the number of terms in their sums.

    In any order of summation these err by at most gamma times the sum of absolute values.
    """

    def carried(ball: Ball, k: int) -> Ball:
        gamma = 2 * (terms[k] + 8) * U
        error = np.broadcast_to(size_of(ball.error + gamma * size_of(ball.value)), ball.value.shape)
        results = products[k](weight, ball.value), products[k](size_of(weight), error)
        value, error = (result.reshape(-1, *shapes[k]) for result in results)
        return Ball(value, error * (1 + gamma))

    return Map(
        shapes[0], lambda x: carried(x, 0), lambda y: carried(y, 1), products[0] is np.multiply
    )


def chain(maps: Sequence[Map], shape: Shape) -> Map:
    """Maps one after the other; the identity if there are none."""
    return Map(
        maps[-1].shape if maps else shape,
        lambda x: reduce(lambda ball, each: each.push(ball), maps, x),
        lambda y: reduce(lambda ball, each: each.pull(ball), reversed(maps), y),
        all(each.diagonal for each in maps),
    )


def convolution(weight: Array, shape: Shape, stride: int = 1, padding: str = "zero") -> Map:
    """Correlation with kernels (out, in, rows, columns); if in = 1, of each channel by itself."""
    outputs, inputs, *kernel = weight.shape
    margins = [0 if padding == "none" else k // 2 for k in kernel]
    (height, width), size = shape[1:], [-(-n // stride) for n in shape[1:]]
    rows, columns = (
        PADDINGS[padding](np.arange(-m, n + m), n) for n, m in zip(shape[1:], margins, strict=True)
    )
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
            seen(padded, i, j)[:] += (w[:, :, i, j].T @ planes).reshape(len(planes), inputs, *size)
        images = np.zeros((len(planes) * inputs, (height + 1) * (width + 1)))
        np.add.at(images, (slice(None), index.ravel()), padded.reshape(len(images), -1))
        return images.reshape(-1, height + 1, width + 1)[:, :-1, :-1]

    shapes = ((outputs * shape[0] // inputs, *size), shape)
    terms = (weight[0].size, weight.size // inputs + math.prod(kernel))
    return linear(weight, shapes, (apply, adjoint), terms)


def rays(lines: Sequence[Array], size: Shape, pixel: Sequence[float]) -> Map:
    """Integrals along lines (x, y, dx, dy): at every row, or column, between two of its pixels."""
    x, y, dx, dy = np.broadcast_arrays(*lines)
    row, down = (size[0] - 1) / 2 - y.ravel() / pixel[0], -dy.ravel() / pixel[0]
    column, right = x.ravel() / pixel[1] + (size[1] - 1) / 2, dx.ravel() / pixel[1]
    by_rows = np.abs(down) >= np.abs(right) * (1 - 1e-9)
    found: list[tuple[Any, Any, Array]] = []
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
                where = step * strides[0] + place[hit].astype(np.int64) * strides[1]
                found.append((ray[hit], where, share[hit] * length[hit]))
    ends, weight = (
        [np.concatenate([f[k] for f in found]) for k in (0, 1)],
        np.concatenate([f[2] for f in found]),
    )
    shapes = ((1, *x.shape), (1, *size))

    def product(k: int) -> Callable[[Array, Array], Array]:
        n = math.prod(shapes[k])
        return lambda w, v: np.stack(
            [np.bincount(ends[k], w * u.ravel()[ends[1 - k]], n) for u in v]
        )

    terms = [int(np.bincount(end, minlength=1).max()) for end in ends]
    return linear(weight, shapes, (product(0), product(1)), terms)


@dataclass(frozen=True)
class Activation:
    """A convex function h; of several channels, h of their Euclidean norm."""

    kind: str
    options: Sequence[float]
    group: int = 1

    @property
    def slopes(self) -> tuple[float, float]:
        """The domain of the conjugate."""
        return ACTIVATIONS[self.kind][0](*self.options)  # type: ignore[no-any-return]

    def norms(self, a: Array) -> Array:
        """|a_g| of every group of channels."""
        return np.sqrt((a.reshape(len(a), -1, self.group, *a.shape[2:]) ** 2).sum(2))

    def at(self, a: Ball) -> Ball:
        """h(a). Its slopes are at most 1, except for the half square."""
        if self.group > 1:
            norms = self.norms(a.value)
            a = Ball(norms, 2 * self.norms(a.error) + self.group * ROUNDINGS * norms + 1e-150)
        steepest = 1.0 if np.isfinite(self.slopes[1]) else np.abs(a.value) + a.error
        h = formula(ACTIVATIONS[self.kind][1](a.value, *self.options))
        return Ball(h.value, (h.error + steepest * a.error) * (1 + ROUNDINGS))

    def dual(self, p: Array, t: Array) -> tuple[Array, Ball]:
        """s = p / t, moved into the domain of the conjugate, and h*(s)."""
        s = np.divide(p, t, out=np.zeros_like(p), where=t > 0)
        s = np.where(np.isfinite(s), s, 0.0)
        if self.group > 1:
            norms = self.norms(s) * (1 + self.group * ROUNDINGS)
            shrink = np.where(norms > self.slopes[1], self.slopes[1] / norms * (1 - 4 * U), 1.0)
            s = s * shrink.repeat(self.group, axis=1)
        else:
            s = np.clip(s, *self.slopes)
        norms = self.norms(s) if self.group > 1 else s
        h = formula(ACTIVATIONS[self.kind][2](norms, *self.options))
        return s, Ball(h.value, h.error * (self.group + 2))


def fields(value: Any, place: str, names: str) -> list[Any]:
    """The values of exactly these fields, their numbers within the limits."""
    known = isinstance(value, dict) and set(value) == set(names.split())
    require(known, f"{place} must have these fields and no others: {names or 'none'}")
    for name in names.split():
        low, high = LIMITS.get(name, (None, None))
        if low is not None and high is not None:
            fits = type(value[name]) in ((int,) if isinstance(low, int) else (int, float))
            said = (
                f"{place}.{name} must be a number in [{low:g}, {high:g}], not {value[name]!r:.40}"
            )
            require(fits and low <= value[name] <= high, said)
    return [value[name] for name in names.split()]


def part(value: Any, place: str, kinds: str) -> tuple[str, list[Any]]:
    """{"NAME": {...}}: the name, one of ``kinds``, and the values of its fields."""
    named = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in kinds.split()
    require(named, f"{place} must be one of {kinds}, not {value!r:.40}")
    ((kind, content),) = value.items()
    return kind, fields(content, f"{place}.{kind}", PARTS[kind])


class Proof:
    """A proof file: its arrays as they were written, and the problem that it states."""

    def __init__(self, path: str | PathLike[str]) -> None:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("convexlift_proof")
            require(text, "it is not a proof file of convexlift")
            self.arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = "made_by problem claims radius sha256 network_sha256 format digest"
        values = fields(json.loads(text), "the description", names)
        head = dict(zip(names.split(), values, strict=True))
        digest, changed = head.pop("digest"), "was changed after the proof was written"
        text = json.dumps(head, sort_keys=True, separators=(",", ":"))
        require(sha256(text.encode()) == digest, f"the description {changed}")
        require(head["format"] == 1, f"it has the format {head['format']}; only 1 is known here")
        self.made_by, problem, self.claims, self.radius, sums, self.network_sha256, *_ = values
        require(set(self.arrays) == set(sums), "its tensors are not those of its description")
        for name, array in self.arrays.items():
            described = f"{array.dtype} {list(array.shape)} ".encode() + array.tobytes()
            require(sha256(described) == sums[name], f"the tensor {name!r} {changed}")
            known = array.dtype in (np.float32, np.float64) and array.size
            require(known and np.isfinite(array).all(), f"the tensor {name!r} has no finite floats")
        of_network = "".join(sums[name] for name in sorted(sums) if name.startswith("network."))
        require(sha256(of_network.encode()) == self.network_sha256, f"network_sha256 {changed}")
        self.work, self.unused = 0, set(self.arrays)
        self._state(*fields(problem, "problem", "image_shape weight box fidelity operator network"))
        require(not self.unused, f"the tensor {min(self.unused, default='')!r} belongs to nothing")

    def _state(self, image: Any, weight: float, box: Any, data: Any, op: Any, network: Any) -> None:
        self.x, self.weight = self._tensor("x"), float(weight)
        self.batch, self.image = len(self.x), self.x.shape[1:]
        require(self.x.ndim == 4 and list(self.image) == image, "x is not of problem.image_shape")
        ends = isinstance(box, list) and len(box) == 2
        ends = ends and all(e is None or type(e) in (int, float) and abs(e) <= 1e100 for e in box)
        require(ends, "problem.box must hold two numbers or null")
        self.lower, self.upper = (
            float(infinite if end is None else end)
            for end, infinite in zip(box, (-np.inf, np.inf), strict=True)
        )
        require(
            self.lower < self.upper, "problem.box must have its lower bound below its upper one"
        )
        inside = (self.x >= self.lower) & (self.x <= self.upper)
        require(inside.all(), "x is not in the box, so its objective is infinite")
        self.operator = self._operator(op, "problem.operator", self.image)
        self.y = self._tensor("y", (self.batch, *self.operator.shape))
        kind, options = part(data, "problem.fidelity", "SquaredL2 WeightedL2 L1 KullbackLeibler")
        extra = {"WeightedL2": "fidelity.weights", "KullbackLeibler": "fidelity.background"}.get(
            kind
        )
        q = np.array(options[0] if options else 1.0)
        if extra:
            q = self._tensor(extra, fits=self.y.shape)
            require(q.min() >= 0, f"the tensor {extra!r} has negative entries")
        require(
            kind != "KullbackLeibler" or self.y.min() >= 0, "the tensor 'y' has negative counts"
        )
        y = np.where(q > 0, self.y, 0.0) if kind == "WeightedL2" else self.y
        f, self.f_slope, self.f_clip, conjugate = (
            lambda w, g=g: g(w, y, q)
            for g in FIDELITIES[kind]  # type: ignore[misc]
        )
        self.f, self.f_conjugate = (lambda w: formula(f(w))), (lambda v: formula(conjugate(v)))
        self._network(*fields(network, "problem.network", "layers in_channels image_size"))
        self.theta = self._tensor("theta", (self.batch,))
        last = self.layers[-1]
        mixable = last[0].slopes[0] <= 0 <= last[0].slopes[1] and not last[3]
        proper = (self.theta >= 0) & (self.theta <= 1) & (mixable | (self.theta == 1))
        require(proper.all(), "theta must be 1, or in [0, 1] if the last layer is bounded below")
        self.v = None if self.operator.diagonal else self._tensor("dual.data", self.y.shape)

    def _tensor(self, name: str, shape: Shape | None = None, fits: Shape | None = None) -> Array:
        require(name in self.arrays, f"the tensor {name!r} is missing")
        array = self.arrays[name]
        self.unused.discard(name)
        wrong = f"the tensor {name!r} has the shape {array.shape}, not {shape or fits}"
        require(shape is None or array.shape == shape, wrong)
        ends = (1,) * (len(fits or array.shape) - array.ndim) + array.shape
        require(fits is None or len(ends) == len(fits), wrong)
        require(fits is None or all(n in (1, m) for n, m in zip(ends, fits, strict=True)), wrong)
        return array.astype(np.float64)

    def _spend(self, work: int) -> None:
        self.work += self.batch * work
        require(self.work <= MOST_WORK, "its problem is too large to be checked")

    def _convolution(self, weight: Array, shape: Shape, stride: int, padding: Any, of: str) -> Map:
        require(isinstance(padding, str) and padding in PADDINGS, f"{of}: unknown padding")
        least = 1 if padding == "reflect" else -64
        margins = [k // 2 for k in weight.shape[2:]]
        fits = all(m <= n - least for n, m in zip(shape[1:], margins, strict=True))
        require(fits, f"{of}: its kernel is too large for images of {shape}")
        self._spend(weight.size // weight.shape[1] * math.prod(shape) // stride**2)
        return convolution(weight, shape, stride, padding)

    def _map(self, value: Any, name: str, shape: Shape, nonnegative: bool) -> Map:
        self._spend(64 * math.prod(shape))
        kinds = "Chain Convolution Dense AveragePool ForwardDifferences"
        kind, options = part(value, name, kinds)
        if kind == "Chain":
            require(isinstance(options[0], list) and options[0], f"{name}.maps must be a list")
            maps: list[Map] = []
            for i, each in enumerate(options[0]):
                source = maps[-1].shape if maps else shape
                maps.append(self._map(each, f"{name}.maps.{i}", source, nonnegative))
            return chain(maps, shape)
        if kind == "AveragePool":
            size = options[0]
            require(all(n % size == 0 for n in shape[1:]), f"{name} does not divide {shape}")
            return convolution(np.full((1, 1, size, size), 1 / size**2), shape, size, "none")
        if kind == "ForwardDifferences":
            require(not nonnegative, f"{name} has negative weights; it may take the image only")
            kernels = np.zeros((2, 1, 3, 3))
            kernels[:, 0, 1, 1], kernels[0, 0, 2, 1], kernels[1, 0, 1, 2] = -1, 1, 1
            return self._convolution(kernels, shape, 1, "replicate", name)
        if kind == "Dense":
            shape, expected, stride, padding = (
                (math.prod(shape), 1, 1),
                (options[1], options[0]),
                1,
                "zero",
            )
        else:
            inputs, outputs, kernel, stride, padding = options
            expected = (outputs, inputs, kernel, kernel)
            require(kernel % 2, f"{name}.kernel_size must be odd")
        weight = self._tensor(f"network.{name}.weight", expected)
        require(weight.shape[1] == shape[0], f"{name} does not fit inputs of the shape {shape}")
        fine = not nonnegative or weight.min() >= 0
        require(fine, f"network.{name}.weight has negative entries, so R need not be convex")
        weight = weight.reshape(*weight.shape, *(1,) * (4 - weight.ndim))
        return self._convolution(weight, shape, stride, padding, name)

    def _operator(self, value: Any, place: str, shape: Shape) -> Map:
        self._spend(64 * math.prod(shape))
        kinds = "Identity Diagonal Blur Scaled Composition Sum ParallelBeam FanBeam"
        kind, options = part(value, place, kinds)
        place = f"{place}.{kind}"
        if kind == "Scaled":
            inner = self._operator(options[1], place, shape)
            factor = np.array(float(options[0]))
            return chain(
                [inner, linear(factor, [inner.shape] * 2, [np.multiply] * 2, (1, 1))], shape
            )
        if kind == "Diagonal":
            weight = self._tensor(options[0], fits=(self.batch, *shape))
            return linear(weight, [shape] * 2, [np.multiply] * 2, (1, 1))
        if kind == "Blur":
            kernel = self._tensor(options[0])[::-1, ::-1]
            require(all(n % 2 for n in kernel.shape), f"{place}: its kernel has no middle")
            return self._convolution(kernel[None, None], shape, 1, options[1], place)
        if kind in ("Composition", "Sum", "Identity"):
            listed = kind == "Identity" or isinstance(options[0], list) and options[0]
            require(listed, f"{place} must hold a list")
            maps: list[Map] = []
            for each in reversed(options[0]) if options else ():
                source = maps[-1].shape if maps and kind == "Composition" else shape
                maps.append(self._operator(each, place, source))
            if kind != "Sum":
                return chain(maps, shape)
            require(len({each.shape for each in maps}) == 1, f"{place}: its terms do not fit")
            return Map(
                maps[0].shape,
                lambda x: reduce(Ball.__add__, [each.push(x) for each in maps]),
                lambda y: reduce(Ball.__add__, [each.pull(y) for each in maps]),
                all(each.diagonal for each in maps),
            )
        size, pixel, *names = options[:4]
        require([1, *size] == list(shape), f"{place} does not take images of the shape {shape}")
        require(len(pixel) == 2 and min(pixel) > 1e-100, f"{place}.pixel_size must be positive")
        angles, bins = (self._tensor(name).reshape(-1) for name in names)
        self._spend(16 * len(angles) * len(bins) * sum(shape[1:]))
        t = angles[:, None]
        if kind == "ParallelBeam":
            lines = [bins * np.cos(t), bins * np.sin(t), np.sin(t), -np.cos(t)]
        else:
            require(options[6] in ("flat", "curved"), f"{place}.detector must be flat or curved")
            along = bins / (options[4] + options[5])
            fan = t - (np.arctan(along) if options[6] == "flat" else along)
            lines = [options[4] * np.sin(t), -options[4] * np.cos(t), -np.sin(fan), np.cos(fan)]
        return rays(lines, shape[1:], pixel)

    def _network(self, layers: Any, channels: Any, size: Any) -> None:
        fits = channels == self.image[0] and size in (None, list(self.image[1:]))
        require(fits, f"the network does not take images of the shape {self.image}")
        require(isinstance(layers, list) and layers, "problem.network.layers must be a list")
        shapes, self.layers = [self.image], []
        for i, value in enumerate(layers):
            name, names = f"layers.{i}", "activation channels skip previous links bias residual"
            h_, channels, skip, previous, links, bias, residual = fields(value, name, names)
            h = self._activation(h_, f"{name}.activation")
            require(i == 0 or h.slopes[0] >= 0, f"{name}.activation must be nondecreasing")
            parts = [(0, "skip", skip), (i, "previous", previous)]
            parts += [(int(j), f"links.{j}", link) for j, link in links.items()]
            maps: dict[int, Map] = {}
            for j, which, content in parts:
                if content is not None:
                    earlier = j == 0 if which == "skip" else 1 <= j <= i
                    require(earlier and j not in maps, f"{name}.{which} has no source of its own")
                    maps[j] = self._map(content, f"{name}.{which}", shapes[j], j > 0)
            require(
                len({each.shape for each in maps.values()}) == 1, f"{name}: its maps do not fit"
            )
            shape = next(iter(maps.values())).shape
            fits = shape[0] == channels and channels % h.group == 0
            shapes.append((channels // h.group, *shape[1:]))
            fits = fits and (not residual or i > 0 and shapes[-2] == shapes[-1])
            require(fits, f"{name}: its channels do not fit its maps")
            b = self._tensor(f"network.{name}.bias", (channels,)) if bias else np.zeros(channels)
            p = self._tensor(f"dual.{i + 1}")
            flat = p.shape == (self.batch, channels) and shape[1:] == (1, 1)
            fits = flat or p.shape == (self.batch, *shape)
            require(
                fits,
                f"the tensor 'dual.{i + 1}' has the shape {p.shape}, not that of layer {i + 1}",
            )
            p = p.reshape(self.batch, *shape)
            self.layers.append((h, maps, b[:, None, None], bool(residual), p))
        output = self._tensor("network.output", (shapes[-1][0],))
        require(output.min() >= 0, "network.output has negative entries, so R need not be convex")
        self.output = np.broadcast_to(output[:, None, None], (self.batch, *shapes[-1]))

    @staticmethod
    def _activation(value: Any, place: str) -> Activation:
        kind, options = part(value, place, " ".join([*ACTIVATIONS, "GroupNorm"]))
        if kind != "GroupNorm":
            return Activation(kind, options)
        profile, inner = part(options[1], f"{place}.profile", "Abs Huber HalfSquare")
        return Activation(profile, inner, options[0])

    def objective(self) -> Ball:
        """J(x)."""
        z = [Ball(self.x)]
        for h, maps, bias, residual, _ in self.layers:
            a = reduce(Ball.__add__, [each.push(z[j]) for j, each in maps.items()]) + Ball(bias)
            z.append(h.at(a) + z[-1] if residual else h.at(a))
        data = concave(lambda w: -self.f(w), self.operator.push(z[0]))
        return -data.total() + (Ball(self.output) * z[-1]).total() * Ball(np.array(self.weight))

    def minorant(self) -> tuple[Ball, Ball]:
        """c and beta with weight R(x') >= <c, x'> + beta for every x'."""
        t: dict[int, Ball] = {len(self.layers): Ball(self.output) * Ball(np.array(self.weight))}
        beta = Ball(np.zeros(self.batch))
        for i in range(len(self.layers), 0, -1):
            h, maps, bias, residual, p_stored = self.layers[i - 1]
            shape = (self.batch, p_stored.shape[1] // h.group, *p_stored.shape[2:])
            t_i = t.pop(i, Ball(np.zeros(shape)))
            each = [
                np.broadcast_to(e, shape).repeat(h.group, axis=1) for e in (t_i.value, t_i.error)
            ]
            s, conjugate = h.dual(p_stored, each[0])
            p = Ball(s) * Ball(*each)
            beta = beta + (p * Ball(bias)).total() + -(t_i * conjugate).total()
            parts = [(j, each.pull(p)) for j, each in maps.items()]
            for j, more in [*parts, (i - 1, t_i)] if residual else parts:
                t[j] = t[j] + more if j in t else more
        constant = Ball(self.output) * Ball(np.array(-self.weight))
        theta, h = Ball(self.theta), self.layers[-1][0]
        lowest = (constant * h.dual(np.zeros_like(p_last := self.layers[-1][4]), p_last)[1]).total()
        mixed = theta * beta + (Ball(np.ones(self.batch)) + -theta) * lowest
        c = t.get(0, Ball(np.zeros_like(self.x)))
        return Ball(self.theta[:, None, None, None]) * c, mixed

    def data_bound(self, c: Ball) -> tuple[Ball, NDArray[np.bool_]]:
        """A bound on inf D(A x') + <c, x'>, and the images for which it holds near x only."""
        d = self.operator.push(Ball(np.ones_like(self.x))) if self.v is None else Ball(np.zeros(()))
        usable = (np.abs(d.value) > 2 * d.error) & (np.abs(d.value) > 1e-100)
        v = self.f_clip(self.f_slope(np.zeros_like(self.y)) if self.v is None else self.v)
        below, g = -self.f_conjugate(v), self.operator.pull(Ball(v)) + c
        # Where A is diagonal and d not zero, w = d x' turns the pixel into inf f(w) + k w, k = c/d.
        d = Ball(np.where(usable, d.value, 1.0), np.where(usable, d.error, 0.0))
        k = c.value / d.value
        error = size_of(c.error + 4 * U * size_of(c.value) + size_of(k) * d.error)
        slope = Ball(k, error / (np.abs(d.value) - d.error) * (1 + ROUNDINGS))

        def lowest(g: Array, low: Array, high: Array) -> Array:
            return np.where(g == 0, 0.0, g * np.where(g > 0, low, high))

        def pixels(low: Array, high: Array) -> Ball:
            linear_part = concave(lambda g: formula([lowest(g, low, high)]), g)
            if self.v is not None:
                return linear_part
            ends = np.sort([d.value * low, d.value * high], axis=0)
            slack = (d.error + 4 * U * np.abs(d.value)) * size_of(ends / d.value)
            w_low, w_high = ends + np.where(np.isfinite(ends), slack, 0) * [[[[[-1]]]], [[[[1]]]]]

            def infimum(k: Array) -> Ball:
                v = self.f_clip(np.clip(-k, self.f_slope(w_low), self.f_slope(w_high)))
                return -self.f_conjugate(v) + formula([lowest(v + k, w_low, w_high)])

            seen, unseen = concave(infimum, slope), linear_part + below
            return Ball(*(np.where(usable, *both) for both in
                          ((seen.value, unseen.value), (seen.error, unseen.error))))  # fmt: skip

        everywhere = pixels(np.full_like(self.x, self.lower), np.full_like(self.x, self.upper))
        free = ~np.isfinite(everywhere.value - everywhere.error)
        if free.any():
            low = np.maximum(np.nextafter(self.x - self.radius, -np.inf), self.lower)
            near = pixels(low, np.minimum(np.nextafter(self.x + self.radius, np.inf), self.upper))
            value = np.where(free, near.value, everywhere.value)
            everywhere = Ball(value, np.where(free, near.error, everywhere.error))
        bound = everywhere.total() if self.v is None else everywhere.total() + below.total()
        return bound, free.reshape(self.batch, -1).any(1)

    def verdicts(self) -> tuple[Verdict, ...]:
        """The numbers that are proved, if they bear out the claims."""
        listed = isinstance(self.claims, list) and len(self.claims) == self.batch
        require(listed, "claims must be a list with one entry for each image")
        objective, (c, rest) = self.objective(), self.minorant()
        bound, near = self.data_bound(c)
        bound = bound + rest
        found = []
        for i, claim in enumerate(self.claims):
            names = "objective lower_bound gap guarantee"
            above, below, gap, guarantee = fields(claim, f"claims[{i}]", names)
            known = guarantee in ("GLOBAL", "WITHIN_RADIUS")
            require(known, f"claims[{i}].guarantee must be GLOBAL or WITHIN_RADIUS")
            global_ = not near[i] or guarantee != "GLOBAL"
            require(global_, f"claims[{i}] is GLOBAL, but some pixel is bounded near x only")
            high, low = objective.value[i] + objective.error[i], bound.value[i] - bound.error[i]
            high, low = float(np.nextafter(high, np.inf)), float(np.nextafter(low, -np.inf))
            allowed = TOLERANCE * abs(high) + TINY
            fine = objective.value[i] - objective.error[i] <= above and high <= above + allowed
            require(fine, f"claims[{i}].objective is {above!r}, but it is {high!r}")
            fine = bound.value[i] + bound.error[i] >= below and low >= below - allowed
            require(fine, f"claims[{i}].lower_bound is {below!r}, but {low!r} is proved")
            relative = 0.0 if high == low else (high - low) / abs(high) if high else math.inf
            fine = relative <= gap + 4 * TOLERANCE
            require(fine, f"claims[{i}].gap is {gap!r}, but {relative!r} is proved")
            scope = "WITHIN_RADIUS" if near[i] else "GLOBAL"
            numbers = (high, low, relative, scope, float(self.radius))
            found.append(Verdict(*numbers, self.made_by, self.network_sha256))
        return tuple(found)


def sha256(data: bytes) -> str:
    """As it is written in proof files."""
    return hashlib.sha256(data).hexdigest()


def verify(path: str | PathLike[str]) -> tuple[Verdict, ...]:
    """Check a proof file: what it proves, for each of its images.

    Raises ProofRejected, with the file's name and the reason, if it is damaged or proves less
    than it claims, and OSError if it cannot be read.
    """
    try:
        with np.errstate(all="ignore"):  # what is not finite is rejected
            return Proof(path).verdicts()
    except OSError:
        raise
    except ProofRejected as error:
        raise ProofRejected(f"{path}: {error}") from None
    except Exception as error:  # whatever a hostile file makes of the code above
        raise ProofRejected(f"{path}: it is malformed ({type(error).__name__}: {error})") from None


def main(paths: Sequence[str]) -> int:
    """Print a line for each image; 1 if a file was rejected or could not be read."""
    failures = 0
    for path in paths:
        try:
            for verdict in verify(path):
                print(f"{path}: {verdict}")
        except (ProofRejected, OSError) as error:
            failures += 1
            print(f"rejected: {error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else __doc__)
