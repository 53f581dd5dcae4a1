"""Examinations for your own operators, activations and fidelities.

Each function raises ``CheckFailed``, with the numbers, at the first property that does not hold;
the library's own classes take the same exams in its tests.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.networks.activations import Activation
from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape, fits, foreign_parts, full_precision

EXAMINED = 400
"""So many arguments of an activation, or data of a fidelity, are tried when a problem is stated."""
LINEARITY = 1e-4
"""The largest relative error of a user's operator that counts as rounding, in single precision."""


class CheckFailed(AssertionError):
    """A property that the mathematics needs does not hold."""


def check_operator(
    operator: LinearOperator,
    input_shape: Shape | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> None:
    """Linearity, <A x, y> = <x, A* y>, shapes, the diagonal if there is one, and ||A||.

    Args:
        operator: A.
        input_shape: the shape of one input; needed where the operator takes any.
        dtype: precision of the exam; the operator is converted to it.
        seed: of the random vectors.
    """
    shape = operator.input_shape or input_shape
    if shape is None:
        raise ValueError("check_operator needs input_shape=(channels, height, width) here")
    A = operator.to(dtype=dtype)
    tolerance = 100 * torch.finfo(dtype).eps
    random = _Random(seed, dtype)
    with torch.no_grad():
        batch = A(torch.zeros((1, *shape), dtype=dtype)).shape[0]
        x, x2 = random.normal(batch, *shape), random.normal(batch, *shape)
        Ax = A(x)
        _require(
            tuple(Ax.shape[1:]) == tuple(A.output_shape(shape)),
            f"output_shape says {A.output_shape(shape)}, A(x) has {tuple(Ax.shape[1:])}",
        )
        y = random.normal(*Ax.shape)
        Aty = A.adjoint(y)
        _require(Aty.shape == x.shape, f"A.adjoint gives {tuple(Aty.shape)}, not {tuple(x.shape)}")
        scale = float(Ax.norm() * y.norm()) + torch.finfo(dtype).tiny
        error = abs(float((Ax * y).sum() - (x * Aty).sum())) / scale
        _require(error <= tolerance, f"<Ax, y> and <x, A*y> differ by {error:.1e}, relatively")
        error = float((A(2 * x - 3 * x2) - (2 * Ax - 3 * A(x2))).norm()) / (
            float(Ax.norm()) + 1e-30
        )
        _require(error <= tolerance, f"A is not linear: relative error {error:.1e}")
        if (diagonal := A.diagonal) is not None:
            error = float((Ax - diagonal.to(dtype) * x).norm()) / (float(Ax.norm()) + 1e-30)
            _require(error <= tolerance, f"A x and diagonal * x differ by {error:.1e}")
        norm, growth = A.norm(shape), float(Ax.norm() / x.norm())
        _require(
            norm >= growth * (1 - tolerance), f"norm() is {norm:g}, but ||Ax||/||x|| = {growth:g}"
        )


def check_activation(
    activation: Activation, *, scale: float = 3.0, seed: int = 0, count: int = 2000
) -> None:
    """Convexity, slopes, Fenchel-Young, prox and epigraph projection, in float64.

    Args:
        activation: h.
        scale: the size of the random arguments.
        seed: of the random numbers.
        count: how many of them.
    """
    random = _Random(seed, torch.float64)
    low, high = activation.slopes
    points = (count, activation.group)  # one group, which makes one channel of h(a)
    a, b = scale * random.normal(*points), scale * random.normal(*points)
    a[:4] = torch.tensor([0.0, 1e-12, -1e-12, 1.0])[:, None]
    h, slope = activation.value(a), activation.derivative(a)
    size = max(1.0, float(h.abs().max()))  # rounding errors grow with the values
    middle = activation.value((a + b) / 2) - (h + activation.value(b)) / 2
    _require(
        float(middle.max()) <= 1e-12 * size * scale**2, f"not convex: {float(middle.max()):.1e}"
    )
    beyond = float((activation.clip(slope) - slope).abs().max())
    _require(beyond <= 1e-12 * size, f"derivative leaves {(low, high)} by {beyond:.1e}")
    below = activation.value(b) - h - _dot(slope, b - a)
    _require(
        float(below.min()) >= -1e-10 * size,
        f"derivative is no subgradient: {float(below.min()):.1e}",
    )

    loss = activation.fenchel_young(a, slope)
    _require(
        float(loss.abs().max()) <= 1e-10 * size,
        f"Fenchel-Young at h': {float(loss.max()):.1e}, not 0",
    )
    s = random.uniform(
        low if math.isfinite(low) else -scale, high if math.isfinite(high) else scale, *points
    )
    if activation.group > 1:  # into the ball, and off its boundary, which rounding may cross
        s = 0.999999 * activation.clip(s)
    direct = h + activation.conjugate(s) - _dot(s, a)
    loss = activation.fenchel_young(a, s)
    _require(float(loss.min()) >= 0, f"Fenchel-Young is negative: {float(loss.min()):.1e}")
    error = float((loss - direct).abs().max())
    _require(
        error <= 1e-9 * size * scale**2, f"fenchel_young and h + h* - s a differ by {error:.1e}"
    )
    if math.isfinite(high):
        outside = activation.conjugate(torch.full((1, points[1]), high + 0.1, dtype=torch.float64))
        _require(bool(outside.isinf().all()), "conjugate is finite outside the slopes")

    eta = random.uniform(0.01, 3.0, count, 1)
    point = activation.prox(a, eta)
    loss = activation.fenchel_young(point, activation.clip((a - point) / activation.spread(eta)))
    _require(float(loss.max()) <= 1e-8 * size, f"prox is not optimal: {float(loss.max()):.1e}")
    p = activation.scaled_slope(a, eta, torch.ones_like(eta))
    error = float((a - p - point).abs().max())
    _require(error <= 1e-9 * size * scale, f"scaled_slope and prox differ by {error:.1e}")

    sigma_a, sigma_z = (random.uniform(0.05, 5.0, count, 1) for _ in range(2))
    z = b[:, :1]
    t = activation.multiplier(a, z, sigma_a, sigma_z)
    _require(float(t.min()) >= 0, "the multiplier is negative")
    height = activation.value(activation.prox(a, t / sigma_a)) - (z + t / sigma_z)
    _require(
        float(height.max()) <= 1e-7 * size,
        f"the projection leaves the epigraph by {height.max():.1e}",
    )
    slackness = float((t * height).abs().max())
    _require(slackness <= 1e-6 * size**2, f"the projection is not complementary: {slackness:.1e}")
    _require(bool((t[h <= z] == 0).all()), "points of the epigraph are moved")
    p = scale * random.normal(*points)
    clipped = activation.clip_to_slopes(p, eta)
    error = float((clipped - activation.spread(eta) * activation.clip(p / activation.spread(eta)))
                  .abs().max())  # fmt: skip
    _require(error <= 1e-12 * scale, f"clip_to_slopes and clip differ by {error:.1e}")


def check_functional(
    fidelity: Fidelity, *, sampler: Callable[[Tensor], Tensor] | None = None, seed: int = 0
) -> None:
    """Prox, Moreau, Fenchel-Young, gradient and excess of a fidelity, in float64.

    Args:
        fidelity: f.
        sampler: makes arguments w in the domain of f from standard normal numbers; the default
            scatters them around the data.
        seed: of the random numbers.
    """
    f = fidelity.to(dtype=torch.float64)
    random = _Random(seed, torch.float64)
    shape = f.y.shape
    draw = sampler or (lambda noise: f.y + noise.abs())
    w = draw(random.normal(*shape))
    step = random.uniform(0.1, 2.0, *shape)
    any_w = f.y + random.normal(*shape)

    point = f.prox(any_w, step)
    v = (any_w - point) / step
    loss = f.fenchel_young(point, f.clip_to_conjugate_domain(v))
    _require(float(loss.max()) <= 1e-8, f"prox is not optimal: {float(loss.max()):.1e}")
    dual = f.conjugate_prox(any_w / step, 1 / step)
    error = float((any_w - step * dual - point).abs().max())
    _require(error <= 1e-8 * (1 + float(any_w.abs().max())), f"Moreau fails by {error:.1e}")
    error = abs(float(f.value(w).sum() - f.density(w).sum()))
    _require(error <= 1e-9 * (1 + float(f.density(w).sum())), f"value is not the sum: {error:.1e}")

    low, high = (max(end, -5.0) if end < 0 else min(end, 5.0) for end in f.conjugate_domain)
    s = f.clip_to_conjugate_domain(random.uniform(low, high, *shape) * 0.99)
    loss, direct = f.fenchel_young(w, s), f.density(w) + f.conjugate(s) - s * w
    _require(float(loss.min()) >= 0, f"Fenchel-Young is negative: {float(loss.min()):.1e}")
    error = float((loss - direct).abs().max())
    _require(error <= 1e-8 * (1 + float(direct.max())), f"fenchel_young is off by {error:.1e}")
    loss = f.fenchel_young(w, f.gradient(w))
    _require(float(loss.max()) <= 1e-8, f"the gradient is no subgradient: {float(loss.max()):.1e}")

    lower, upper = w - random.uniform(0.0, 1.0, *shape), w + random.uniform(0.0, 1.0, *shape)
    lower = torch.where(torch.isfinite(f.density(lower)), lower, w)
    c = 3 * random.normal(*shape)
    excess = f.excess(w, c, lower, upper)
    best = f.minimiser(c, lower, upper)
    error = float((excess - (f.density(w) + c * w - f.density(best) - c * best)).abs().max())
    _require(error <= 1e-8, f"excess and its definition differ by {error:.1e}")
    other = lower + random.uniform(0.0, 1.0, *shape) * (upper - lower)
    worse = f.density(other) + c * other - f.density(best) - c * best
    _require(float(worse.min()) >= -1e-9, f"minimiser is beaten by {-float(worse.min()):.1e}")


def examine_activation(activation: Activation) -> None:
    """Refuse an activation of a user's that fails ``check_activation``; once for each of them."""
    if any(True for _ in foreign_parts(activation)):
        _examined(activation)


@functools.lru_cache(maxsize=256)
def _examined(activation: Activation) -> None:
    with torch.no_grad(), _refusing(f"the activation {activation}", "cl.check_activation"):
        check_activation(activation, count=EXAMINED)


def examine_fidelity(fidelity: Fidelity) -> None:
    """Refuse a fidelity of a user's that fails ``check_functional`` on some of its data.

    The data are scaled to at most one for it: what is examined is the formula, and tolerances are
    absolute.
    """
    if not any(True for _ in foreign_parts(fidelity)):
        return
    y = fidelity.y
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(y.numel(), (EXAMINED,), generator=generator).to(y.device)
    scale = 1 / max(1.0, float(y.abs().max()))

    def some(values: Tensor) -> Tensor:
        if not fits(tuple(values.shape), tuple(y.shape)):
            return values
        chosen = values.expand_as(y).flatten()[places][None].cpu()
        return chosen * scale if values is y else chosen

    with torch.no_grad(), _refusing(
        f"the fidelity {type(fidelity).__name__}", "cl.check_functional"
    ):  # fmt: skip
        check_functional(fidelity._map(some))


def examine_operator(operator: LinearOperator, like: Tensor) -> None:
    """Refuse an operator of a user's that is affine, not linear, or not the diagonal it says."""
    if not any(True for _ in foreign_parts(operator)):
        return
    generator = torch.Generator().manual_seed(1)
    name = f"the operator {type(operator).__name__}"
    with torch.no_grad(), full_precision(), _refusing(name, "cl.check_operator"):
        x, other = (torch.randn(like.shape, generator=generator).to(like) for _ in range(2))
        Ax, diagonal = operator(x), operator.diagonal
        scale = float(Ax.norm()) + torch.finfo(like.dtype).tiny
        at_zero = float(operator(torch.zeros_like(x)).norm())
        _require(at_zero == 0, f"A(0) is not 0 (its norm is {at_zero:.1e}): an affine map")
        error = float((operator(2 * x - 3 * other) - (2 * Ax - 3 * operator(other))).norm()) / scale
        _require(error <= LINEARITY, f"A is not linear: relative error {error:.1e}")
        if diagonal is not None:
            error = float((Ax - diagonal.to(Ax) * x).norm()) / scale
            _require(error <= LINEARITY, f"A x and diagonal * x differ by {error:.1e}")


def adjoint_error(operator: LinearOperator, like: Tensor) -> float:
    """|<A x, y> - <x, A* y>| / (||A x|| ||y||) for y near A x; of all factors, the largest.

    y is A x and as much of a random vector: <A x, A x> = <x, A* A x> tells scanners and back
    projections apart that only look alike, to which random vectors are nearly blind.

    Args:
        operator: A; the result is remembered with each factor.
        like: says how many inputs, of which shape, in which precision and where.
    """
    largest = 0.0
    for factor, shape in operator.steps(tuple(like.shape[1:])):
        key = (like.shape[0], shape, like.dtype, like.device)
        known: dict[object, float] = factor.__dict__.setdefault("_adjoint_errors", {})
        if key not in known:
            known[key] = _adjoint_error(factor, like.new_empty((like.shape[0], *shape)))
        largest = max(largest, known[key])
    return largest


def _adjoint_error(operator: LinearOperator, like: Tensor) -> float:
    generator = torch.Generator().manual_seed(0)

    def random_like(values: Tensor) -> Tensor:
        return torch.randn(values.shape, generator=generator).to(values)

    with torch.no_grad(), full_precision():
        x = random_like(like)
        Ax = operator(x)
        noise = random_like(Ax)
        y = Ax + noise * (Ax.norm() / noise.norm())
        Aty = operator.adjoint(y)
    if Aty.shape != x.shape:
        return math.inf
    left, right = (float((a.double() * b.double()).sum()) for a, b in ((Ax, y), (x, Aty)))
    scale = float(Ax.double().norm() * y.double().norm())
    return abs(left - right) / scale if scale > 0 else 0.0


@contextlib.contextmanager
def _refusing(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except CheckFailed as failure:
        raise ValueError(
            f"{what} is not what it says it is ({failure}), so no bound would hold; {remedy} "
            "examines it"
        ) from None


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The inner product in each group."""
    return (left * right).sum(1, keepdim=True)


class _Random:
    """Reproducible numbers."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=self.dtype)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckFailed(message)
