"""The two numbers of a proof: the objective of x, and a lower bound on every objective."""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from .balls import ROUNDINGS, Array, Ball, U, concave, formula, size_of
from .problems import Problem


def objective(problem: Problem) -> Ball:
    """J(x), for each image."""
    z = [Ball(problem.x)]
    for layer in problem.layers:
        parts = [each.push(z[j]) for j, each in layer.maps.items()]
        h = layer.h.at(reduce(Ball.__add__, parts) + Ball(layer.bias))
        z.append(h + z[-1] if layer.residual else h)
    # f is convex: it is largest at an end of what A x may be.
    data = -concave(lambda w: -problem.fidelity.value(w), problem.operator.push(z[0]))
    R = (Ball(problem.output) * z[-1]).total()
    return data.total() + R * Ball(np.array(problem.weight))


def lower_bound(problem: Problem) -> tuple[Ball, NDArray[np.bool_]]:
    """A bound on J from below, and for which images it holds near x only."""
    c, constant = minorant(problem)
    bound, near = data_bound(problem, c)
    return bound + constant, near


def minorant(problem: Problem) -> tuple[Ball, Ball]:
    """c and beta with weight R(x') >= <c, x'> + beta for every x', mixed with a constant by theta.

    The true t_i are nonnegative, whatever the rounding: W and the slopes of all layers after
    the first are. So t_i h_i(a) >= t_i (s a - h_i*(s)) for any s in the domain of h_i*.
    """
    layers, batch = problem.layers, len(problem.x)
    top = Ball(problem.output) * Ball(np.array(problem.weight))
    t, beta = {len(layers): top}, Ball(np.zeros(batch))
    for i, layer in reversed(list(enumerate(layers, start=1))):
        h, shape = layer.h, (batch, layer.p.shape[1] // layer.h.group, *layer.p.shape[2:])
        t_i = t.pop(i, Ball(np.zeros(shape)))
        spread = Ball(
            t_i.value.repeat(h.group, axis=1),
            np.broadcast_to(t_i.error, shape).repeat(h.group, axis=1),
        )
        s = h.slope(layer.p, spread.value)
        p = Ball(s) * spread
        beta = beta + (p * Ball(layer.bias)).total() + -(h.conjugate(s) * t_i).total()
        for j, each in layer.maps.items():
            t[j] = t[j] + each.pull(p) if j in t else each.pull(p)
        if layer.residual:
            t[i - 1] = t[i - 1] + t_i if i - 1 in t else t_i
    last = layers[-1]
    lowest = -(last.h.conjugate(last.h.slope(0 * last.p, last.p)) * top).total()  # weight min R
    theta = Ball(problem.theta)
    mixed = theta * beta + (Ball(np.ones(batch)) + -theta) * lowest
    c = t.get(0, Ball(np.zeros_like(problem.x)))
    return Ball(problem.theta[:, None, None, None]) * c, mixed


def data_bound(problem: Problem, c: Ball) -> tuple[Ball, NDArray[np.bool_]]:
    """A bound on D(A x') + <c, x'> from below, and for which images it holds near x only."""
    x, f = problem.x, problem.fidelity
    v = f.clip(f.slope(np.zeros_like(f.y)) if problem.v is None else problem.v)
    # D(A x') >= <v, A x'> - f*(v), so the sum is at least <g, x'> - f*(v).
    g, constant = problem.operator.pull(Ball(v)) + c, -f.conjugate(v)
    d = problem.operator.push(Ball(np.ones_like(x))) if problem.v is None else None

    def pixels(low: Array, high: Array) -> Ball:
        dual = concave(lambda g: formula([_lowest(g, low, high)]), g)
        if d is None:
            return dual
        known = (np.abs(d.value) > 2 * d.error) & (np.abs(d.value) > 1e-100)
        safe = Ball(np.where(known, d.value, 1.0), np.where(known, d.error, 0.0))
        return _choose(known, _behind_diagonal(problem, c, safe, low, high), dual + constant)

    bounds = pixels(np.full_like(x, problem.lower), np.full_like(x, problem.upper))
    free = ~np.isfinite(bounds.value - bounds.error)
    if free.any():
        low = np.nextafter(x - problem.radius, -np.inf)
        high = np.nextafter(x + problem.radius, np.inf)
        near = pixels(np.maximum(low, problem.lower), np.minimum(high, problem.upper))
        bounds = _choose(free, near, bounds)
    total = bounds.total() if d is not None else bounds.total() + constant.total()
    return total, np.asarray(free.reshape(len(x), -1).any(1))


def _behind_diagonal(problem: Problem, c: Ball, d: Ball, low: Array, high: Array) -> Ball:
    """inf f(d x') + c x' at each pixel: inf f(w) + k w with w = d x' and k = c / d."""
    f, k = problem.fidelity, c.value / d.value
    error = size_of(c.error + 4 * U * size_of(c.value) + size_of(k) * d.error)
    slope = Ball(k, error / (np.abs(d.value) - d.error) * (1 + ROUNDINGS))
    left, right = (
        np.minimum(d.value * low, d.value * high),
        np.maximum(d.value * low, d.value * high),
    )
    wider = d.error + 4 * U * np.abs(d.value)
    left = np.where(np.isfinite(left), left - wider * size_of(left / d.value), left)
    right = np.where(np.isfinite(right), right + wider * size_of(right / d.value), right)

    def infimum(k: Array) -> Ball:
        # f(w) >= v w - f*(v) for every v; the best is -k, or the slope of f at an end.
        v = f.clip(np.clip(-k, f.slope(left), f.slope(right)))
        return -f.conjugate(v) + formula([_lowest(v + k, left, right)])

    return concave(infimum, slope)


def _lowest(g: Array, low: Array, high: Array) -> Array:
    """The infimum of g x over low <= x <= high."""
    return np.where(g == 0, 0.0, g * np.where(g > 0, low, high))


def _choose(condition: NDArray[np.bool_], first: Ball, second: Ball) -> Ball:
    value = np.where(condition, first.value, second.value)
    return Ball(value, np.where(condition, first.error, second.error))
