"""Checks of operators, activations and fidelities written by users.

Each function raises ``CheckFailed``, with the numbers, at the first property that does not hold;
the tests apply the same checks to the library's own classes.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.networks.activations import Activation
from convexlift.operators.linear import LinearOperator
from convexlift.precision import as_double, full_precision
from convexlift.tensors import Shape, fits, foreign_parts

EXAMINED = 400
"""Number of arguments or data points checked when a problem is stated."""
LINEARITY = 1e-4
"""Largest relative error of a user's operator that counts as rounding, in single precision."""


class CheckFailed(AssertionError):
    """A mathematical property that the library relies on does not hold."""


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
        input_shape: the shape of one input; needed if the operator accepts any.
        dtype: precision of the check; the operator is converted to it.
        seed: the seed of the random vectors.
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
        said, made = tuple(A.output_shape(shape)), tuple(Ax.shape[1:])
        _require(said == made, f"output_shape says {said}, A(x) has {made}")
        y = random.normal(*Ax.shape)
        Aty = A.adjoint(y)
        _require(Aty.shape == x.shape, f"A.adjoint gives {tuple(Aty.shape)}, not {tuple(x.shape)}")
        scale = float(Ax.norm() * y.norm()) + torch.finfo(dtype).tiny
        error = abs(float((Ax * y).sum() - (x * Aty).sum())) / scale
        _at_most(error, tolerance, "<Ax, y> and <x, A*y> have a relative difference of {:.1e}")
        _check_linear(A, x, x2, tolerance)
        if (transfer := A.transfer(shape)) is not None:
            circular = torch.fft.irfft2(transfer * torch.fft.rfft2(x.double()), s=shape[-2:])
            error = float((Ax - circular).norm()) / (float(Ax.norm()) + 1e-30)
            _at_most(error, tolerance, "A x and transfer * F x differ by {:.1e}")
        norm, growth = A.norm(shape), float(Ax.norm() / x.norm())
        _require(
            norm >= growth * (1 - tolerance), f"norm() is {norm:g}, but ||Ax||/||x|| = {growth:g}"
        )


def _check_linear(A: LinearOperator, x: Tensor, other: Tensor, tolerance: float) -> None:
    """A (2 x - 3 x') = 2 A x - 3 A x', and A x = d x if A has a diagonal d."""
    Ax, diagonal = A(x), A.diagonal
    scale = float(Ax.norm()) + torch.finfo(x.dtype).tiny
    error = (A(2 * x - 3 * other) - (2 * Ax - 3 * A(other))).norm()
    _at_most(error / scale, tolerance, "A is not linear: relative error {:.1e}")
    if diagonal is not None:
        error = (Ax - diagonal.to(Ax) * x).norm()
        _at_most(error / scale, tolerance, "A x and diagonal * x differ by {:.1e}")


def check_activation(
    activation: Activation, *, scale: float = 3.0, seed: int = 0, count: int = 2000
) -> None:
    """Convexity, slopes, Fenchel-Young, prox and epigraph projection, in float64.

    Args:
        activation: h.
        scale: the size of the random arguments.
        seed: of the random numbers.
        count: number of random arguments.
    """
    random = _Random(seed, torch.float64)
    low, high = activation.slopes
    points = (count, activation.group)  # one group, which makes one channel of h(a)
    a, b = scale * random.normal(*points), scale * random.normal(*points)
    a[:4] = torch.tensor([0.0, 1e-12, -1e-12, 1.0])[:, None]
    h, slope = activation.value(a), activation.derivative(a)
    size = max(1.0, float(h.abs().max()))  # rounding errors grow with the values
    middle = activation.value((a + b) / 2) - (h + activation.value(b)) / 2
    _at_most(middle, 1e-12 * size * scale**2, "not convex: {:.1e}")
    beyond = (activation.clip(slope) - slope).abs()
    _at_most(beyond, 1e-12 * size, f"derivative leaves {(low, high)} by {{:.1e}}")
    above = h + _dot(slope, b - a) - activation.value(b)
    _at_most(above, 1e-10 * size, "derivative is not a subgradient: {:.1e}")
    _check_ramp(activation, a, 1e-12 * size)

    loss = activation.fenchel_young(a, slope)
    _at_most(loss.abs(), 1e-10 * size, "Fenchel-Young at h': {:.1e}, not 0")
    s = random.uniform(
        low if math.isfinite(low) else -scale, high if math.isfinite(high) else scale, *points
    )
    if activation.group > 1:  # into the ball, and off its boundary, which rounding may cross
        s = 0.999999 * activation.clip(s)
    direct = h + activation.conjugate(s) - _dot(s, a)
    loss = activation.fenchel_young(a, s)
    _at_most(-loss, 0, "Fenchel-Young is negative: -{:.1e}")
    error = (loss - direct).abs()
    _at_most(error, 1e-9 * size * scale**2, "fenchel_young and h + h* - s a differ by {:.1e}")
    if math.isfinite(high):
        outside = activation.conjugate(torch.full((1, points[1]), high + 0.1, dtype=torch.float64))
        _require(bool(outside.isinf().all()), "conjugate is finite outside the slopes")

    eta = random.uniform(0.01, 3.0, count, 1)
    each = activation.spread(eta)
    value, loss = activation.value_and_loss(a, each * s, eta)
    error = (value - h).abs() + (loss - eta * direct).abs()
    _at_most(error, 1e-8 * size * scale**2, "value_and_loss is off by {:.1e}")
    point = activation.prox(a, eta)
    loss = activation.fenchel_young(point, activation.clip((a - point) / each))
    _at_most(loss, 1e-8 * size, "prox is not optimal: {:.1e}")
    p = activation.scaled_slope(a, eta, torch.ones_like(eta))
    _at_most((a - p - point).abs(), 1e-9 * size * scale, "scaled_slope and prox differ by {:.1e}")

    sigma_a, sigma_z = (random.uniform(0.05, 5.0, count, 1) for _ in range(2))
    z = b[:, :1]
    t = activation.multiplier(a, z, sigma_a, sigma_z)
    _require(float(t.min()) >= 0, "the multiplier is negative")
    height = activation.value(activation.prox(a, t / sigma_a)) - (z + t / sigma_z)
    _at_most(height, 1e-7 * size, "the projection leaves the epigraph by {:.1e}")
    _at_most((t * height).abs(), 1e-6 * size**2, "the projection is not complementary: {:.1e}")
    _require(bool((t[h <= z] == 0).all()), "points inside the epigraph are moved")
    p = scale * random.normal(*points)
    error = (activation.clip_to_slopes(p, eta) - each * activation.clip(p / each)).abs()
    _at_most(error, 1e-12 * scale, "clip_to_slopes and clip differ by {:.1e}")


def _check_ramp(activation: Activation, a: Tensor, tolerance: float) -> None:
    """Compare h' and h with the ramp u = clip((a - left)/width, 0, 1), away from kinks."""
    if (ramp := activation.ramp) is None:
        return
    distance = a - ramp.left
    u = (distance / ramp.width).clamp(0, 1) if ramp.width else (distance > 0).to(a)
    away = (distance.abs() > 1e-9) | (ramp.width > 0)
    slope = ramp.low + (ramp.high - ramp.low) * u
    error = ((activation.derivative(a) - slope) * away).abs()
    _at_most(error, tolerance, "h' differs from its ramp by {:.1e}")
    bent = (ramp.high - ramp.low) * (u * distance - u**2 * ramp.width / 2)
    error = (activation.value(a) - (ramp.low * a + bent + ramp.offset)).abs()
    _at_most(error, tolerance, "h is not the integral of its ramp: {:.1e}")


def check_functional(fidelity: Fidelity, *, seed: int = 0) -> None:
    """Prox, Moreau, Fenchel-Young, gradient and excess of a fidelity, in float64.

    Args:
        fidelity: f.
        seed: of the random numbers.
    """
    f = fidelity.to(dtype=torch.float64)
    random = _Random(seed, torch.float64)
    shape = f.y.shape
    w = f.y + random.normal(*shape).abs()
    step = random.uniform(0.1, 2.0, *shape)
    any_w = f.y + random.normal(*shape)

    point = f.prox(any_w, step)
    v = (any_w - point) / step
    loss = f.fenchel_young(point, f.clip_to_conjugate_domain(v))
    _at_most(loss, 1e-8, "prox is not optimal: {:.1e}")
    dual = f.conjugate_prox(any_w / step, 1 / step)
    error = (any_w - step * dual - point).abs()
    _at_most(error, 1e-8 * (1 + float(any_w.abs().max())), "Moreau fails by {:.1e}")
    total = float(f.density(w).sum())
    error = (f.value(w).sum() - total).abs()
    _at_most(error, 1e-9 * (1 + total), "value is not the sum: {:.1e}")

    low, high = (max(end, -5.0) if end < 0 else min(end, 5.0) for end in f.conjugate_domain)
    s = f.clip_to_conjugate_domain(random.uniform(low, high, *shape) * 0.99)
    loss, direct = f.fenchel_young(w, s), f.density(w) + f.conjugate(s) - s * w
    _at_most(-loss, 0, "Fenchel-Young is negative: -{:.1e}")
    _at_most(
        (loss - direct).abs(), 1e-8 * (1 + float(direct.max())), "fenchel_young is off by {:.1e}"
    )
    _at_most(f.fenchel_young(w, f.gradient(w)), 1e-8, "gradient is not a subgradient: {:.1e}")
    if f.curvature is not None:
        error = (f.gradient(w) - f.curvature * (w - f.y)).abs()
        _at_most(error, 1e-8, "gradient and curvature * (w - y) differ by {:.1e}")

    lower, upper = w - random.uniform(0.0, 1.0, *shape), w + random.uniform(0.0, 1.0, *shape)
    lower = torch.where(torch.isfinite(f.density(lower)), lower, w)
    c = 3 * random.normal(*shape)
    excess = f.excess(w, c, lower, upper)
    best = f.minimiser(c, lower, upper)
    least = f.density(best) + c * best
    error = (excess - (f.density(w) + c * w - least)).abs()
    _at_most(error, 1e-8, "excess and its definition differ by {:.1e}")
    other = lower + random.uniform(0.0, 1.0, *shape) * (upper - lower)
    _at_most(least - f.density(other) - c * other, 1e-9, "minimiser is beaten by {:.1e}")


def examine_activation(activation: Activation) -> None:
    """Raise ValueError for a user's activation that fails ``check_activation``; checked once."""
    if any(True for _ in foreign_parts(activation)):
        _examined(activation)


@functools.lru_cache(maxsize=256)
def _examined(activation: Activation) -> None:
    with torch.no_grad(), _refusing(f"the activation {activation}", "cl.check_activation"):
        check_activation(activation, count=EXAMINED)


def examine_fidelity(fidelity: Fidelity) -> None:
    """Raise ValueError for a user's fidelity that fails ``check_functional`` on some of its data.

    The data are scaled to at most one, since tolerances are absolute.
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
    """Raise ValueError for a user's operator that is not linear, or not the diagonal it claims."""
    if not any(True for _ in foreign_parts(operator)):
        return
    generator = torch.Generator().manual_seed(1)
    name = f"the operator {type(operator).__name__}"
    with torch.no_grad(), full_precision(), _refusing(name, "cl.check_operator"):
        x, other = (torch.randn(like.shape, generator=generator).to(like) for _ in range(2))
        at_zero = operator(torch.zeros_like(x)).norm()
        _at_most(at_zero, 0, "A(0) is not 0 (its norm is {:.1e}): an affine map")
        _check_linear(operator, x, other, LINEARITY)


def adjoint_error(operator: LinearOperator, like: Tensor) -> float:
    """|<A x, y> - <x, A* y>| / (||A x|| ||y||) for y near A x; the largest over all factors.

    y is A x plus a random vector of the same norm: <A x, A x> = <x, A* A x> detects back
    projections that merely resemble the adjoint of a scanner, to which random vectors are nearly
    blind.

    Args:
        operator: A; the result is cached in each factor.
        like: a batch of inputs with the shape, precision and device of the check.
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
    x, y, Ax, Aty = (as_double(each) for each in (x, y, Ax, Aty))
    left, right = (float((a * b).sum()) for a, b in ((Ax, y), (x, Aty)))
    scale = float(Ax.norm() * y.norm())
    return abs(left - right) / scale if scale > 0 else 0.0


@contextlib.contextmanager
def _refusing(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except CheckFailed as failure:
        raise ValueError(
            f"{what} is not what it claims to be ({failure}), so no bound would hold; test it "
            f"with {remedy}"
        ) from None


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The inner product in each group."""
    return (left * right).sum(1, keepdim=True)


class _Random:
    """Reproducible random numbers."""

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


def _at_most(values: Tensor | float, limit: float, message: str) -> None:
    """Raise CheckFailed, with the largest value in the message, if a value exceeds the limit."""
    largest = float(torch.as_tensor(values).max())
    _require(largest <= limit, message.format(largest))
