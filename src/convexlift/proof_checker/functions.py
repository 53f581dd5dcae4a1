"""Activations and data terms, as tables of formulas with their conjugates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .balls import ROUNDINGS, Array, Ball, U, formula

Terms = Callable[..., list[Any]]


class Formulas(NamedTuple):
    """An activation h with parameters q: its slopes, and the terms of h(a) and of h*(s)."""

    slopes: Callable[..., tuple[float, float]]
    value: Terms
    conjugate: Terms


def _smoothed(a: Array, k: float, nu: float) -> list[Array]:
    """k a + (1 - k) psi(a), where psi rises from 0 with a^2 / (2 nu) on [0, nu] to a - nu / 2."""
    bent = np.clip(a, 0, nu) ** 2 / (2 * nu)
    return [k * a, (1 - k) * bent, (1 - k) * np.maximum(a - nu, 0)]


def _softplus(a: Array, b: float) -> list[Array]:
    """log(1 + exp(b a)) / b = (|a| + a) / 2 + log(1 + exp(-b |a|)) / b."""
    return [np.abs(a) / 2, a / 2, np.log1p(np.exp(-b * np.abs(a))) / b]


def _entropy(s: Array, b: float) -> list[Array]:
    """(s log s + (1 - s) log(1 - s)) / b, zero at both ends."""
    heads = s * np.log(np.maximum(s, 1e-300))
    tails = (1 - s) * np.log1p(-np.minimum(s, 1 - U))
    return [heads / b, tails / b]


def _elu_conjugate(s: Array, alpha: float) -> list[Array]:
    """s log(s / alpha) - s + alpha, zero from alpha on."""
    s = np.minimum(s, alpha)
    return [s * np.log(np.maximum(s, 1e-300) / alpha), -s, np.full_like(s, alpha)]


SMOOTHED = Formulas(
    lambda k, nu: (k, 1.0), _smoothed, lambda s, k, nu: [nu * (s - k) ** 2 / (2 * (1 - k))]
)
ACTIVATIONS = {
    "ReLU": Formulas(lambda: (0.0, 1.0), lambda a: [np.maximum(a, 0)], lambda s: [0 * s]),
    "LeakyReLU": Formulas(
        lambda k: (k, 1.0), lambda a, k: [np.maximum(k * a, a)], lambda s, k: [0 * s]
    ),
    "Abs": Formulas(lambda: (-1.0, 1.0), lambda a: [np.abs(a)], lambda s: [0 * s]),
    "HalfSquare": Formulas(lambda: (-np.inf, np.inf), lambda a: [a * a / 2], lambda s: [s * s / 2]),
    "Huber": Formulas(
        lambda d: (-1.0, 1.0),
        lambda a, d: [np.minimum(np.abs(a), d) ** 2 / (2 * d), np.maximum(np.abs(a) - d, 0)],
        lambda s, d: [d * s * s / 2],
    ),
    "SmoothedReLU": SMOOTHED,
    "SmoothedLeakyReLU": SMOOTHED,
    "Softplus": Formulas(lambda b: (0.0, 1.0), _softplus, _entropy),
    "ELU": Formulas(
        lambda alpha: (0.0, 1.0),
        lambda a, alpha: [np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))],
        _elu_conjugate,
    ),
}
EVEN = ("Abs", "Huber", "HalfSquare")
"""Those that may be functions of a Euclidean norm."""


@dataclass(frozen=True)
class Activation:
    """h(a), or h(|a_g|) for each group a_g of channels."""

    kind: str
    options: Sequence[float]
    group: int = 1

    @property
    def slopes(self) -> tuple[float, float]:
        """The domain of the conjugate; the largest is the radius of a ball for groups."""
        return ACTIVATIONS[self.kind].slopes(*self.options)

    def norms(self, a: Array) -> Array:
        """|a_g|, for groups; a itself otherwise."""
        if self.group == 1:
            return a
        groups = a.reshape(len(a), -1, self.group, *a.shape[2:])
        return np.asarray(np.sqrt((groups**2).sum(2)))

    def at(self, a: Ball) -> Ball:
        """h(a). Its slopes are at most 1, except for the half square."""
        r = Ball(a.value, np.broadcast_to(a.error, a.value.shape))
        if self.group > 1:
            norms = self.norms(a.value)
            rounding = self.group * ROUNDINGS * norms + 1e-150  # squares may underflow
            r = Ball(norms, 2 * self.norms(np.asarray(r.error)) + rounding)
        h = formula(ACTIVATIONS[self.kind].value(r.value, *self.options))
        steepest = 1.0 if np.isfinite(self.slopes[1]) else np.abs(r.value) + r.error
        return Ball(h.value, (h.error + steepest * r.error) * (1 + ROUNDINGS))

    def slope(self, p: Array, t: Array) -> Array:
        """p / t, moved into the domain of the conjugate; there exactly, whatever the rounding."""
        s = np.divide(p, t, out=np.zeros_like(p), where=t > 0)
        s = np.where(np.isfinite(s), s, 0.0)
        low, high = self.slopes
        if self.group == 1:
            return np.clip(s, low, high)
        norms = self.norms(s) * (1 + self.group * ROUNDINGS)
        shrink = np.where(norms > high, high / norms * (1 - 4 * U), 1.0)
        return s * shrink.repeat(self.group, axis=1)

    def conjugate(self, s: Array) -> Ball:
        """h*(s)."""
        h = formula(ACTIVATIONS[self.kind].conjugate(self.norms(s), *self.options))
        return Ball(h.value, h.error * (self.group + 2))  # norms have errors of their own


class DataFormulas(NamedTuple):
    """f with data y and parameter q: terms of f(w), a slope there, v in dom f*, terms of f*(v)."""

    value: Terms
    slope: Callable[..., Any]
    clip: Callable[..., Any]
    conjugate: Terms


def _kullback_leibler(w: Array, y: Array, r: Array) -> list[Array]:
    """w + r - y + y log(y / (w + r)) where w + r > 0, or w + r = y = 0."""
    mean = w + r
    inside = (mean > 0) | ((mean == 0) & (y == 0))
    return [np.where(inside, mean, np.inf), -y, np.where(y > 0, y * np.log(y / mean), 0.0)]


QUADRATIC = DataFormulas(
    lambda w, y, q: [q * (w - y) ** 2 / 2],
    lambda w, y, q: q * (w - y),
    lambda v, y, q: np.where(q > 0, v, 0.0),
    lambda v, y, q: [v * (v / (2 * np.where(q > 0, q, 1.0))), v * y],
)
FIDELITIES = {
    "SquaredL2": QUADRATIC,
    "WeightedL2": QUADRATIC,
    "L1": DataFormulas(
        lambda w, y, q: [q * np.abs(w - y)],
        lambda w, y, q: q * np.sign(w - y),
        lambda v, y, q: np.clip(v, -q, q),
        lambda v, y, q: [v * y],
    ),
    "KullbackLeibler": DataFormulas(
        _kullback_leibler,
        lambda w, y, r: np.where(w + r > 0, 1 - y / (w + r), -np.inf),
        lambda v, y, r: np.clip(v, -1e100, np.where(y > 0, 1 - U, 1.0)),
        lambda v, y, r: [-r * v, np.where(y > 0, -y * np.log1p(-v), 0.0)],
    ),
}


@dataclass(frozen=True)
class Fidelity:
    """D(w, y), a sum of convex functions f of one variable, by its formulas.

    Attributes:
        kind: the name.
        y: the data; not used where they have no weight.
        q: weights, scale or background.
    """

    kind: str
    y: Array
    q: Array

    def value(self, w: Array) -> Ball:
        """f(w)."""
        return formula(FIDELITIES[self.kind].value(w, self.y, self.q))

    def slope(self, w: Array) -> Array:
        """A slope of f at w, or nearly so."""
        return np.asarray(FIDELITIES[self.kind].slope(w, self.y, self.q))

    def clip(self, v: Array) -> Array:
        """v in the domain of f*, exactly."""
        return np.asarray(FIDELITIES[self.kind].clip(v, self.y, self.q))

    def conjugate(self, v: Array) -> Ball:
        """f*(v)."""
        return formula(FIDELITIES[self.kind].conjugate(v, self.y, self.q))
