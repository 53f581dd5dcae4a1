"""Convex quadratic splines, one for each channel, and maps and layers that sum over pixels."""

from __future__ import annotations

import pytest
import torch
from oracle import optimum

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense, PixelSum

KNOTS = (0.1, 0.25, 0.3, 0.9)
# Bends of any order, some of them zero: curvature need not decrease with |a|.
SHARES = torch.tensor(
    [[0, 3, 0, 1], [0.5, 0, 0, 1], [0.2, 1, 0.4, 0.1], [1, 0, 1e-12, 0]], dtype=torch.float64
)
KINDS = {"even": {}, "one-sided": {"even": False}, "tail": {"tail": 0.7}}
every_kind = pytest.mark.parametrize("kind", KINDS)


def spline(kind: str) -> cl.QuadraticSpline:
    return cl.QuadraticSpline(KNOTS, **KINDS[kind]).with_shares(SHARES)


def slope(kind: str, a: torch.Tensor, channel: int) -> torch.Tensor:
    """h'(a), interpolated between its values at the knots."""
    c = SHARES[channel] / SHARES[channel].sum()
    heights, t = torch.cat((torch.zeros(1), c.cumsum(0))), torch.tensor((0.0, *KNOTS))
    r = a.abs() if kind != "one-sided" else a.clamp_min(0)
    total = torch.zeros_like(r)
    for j in range(len(KNOTS)):
        share = ((r - t[j]) / (t[j + 1] - t[j])).clamp(0, 1)
        total = total + (heights[j + 1] - heights[j]) * share
    return (total + KINDS[kind].get("tail", 0.0) * (r - t[-1]).clamp_min(0)) * a.sign()


def arguments() -> torch.Tensor:
    knots = torch.tensor([0.0, *KNOTS])
    beside = torch.cat([knots, knots + 1e-9, knots - 1e-9, 1.3 * knots, torch.tensor([0.01, 5.0])])
    return torch.cat([beside, -beside])[:, None].expand(-1, 4)


@every_kind
def test_slopes_are_interpolated_between_the_knots_of_each_channel(kind):
    a = arguments()
    found = spline(kind).derivative(a)
    for i in range(4):
        torch.testing.assert_close(found[:, i], slope(kind, a[:, i], i), rtol=0, atol=1e-12)


@every_kind
def test_values_are_integrals_of_slopes(kind):
    grid = torch.linspace(0, 1, 20_001)[:, None]
    for end in (-1.3, -0.2, 0.27, 2.0):
        middles = end * (grid[1:] + grid[:-1]) / 2
        integral = spline(kind).derivative(middles.expand(-1, 4)).mean(0) * end
        value = spline(kind).value(torch.full((1, 4), end))[0]
        torch.testing.assert_close(value, integral, rtol=0, atol=1e-7)


@every_kind
@pytest.mark.parametrize("eta", [0.01, 0.4, 30.0])
@pytest.mark.parametrize("shape", [(), (1, 4), (1, 4, 1, 1), (44, 4, 1, 1), (44, 4, 3, 1)])
def test_proximal_points_satisfy_their_equation(kind, eta, shape):
    """a + eta h'(a) = y, for eta of all images, of each channel, and of each entry."""
    h, a = spline(kind), arguments()
    a = a[..., None, None].expand(-1, -1, 3, 1) if len(shape) == 4 else a
    steps = eta * (0.5 + torch.rand(shape))
    y = a + steps * h.derivative(a)
    torch.testing.assert_close(h.prox(y, steps), a, rtol=1e-9, atol=1e-9 * max(eta, 1.0))


@every_kind
def test_conjugates_by_brute_force_and_equality_at_slopes(kind):
    h, grid = spline(kind), torch.linspace(-3, 3, 600_001)[:, None]
    for s in (0.0, 1e-6, 0.125, 0.5, 0.999, 1.0, *((-0.7,) if h.even else ())):
        brute = (s * grid - h.value(grid.expand(-1, 4))).amax(0)
        torch.testing.assert_close(h.conjugate(torch.full((1, 4), s))[0], brute, rtol=0, atol=1e-9)
    a = arguments()
    s = h.clip(h.derivative(a))
    for loss in (h.fenchel_young(a, s), h.value(a) + h.conjugate(s) - s * a):
        assert float(loss.abs().max()) < 1e-12


def test_a_huber_mixture_is_such_a_spline():
    """Its curvature is the sum of c_j / t_j over t_j > |a|."""
    widths, c = (0.1, 0.3, 1.0), torch.tensor([[0.2, 0.5, 0.3]])
    mixture = cl.HuberMixture(widths).with_shares(c)
    knots = torch.tensor((0.0, *widths))
    bends = torch.stack([(c[0] / knots[1:])[j:].sum() for j in range(3)])
    same = cl.QuadraticSpline(widths).with_shares((bends * knots.diff())[None])
    a = torch.linspace(-2, 2, 101)[:, None]
    torch.testing.assert_close(same.value(a), mixture.value(a))
    s = torch.linspace(-1, 1, 101)[:, None]
    torch.testing.assert_close(same.conjugate(s), mixture.conjugate(s))


@pytest.mark.parametrize("knots", [(), (0.0, 1.0), (1.0, 1.0), (1.0, float("inf"))])
def test_bad_knots_and_tails_are_refused(knots):
    with pytest.raises(ValueError, match="knots that are positive and increase"):
        cl.QuadraticSpline(knots)
    with pytest.raises(ValueError, match="needs tail >= 0, got tail=-1"):
        cl.QuadraticSpline(tail=-1.0)


def denoising(network: cl.InputConvexNetwork) -> cl.VariationalProblem:
    y = torch.rand((2, 1, 7, 8), generator=torch.Generator().manual_seed(0))
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.15, box=(0, 1)
    )


def ridge(kind: str) -> cl.InputConvexNetwork:
    torch.manual_seed(1)
    filters = Chain(Convolution(1, 2, 3), Convolution(2, 4, 3))
    h = cl.QuadraticSpline(KNOTS, **KINDS[kind])
    net = cl.InputConvexNetwork([cl.ConvexLayer(h, channels=4, skip=filters, bias=False)])
    with torch.no_grad():
        net.layers[0].shares.copy_(SHARES)
        net.output.copy_(0.5 + torch.rand(net.output.shape))
    return net


def summed() -> cl.InputConvexNetwork:
    """The mean of a convolution of |V x|, and half the sum of squares of another layer."""
    torch.manual_seed(2)
    inner = cl.ConvexLayer(cl.HalfSquare(), channels=3, skip=Convolution(1, 3, 3))
    second = cl.ConvexLayer(
        cl.LeakyReLU(0.2), channels=2, skip=Convolution(1, 2, 3),
        previous=Convolution(3, 2, 3, nonnegative=True),
    )  # fmt: skip
    top = cl.ConvexLayer(
        cl.Linear(), channels=1, bias=False,
        previous=Chain(Convolution(2, 1, 3, nonnegative=True), PixelSum(mean=True)),
        links={1: Chain(Convolution(3, 1, 1, nonnegative=True), PixelSum())},
    )  # fmt: skip
    return cl.InputConvexNetwork([inner, second, top])


@pytest.mark.parametrize("make", [*KINDS, "summed"])
def test_solutions_proofs_files_and_an_independent_solver_agree(make, tmp_path):
    net = summed() if make == "summed" else ridge(make)
    problem = denoising(net)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-6, max_iterations=20_000))
    verdicts = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    for i in range(2):
        best, _ = optimum(problem.select(torch.tensor([i])))
        slack = 2e-6 * abs(best)  # accuracy of the other solver
        for bound in (float(solution.lower_bound[i]), verdicts[i].lower_bound):
            assert best * (1 - 3e-6) <= bound <= best + slack
        for objective in (float(solution.objective[i]), verdicts[i].objective):
            assert best - slack <= objective <= best * (1 + 3e-6)
    again = cl.load(cl.save(net, tmp_path / "network"))
    assert torch.equal(again(solution.x), net(solution.x))
    assert again.layers[0].activation == net.layers[0].activation


@pytest.mark.parametrize("h", [cl.QuadraticSpline(KNOTS), cl.HuberMixture(KNOTS)], ids=str)
def test_potentials_of_their_own_channels_can_be_pooled(h, tmp_path):
    torch.manual_seed(0)
    first = cl.ConvexLayer(h, channels=4, skip=Convolution(1, 4, 3))
    pooled = Chain(AveragePool(2), Dense(4 * 12, 3, nonnegative=True))
    net = cl.InputConvexNetwork([first, cl.ConvexLayer(cl.ReLU(), channels=3, previous=pooled)],
                                image_size=(6, 8))  # fmt: skip
    with torch.no_grad():
        net.layers[0].shares.copy_(SHARES)
        net.output.fill_(5.0)
    y = torch.rand(1, 1, 6, 8)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, box=(0, 1)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-6, max_iterations=20_000))
    best, _ = optimum(problem)
    assert float(solution.lower_bound) <= best * (1 + 2e-6)
    assert best * (1 - 2e-6) <= float(solution.objective) <= best * (1 + 4e-6)
    cl.verify(solution.proof.save(tmp_path / "x.proof"))


def test_sums_over_pixels_are_operators_with_exact_adjoints():
    for mean in (False, True):
        operator = PixelSum(mean=mean).operator((3, 4, 5))
        cl.check_operator(operator)
        x = torch.rand(2, 3, 4, 5)
        expected = x.mean((2, 3)) if mean else x.sum((2, 3))
        torch.testing.assert_close(operator(x), expected)
