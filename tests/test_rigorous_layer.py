"""Claims whose first layer is not stored: as the plain path, and true to the last digit.

In kernels, on a GPU or on the threads of a CPU; and in strips, on a CPU.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from fractions import Fraction

import pytest
import torch
import zoo
from exact_proofs import correlation, exact, inner, times, transposed
from first_layers import NETWORKS, POOLED, RAMPS, ridge
from host_kernels import COMPILER, DataKernel, RigorousKernel
from marks import slow

import convexlift as cl
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.networks import Convolution
from convexlift.problems import rigorous_strips
from convexlift.problems.claims import InBoth, in_double, proved
from convexlift.problems.lifting import lift
from convexlift.problems.packed_slopes import PackedDual, all_packed
from convexlift.problems.rigorous_layer import RigorousLayer
from convexlift.problems.rigorous_regularizer import minorant_below, regularizer_above
from convexlift.problems.rigorous_strips import StripSums
from convexlift.problems.rigorous_sums import Bend
from convexlift.problems.rounding import slopes
from convexlift.solvers.primal_dual import lifted_start
from convexlift.tensors import Blocks

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture(params=["kernels", slow("small tiles"), "strips", slow("small strips")])
def sums(request, monkeypatch):
    """A function that replaces the plain path by kernels, with two kinds of tiles, or by strips."""
    in_kernels = request.param in ("kernels", "small tiles")
    if in_kernels and not ON_GPU and COMPILER is None:
        pytest.skip("needs g++")
    if not in_kernels and ON_GPU:
        pytest.skip("for CPUs")
    compiled = rigorous_pass.compiled if ON_GPU else RigorousKernel
    data_kernel = rigorous_pass.data_kernel if ON_GPU else DataKernel
    strips = StripSums.of
    monkeypatch.setattr(first_layer, "FEW", 10**6 if request.param == "small tiles" else 0)
    if request.param == "small strips":
        monkeypatch.setattr(rigorous_strips, "CACHED", 200)
    monkeypatch.setattr(rigorous_pass, "compiled", lambda *_, **__: None)
    monkeypatch.setattr(rigorous_pass, "data_kernel", lambda *_: None)
    monkeypatch.setattr(StripSums, "of", lambda *_: None)

    def use() -> None:
        if in_kernels:
            monkeypatch.setattr(rigorous_pass, "compiled", compiled)
            monkeypatch.setattr(rigorous_pass, "data_kernel", data_kernel)
        else:
            monkeypatch.setattr(StripSums, "of", strips)

    return use


def stated(name: str) -> tuple[cl.VariationalProblem, torch.Tensor, Blocks]:
    """A problem in single precision, images, and dual variables of which some are infeasible."""
    torch.manual_seed(1)
    size = (24, 40) if name in POOLED else (19, 37)
    y = torch.rand(2, 1, *size) * torch.tensor([0.3, 3.0])[:, None, None, None]
    network = (NETWORKS | POOLED)[name]()
    noise = torch.tensor([0.05, 0.2]) if name == "weights of images" else 0.1
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.4, box=(0.0, 4.0),
        noise=noise if network.reads_data else None,
    ).to(dtype=torch.float32, device=DEVICE)  # fmt: skip
    x = problem.initial_image()
    _, v = lifted_start(problem, lift(problem, pooled=False), x)
    duals = {n: p + 0.5 * p.abs().mean() * torch.randn_like(p) for n, p in v.items()}
    return problem, x, Blocks(duals)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*NETWORKS, *POOLED])
@torch.no_grad()
def test_as_the_plain_computation(name, sums):
    problem, x, duals = stated(name)
    double = in_double(problem)
    results = []
    for ready in (lambda: None, sums):
        ready()
        assert (RigorousLayer.of(double.network, 2) is None) == (ready is not sums)
        value, minorant = regularizer_above(double, x.double()), minorant_below(double, duals)
        (objective, lower, *_), _ = proved(InBoth(problem), x, duals, 1e-3)
        error = minorant.c.error.expand_as(minorant.c.value).amax()
        results.append((value, minorant.c.value, minorant.beta, objective, lower, error))
    (*plain, error), (*fused, own_error) = results
    for one, other in zip(plain, fused, strict=True):
        scale = float(one.abs().max())
        torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-11 * scale)
    assert float(own_error) <= 10 * float(error)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spread", [0.5, 8.0], ids=["ordinary", "hostile"])
@pytest.mark.parametrize("name", RAMPS)
@torch.no_grad()
def test_error_bounds_cover_the_distance_to_exact_arithmetic(name, spread, sums):
    """R, c and beta against fractions, from the slopes that the kernel chooses."""
    sums()
    torch.manual_seed(2)
    n, weight = 6, 0.3
    network = ridge(name, "reflect").float()
    for parameter in network.parameters():
        parameter.mul_(torch.exp(spread * torch.randn_like(parameter)))
    y = torch.rand(1, 1, n, n) + (1e6 if spread > 1 else 0)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y.float()), regularizer=network, weight=weight
    ).to(device=DEVICE)
    double, x = in_double(problem), problem.fidelity.y.double()
    layer, output = double.network.layers[0], double.network.output
    h, ramp, t = layer.activation, layer.activation.ramp, weight * output
    v = (t.expand(1, 3, n, n) * (3 * torch.rand(1, 3, n, n, device=DEVICE) - 1.5)).float()
    minorant = minorant_below(double, {"v1": v})
    s = exact(slopes(h, v.double(), t).cpu())
    V = correlation(layer.operators[0].convolution.weight.cpu().numpy(), n, 1, "reflect")
    W = exact(output.expand(1, 3, n, n).cpu())
    b = exact(layer.bias.expand(1, 3, n, n).cpu())
    a = [r + c for r, c in zip(times(V, exact(x.cpu())), b, strict=True)]
    low, high, left, width, offset = map(Fraction, astuple(ramp))

    def value(a: Fraction) -> Fraction:
        inside = min(max(a - left, 0), width)
        bent = (inside**2 / (2 * width) if width else 0) + max(a - left - inside, 0)
        return low * a + (high - low) * bent + offset

    def conjugate(s: Fraction) -> Fraction:
        return (s - low) * left + width * (s - low) ** 2 / (2 * (high - low)) - offset

    R = Fraction(weight) * inner(W, [value(each) for each in a])
    above = Fraction(float(regularizer_above(double, x)))
    assert above >= R
    sizes = times([[abs(f) for f in row] for row in V], [abs(each) for each in exact(x.cpu())])
    sizes = [size + abs(each) for size, each in zip(sizes, b, strict=True)]
    assert above - R <= Fraction(1e-13) * inner(W, sizes)
    t_exact = [Fraction(weight) * each for each in W]
    beta = inner(t_exact, [p * q - conjugate(p) for p, q in zip(s, b, strict=True)])
    assert Fraction(float(minorant.beta)) <= beta
    c = times(transposed(V), [p * q for p, q in zip(s, t_exact, strict=True)])
    found, error = exact(minorant.c.value.cpu()), Fraction(float(minorant.c.error))
    assert all(abs(p - q) <= error for p, q in zip(found, c, strict=True))


@pytest.mark.skipif(ON_GPU, reason="for CPUs")
@torch.no_grad()
def test_strips_take_colours_and_packed_dual_variables(monkeypatch):
    """Against the plain path, which reads a few channels at a time."""
    torch.manual_seed(4)
    layer = cl.ConvexLayer(zoo.NAMED["leaky"], channels=5, skip=Convolution(3, 5, 3))
    network = cl.InputConvexNetwork([layer], in_channels=3).float()
    torch.nn.init.uniform_(network.output, 0.1, 1.0)
    y = torch.rand(2, 3, 21, 17).float()
    problem = in_double(
        cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network, weight=0.3)
    )
    h, t = layer.activation, problem.weight * problem.network.output
    v = t * (0.2 + 0.8 * torch.rand(2, 5, 21, 17).double())
    packed = PackedDual(h, all_packed(h, v, t), t)
    monkeypatch.setattr(rigorous_strips, "CACHED", 300)
    strips = [minorant_below(problem, {"v1": dual}) for dual in (v, packed)]
    above = regularizer_above(problem, y.double())
    monkeypatch.setattr(StripSums, "of", lambda *_: None)
    plain = [minorant_below(problem, {"v1": dual}) for dual in (v, packed)]
    for one, other in zip(strips, plain, strict=True):
        torch.testing.assert_close(one.c.value, other.c.value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.beta, other.beta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(above, regularizer_above(problem, y.double()), rtol=1e-10, atol=0)


@pytest.mark.skipif(ON_GPU, reason="for CPUs")
def test_little_contrast_is_certified_as_well():
    """V x and slopes are small where contrast is, and so are the error bounds of strips."""
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=16, kernel=5, smoothing=0.05).float()
    with torch.no_grad():
        filters = network.layers[0].skip.weight
        filters -= filters.mean((2, 3), keepdim=True)
    y = (1 + 1e-3 * torch.rand(1, 1, 48, 48)).float()
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network, weight=0.3)
    double, x = in_double(problem), y.double()
    value = double.weight * double.network.value(double.network.forward(x).z[-1])
    assert 0 < float((regularizer_above(double, x) - value) / value) < 1e-8
    # Iterations in single precision end at 1.0e-6 to 1.4e-6, depending on the processor.
    assert cl.solve(problem, stop=cl.StopWhen(gap=5e-6)).status == (cl.Status.CONVERGED,)


@pytest.mark.skipif(ON_GPU, reason="for CPUs")
@torch.no_grad()
def test_channels_with_zero_slopes_are_exact():
    """c is 0 where no slope counts: pixels that nothing bounds would spoil the bound."""
    torch.manual_seed(0)
    layer = cl.ConvexLayer(zoo.NAMED["huber"], channels=4, skip=Convolution(2, 4, 3))
    network = cl.InputConvexNetwork([layer], in_channels=2).float()
    layer.skip.weight[:2, 1] = layer.skip.weight[2:, 0] = 0.0  # two filters for each channel of x
    y = torch.rand(1, 2, 9, 9).float()
    problem = in_double(
        cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network, weight=0.3)
    )
    v = 0.01 * torch.randn(1, 4, 9, 9).double()
    v[:, 2:] = 0.0
    seen, unseen = minorant_below(problem, {"v1": v}).c.error.flatten()
    assert float(seen) > 0 == float(unseen)


@pytest.mark.parametrize("name", RAMPS)
def test_bounds_of_slopes_and_terms(name):
    """Between any two numbers around 0, against a fine grid."""
    bend = Bend.of(zoo.NAMED[name].ramp)
    for low, high in ((-1.0, 2.0), (-0.004, 0.001), (0.0, 0.5), (-0.3, 0.0), (0.0, 0.0)):
        a = torch.linspace(low, high, 1001, dtype=torch.float64)
        inside = a.clamp(bend.left, bend.right)
        slopes = zoo.NAMED[name].derivative(a[a != 0]).abs()
        bent = (inside * (abs(bend.middle) + bend.bend * inside.abs())).abs()
        beyond = torch.where(a > inside, bend.high, bend.low).abs() * (a - inside).abs()
        steepest, size = bend.between(a[:1], a[-1:])
        assert float(steepest) >= (float(slopes.max()) if len(slopes) else 0.0)
        assert float(size) >= float((bent + beyond).max()) * (1 - 1e-15)
        assert float(size) <= 2 * float((bent + beyond).max())
        assert float(size) >= float(zoo.NAMED[name].value(a).abs().max()) * (1 - 1e-15)


@pytest.mark.parametrize("name", RAMPS)
def test_activations_from_zero(name):
    """The same function as the ramp, and its conjugate."""
    h = zoo.NAMED[name]
    bend = Bend.of(h.ramp)
    a = torch.linspace(-3, 3, 601, dtype=torch.float64)
    inside = a.clamp(bend.left, bend.right)
    beyond = (a - inside) * torch.where(a > inside, bend.high, bend.low)
    value = inside * (bend.middle + bend.bend * inside) + beyond
    torch.testing.assert_close(value, h.value(a), rtol=1e-14, atol=1e-15)
    s = torch.linspace(*h.slopes, 101, dtype=torch.float64)
    conjugate = bend.conjugate * (s - bend.middle) ** 2
    torch.testing.assert_close(conjugate, h.conjugate(s), rtol=1e-13, atol=1e-15)
    assert Bend.of(replace(h.ramp, offset=h.ramp.offset + 1.0)) is None  # h(0) = 1
    assert Bend.of(replace(h.ramp, left=1.0)) is None


@pytest.mark.parametrize("name", ["relu", "abs", "pooled, kinks"])
def test_black_images_are_proved_optimal_to_the_last_digit(name, sums):
    """Their objective is 0, and no relative gap forgives a rounding error there."""
    sums()
    network = (POOLED[name]() if name in POOLED else ridge(name, "reflect")).float()
    with torch.no_grad():
        for layer in network.layers:
            layer.bias.fill_(0.0 if name == "abs" else -0.1)
        network.layers[0].activation = zoo.NAMED["abs" if name == "abs" else "relu"]
    y = torch.zeros(1, 1, *((24, 40) if name in POOLED else (8, 8)), dtype=torch.float32)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.1, box=(0, 1)
    ).to(device=DEVICE)
    solution = cl.solve(problem)
    assert solution.status == (cl.Status.CONVERGED,)
    assert float(solution.objective) == float(solution.lower_bound) == 0.0


def test_what_it_does_not_take(sums):
    """Activations whose slope is no ramp, single precision, several channels."""
    sums()

    def taken(network: cl.InputConvexNetwork, dtype=torch.float64) -> bool:
        return RigorousLayer.of(network.to(dtype).bind((1, 8, 8)).to(device=DEVICE), 1) is not None

    assert taken(ridge("huber", "zero"))
    assert not taken(ridge("huber", "zero"), torch.float32)
    assert not taken(ridge("softplus", "zero"))
