"""The parts of the proof checker, one by one: no error bound is smaller than the error."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import exact_proofs
import numpy as np
import parts
import pytest
from exact_proofs import correlation, exact, f_conjugate, f_value, times, transposed, wild
from forged_proofs import convolution

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
    outputs, inputs, kernel, _ = weight.shape
    described = convolution(inputs, outputs, kernel, stride=stride, padding=padding)
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
    block = lambda i, j: (i // 3, j // 3)  # noqa: E731
    mean = [
        [F(block(*p) == q) / 9 for p in np.ndindex(6, 6)] for q in np.ndindex(2, 2)
    ]  # fmt: skip
    weight = wild(rng, (7, 36), -8, 8)
    pool = made({"AveragePool": {"size": 3}}, (1, 6, 6))
    dense = made({"Dense": {"in_features": 36, "out_features": 7}}, (1, 6, 6),
                 **{"network.map.weight": weight})  # fmt: skip
    for V, matrix in ((pool, mean), (dense, [exact(row) for row in weight])):
        x, y = wild(rng, (1, 1, 6, 6), -8, 8), wild(rng, (1, *V.shape), -8, 8)
        assert_within(V.push(Ball(x)), times(matrix, exact(x)))
        assert_within(V.pull(Ball(y)), times(transposed(matrix), exact(y)))


OWN = parts.Softplus  # the checker knows the library's
ENTRIES = {str(entry.h): entry for entry in parts.ONE_BY_ONE if not isinstance(entry.h, OWN)}


def described(h: cl.Activation) -> dict:
    return {h.part_name: h.arguments()}


@pytest.mark.parametrize("name", ENTRIES)
def test_activations_and_their_conjugates(name):
    """Compared with 400 digits, at small and large numbers and near the ends of the domain."""
    rng = np.random.default_rng(4)
    value, _, conjugate = ENTRIES[name].exact
    h = activation(described(ENTRIES[name].h))
    a = np.append(wild(rng, (120,), -12, 6), [0.0, 0.3, 0.4, 700.0, -700.0, -40.0, 40.0])
    low, high = (max(end, -1e3) if end < 0 else min(end, 1e3) for end in (h.low, h.high))
    ends = [low, high, np.nextafter(low, high), np.nextafter(high, low), 0.7]
    s = [*rng.uniform(low, high, 100), *ends, *10 ** rng.uniform(-300, 0, 15)]
    s = np.clip(s, low, high)
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 400, -999_999, 999_999
        assert_within(h.at(Ball(a)), [F(value(Decimal(float(v)))) for v in a])
        assert_within(h.conjugate(s), [F(conjugate(Decimal(float(v)))) for v in s])


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
    rounded = concave(lambda v: Ball(v, 1e-17), Ball(np.ones(1)))  # 1 - 1e-17 is rounded to 1
    assert rounded.error >= 1e-17


def everywhere(rng: np.random.Generator, size: int, low: float, high: float) -> np.ndarray:
    """Numbers of all sizes, zeros and subnormal numbers among them."""
    some = wild(rng, (size,), low, high)
    some[::7] *= rng.choice([0.0, -0.0, 5e-324, 1e-310], some[::7].shape) / np.abs(some[::7])
    return some


def weights(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Weights of all sizes, or scales, which are not 0."""
    q = np.abs(everywhere(rng, count, -300 if kind == "WeightedL2" else -40, 40))
    return np.ones(count) if kind == "SquaredL2" else np.maximum(q, 1e-40) if kind == "L1" else q


def covered(make, truths) -> int:
    """How many balls are not refused; the error of each covers the distance to the truth."""
    count = 0
    for i, truth in enumerate(truths):
        try:
            with np.errstate(all="ignore"):
                ball = make(i)
        except ProofRejected:
            continue
        value, error = F(float(ball.value.ravel()[0])), F(float(ball.error.ravel()[0]))
        assert abs(value - truth) <= error, i
        count += 1
    return count


def test_sums_products_and_maps_of_numbers_of_all_sizes():
    """None leaves the range of float64 behind its error."""
    rng = np.random.default_rng(8)
    a, b = everywhere(rng, 400, -320, 105), everywhere(rng, 400, -320, 105)
    limited = b.clip(-1e40, 1e40)
    A, B, D = exact(a), exact(b), exact(limited)
    ball = lambda v, i: Ball(v[i : i + 1])  # noqa: E731

    def carried(i: int) -> Ball:
        values = {"operator.d": limited[i : i + 1]}
        V = made({"Diagonal": {"values": "operator.d"}}, (1,), "", **values)
        return V.push(Ball(a[None, i : i + 1]))

    pairs = list(zip(A, B, strict=True))
    assert covered(lambda i: ball(a, i) + ball(b, i), [u + v for u, v in pairs]) > 300
    assert covered(lambda i: ball(a, i) * ball(b, i), [u * v for u, v in pairs]) > 200
    assert covered(carried, [u * v for u, v in zip(A, D, strict=True)]) > 200
    triples = [u * v * w for (u, v), w in zip(pairs, A[::-1], strict=True)]
    assert covered(lambda i: ball(a, i) * ball(b, i) * ball(a, 399 - i), triples) > 100


@pytest.mark.parametrize("kind", ["SquaredL2", "WeightedL2", "L1"])
def test_data_terms_of_numbers_of_all_sizes(kind):
    rng, count = np.random.default_rng(9), 500
    w, y = everywhere(rng, count, -200, 60), everywhere(rng, count, -200, 40)
    q, v = weights(rng, kind, count), everywhere(rng, count, -300, 60)
    terms = [fidelity(kind, y[i : i + 1], q[i : i + 1]) for i in range(count)]
    slopes = [f.clip(v[i : i + 1]) for i, f in enumerate(terms)]
    columns = [exact(each) for each in (w, y, q)]
    values = [f_value(kind, *each) for each in zip(*columns, strict=True)]
    conjugates = [
        f_conjugate(kind, *each)
        for each in zip(exact(np.concatenate(slopes)), *columns[1:], strict=True)
    ]
    assert covered(lambda i: terms[i].value(w[i : i + 1]), values) > 300
    assert covered(lambda i: terms[i].conjugate(slopes[i]), conjugates) > 200


@pytest.mark.parametrize("kind", ["SquaredL2", "WeightedL2", "L1"])
def test_the_infimum_behind_a_diagonal_of_numbers_of_all_sizes(kind):
    """Never above f(d x) + c x, in exact arithmetic, at any x between the bounds."""
    rng, count, found = np.random.default_rng(10), 600, 0
    one = lambda v, i: v[i : i + 1]  # noqa: E731
    y, c = everywhere(rng, count, -60, 40), everywhere(rng, count, -320, 60)
    d = wild(rng, (count,), -40, 80)
    q = weights(rng, kind, count)
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
                assert below <= f_value(kind, D * x, Y, Q) + C * x, i
    assert found > 100


def test_activations_of_numbers_of_all_sizes():
    rng, found = np.random.default_rng(11), 0
    for _ in range(150):
        nu = float(10 ** rng.uniform(-40, 40))
        k = float(rng.choice([0.0, 1e-300, rng.random(), 1 - 2.0**-53]))
        for entry in (exact_proofs.smoothed("SmoothedLeakyReLU", k, nu), exact_proofs.huber(nu)):
            h = activation(entry.json)
            a, p = everywhere(rng, 4, -200, 60), everywhere(rng, 4, -300, 40)
            with np.errstate(all="ignore"):
                s = h.slope(p, np.abs(everywhere(rng, 4, -300, 40)))
            assert all(F(h.low) <= slope <= F(h.high) for slope in exact(s))
            values, conjugates = map(entry.value, exact(a)), map(entry.conjugate, exact(s))
            found += covered(lambda i, h=h, a=a: h.at(Ball(a[i : i + 1])), values)
            assert covered(lambda i, h=h, s=s: h.conjugate(s[i : i + 1]), conjugates) == 4
    assert found > 1000


def risen(r: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """The function with the slope 0 up to low, 1 from high on, and a ramp between them."""
    m = min(max(r - low, F(0)), high - low)
    return m**2 / (2 * (high - low)) + max(r - high, F(0))


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
        lows = [F(0)] * len(T) if kind == "HuberMixture" else [F(0), *T]
        parts = [*zip([each / total for each in exact(shares)], lows, T, strict=False)]
        side = abs if options.get("even", True) else lambda x: max(x, F(0))
        value = lambda x, parts=parts, side=side: sum(  # noqa: E731
            w * risen(side(x), low, high) for w, low, high in parts
        )
        for x, v, e in zip(exact(a), exact(found.value), exact(found.error), strict=True):
            assert abs(value(x) - v) <= e
            for slope, bound in zip(exact(s), above, strict=True):
                assert slope * x - value(x) <= bound
