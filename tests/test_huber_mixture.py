"""Learned profiles: shares of each channel, in every formula, problem, proof, file and training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import optimum
from training_runs import crops

import convexlift as cl
from convexlift.networks import AdaptiveNetwork, NoiseGuide, ridge
from convexlift.problems.one_pass import OnePass
from convexlift.proof_checker import activation
from convexlift.solvers import extrapolated_iterations, tiled_iterations
from convexlift.tasks import GaussianDenoising
from convexlift.training import (
    BatchSampler,
    Bilevel,
    Implicit,
    NetworkSettings,
    TrainingOptions,
    ValueFunction,
    train,
)

NOISE = 0.1
WIDTHS = (0.05, 0.1, 0.2, 0.4)
# One Huber function alone, the narrowest and the widest of them, and all of them.
SHARES = torch.tensor(
    [[0, 3, 0, 0], [0.5, 0, 0, 1], [0.2, 1, 0.4, 0.1], [0, 0, 1e-12, 1]], dtype=torch.float64
)


def mixture() -> cl.HuberMixture:
    return cl.HuberMixture(WIDTHS).with_shares(SHARES)


def network(channels: int = 1, **options) -> cl.InputConvexNetwork:
    """Four filters, each with its own profile."""
    torch.manual_seed(channels)
    net = ridge(in_channels=channels, channels=4, kernel=3, **{
        "profiles": 4, "smoothing": 0.5 if "levels" in options else 0.05, **options,
    })  # fmt: skip
    with torch.no_grad():
        net.layers[0].shares.copy_(SHARES)
        net.output.copy_(0.5 + torch.rand(net.output.shape))
        if isinstance(net, AdaptiveNetwork):
            net.guide.numbers.normal_()
    return net


def denoising(
    net: cl.InputConvexNetwork, batch: int = 2, size: tuple[int, int] = (7, 8)
) -> cl.VariationalProblem:
    torch.manual_seed(0)
    noise = {"noise": NOISE} if net.reads_data else {}
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(batch, net.in_channels, *size)), regularizer=net,
        weight=1.0 if net.reads_data else 0.15, box=(0, 1), **noise,
    )  # fmt: skip


# Formulas


def arguments() -> torch.Tensor:
    """Numbers at the knots, beside them and between them, the same for every channel."""
    knots = torch.tensor([0.0, *WIDTHS])
    beside = torch.cat([knots, knots + 1e-9, knots - 1e-9, 1.3 * knots, torch.tensor([0.01, 5.0])])
    return torch.cat([beside, -beside])[:, None].expand(-1, 4)


def single(i: int) -> list[tuple[float, cl.Huber]]:
    """The Huber functions of a channel with their shares."""
    c = SHARES[i] / SHARES[i].sum()
    return [(float(c_j), cl.Huber(t)) for c_j, t in zip(c, WIDTHS, strict=True)]


@pytest.mark.parametrize("name", ["value", "derivative", "second_derivative"])
def test_every_channel_is_the_mixture_of_its_own_shares(name):
    a = arguments()
    a = a[~torch.isin(a[:, 0].abs(), torch.tensor(WIDTHS))]  # where the second derivative jumps
    found = getattr(mixture(), name)(a)
    for i in range(4):
        expected = sum(c * getattr(h, name)(a[:, i]) for c, h in single(i))
        torch.testing.assert_close(found[:, i], expected)


def test_one_share_is_a_huber_function():
    h, huber = cl.HuberMixture(WIDTHS).with_shares(SHARES[:1]), cl.Huber(WIDTHS[1])
    a, eta = arguments()[:, :1], torch.tensor(0.7)
    s = a.clamp(-1, 1)
    torch.testing.assert_close(h.conjugate(s), huber.conjugate(s))
    torch.testing.assert_close(h.prox(a, eta), huber.prox(a, eta))
    torch.testing.assert_close(h.fenchel_young(a, s), huber.fenchel_young(a, s))
    z, one = 0.3 * a.flip(0), torch.ones(())
    found, expected = (each.multiplier(a, z, one, 2 * one) for each in (h, huber))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("eta", [0.01, 0.4, 30.0])
def test_proximal_points_satisfy_their_equation(eta):
    """a + eta h'(a) = y, and the other way round from any a."""
    h, a = mixture(), arguments()
    y = a + eta * h.derivative(a)
    torch.testing.assert_close(h.prox(y, torch.tensor(eta)), a, rtol=1e-9, atol=1e-9 * eta)


def test_conjugates_by_brute_force_and_equality_at_slopes():
    h, grid = mixture(), torch.linspace(-1, 1, 400_001)[:, None]
    for s in (-1.0, -0.97, -0.3, 0.0, 1e-6, 0.125, 0.5, 0.999):
        brute = (s * grid - h.value(grid.expand(-1, 4))).amax(0)
        torch.testing.assert_close(h.conjugate(torch.full((1, 4), s))[0], brute, rtol=0, atol=1e-9)
    a = arguments()
    s = h.derivative(a)
    assert float(h.fenchel_young(a, s).abs().max()) < 1e-12
    equality = h.value(a) + h.conjugate(s.clamp(-1, 1)) - s * a
    assert float(equality.abs().max()) < 1e-12


def test_projections_by_brute_force():
    h, t = mixture(), torch.linspace(-2, 2, 100_001)[:, None].expand(-1, 4)
    generator = torch.Generator().manual_seed(0)
    for p, q in (0.5 * torch.randn((12, 2), generator=generator)).tolist():
        a, z = h.project_epigraph(torch.full((1, 4), p), torch.full((1, 4), q))
        assert (h.value(a) <= z + 1e-12).all()
        distances = (t - p).square() + (h.value(t) - q).clamp_min(0).square()
        found = (a - p).square() + (z - q).square()
        torch.testing.assert_close(found[0], distances.amin(0), rtol=1e-6, atol=1e-8)


def test_channels_are_selected_with_their_shares():
    a = arguments()
    part = mixture().select(slice(1, 3)).value(a[:, 1:3])
    assert torch.equal(part, mixture().value(a)[:, 1:3])


@pytest.mark.parametrize("widths", [(), (0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, float("inf"))])
def test_bad_widths_and_levels_are_refused(widths):
    with pytest.raises(ValueError, match="widths that are positive and increase"):
        cl.HuberMixture(widths)
    with pytest.raises(ValueError, match="levels that are positive and increase"):
        NoiseGuide(1, 4, levels=widths)


# Problems


@pytest.mark.parametrize("levels", [None, (0.1,), (0.05, 0.3)])
@pytest.mark.parametrize(("depth", "channels"), [(1, 1), (1, 3), (2, 1)])
def test_solutions_proofs_and_an_independent_solver_agree(levels, depth, channels, tmp_path):
    options = {} if levels is None else {"levels": levels}
    problem = denoising(network(channels, depth=depth, inner_channels=2, **options))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-6, max_iterations=6000))
    verdicts = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    for i in range(2):
        best, _ = optimum(problem.select(torch.tensor([i])))
        slack = 1e-7 * abs(best)  # accuracy of the other solver
        for bound in (float(solution.lower_bound[i]), verdicts[i].lower_bound):
            assert best * (1 - 3e-6) <= bound <= best + slack
        for objective in (float(solution.objective[i]), verdicts[i].objective):
            assert best - slack <= objective <= best * (1 + 3e-6)


def test_a_batch_gives_what_single_images_give():
    problem = denoising(network(levels=(0.1,)), batch=3)
    together = cl.solve(problem, stop=cl.StopWhen(gap=1e-6))
    for i in range(3):
        alone = cl.solve(problem.select(torch.tensor([i])), stop=cl.StopWhen(gap=1e-6))
        torch.testing.assert_close(together.x[i : i + 1], alone.x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("own", [False, True], ids=["one noise level", "a level for each image"])
def test_strips_and_the_one_pass_certificate_give_the_same(own, monkeypatch):
    problem = denoising(network(levels=(0.05, 0.3)), size=(37, 12))
    if own:  # |a| does not depend on the level, so that a batch may have several
        net = ridge(channels=4, kernel=3, smoothing=0.0, levels=(0.05, 0.3))
        net.guide.numbers.data.normal_()
        noise = torch.tensor([0.07, 0.2])
        problem = replace(problem, regularizer=net, noise=noise)
        assert problem.regularizer.output.shape == (2, 4, 1, 1)
    stop = cl.StopWhen(gap=0, max_iterations=20)
    monkeypatch.setattr(extrapolated_iterations, "MEMORABLE", 0)  # strips are not extrapolated
    plain = cl.solve(problem, stop=stop)
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1)
    monkeypatch.setattr(tiled_iterations, "STRIP", 4 * 12 * 16)
    monkeypatch.setattr("convexlift.problems.one_pass.WORTHWHILE", 1)
    monkeypatch.setattr("convexlift.problems.one_pass.CHUNK", 2 * 12 * 16)
    assert OnePass.of(problem.network) is not None
    tiled = cl.solve(problem, stop=stop)
    torch.testing.assert_close(tiled.x, plain.x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(tiled.gap, plain.gap, rtol=1e-6, atol=1e-12)


def test_single_precision_claims_hold_in_double_precision():
    problem = denoising(network()).to(dtype=torch.float32)
    solution = cl.solve(problem)
    better = cl.solve(problem.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-7))
    assert (solution.lower_bound <= better.objective).all()
    assert (better.lower_bound <= solution.objective).all()


def test_bad_shares_are_refused():
    net = network()
    for shares in (-SHARES, 0 * SHARES):
        with pytest.raises(ValueError, match="shares of layer 1 must be nonnegative"):
            net.load_state_dict({**net.state_dict(), "layers.0.shares": shares})
    net.project_()
    assert torch.equal(net.layers[0].shares.detach(), torch.full((4, 4), 0.25))


@pytest.mark.parametrize(
    ("widths", "shares"),
    [([2.0, 1.0], None), ([0.0, 1.0], None), ([1.0, 2.0], [[1, -1]]), ([1.0, 2.0], [[0, 0]]),
     ([1.0, 2.0], [[1, 1, 1]])],
)  # fmt: skip
def test_the_checker_refuses_mixtures_that_are_not_convex(widths, shares):
    with pytest.raises(cl.ProofRejected):
        activation(
            {"HuberMixture": {"widths": widths}},
            None if shares is None else lambda _: np.array(shares, dtype=float),
        )


def test_saved_and_loaded_it_is_the_same_to_the_last_bit(tmp_path):
    for net in (network(), network(levels=(0.05, 0.3))):
        cl.save(net, tmp_path / "net")
        again = cl.load(tmp_path / "net")
        first, second = (cl.solve(denoising(each)) for each in (net, again))
        assert torch.equal(first.x, second.x)
        assert again.layers[0].activation == net.layers[0].activation


# Noise levels


def test_other_noise_levels_are_other_units():
    """R_c(c x) = c^2 R_1(x) where the weights are the same at all levels."""
    net, x, c = network(levels=(0.1,)), torch.rand(1, 1, 9, 12), 2.5
    values = [net.condition(x, level)(level / NOISE * x) for level in (NOISE, c * NOISE)]
    torch.testing.assert_close(values[1], c**2 * values[0])


def test_weights_are_interpolated_in_the_logarithm_and_constant_beyond():
    guide = NoiseGuide(1, 2, levels=(0.01, 0.1, 0.4))
    guide.numbers.data.copy_(torch.tensor([[1.0, 0.0], [3.0, 1.0], [7.0, -1.0]]))
    noise = torch.tensor([0.001, 0.01, 0.1 / 10**0.5, 0.1, 0.2, 0.4, 2.0])
    pictures = torch.zeros(7, 1, 5, 5)
    found = guide(pictures, noise.reshape(-1, 1, 1, 1), torch.ones_like(pictures))[:, :, 0, 0]
    first, second = [1, 1, 2, 3, 5, 7, 7], [0, 0, 0.5, 1, 0, -1, -1]
    torch.testing.assert_close(found, torch.tensor([first, second], dtype=found.dtype).T)


def test_one_noise_level_makes_one_set_of_weights_for_all_images_and_pixels():
    conditioned = network(levels=(0.05, 0.3)).condition(torch.rand(3, 1, 8, 9), NOISE)
    assert conditioned.output.shape == (1, 4, 1, 1)
    assert conditioned.select(torch.tensor([0, 2])).output.shape == (1, 4, 1, 1)


# Training


@pytest.mark.sampled(5)
@pytest.mark.parametrize("levels", [None, (0.05, 0.3)])
@pytest.mark.parametrize(
    "strategy",
    [Implicit(damping=0.0, tolerance=1e-8), ValueFunction(1e-3, gap=1e-11, max_iterations=5000)],
    ids=["implicit", "value function"],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_gradients_agree_with_finite_differences(strategy, levels, depth):
    options = {} if levels is None else {"levels": levels}
    net = network(depth=depth, inner_channels=2, smoothing=0.2 if levels is None else 1, **options)
    net.layers[0].shares.data.copy_(0.2 + torch.rand(4, 4))
    truth = torch.rand(2, 1, 7, 8)
    stop = cl.StopWhen(gap=1e-12, max_iterations=8000)

    def problem() -> cl.VariationalProblem:
        return replace(denoising(net), box=None)

    def loss() -> float:
        return float((cl.solve(problem(), stop=stop).x - truth).square().sum() / 2)

    stated = problem()
    strategy.surrogate(stated, cl.solve(stated, stop=stop), truth).sum().backward()
    learned = [net.layers[0].shares, net.output]
    learned += [net.guide.numbers] if isinstance(net, AdaptiveNetwork) else []
    for parameter in learned:
        direction = torch.randn(parameter.shape)
        found = float((parameter.grad * direction).sum())
        step, ends = 1e-4 / float(direction.norm()), []
        for sign in (1, -1):
            parameter.data.add_(direction, alpha=sign * step)
            ends.append(loss())
            parameter.data.add_(direction, alpha=-sign * step)
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.03, abs=1e-6)


@pytest.mark.slow
def test_training_lowers_the_loss_and_keeps_shares():
    settings = NetworkSettings(
        "ridge", channels=6, kernel=3, padding="reflect", filters=1.0, smoothing=0.2, profiles=5,
        levels=(0.05, 0.3),
    )  # fmt: skip
    net = settings.build((16, 16), 0)
    objective = Bilevel([(GaussianDenoising(0.05, up_to=0.3, box=None), 1.0)], decibels=True)
    options = TrainingOptions(steps=30, learning_rate=5e-2, relative=True, zero_mean=True)
    rows = train(net, objective, BatchSampler(crops(4), 4, fixed=True), options).rows
    first, last = (sum(row["loss"] for row in part) for part in (rows[:5], rows[-5:]))
    assert last < first - 1  # decibels, summed over five steps
    shares = net.layers[0].shares.detach()
    torch.testing.assert_close(shares.sum(1), torch.ones(6, dtype=shares.dtype))
    assert float(shares.min()) >= 0
    assert float(shares[:, 1:].max()) > 0.01  # they start at zero
