"""The parts that tests run over, one entry for each: the place to add a new one.

From these lists come the exams, brute force, hypothesis, 50 digits, whole problems with CVXPY,
architectures in files, and proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.functionals.fidelity import Anchored
from convexlift.operators.imaging import Diagonal

ONE, ZERO = Decimal(1), Decimal(0)
BOUNDARIES = ("zero", "circular", "reflect", "replicate")
Formula = Callable[..., Decimal]


def exact(number: float) -> Decimal:
    """The decimal number that a float is, to its last digit."""
    return Decimal(number)


# Activations: h, and with decimal numbers h(a), h'(a) and h*(s)


@dataclass(frozen=True)
class ActivationEntry:
    """An activation, its formulas for decimal numbers, and how CVXPY says h(a) <= z.

    Formulas of groups are those of the profile, in the length of a group.

    Those with a name are part of whole problems (``zoo.problem``), with every architecture.
    """

    h: cl.Activation
    exact: tuple[Formula, Formula, Formula] | None = None
    epigraph: Callable[[Any, Any, Any, Any], list[Any]] | None = None
    name: str = ""


def kinked(low: float, high: float) -> tuple[Formula, Formula, Formula]:
    """max(low a, high a)."""
    lo, hi = exact(low), exact(high)
    return lambda a: max(lo * a, hi * a), lambda a: hi if a > 0 else lo, lambda s: ZERO


def smoothed(kappa: float, nu: float) -> tuple[Formula, Formula, Formula]:
    """kappa a + (1 - kappa) psi_nu(a)."""
    k, n = exact(kappa), exact(nu)

    def psi(a: Decimal) -> Decimal:
        return ZERO if a <= 0 else a * a / (2 * n) if a < n else a - n / 2

    return (
        lambda a: k * a + (ONE - k) * psi(a),
        lambda a: k + (ONE - k) * min(max(a / n, ZERO), ONE),
        lambda s: n * (s - k) ** 2 / (2 * (ONE - k)),
    )


def huber(delta: float) -> tuple[Formula, Formula, Formula]:
    """a^2 / (2 delta), then |a| - delta/2."""
    d = exact(delta)
    return (
        lambda a: a * a / (2 * d) if abs(a) <= d else abs(a) - d / 2,
        lambda a: max(min(a / d, ONE), -ONE),
        lambda s: d * s * s / 2,
    )


def xlogx(s: Decimal) -> Decimal:
    return s * s.ln() if s > 0 else ZERO


@dataclass(frozen=True)
class Softplus(cl.SmoothActivation, name="SoftplusOfTests"):
    """log(1 + exp(b a)) / b: an activation as users write them, which proof files do not know."""

    sharpness: float = 1.0
    slopes = (0.0, 1.0)

    def value(self, a: torch.Tensor) -> torch.Tensor:
        return -F.logsigmoid(-self.sharpness * a) / self.sharpness

    def derivative(self, a: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.sharpness * a)

    def second_derivative(self, a: torch.Tensor) -> torch.Tensor:
        scaled = self.sharpness * a
        return self.sharpness * torch.sigmoid(scaled) * torch.sigmoid(-scaled)

    def conjugate(self, s: torch.Tensor) -> torch.Tensor:
        inner = s.clamp(0, 1)
        entropy = torch.xlogy(inner, inner) + torch.special.xlog1py(1 - inner, -inner)
        return torch.where(s == inner, entropy / self.sharpness, torch.inf)


def softplus(sharpness: float) -> tuple[Formula, Formula, Formula]:
    """log(1 + exp(b a)) / b."""
    b = exact(sharpness)
    return (
        lambda a: (ONE + (b * a).exp()).ln() / b,
        lambda a: ONE / (ONE + (-b * a).exp()),
        lambda s: (xlogx(s) + xlogx(ONE - s)) / b,
    )


SQUARE = (lambda a: a * a / 2, lambda a: a, lambda s: s * s / 2)


def smoothed_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    """psi_nu(a) = min over b >= 0 of b^2 / (2 nu) + (a - b)_+."""
    b = cp.Variable(a.shape)
    psi = cp.square(b) / (2 * h.smoothing) + cp.pos(a - b)
    return [b >= 0, h.slope * a + (1 - h.slope) * psi <= z]


def leaky_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    return [a <= z, h.slope * a <= z]


def softplus_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    return [cp.logistic(h.sharpness * a) / h.sharpness <= z]


def huber_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    return [cp.huber(a / h.delta, 1) * h.delta / 2 <= z]


def portions(shares: Sequence[float], count: int) -> list[Decimal]:
    """Shares with the sum 1; equal ones if there are none."""
    given = [exact(c) for c in shares or [1.0] * count]
    return [c / sum(given) for c in given]


def mixture(*widths: float, shares: Sequence[float] = ()) -> tuple[Formula, Formula, Formula]:
    """The mean of Huber functions; h*(s) from the point with the slope s, between two knots."""
    parts = list(zip(portions(shares, len(widths)), map(huber, widths), strict=True))

    def slope(a: Decimal) -> Decimal:
        return sum((c * part[1](a) for c, part in parts), ZERO)

    def conjugate(s: Decimal) -> Decimal:
        knots = [ZERO, *map(exact, widths)]
        for left, right in pairwise(knots):
            low, high = slope(left), slope(right)
            if low < high and low <= abs(s) <= high:
                b = left + (abs(s) - low) * (right - left) / (high - low)
                return abs(s) * b - value(b)
        return abs(s) * knots[-1] - value(knots[-1])  # |s| = 1

    def value(a: Decimal) -> Decimal:
        return sum((c * part[0](a) for c, part in parts), ZERO)

    return value, slope, conjugate


def mixture_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    """The channels of a are its slowest index; equal shares without a layer."""
    count = len(h.widths)
    c = torch.ones(1, count) if h.shares is None else h.shares
    c = (c / c.sum(1, keepdim=True)).repeat_interleave(a.size // len(c), 0).numpy()
    parts = [cp.multiply(c[:, j] * t / 2, cp.huber(a / t, 1)) for j, t in enumerate(h.widths)]
    return [sum(parts) <= z]


def spline(
    *knots: float, even: bool = True, tail: float = 0.0, shares: Sequence[float] = ()
) -> tuple[Formula, Formula, Formula]:
    """The slope is interpolated between the knots, and all else follows from it."""
    t, k = [ZERO, *map(exact, knots)], exact(tail)
    pieces = list(zip(portions(shares, len(knots)), pairwise(t), strict=True))

    def side(a: Decimal) -> Decimal:
        return abs(a) if even else max(a, ZERO)

    def value(a: Decimal) -> Decimal:
        r, total = side(a), ZERO
        for c, (left, right) in pieces:
            m = min(max(r - left, ZERO), right - left)
            total += c * (m * m / (2 * (right - left)) + max(r - right, ZERO))
        return total + k / 2 * max(r - t[-1], ZERO) ** 2

    def slope(a: Decimal) -> Decimal:
        r, total = side(a), ZERO
        for c, (left, right) in pieces:
            total += c * min(max((r - left) / (right - left), ZERO), ONE)
        total += k * max(r - t[-1], ZERO)
        return -total if a < 0 else total

    def conjugate(s: Decimal) -> Decimal:
        start = ZERO
        for c, (left, right) in pieces:
            if c and start <= abs(s) <= start + c:
                b = left + (abs(s) - start) / c * (right - left)
                return abs(s) * b - value(b)
            start += c
        b = t[-1] if abs(s) == 1 or not k else t[-1] + (abs(s) - 1) / k
        return abs(s) * b - value(b)

    return value, slope, conjugate


def spline_epigraph(cp: Any, h: Any, a: Any, z: Any) -> list[Any]:
    """A part that rises from t on is the minimum over b >= 0 of b^2 / (2 w) + (r - t - b)_+."""
    count = len(h.knots)
    c = torch.ones(1, count) if h.shares is None else h.shares
    c = (c / c.sum(1, keepdim=True)).repeat_interleave(a.size // len(c), 0).numpy()
    r = cp.abs(a) if h.even else cp.pos(a)
    total = h.tail / 2 * cp.square(cp.pos(r - h.knots[-1]))
    for j, (left, right) in enumerate(pairwise((0.0, *h.knots))):
        b = cp.Variable(a.shape, nonneg=True)
        bend = cp.square(b) / (2 * (right - left)) + cp.pos(r - left - b)
        total = total + cp.multiply(c[:, j], bend)
    return [total <= z]


Entry = ActivationEntry
ACTIVATIONS = [
    Entry(cl.ReLU(), kinked(0.0, 1.0), lambda cp, h, a, z: [cp.pos(a) <= z], "relu"),
    Entry(cl.LeakyReLU(0.2), kinked(0.2, 1.0), leaky_epigraph, "leaky"),
    Entry(cl.LeakyReLU(0.9), kinked(0.9, 1.0)),
    Entry(cl.SmoothedLeakyReLU(0.2, 0.1), smoothed(0.2, 0.1), smoothed_epigraph, "smoothed"),
    Entry(cl.SmoothedReLU(smoothing=0.05), smoothed(0.0, 0.05), smoothed_epigraph),
    Entry(Softplus(3.3), softplus(3.3), softplus_epigraph, "softplus"),
    Entry(cl.Abs(), kinked(-1.0, 1.0), lambda cp, h, a, z: [cp.abs(a) <= z], "abs"),
    Entry(cl.HalfSquare(), SQUARE, lambda cp, h, a, z: [cp.square(a) / 2 <= z], "square"),
    Entry(cl.Huber(0.1), huber(0.1), huber_epigraph, "huber"),
    Entry(cl.Huber(1.0), huber(1.0)),
    Entry(cl.HuberMixture((0.02, 0.1, 0.7)), mixture(0.02, 0.1, 0.7), mixture_epigraph, "mixture"),
    Entry(cl.QuadraticSpline((0.02, 0.1, 0.7)), spline(0.02, 0.1, 0.7), spline_epigraph, "spline"),
    Entry(cl.QuadraticSpline((0.1, 0.2), even=False), spline(0.1, 0.2, even=False)),
    Entry(cl.QuadraticSpline((0.1, 0.5), tail=0.3), spline(0.1, 0.5, tail=0.3)),
    Entry(cl.Linear(), kinked(1.0, 1.0), lambda cp, h, a, z: [a <= z]),
    Entry(cl.GroupNorm(2), kinked(-1.0, 1.0), name="group"),
    Entry(cl.GroupNorm(3, cl.Huber(0.1)), huber(0.1), name="group huber"),
    Entry(cl.GroupNorm(2, cl.HalfSquare()), SQUARE, name="group square"),
]
ONE_BY_ONE = [entry for entry in ACTIVATIONS if entry.h.group == 1]


def shared(h: Any, formulas: Callable[..., Any], knots: Sequence[float], **options: Any) -> Entry:
    """With shares of its parts that are not equal, as layers learn them; one part has none."""
    shares = [0.0, 3.0, 1.0]
    learned = h.with_shares(torch.tensor([shares], dtype=torch.float64))
    return Entry(learned, formulas(*knots, shares=shares, **options))


WITH_SHARES = [
    shared(cl.HuberMixture((0.05, 0.2, 0.4)), mixture, (0.05, 0.2, 0.4)),
    shared(cl.QuadraticSpline((0.1, 0.3, 0.9)), spline, (0.1, 0.3, 0.9)),
    shared(cl.QuadraticSpline((0.1, 0.3, 0.9), tail=0.7), spline, (0.1, 0.3, 0.9), tail=0.7),
]


# Fidelities: f of data y, and with decimal numbers f(w) and f*(v)


@dataclass(frozen=True)
class FidelityEntry:
    """A fidelity of data, its formulas for decimal numbers, and how CVXPY says D(w, y).

    ``lowest`` is where brute force over w begins, in the domain of f for every y.
    """

    make: Callable[[Tensor], cl.Fidelity]
    density: Formula | None = None
    conjugate: Formula | None = None
    stated: Callable[[Any, Any, Any, Any], Any] | None = None
    lowest: float = -30.0


def numbers(values: Tensor, f: cl.Fidelity) -> Any:
    """One number for each datum, for CVXPY."""
    return values.expand_as(f.y).flatten().numpy()


def squared(cp: Any, f: Any, w: Any, y: Any) -> Any:
    return cp.sum_squares(w - y) / 2


def weighted(cp: Any, f: Any, w: Any, y: Any) -> Any:
    return numbers(f.weights, f) @ cp.square(w - y) / 2


def absolute(cp: Any, f: Any, w: Any, y: Any) -> Any:
    return f.scale * cp.norm1(w - y)


def divergence(cp: Any, f: Any, w: Any, y: Any) -> Any:
    return cp.sum(cp.kl_div(y, w + numbers(f.background, f)))


FIDELITIES = {
    "L2": FidelityEntry(
        cl.SquaredL2, lambda w, y: (w - y) ** 2 / 2, lambda v, y: v * v / 2 + v * y, squared
    ),
    "L1": FidelityEntry(
        lambda y: cl.L1(y, 0.7), lambda w, y: exact(0.7) * abs(w - y), lambda v, y: v * y, absolute
    ),
    "weighted L2": FidelityEntry(
        lambda y: cl.WeightedL2(y, 0.6),
        lambda w, y: exact(0.6) * (w - y) ** 2 / 2,
        lambda v, y: v * v / (2 * exact(0.6)) + v * y,
        weighted,
    ),
    "weights by pixel": FidelityEntry(lambda y: cl.WeightedL2(y, 0.1 + y / 3)),
    "KL": FidelityEntry(
        lambda y: cl.KullbackLeibler(y, 0.3),
        lambda w, y: w + exact(0.3) - y + y * (y / (w + exact(0.3))).ln(),
        lambda v, y: -exact(0.3) * v - y * (ONE - v).ln(),
        divergence,
        lowest=-0.3 + 1e-9,
    ),
    "background by pixel": FidelityEntry(
        lambda y: cl.KullbackLeibler(y, 0.1 + y / 10), lowest=-0.1 + 1e-9
    ),
    "anchored": FidelityEntry(
        lambda y: Anchored(cl.SquaredL2(y), torch.full_like(y, 0.2), 0.1),
        lambda w, y: (w - y) ** 2 / 2 + exact(0.1) * (w - exact(0.2)) ** 2 / 2,
    ),
}


# Operators: A on images of a shape


def random(*shape: int, seed: int = 2) -> Tensor:
    """Normal numbers, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(height: int = 3, width: int = 5) -> Tensor:
    values = torch.rand((height, width), generator=torch.Generator().manual_seed(1))
    return values.double() - 0.2


def seen(shape: tuple[int, ...]) -> cl.Mask:
    return cl.Mask((random(*shape[1:]) > 0).double())


def blur(boundary: str = "reflect") -> cl.Blur:
    return cl.Blur(kernel(), boundary)


def double(operator: cl.LinearOperator) -> cl.LinearOperator:
    return operator.to(dtype=torch.float64)


def sampled(shape: tuple[int, ...]) -> Tensor:
    """Most lines of the Fourier transform."""
    mask = torch.ones(shape[1:])
    mask[:, ::3] = 0
    return mask


def coil_maps(shape: tuple[int, ...]) -> Tensor:
    """Two smooth complex sensitivities."""
    rows, columns = (torch.linspace(0, 1, n) for n in shape[1:])
    along, across = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([torch.complex(1 + along, 0.3 * across), torch.complex(across, 1 - along)])


OPERATORS: dict[str, Callable[[tuple[int, ...]], cl.LinearOperator]] = {
    "identity": lambda shape: cl.Identity(),
    "mask": seen,
    "diagonal": lambda shape: Diagonal(random(*shape[1:])),
    "diagonal by channel": lambda shape: Diagonal(random(*shape)),
    **{f"blur {b}": lambda shape, b=b: blur(b) for b in BOUNDARIES},
    "gaussian": lambda shape: double(cl.Blur.gaussian(0.8)),
    "scaled": lambda shape: -2.5 * blur(),
    "sum": lambda shape: cl.Identity() + 0.5 * blur("circular"),
    "composition": lambda shape: seen(shape) @ blur("zero"),
    "masked smear": lambda shape: seen(shape) @ cl.Blur(kernel() + 0.2, "replicate"),
    "other composition": lambda shape: blur("zero") @ seen(shape),
    "diagonal composition": lambda shape: 3 * seen(shape) @ cl.Identity(),
    "diagonal product": lambda shape: (0.3 * seen(shape)) @ (seen(shape) + cl.Identity()),
    "diagonal sum": lambda shape: 0.3 * seen(shape) + -0.1 * cl.Identity() + seen(shape),
    "samples": lambda shape: cl.MRI(sampled(shape), channels=1),
    "coils": lambda shape: cl.MRI(sampled(shape), coil_maps(shape), channels=1),
    "parallel beam": lambda shape: double(cl.ParallelBeam(shape[1:], 9, 11, detector_offset=0.3)),
    "flat fan": lambda shape: double(cl.FanBeam(shape[1:], 9, 11, 20.0, 10.0)),
    "curved fan": lambda shape: double(cl.FanBeam(shape[1:], 9, 11, 9.0, 0.0, detector="curved")),
    "flat pixels": lambda shape: double(cl.ParallelBeam(shape[1:], 9, 11, (8.0, 4.0))),
    "along diagonals": lambda shape: double(
        cl.ParallelBeam(shape[1:], [0, pi / 4, 0.5, pi / 2], 13)
    ),
    "masked scan": lambda shape: (
        2.0 * seen((1, 9, 11)) @ double(cl.FanBeam(shape[1:], 9, 11, 20, 5))
    ),
}
SCANNERS = tuple(OPERATORS)[-6:]
ONE_CHANNEL = ("samples", "coils", *SCANNERS)
"""Operators of images with one channel."""
NONNEGATIVE = ("identity", "mask", "gaussian", "masked smear", "diagonal product", *SCANNERS)
"""Operators that make counts of nonnegative images."""
