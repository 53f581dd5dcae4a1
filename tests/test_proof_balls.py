"""The parts of the proof checker, one by one: no error bound is smaller than the error."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import parts
import pytest
from exact_proofs import correlation, exact, huber, smoothed, times, transposed, wild

import convexlift as cl
from convexlift import proof_checker
from convexlift.proof_checker import Ball, Proof, ProofRejected, activation, concave, fidelity

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


def everywhere(rng: np.random.Generator, size: int, low: float, high: float) -> np.ndarray:
    """Numbers of all sizes, zeros and subnormal numbers among them."""
    some = wild(rng, (size,), low, high)
    some[::7] *= rng.choice([0.0, -0.0, 5e-324, 1e-310], some[::7].shape) / np.abs(some[::7])
    return some


def sound(make, truth, count):
    """The cases that are not refused, whose errors cover the distance to the truth."""
    for i in range(count):
        try:
            ball = make(i)
        except ProofRejected:
            continue
        value, error = F(float(ball.value.ravel()[0])), F(float(ball.error.ravel()[0]))
        assert abs(value - truth(i)) <= error, i
        yield i


def test_sums_products_and_maps_of_numbers_of_all_sizes():
    """None leaves the range of float64 behind its error."""
    rng = np.random.default_rng(8)
    a, b = everywhere(rng, 400, -320, 105), everywhere(rng, 400, -320, 105)
    exact_a, exact_b = exact(a), exact(b)
    ball = lambda v, i: Ball(v[i : i + 1])  # noqa: E731
    sums = sound(lambda i: ball(a, i) + ball(b, i), lambda i: exact_a[i] + exact_b[i], 400)
    assert len([*sums]) > 300
    products = sound(lambda i: ball(a, i) * ball(b, i), lambda i: exact_a[i] * exact_b[i], 400)
    assert len([*products]) > 200
    triples = sound(
        lambda i: ball(a, i) * ball(b, i) * ball(a, 399 - i),
        lambda i: exact_a[i] * exact_b[i] * exact_a[399 - i],
        400,
    )
    assert len([*triples]) > 100

    def carried(i: int) -> Ball:
        weight = b[i : i + 1].clip(-1e40, 1e40)
        V = made({"Diagonal": {"values": "operator.d"}}, (1,), "", **{"operator.d": weight})
        return V.push(Ball(a[None, i : i + 1]))

    limited = exact(b.clip(-1e40, 1e40))
    assert len([*sound(carried, lambda i: exact_a[i] * limited[i], 400)]) > 200


def conjugate(kind: str, v: Fraction, y: Fraction, q: Fraction) -> Fraction:
    return v * y if kind == "L1" else v * v / (2 * q) + v * y if q else F(0)


@pytest.mark.parametrize("kind", ["SquaredL2", "WeightedL2", "L1"])
def test_data_terms_of_numbers_of_all_sizes(kind):
    rng, count = np.random.default_rng(9), 500
    w, y = everywhere(rng, count, -200, 60), everywhere(rng, count, -200, 40)
    q = np.abs(everywhere(rng, count, -300 if kind == "WeightedL2" else -40, 40))
    q = np.ones(count) if kind == "SquaredL2" else np.maximum(q, 1e-40) if kind == "L1" else q
    v = everywhere(rng, count, -300, 60)
    terms = [fidelity(kind, y[i : i + 1], q[i : i + 1]) for i in range(count)]
    W, Y, Q = exact(w), exact(y), exact(q)
    with np.errstate(all="ignore"):
        values = sound(
            lambda i: terms[i].value(w[i : i + 1]),
            lambda i: Q[i] * (abs(W[i] - Y[i]) if kind == "L1" else (W[i] - Y[i]) ** 2 / 2),
            count,
        )
        assert len([*values]) > 300
        inside = [terms[i].clip(v[i : i + 1]) for i in range(count)]
        slopes = exact(np.concatenate(inside))
        conjugates = sound(
            lambda i: terms[i].conjugate(inside[i]),
            lambda i: conjugate(kind, slopes[i], Y[i], Q[i]),
            count,
        )
        assert len([*conjugates]) > 200


@pytest.mark.parametrize("kind", ["SquaredL2", "WeightedL2", "L1"])
def test_the_infimum_behind_a_diagonal_of_numbers_of_all_sizes(kind):
    """Never above f(d x) + c x, in exact arithmetic, at any x between the bounds."""
    rng, count, found = np.random.default_rng(10), 600, 0
    one = lambda v, i: v[i : i + 1]  # noqa: E731
    y, c = everywhere(rng, count, -60, 40), everywhere(rng, count, -320, 60)
    d = wild(rng, (count,), -40, 80)
    q = np.abs(everywhere(rng, count, -300 if kind == "WeightedL2" else -40, 40))
    q = np.ones(count) if kind == "SquaredL2" else np.maximum(q, 1e-40) if kind == "L1" else q
    ends = np.sort([everywhere(rng, count, -60, 40), everywhere(rng, count, -60, 40)], axis=0)
    ends[0, ::3], ends[1, ::2] = -np.inf, np.inf
    for i in range(count):
        f = fidelity(kind, one(y, i), one(q, i))
        low, high = one(ends[0], i), one(ends[1], i)
        try:
            with np.errstate(all="ignore"):
                ball = proof_checker.behind_diagonal(f, Ball(one(c, i)), Ball(one(d, i)), low, high)
        except ProofRejected:
            continue
        if np.isinf(ball.value[0]):
            continue
        found += 1
        below = F(float(ball.value[0])) - F(float(ball.error[0]))
        D, Y, Q, C = (F(float(each[i])) for each in (d, y, q, c))
        points = [Y / D, F(0)] + ([Y / D - C / (D * D * Q)] if Q else [])
        points += [F(float(end[0])) for end in (low, high) if np.isfinite(end[0])]
        points += [F(float(x)) for x in everywhere(rng, 10, -80, 80)]
        for x in points:
            if low[0] <= x <= high[0]:
                distance = D * x - Y
                value = Q * (abs(distance) if kind == "L1" else distance**2 / 2)
                assert below <= value + C * x, i
    assert found > 100


def covered(make, truths) -> int:
    """How many balls are not refused; each of these covers the true number."""
    return len([*sound(make, lambda i: truths[i], len(truths))])


def test_activations_of_numbers_of_all_sizes():
    rng, found = np.random.default_rng(11), 0
    for _ in range(150):
        nu = float(10 ** rng.uniform(-40, 40))
        k = float(rng.choice([0.0, 1e-300, rng.random(), 1 - 2.0**-53]))
        for entry in (smoothed("SmoothedLeakyReLU", k, nu), huber(nu)):
            h = activation(entry.json)
            a, p = everywhere(rng, 4, -200, 60), everywhere(rng, 4, -300, 40)
            with np.errstate(all="ignore"):
                s = h.slope(p, np.abs(everywhere(rng, 4, -300, 40)))
                assert all(F(h.low) <= slope <= F(h.high) for slope in exact(s))
                values = [entry.value(each) for each in exact(a)]
                found += covered(lambda i, h=h, a=a: h.at(Ball(a[i : i + 1])), values)
                conjugates = [entry.conjugate(each) for each in exact(s)]
                assert covered(lambda i, h=h, s=s: h.conjugate(s[i : i + 1]), conjugates) == 4
    assert found > 1000


@pytest.mark.parametrize("kind", ["HuberMixture", "QuadraticSpline"])
def test_mixtures_of_numbers_of_all_sizes(kind):
    """h(a) + h*(s) >= s a for all slopes: the exact h, and no more than the stated h*."""
    rng = np.random.default_rng(12)
    for _ in range(300):
        J = int(rng.integers(1, 4))
        t = np.unique(10 ** rng.uniform(-40, 40, J) if rng.random() < 0.5 else rng.random(J))
        shares = np.abs(everywhere(rng, len(t), -320, 40))
        shares[rng.integers(len(t))] = 10 ** rng.uniform(-5, 40)
        options = {"widths": t.tolist()}
        if kind == "QuadraticSpline":
            options = {"knots": t.tolist(), "even": bool(rng.random() < 0.5), "tail": 0.0}
        a = np.append(everywhere(rng, 5, -200, 45), t).reshape(1, 1, -1, 1)
        with np.errstate(all="ignore"):
            h = activation({kind: options}, lambda J, shares=shares: shares.reshape(1, J))
            s = h.slope(everywhere(rng, a.size, -3, 1).reshape(a.shape), np.ones(a.shape))
            try:
                conjugates = h.conjugate(s)
            except ProofRejected:
                continue
            above = [sum(each) for each in zip(exact(conjugates.value), exact(conjugates.error),
                                               strict=True)]  # fmt: skip
            found = h.at(Ball(a))
        T, total = exact(t), sum(exact(shares))
        c = [each / total for each in exact(shares)]

        def value(x: Fraction, T: list = T, c: list = c, options: dict = options) -> Fraction:
            r = abs(x) if options.get("even", True) else max(x, F(0))
            if kind == "HuberMixture":
                parts = ((min(r, each), each) for each in T)
                return sum(
                    w * m * (r - m / 2) / each for w, (m, each) in zip(c, parts, strict=True)
                )
            pairs = zip([F(0), *T], T, strict=False)
            return sum(
                w
                * (min(max(r - low, F(0)), high - low) ** 2 / (2 * (high - low)) + max(r - high, 0))
                for w, (low, high) in zip(c, pairs, strict=True)
            )

        for x, v, e in zip(exact(a), exact(found.value), exact(found.error), strict=True):
            assert abs(value(x) - v) <= e
            for slope, bound in zip(exact(s), above, strict=True):
                assert slope * x - value(x) <= bound
