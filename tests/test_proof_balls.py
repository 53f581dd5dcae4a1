"""The parts of the proof checker, one by one: no error bound is smaller than the error."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import parts
import pytest
from exact_proofs import correlation, exact, times, transposed, wild

import convexlift as cl
from convexlift import proof_checker
from convexlift.proof_checker import Ball, Proof, activation, concave, fidelity

F = Fraction
FIDELITIES = ("SquaredL2", "WeightedL2", "L1", "KullbackLeibler")


def made(described, shape, name="map", **arrays):
    """The map with this description, of a file that holds these arrays; operators have no name."""
    proof = Proof.__new__(Proof)
    proof.arrays, proof.unused, proof.batch = arrays, set(arrays), 1
    return proof.map(described, name, shape)


def convolved(weight, shape, stride, padding):
    outputs, _, kernel, _ = weight.shape
    options = {"in_channels": shape[0], "out_channels": outputs, "kernel_size": kernel}
    described = {"Convolution": {**options, "stride": stride, "padding": padding}}
    return made(described, shape, **{"network.map.weight": weight})


def assert_within(ball: Ball, truth: list[Fraction], slack: float = 1e-12) -> None:
    """|value - truth| <= error at every entry, and the error is no more than rounding."""
    errors = np.broadcast_to(ball.error, ball.value.shape)
    for value, error, true in zip(exact(ball.value), exact(errors), truth, strict=True):
        assert abs(value - true) <= error
    assert errors.max() <= slack * max(1.0, np.abs(ball.value).max())


def test_sums_and_products_of_thin_balls():
    rng = np.random.default_rng(0)
    a, b = wild(rng, (200,), -8, 8), wild(rng, (200,), -8, 8)
    assert_within(Ball(a) + Ball(b), [u + v for u, v in zip(exact(a), exact(b), strict=True)])
    product = Ball(a) * Ball(b)
    assert_within(product, [u * v for u, v in zip(exact(a), exact(b), strict=True)])
    assert (product.error <= 1e-14 * np.abs(product.value)).all()
    total = Ball(a[None]).total()
    assert_within(total, [sum(exact(a))])
    cancelling = np.concatenate([a, -a, [1e-9]])[None]
    assert_within(Ball(cancelling).total(), [sum(exact(cancelling))], slack=1e-4)


def test_products_that_underflow_have_an_error_and_zeros_have_none():
    tiny = Ball(np.array([1e-200, 1e-310, 0.0, 3.0])) * Ball(np.array([1e-200, 1e-310, 5.0, 0.0]))
    assert (tiny.value == 0).all()
    assert (tiny.error[:2] > 0).all()
    assert (tiny.error[2:] == 0).all()
    mapped = made(
        {"Diagonal": {"values": "operator.d"}}, (2,), "", **{"operator.d": np.array([1e-200, 0.0])}
    ).push(Ball(np.array([[1e-200, 1.0]])))
    assert mapped.error[0, 0] > 0
    assert mapped.error[0, 1] == 0


@pytest.mark.parametrize("padding", ["zero", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_thin_and_fat_balls(padding, stride):
    rng = np.random.default_rng(1)
    n, weight = 5, wild(rng, (3, 2, 3, 3), -8, 8)
    matrix = correlation(weight, n, stride, padding)
    V = convolved(weight, (2, n, n), stride, padding)
    x, y = wild(rng, (1, 2, n, n), -8, 8), wild(rng, (1, *V.shape), -8, 8)
    assert_within(V.push(Ball(x)), times(matrix, exact(x)))
    assert_within(V.pull(Ball(y)), times(transposed(matrix), exact(y)))
    for carry, value, rows in ((V.push, x, matrix), (V.pull, y, transposed(matrix))):
        error = np.abs(value) * rng.random(value.shape)
        signs = rng.choice([-1.0, 1.0], value.shape)
        found = carry(Ball(value, error))
        true = [F(v) + F(e) * F(s) for v, e, s in
                zip(value.ravel(), error.ravel(), signs.ravel(), strict=True)]  # fmt: skip
        assert_within(found, times(rows, true), slack=np.inf)


def test_pooling_and_dense_maps_of_thin_balls():
    rng = np.random.default_rng(2)
    x = wild(rng, (1, 1, 6, 6), -8, 8)
    means = [
        sum(exact(x[0, 0, 3 * i : 3 * i + 3, 3 * j : 3 * j + 3])) / 9 for i, j in np.ndindex(2, 2)
    ]
    pool = made({"AveragePool": {"size": 3}}, (1, 6, 6))
    assert_within(pool.push(Ball(x)), means)
    y = wild(rng, (1, 1, 2, 2), -8, 8)
    spread = [F(float(y[0, 0, i // 3, j // 3])) / 9 for i, j in np.ndindex(6, 6)]
    assert_within(pool.pull(Ball(y)), spread)
    weight = wild(rng, (7, 36), -8, 8)
    matrix = [exact(row) for row in weight]
    dense = made({"Dense": {"in_features": 36, "out_features": 7}}, (1, 6, 6),
                 **{"network.map.weight": weight})  # fmt: skip
    assert_within(dense.push(Ball(x)), times(matrix, exact(x)))
    y = wild(rng, (1, 7, 1, 1), -8, 8)
    assert_within(dense.pull(Ball(y)), times(transposed(matrix), exact(y)))


def test_ray_transforms_have_their_transpose():
    scan = {"image_size": [5, 6], "pixel_size": [1.0, 0.8], "angles": "operator.a"}
    scan["bins"] = "operator.b"
    tensors = {"operator.a": np.linspace(0, 3, 7), "operator.b": np.linspace(-4, 4, 9)}
    A = made({"ParallelBeam": scan}, (1, 5, 6), "", **tensors)
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 1, 5, 6)), rng.standard_normal((2, 1, 7, 9))
    left = (A.push(Ball(x)).value * y).sum()
    assert left == pytest.approx((x * A.pull(Ball(y)).value).sum(), rel=1e-13)


ENTRIES = {str(entry.h): entry for entry in parts.ONE_BY_ONE}


def described(h: cl.Activation) -> dict:
    return {h.part_name: h.arguments()}


def fraction(value: Decimal) -> Fraction:
    return F(value)


@pytest.mark.parametrize("name", ENTRIES)
def test_activations_and_their_conjugates(name):
    """Compared with 60 digits, at small and large numbers and near the ends of the domain."""
    rng = np.random.default_rng(4)
    value, _, conjugate = ENTRIES[name].exact
    h = activation(described(ENTRIES[name].h))
    a = np.concatenate([wild(rng, (300,), -12, 6), [0.0, 0.3, 0.4, 700.0, -700.0, -40.0, 40.0]])
    low, high = (max(end, -1e3) if end < 0 else min(end, 1e3) for end in (h.low, h.high))
    ends = [low, high, np.nextafter(low, high), np.nextafter(high, low), 0.7]
    s = np.clip(np.concatenate([rng.uniform(low, high, 300), ends, 10 ** rng.uniform(-300, 0, 50)]),
                low, high)  # fmt: skip
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 400, -999_999, 999_999
        values = [fraction(value(Decimal(float(v)))) for v in a[:120]]
        values += [fraction(value(Decimal(float(v)))) for v in a[300:]]
        found = h.at(Ball(np.concatenate([a[:120], a[300:]])))
        assert_within(found, values)
        points = np.concatenate([s[:100], s[300:320]])
        conjugates = [fraction(conjugate(Decimal(float(v)))) for v in points]
        assert_within(h.conjugate(points), conjugates)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("group", [1, 3])
def test_activations_of_fat_balls_and_fenchels_inequality(name, group):
    profile = ENTRIES[name].h
    if group > 1 and profile.nondecreasing:
        return
    rng = np.random.default_rng(5)
    one = described(profile)
    h = activation({"GroupNorm": {"size": 3, "profile": one}} if group > 1 else one)
    a, error = wild(rng, (1, 300, 4), -3, 2), 10 ** rng.uniform(-3, 1, (1, 300, 4))
    true = a + error * rng.uniform(-1, 1, a.shape)
    exactly, found = h.at(Ball(true)), h.at(Ball(a, error))
    assert (np.abs(found.value - exactly.value) <= found.error + exactly.error).all()
    s = h.slope(wild(rng, a.shape, -3, 3), np.abs(wild(rng, a.shape, -1, 1)))
    inner = (s * true).reshape(1, 300 // group, group, 4).sum(2)
    slack = exactly.value + h.conjugate(s).value - inner
    assert slack.min() >= -1e-9
    if group > 1 and np.isfinite(h.high):
        for column in s.reshape(100, 3, 4).transpose(0, 2, 1).reshape(-1, 3):
            assert sum(v * v for v in exact(column)) <= 1


@pytest.mark.parametrize("kind", FIDELITIES)
def test_the_infimum_behind_a_diagonal_of_fat_balls(kind):
    """Never above f(d x) + c x, for any c and d in the balls and any x in the box."""
    rng = np.random.default_rng(6)
    shape = (1, 1, 40, 50)
    y, q = rng.uniform(0, 3, shape), rng.uniform(0.2, 2, shape)
    y[0, 0, :10] = 0
    f = fidelity(kind, y, q)
    c, d = wild(rng, shape, -2, 1), wild(rng, shape, -1, 1)
    if kind == "KullbackLeibler":
        d = np.abs(d)
    sizes = [np.abs(v) * rng.uniform(0, 0.3, shape) for v in (c, d)]
    low, high = np.full(shape, 0.0), np.full(shape, 2.0)
    with np.errstate(all="ignore"):
        found = proof_checker.behind_diagonal(f, Ball(c, sizes[0]), Ball(d, sizes[1]), low, high)
        least = np.full(shape, np.inf)
        C, D = (v + e * rng.uniform(-1, 1, shape) for v, e in zip((c, d), sizes, strict=True))
        for point in np.linspace(0, 2, 401):
            least = np.minimum(least, f.value(D * point).value + C * point)
        assert (found.value - found.error <= least + 1e-12).all()
        sharp = proof_checker.behind_diagonal(f, Ball(C), Ball(D), low, high)
    assert (sharp.error <= 1e-12 * (1 + np.abs(sharp.value))).all()
    assert (sharp.value <= least + 1e-12).all()
    # A grid of 401 points misses the minimum of a function with this curvature by little.
    assert (sharp.value >= least - (1 + np.abs(D)) ** 2 * 0.02 - 0.005 * np.abs(C)).all()


def test_concave_functions_are_lowest_at_an_end():
    at = Ball(np.array([0.0, 2.0, -1.0]), np.array([1.0, 0.5, 0.0]))
    found = concave(lambda v: Ball(-((v - 0.5) ** 2), 0.0), at)
    low = found.value - found.error
    assert (low <= [-2.25, -4.0, -2.25]).all()
    assert (low >= np.array([-2.25, -4.0, -2.25]) - 1e-12).all()
