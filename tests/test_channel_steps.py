"""Steps for each channel, for networks whose channels have very different weights."""

from __future__ import annotations

import pytest
import torch
from oracle import optimum

import convexlift as cl
from convexlift.networks import Chain, Convolution
from convexlift.solvers.channel_steps import ChannelCoupling
from convexlift.solvers.pdhg import PDHG

CLOSE = cl.StopWhen(gap=1e-6, max_iterations=2000)


def network(weights, factors=None, h=None, seed=0):
    """Random filters; ``factors`` multiply them, and are taken out of the output weights again."""
    generator = torch.Generator().manual_seed(seed)
    chain = Chain(Convolution(1, 2, 3), Convolution(2, len(weights), 3))
    made = cl.InputConvexNetwork(
        [cl.ConvexLayer(h or cl.Abs(), channels=len(weights), skip=chain, bias=False)]
    )
    factors = torch.ones(len(weights)) if factors is None else factors
    with torch.no_grad():
        for map_ in chain.maps:
            map_.weight.copy_(0.3 * torch.randn(map_.weight.shape, generator=generator))
        chain.maps[1].weight.mul_(factors.reshape(-1, 1, 1, 1))
        made.output.copy_(weights / factors)
    return made.double()


def problem(regularizer, size=10, **parts):
    generator = torch.Generator().manual_seed(3)
    y = torch.rand((1, 1, size, size), generator=generator).double()
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=regularizer, weight=1.0, **parts
    )


WEIGHTS = 0.3 * 10 ** -torch.linspace(0, 4, 8)


def test_the_optimum_is_cvxpys():
    posed = problem(network(WEIGHTS), size=6)
    assert ChannelCoupling.factors_of(posed) is not None
    found = cl.solve(posed, stop=CLOSE)
    assert found.status == (cl.Status.CONVERGED,)
    assert float(found.objective) == pytest.approx(optimum(posed)[0], rel=1e-5)


@pytest.mark.parametrize("channel", [0, 3, 7])
def test_rescaling_a_channel_and_undoing_it_changes_nothing(channel):
    factors = torch.ones(8)
    factors[channel] = 1000.0
    plain, scaled = (
        cl.solve(problem(network(WEIGHTS, each)), stop=CLOSE) for each in (None, factors)
    )
    # |1000 a| / 1000: the same function, and iterates that differ by rounding only.
    assert int(plain.iterations) == int(scaled.iterations)
    assert torch.allclose(plain.x, scaled.x, atol=1e-10)


def test_weights_of_different_sizes_cost_no_iterations():
    alike = cl.solve(problem(network(torch.full((8,), 0.05)), 32), stop=CLOSE)
    spread = cl.solve(problem(network(WEIGHTS), 32), stop=CLOSE)
    assert int(spread.iterations) <= 1.5 * int(alike.iterations)


def test_channels_without_weight_do_not_count():
    weights = torch.full((8,), 0.1)
    weights[2] = 0.0
    assert ChannelCoupling.factors_of(problem(network(weights))) is None
    mixed = WEIGHTS.clone()
    mixed[2] = 0.0
    posed = problem(network(mixed))
    assert ChannelCoupling.factors_of(posed) is not None
    assert cl.solve(posed, stop=CLOSE).status == (cl.Status.CONVERGED,)


def test_steps_satisfy_the_condition_of_convergence():
    posed = problem(network(WEIGHTS))
    solver = PDHG().solver(posed)
    state = solver.start(posed.initial_image())
    ((name, row),) = solver.saddle.K.rows.items()
    (V,) = row.values()
    x = torch.eye(100, dtype=torch.float64).reshape(100, 1, 10, 10)
    step = solver.coupling.dual_steps(state.sigma).step(name, V(x[:1]))
    matrix = (step.sqrt() * V(x)).flatten(1) * state.tau["x"].sqrt()
    assert 0.8 < float(torch.linalg.matrix_norm(matrix, 2)) < 1
    assert "one for each channel" in str(cl.explain(posed))


@pytest.mark.parametrize("name", ["two layers", "groups", "weights alike"])
def test_other_networks_keep_one_step_for_all_channels(name):
    networks = {
        "two layers": cl.networks.convolutional(),
        "groups": cl.TotalVariation(),
        "weights alike": network(torch.full((8,), 0.1)),
    }
    assert ChannelCoupling.factors_of(problem(networks[name].double())) is None


def test_a_batch_is_solved_as_its_images_are():
    generator = torch.Generator().manual_seed(4)
    y = torch.rand((3, 1, 12, 12), generator=generator).double()
    net = network(WEIGHTS)

    def solved(y):
        parts = {"regularizer": net, "weight": 1.0, "box": (0.0, 1.0)}
        return cl.solve(cl.VariationalProblem(fidelity=cl.SquaredL2(y), **parts), stop=CLOSE)

    together = solved(y)
    for i in range(3):
        alone = solved(y[i : i + 1])
        assert int(alone.iterations) == int(together.iterations[i])
        assert torch.allclose(alone.x[0], together.x[i], atol=1e-12)
