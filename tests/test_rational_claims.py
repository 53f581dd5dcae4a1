"""Claims against rational arithmetic: no rounding makes an objective smaller or a bound larger.

Objectives are evaluated with fractions, from matrices built by loops over pixels. A bound is
compared with the exact objective of the best image known, which at offsets of 1e6 is nearer to the
optimum than rounding errors are large.
"""

from __future__ import annotations

from dataclasses import astuple
from fractions import Fraction

import numpy as np
import pytest
import torch
from backends import BACKENDS, Backend, plain
from exact_proofs import Vector, correlation, exact, inner, times
from marks import slow
from problem_cases import ridge

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense
from convexlift.operators.imaging import Diagonal

N, WEIGHT = 8, 0.3
"""Side of the images, and weight of the regularizer."""
KINDS = {
    "relu": cl.ReLU(), "leaky": cl.LeakyReLU(0.2), "abs": cl.Abs(), "huber": cl.Huber(0.05),
    "smoothed": cl.SmoothedLeakyReLU(0.3, 0.02), "wide": cl.Huber(1e6),
}  # fmt: skip
FIDELITIES = {"L2": cl.SquaredL2, "L1": lambda y: cl.L1(y, 0.7)}


def activated(h: cl.Activation, a: Fraction) -> Fraction:
    """h(a) from its five numbers: slopes low and high, and where a ramp joins them."""
    low, high, left, width, offset = map(Fraction, astuple(h.ramp))
    inside = min(max(a - left, Fraction(0)), width)
    bent = (inside**2 / (2 * width) if width else 0) + max(a - left - inside, Fraction(0))
    return low * a + (high - low) * bent + offset


def applied(linear: torch.nn.Module, z: Vector) -> Vector:
    if isinstance(linear, Convolution):
        return times(correlation(linear.weight.detach().numpy(), N, 1, linear.padding), z)
    pool, dense = linear.maps
    assert (pool.size, len(linear.maps)) == (N, 2)  # to one mean for each channel
    means = [sum(z[k : k + N * N]) / N**2 for k in range(0, len(z), N * N)]
    weight = dense.weight.detach().numpy()
    return [inner(exact(row), means) for row in weight]


def objective(problem: cl.VariationalProblem, x: torch.Tensor) -> Fraction:
    """D(A x, y) + weight R(x) of one image, exactly."""
    network, pixels = problem.regularizer, exact(x)
    z = pixels
    for layer in network.layers:
        a = applied(layer.skip, pixels) if layer.previous is None else applied(layer.previous, z)
        each = len(a) // layer.bias.numel()
        b = [value for value in exact(layer.bias.detach()) for _ in range(each)]
        z = [activated(layer.activation, p + q) for p, q in zip(a, b, strict=True)]
    output = exact(network.output.detach())
    R = inner([w for w in output for _ in range(len(z) // len(output))], z)
    y, d = exact(problem.fidelity.y), exact(problem.operator.diagonal.expand_as(x))
    errors = [p * q - r for p, q, r in zip(d, pixels, y, strict=True)]
    if isinstance(problem.fidelity, cl.L1):
        data = Fraction(problem.fidelity.scale) * sum(map(abs, errors))
    else:
        data = sum(e * e for e in errors) / 2
    return data + Fraction(problem.weight) * R


def drawn(kind: str, fidelity: str, dtype: torch.dtype, *, deep: bool, hostile: bool, seed: int):
    """A random problem; hostile ones have a large offset, and filters of very different sizes."""
    draw = np.random.default_rng([seed, len(kind), deep, hostile])
    torch.manual_seed(seed)
    layers = [cl.ConvexLayer(KINDS[kind], channels=2, skip=Convolution(1, 2, 3, padding="reflect"))]
    if deep:
        head = Chain(AveragePool(N), Dense(2, 3, nonnegative=True))
        layers.append(cl.ConvexLayer(cl.LeakyReLU(0.2), channels=3, previous=head))
    network = cl.InputConvexNetwork(layers, image_size=(N, N))
    with torch.no_grad():
        for parameter in network.parameters():
            size = torch.as_tensor(draw.normal(size=parameter.shape) * (2 if hostile else 0.5))
            parameter.mul_(torch.exp(size))
        filters = layers[0].skip.weight
        filters -= filters.mean((2, 3), keepdim=True)
        layers[0].bias.normal_(std=0.1)
        network.project_()
    offset = (1e6 if dtype is torch.float64 else 1e3) if hostile else 0.0
    y = offset + torch.rand(1, 1, N, N)
    operator = Diagonal(torch.ones(N, N)) if seed % 2 else cl.Identity()
    return cl.VariationalProblem(
        fidelity=FIDELITIES[fidelity](y), operator=operator, regularizer=network.to(y),
        box=(offset - 1, offset + 2),
        weight=WEIGHT / float(network.output.detach().sum()),
    ).to(dtype=dtype)  # fmt: skip


def solved(problem: cl.VariationalProblem) -> cl.Solution:
    with pytest.MonkeyPatch.context() as patch:
        plain(patch)
        return cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=200, check_every=50))


def assert_true(problem: cl.VariationalProblem, x: torch.Tensor, claim, best: Fraction) -> None:
    """The claim about an image x, given the exact objective of a good one."""
    value = objective(problem.to(dtype=torch.float64), x.double())
    claimed, bound = (Fraction(float(each)) for each in (claim.objective, claim.lower_bound))
    assert claimed >= value
    assert bound <= min(best, value)


PATHS = ["single precision", "strips", slow("kernels")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("hostile", [False, True], ids=["ordinary", "hostile"])
@pytest.mark.parametrize("deep", [False, True], ids=["one layer", "pooled"])
@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_claims_are_true(kind, fidelity, deep, hostile, path, monkeypatch):
    backend: Backend = BACKENDS[path]
    if backend.missing:
        pytest.skip(backend.missing)
    for seed in range(4):
        dtype = torch.float64 if seed < 2 else torch.float32
        problem = drawn(kind, fidelity, dtype, deep=deep, hostile=hostile, seed=seed)
        exact_problem = problem.to(dtype=torch.float64)
        solution, precise = solved(problem), solved(exact_problem)
        best = objective(exact_problem, precise.x)
        assert_true(problem, solution.x, solution, best)
        # Without the checker, whose errors are larger than what is looked for here.
        certify = cl.certify.__wrapped__
        with monkeypatch.context() as patch:
            backend.use(patch)
            for x in (precise.x.to(dtype), problem.initial_image() + 0.1):
                for duals in (solution.duals, None):
                    claim = certify(problem, x, duals)
                    assert_true(problem, x, claim, best)
        if not hostile and dtype is torch.float64:  # and they say something
            assert float(precise.objective - precise.lower_bound) < 1e-2
            assert float(claim.objective) - float(objective(exact_problem, x.double())) < 1e-9


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["relu", "abs", "differences"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e8])
def test_constant_images_are_proved_optimal_to_the_last_digit(value, kind, path, monkeypatch):
    """Their objective is 0, and no relative gap forgives a rounding error there."""
    if BACKENDS[path].missing:
        pytest.skip(BACKENDS[path].missing)
    network = cl.TotalVariation() if kind == "differences" else ridge(kind)
    if kind != "differences":
        value = 0.0  # filters see rounding errors of other constants
        network.layers[0].bias.data.fill_(-0.1 if kind == "relu" else 0.0)
    y = torch.full((1, 1, 9, 8), value)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.1, box=(0, None)
    )
    BACKENDS[path].use(monkeypatch)
    solution = cl.solve(problem.to(dtype=torch.float32))
    assert solution.status == (cl.Status.CONVERGED,)
    assert float(solution.objective) == float(solution.lower_bound) == 0.0


@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.25, None), (None, 0.75), (-1.0, -0.125)])
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_bounds_over_boxes_are_true(fidelity, ends):
    """Of dual variables of all kinds, against the exact objective of every image that is tried."""
    for seed in range(3):
        free = drawn("huber", fidelity, torch.float64, deep=False, hostile=False, seed=seed)
        d = torch.as_tensor([-1.0, 0.5, 1.0, 2.0])[torch.randint(0, 4, (N, N))]
        problem = cl.VariationalProblem(
            fidelity=free.fidelity, operator=Diagonal(d), regularizer=free.regularizer,
            weight=free.weight, box=ends,
        )  # fmt: skip
        solution = solved(problem)
        assert_true(problem, solution.x, solution, objective(problem, solution.x))
        duals = solution.duals["v1"]
        wild = type(solution.duals)({"v1": duals + 0.3 * torch.randn_like(duals)})
        claim = cl.certify.__wrapped__(problem, solution.x, wild)
        assert Fraction(float(claim.lower_bound)) <= objective(problem, solution.x)
        assert float(solution.objective - solution.lower_bound) < 1e-2
