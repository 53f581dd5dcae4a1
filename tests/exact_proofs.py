"""Objective and bound of tiny problems of hostile scales, in exact rational arithmetic.

Everything is computed with fractions, from matrices that are built here by loops over pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from forged_proofs import convolution

F = Fraction
Vector = list[Fraction]
Matrix = list[Vector]
ZERO = F(0)


def exact(array: Any) -> Vector:
    """The entries of an array of floats."""
    return [F(float(value)) for value in np.asarray(array).ravel()]


def times(matrix: Matrix, vector: Vector) -> Vector:
    return [sum((m * v for m, v in zip(row, vector, strict=True) if m), ZERO) for row in matrix]


def transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def inner(a: Vector, b: Vector) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), ZERO)


def continued(p: int, n: int, padding: str) -> int | None:
    """The pixel at place p of a row of n pixels that continues past its ends."""
    if 0 <= p < n:
        return p
    if padding == "zero":
        return None
    if padding == "circular":
        return p % n
    if padding == "replicate":
        return 0 if p < 0 else n - 1
    return -p if p < 0 else 2 * (n - 1) - p


def correlation(weight: np.ndarray, n: int, stride: int, padding: str) -> Matrix:
    """The matrix of a convolution layer on images of n x n pixels."""
    outputs, inputs, k, _ = weight.shape
    m = -(-n // stride)
    matrix = [[ZERO] * (inputs * n * n) for _ in range(outputs * m * m)]
    for o in range(outputs):
        for r in range(m):
            for c in range(m):
                row = matrix[(o * m + r) * m + c]
                for i in range(inputs):
                    for u in range(k):
                        for v in range(k):
                            y = continued(r * stride + u - k // 2, n, padding)
                            x = continued(c * stride + v - k // 2, n, padding)
                            if y is not None and x is not None:
                                row[(i * n + y) * n + x] += F(float(weight[o, i, u, v]))
    return matrix


@dataclass(frozen=True)
class H:
    """An activation with its exact value and conjugate; of ``group`` entries, of their squares."""

    json: dict[str, Any]
    value: Callable[[Fraction], Fraction]
    conjugate: Callable[[Fraction], Fraction]
    slopes: tuple[float, float]
    group: int = 1


def smoothed(name: str, k: float, nu: float) -> H:
    K, N = F(k), F(nu)

    def value(a: Fraction) -> Fraction:
        psi = ZERO if a <= 0 else a * a / (2 * N) if a < N else a - N / 2
        return K * a + (1 - K) * psi

    json = {name: {"slope": k, "smoothing": nu}}
    return H(json, value, lambda s: N * (s - K) ** 2 / (2 * (1 - K)), (k, 1.0))


def huber(delta: float) -> H:
    D = F(delta)

    def value(a: Fraction) -> Fraction:
        return a * a / (2 * D) if abs(a) <= D else abs(a) - D / 2

    return H({"Huber": {"delta": delta}}, value, lambda s: D * s * s / 2, (-1.0, 1.0))


SQUARE = (-math.inf, math.inf)
MONOTONE = [
    H({"ReLU": {}}, lambda a: max(a, ZERO), lambda s: ZERO, (0.0, 1.0)),
    H({"LeakyReLU": {"slope": 0.2}}, lambda a: max(F(0.2) * a, a), lambda s: ZERO, (0.2, 1.0)),
    smoothed("SmoothedReLU", 0.0, 0.01),
    smoothed("SmoothedLeakyReLU", 0.3, 1e-7),
    smoothed("SmoothedLeakyReLU", 1 - 2.0**-52, 1e5),
]
FIRST = [
    *MONOTONE,
    H({"Abs": {}}, abs, lambda s: ZERO, (-1.0, 1.0)),
    huber(0.01),
    huber(1e6),
    H({"HalfSquare": {}}, lambda a: a * a / 2, lambda s: s * s / 2, SQUARE),
    H({"GroupNorm": {"size": 2, "profile": {"HalfSquare": {}}}}, lambda r: r / 2,
      lambda r: r / 2, SQUARE, group=2),
]  # fmt: skip


def applied(h: H, function: Callable[[Fraction], Fraction], a: Vector, pixels: int) -> Vector:
    """h or its conjugate, by entries, or by the squared norms of consecutive channels."""
    if h.group == 1:
        return [function(value) for value in a]
    squares = [value * value for value in a]
    count = len(a) // pixels // 2
    return [
        function(squares[2 * g * pixels + i] + squares[(2 * g + 1) * pixels + i])
        for g in range(count)
        for i in range(pixels)
    ]


@dataclass
class Tiny:
    """A problem with arrays, JSON, and exact matrices for all of its maps."""

    n: int
    arrays: dict[str, np.ndarray]
    layers: list[dict[str, Any]] = field(default_factory=list)
    hs: list[H] = field(default_factory=list)
    maps: list[dict[int, Matrix]] = field(default_factory=list)
    biases: list[Vector] = field(default_factory=list)
    residual: list[bool] = field(default_factory=list)
    pixels: list[int] = field(default_factory=list)


def layer(
    tiny: Tiny,
    h: H,
    channels: int,
    sources: dict[str, tuple[int, dict[str, Any], Matrix]],
    pixels: int,
    bias: np.ndarray,
    residual: bool = False,
    link: np.ndarray | None = None,
) -> None:
    """Add a layer; biases of every entry, and factors of links, are named as those of a guide."""
    i = len(tiny.layers)
    named = {name: json for name, (_, json, _) in sources.items()}
    own = bias.ndim == 1
    tiny.layers.append(
        {
            "activation": h.json, "channels": channels, "skip": named.get("skip"),
            "previous": named.get("previous"), "links": {}, "bias": own, "residual": residual,
        }
    )  # fmt: skip
    tiny.arrays[f"network.layers.{i}.bias" if own else f"network.bias_{i + 1}"] = bias
    tiny.hs.append(h)
    tiny.maps.append({source: matrix for source, _, matrix in sources.values()})
    if link is not None:
        tiny.arrays[f"network.link_{i + 1}_{i}"] = link
        scaled = [[w * s for w, s in zip(row, exact(link), strict=True)]
                  for row in tiny.maps[-1][i]]  # fmt: skip
        tiny.maps[-1][i] = scaled
    tiny.biases.append([b for b in exact(bias) for _ in range(channels * pixels // bias.size)])
    tiny.residual.append(residual)
    tiny.pixels.append(pixels)


def wild(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Numbers of all sizes between 10^low and 10^high, of both signs."""
    return 10 ** rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape)


def random_network(
    rng: np.random.Generator, n: int, deep: bool, spread: float, *, by_pixel: bool = False
) -> Tiny:
    """One convolution, or four layers: with a skip, residual, and dense on pooled pixels.

    By pixel, a convolution has output weights and biases, and further layers have biases and
    factors of their links, as if a guide had read them off the data.
    """
    tiny = Tiny(n, {})
    first = FIRST[rng.integers(len(FIRST))]
    padding = ["zero", "circular", "reflect", "replicate"][rng.integers(4)]
    width = 2 * first.group
    V = wild(rng, (width, 1, 3, 3), -spread, spread)
    tiny.arrays["network.layers.0.skip.weight"] = V
    every = (1, width, n, n) if by_pixel else (width,)
    bias = wild(rng, every, -1, 6 if spread > 1 else 0)
    skip = (0, convolution(1, width, 3, padding=padding), correlation(V, n, 1, padding))
    layer(tiny, first, width, {"skip": skip}, n * n, bias)
    if deep:
        for residual in (False, True):
            h, i = MONOTONE[rng.integers(len(MONOTONE))], len(tiny.layers)
            W = np.abs(wild(rng, (2, 2, 3, 3), -spread, spread)) * (rng.random((2, 2, 3, 3)) < 0.7)
            tiny.arrays[f"network.layers.{i}.previous.weight"] = W
            previous = (i, convolution(2, 2, 3, padding=padding), correlation(W, n, 1, padding))
            sources = {"previous": previous}
            if not residual:
                V = wild(rng, (2, 1, 3, 3), -spread, spread)
                tiny.arrays[f"network.layers.{i}.skip.weight"] = V
                sources["skip"] = (
                    0, convolution(1, 2, 3, padding=padding), correlation(V, n, 1, padding)
                )  # fmt: skip
            every = (1, 2, n, n) if by_pixel else (2,)
            link = rng.random(every) if by_pixel else None
            layer(tiny, h, 2, sources, n * n, wild(rng, every, -1, 1), residual, link)
        pooled_dense(tiny, rng, n, spread)
    outputs = tiny.layers[-1]["channels"] // tiny.hs[-1].group
    shape = (1, outputs, n, n) if by_pixel and not deep else (outputs,)
    tiny.arrays["network.output"] = np.abs(wild(rng, shape, -spread, spread))
    return tiny


def pooled_dense(tiny: Tiny, rng: np.random.Generator, n: int, spread: float) -> None:
    """Blocks of n x n pixels, then 2 -> 3 features: 1 / n^2 is no float for n = 3."""
    h, i = MONOTONE[rng.integers(len(MONOTONE))], len(tiny.layers)
    W = np.abs(wild(rng, (3, 2), -spread, spread))
    tiny.arrays[f"network.layers.{i}.previous.maps.1.weight"] = W
    maps = [{"AveragePool": {"size": n}}, {"Dense": {"in_features": 2, "out_features": 3}}]
    json = {"Chain": {"maps": maps}}
    matrix = [[F(float(W[o, c // (n * n)])) / n**2 for c in range(2 * n * n)] for o in range(3)]
    layer(tiny, h, 3, {"previous": (i, json, matrix)}, 1, wild(rng, (3,), -1, 1))


@dataclass(frozen=True)
class Data:
    """An operator and a data term with exact matrices."""

    operator: dict[str, Any]
    matrix: Matrix
    fidelity: dict[str, Any]
    q: Vector
    box: tuple[float | None, float | None]


def random_data(rng: np.random.Generator, tiny: Tiny, kind: str, offset: float) -> Data:
    n, arrays = tiny.n, tiny.arrays
    x = offset + rng.standard_normal((1, 1, n, n))
    choice = ("identity", "diagonal", "blur")[rng.integers(3)]
    identity = [[F(i == j) for j in range(n * n)] for i in range(n * n)]
    operator, matrix = {"Identity": {}}, identity
    if choice == "diagonal":  # 0.1 d + 0.3
        d = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.8)
        arrays["operator.0.values"] = d
        factor, diagonal = rng.choice([0.3, 0.0]), {"Diagonal": {"values": "operator.0.values"}}
        terms = ((0.1, diagonal), (float(factor), operator))
        scaled = [{"Scaled": {"factor": each, "operator": part}} for each, part in terms]
        operator = {"Sum": {"terms": scaled}}
        values = [F(0.1) * v + F(factor) for v in exact(d)]
        matrix = [[values[i] * identity[i][j] for j in range(n * n)] for i in range(n * n)]
    if choice == "blur":
        kernel = rng.standard_normal((3, 3))
        arrays["operator.0.kernel"] = kernel
        operator = {"Blur": {"kernel": "operator.0.kernel", "boundary": "reflect"}}
        matrix = correlation(kernel[None, None, ::-1, ::-1], n, 1, "reflect")
        arrays["dual.data"] = 0.1 * rng.standard_normal((1, 1, n, n))
    arrays["x"] = x
    w = np.array([float(value) for value in times(matrix, exact(x))]).reshape(x.shape)
    arrays["y"] = w + 0.1 * rng.standard_normal(x.shape)
    q = [F(1)] * n * n
    fidelity: dict[str, Any] = {"SquaredL2": {}}
    if kind == "L1":
        fidelity, q = {"L1": {"scale": 0.7}}, [F(0.7)] * n * n
    if kind == "WeightedL2":
        weights = np.abs(wild(rng, (1, 1, n, n), -2, 2)) * (rng.random((1, 1, n, n)) < 0.8)
        arrays["fidelity.weights"] = weights
        fidelity, q = {"WeightedL2": {}}, exact(weights)
    low, high = float(np.floor(x.min())) - 1, float(np.ceil(x.max())) + 1
    return Data(operator, matrix, fidelity, q, (low, high))


def f_value(kind: str, w: Fraction, y: Fraction, q: Fraction) -> Fraction:
    return q * abs(w - y) if kind == "L1" else q * (w - y) ** 2 / 2


def f_conjugate(kind: str, v: Fraction, y: Fraction, q: Fraction) -> Fraction:
    if kind == "L1":
        assert abs(v) <= q
        return v * y
    if q == 0:
        assert v == 0
        return ZERO
    return v * v / (2 * q) + v * y


def pixel_infimum(kind, d, c, y, q, low, high) -> Fraction:
    """min f(d x) + c x over low <= x <= high: at an end, at the kink, or where the slope is 0."""
    candidates = [low, high]
    if d != 0 and kind == "L1":
        candidates.append(min(max(y / d, low), high))
    elif d != 0 and q != 0:
        candidates.append(min(max((y - c / (d * q)) / d, low), high))
    return min(f_value(kind, d * x, y, q) + c * x for x in candidates)


def exact_numbers(
    tiny: Tiny, data: Data, kind: str, weight: float, theta: float, slopes: dict[int, np.ndarray]
) -> tuple[Fraction, Fraction, Fraction]:
    """Objective, bound for these slopes, and the sum of the absolute values of all terms."""
    x, y = exact(tiny.arrays["x"]), exact(tiny.arrays["y"])
    z, gamma = [x], F(weight)
    for i, h in enumerate(tiny.hs):
        a = list(tiny.biases[i])
        for source, matrix in tiny.maps[i].items():
            a = [u + v for u, v in zip(a, times(matrix, z[source]), strict=True)]
        value = applied(h, h.value, a, tiny.pixels[i])
        z.append([u + v for u, v in zip(value, z[-1], strict=True)] if tiny.residual[i] else value)
    weights = tiny.arrays["network.output"]
    output = [w for w in exact(weights) for _ in range(len(z[-1]) // weights.size)]
    terms = [
        f_value(kind, w, v, q) for w, v, q in zip(times(data.matrix, x), y, data.q, strict=True)
    ]
    objective = sum(terms, ZERO) + gamma * inner(output, z[-1])

    t: dict[int, Vector] = {len(tiny.hs): [gamma * w for w in output]}
    beta, size = ZERO, abs(objective) + sum(map(abs, terms), ZERO)
    for i in range(len(tiny.hs), 0, -1):
        h, pixels, t_i = tiny.hs[i - 1], tiny.pixels[i - 1], t[i]
        assert all(value >= 0 for value in t_i)
        s = exact(slopes[i])
        low, high = h.slopes
        assert all(low <= value <= high for value in s)
        if h.group == 1:
            p = [u * v for u, v in zip(s, t_i, strict=True)]
        else:
            p = [v * t_i[(k // pixels // 2) * pixels + k % pixels] for k, v in enumerate(s)]
        parts = [u * v for u, v in zip(p, tiny.biases[i - 1], strict=True)]
        conjugates = applied(h, h.conjugate, s, pixels)
        parts += [-u * v for u, v in zip(t_i, conjugates, strict=True)]
        beta, size = beta + sum(parts, ZERO), size + sum(map(abs, parts), ZERO)
        for source, matrix in tiny.maps[i - 1].items():
            more = times(transposed(matrix), p)
            old = t.get(source, [ZERO] * len(more))
            t[source] = [u + v for u, v in zip(old, more, strict=True)]
        if tiny.residual[i - 1]:
            old = t.get(i - 1, [ZERO] * len(t_i))
            t[i - 1] = [u + v for u, v in zip(old, t_i, strict=True)]
    T = F(theta)
    c = [T * value for value in t[0]]
    zeros = applied(tiny.hs[-1], tiny.hs[-1].conjugate, [ZERO] * len(slopes[len(tiny.hs)].ravel()),
                    tiny.pixels[-1])  # fmt: skip
    constant = T * beta - ((1 - T) * gamma * inner(output, zeros) if T != 1 else 0)
    low, high = F(data.box[0]), F(data.box[1])
    size += sum((abs(v) * max(abs(low), abs(high)) for v in c), ZERO)
    if "Blur" not in data.operator:
        d = [data.matrix[i][i] for i in range(len(x))]
        pixels_ = [
            pixel_infimum(kind, *each, low, high) for each in zip(d, c, y, data.q, strict=True)
        ]
        return objective, constant + sum(pixels_, ZERO), size
    v = exact(tiny.arrays["dual.data"])
    if kind == "L1":
        v = [min(max(value, -q), q) for value, q in zip(v, data.q, strict=True)]
    v = [value if q else ZERO for value, q in zip(v, data.q, strict=True)]
    g = [u + w for u, w in zip(times(transposed(data.matrix), v), c, strict=True)]
    parts = [-f_conjugate(kind, *each) for each in zip(v, y, data.q, strict=True)]
    parts += [min(value * low, value * high) for value in g]
    size += sum(map(abs, parts), ZERO)
    return objective, constant + sum(parts, ZERO), size
