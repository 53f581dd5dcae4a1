"""Guides that give biases and link weights beside output weights, or instead of them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import proof_files
import pytest
import torch
import torch.nn.functional as F
from checked_proofs import confirm
from oracle import optimum
from test_adaptive import Constant
from test_adaptive_problems import (
    NOISE,
    SEEN,
    SHAPE,
    TERMS,
    Scattered,
    agree,
    layers,
    problem,
    wild_duals_stay_below,
)

import convexlift as cl
from convexlift.networks import AdaptiveNetwork, AveragePool, Convolution, NoiseGuide, UNetGuide
from convexlift.networks.adaptive import PREMISE, Weakened, places_read
from convexlift.operators.imaging import Diagonal
from convexlift.operators.linear import lanczos_norm
from convexlift.problems import one_pass
from convexlift.problems.lifting import lift
from convexlift.proof_checker import ProofRejected, verify
from convexlift.solvers import tiled_iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.saturated_head import SaturatedHead

ALL = ("output", "biases", "links")
READS = [("biases",), ("links",), ("output", "biases"), ALL]
NEAR = cl.StopWhen(gap=2e-4, max_iterations=4000)
CASES = [
    ("pooled", ("bias_1", "bias_2")),
    ("pooled", ("links",)),
    ("linked", ("bias_3", "link_3_1")),
    ("mixture", ("output", "biases")),
    ("groups", ("biases",)),
    ("huber", ("biases",)),
    *((kind, reads) for kind in ("two layers", "residual", "linked") for reads in READS),
]


def stack(kind: str = "two layers", channels: int = 1) -> list[cl.ConvexLayer]:
    """Layers whose units are switched on and off by biases."""
    if kind not in ("linked", "pooled"):
        return layers(kind, channels)
    made, maps = layers("two layers", channels), Convolution(4, 4, 3, nonnegative=True)
    third = partial(cl.ConvexLayer, cl.SmoothedReLU(smoothing=0.1), channels=4, bias=False)
    if kind == "pooled":
        return [*made, third(previous=cl.networks.Chain(AveragePool(2), maps))]
    link = {1: Convolution(4, 4, 1, nonnegative=True)}
    return [*made, third(previous=maps, skip=Convolution(channels, 4, 3), links=link)]


def network(
    kind: str = "two layers", reads: tuple[str, ...] = ALL, channels: int = 1, guide=None,
    **options,
) -> AdaptiveNetwork:  # fmt: skip
    """A network whose weights, biases and factors differ between neighbouring pixels."""
    made = stack(kind, channels)
    outputs = sum(place.channels for place in places_read(made, reads))
    guide = (guide or Scattered)(channels, outputs)
    net = AdaptiveNetwork(made, guide, in_channels=channels, reads=reads, **options)
    with torch.no_grad():
        net.output.copy_(torch.tensor([3.0, 1.0, 2.0, 0.0]))
        for layer in made[1:]:
            for parameter in layer.parameters():
                parameter.mul_(3)
    return net


def u_net(in_channels: int, outputs: int) -> UNetGuide:
    torch.manual_seed(3)
    guide = UNetGuide(in_channels, outputs, widths=(3, 4), blocks=1)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return guide


by_noise = partial(NoiseGuide, levels=[0.01, 1.0])


# The regularizer


def test_the_value_is_that_of_the_formula():
    net, x, y = network(), torch.rand(2, *SHAPE), torch.rand(2, *SHAPE)
    first, second = net.layers
    read = net.readings(y, NOISE)
    assert list(read) == ["output", "bias_1", "bias_2", "link_2_1"]
    assert {tuple(each.shape) for each in read.values()} == {(2, 4, *SHAPE[1:])}
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    a = F.conv2d(padded, first.skip.weight) + read["bias_1"]
    z = cl.Huber(0.3 * NOISE).value(a) * read["link_2_1"]
    a = F.conv2d(z, second.previous.weight, padding=1) + read["bias_2"]
    expected = (read["output"] * F.relu(a)).sum((1, 2, 3))
    torch.testing.assert_close(net.condition(y, NOISE)(x), expected)


@pytest.mark.parametrize("number", [-math.inf, -1e4, 0.0, 1e4, math.inf])
def test_everything_stays_in_its_bounds_whatever_the_guide_says(number, tmp_path):
    net = network(guide=lambda _, n: Constant(number, n), floor=0.01, largest_bias=2.0)
    read = net.condition(torch.rand(1, *SHAPE), NOISE).readings
    share = 0.01 + 0.99 * float(torch.sigmoid(torch.tensor(number))) ** 2
    for name, bounded in (("bias_1", 2 * NOISE * math.tanh(number)), ("link_2_1", share)):
        torch.testing.assert_close(read[name], torch.full_like(read[name], bounded))
    agree(problem(regularizer=net, batch=1), tmp_path)


def test_a_guide_that_returns_nan_is_an_error():
    with pytest.raises(ValueError, match="the guide gave weights that are not finite"):
        problem(regularizer=network(guide=lambda _, n: Constant(math.nan, n)))


@pytest.mark.parametrize(("kind", "reads"), CASES, ids=str)
def test_objectives_are_convex_in_x_for_every_y(kind, reads):
    generator = torch.Generator().manual_seed(1)
    one = problem("mask", regularizer=network(kind, reads), box=None)
    for size in (1e-3, 0.3, 3.0):
        a = torch.rand((2, *SHAPE), generator=generator)
        b = a + size * torch.randn(a.shape, generator=generator)
        for share in (0.2, 0.5):
            chord = share * one.objective(a) + (1 - share) * one.objective(b)
            assert (one.objective(share * a + (1 - share) * b) <= chord * (1 + 1e-12)).all()


@pytest.mark.parametrize("kind", ["two layers", "linked"])
def test_other_noise_levels_are_other_units(kind):
    """With a guide that does not read the level, R(c x; c y, c noise) = c^2 R(x; y, noise)."""
    net = network(kind, guide=lambda _, n: Constant(0.3, n))
    x, y, c = torch.rand(1, *SHAPE), torch.rand(1, *SHAPE), 2.5
    scaled = net.condition(c * y, c * NOISE)(c * x)
    torch.testing.assert_close(scaled, c**2 * net.condition(y, NOISE)(x))


# The optimum, the bound and the checker


@pytest.mark.sampled(37)
@pytest.mark.parametrize("reads", READS, ids=str)
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("operator", SEEN)
def test_the_bound_is_below_the_optimum_and_the_checker_agrees(operator, term, reads, tmp_path):
    whole = problem(operator, term, regularizer=network(reads=reads))
    assert whole.regularizer.premise == PREMISE
    solution = cl.solve(whole, stop=NEAR)
    confirm(whole, solution.proof.claim, tmp_path / "x.proof")
    for i in range(2):
        best, _ = optimum(whole.select(torch.tensor([i])))
        slack = 1e-6 * abs(best)  # accuracy of the other solver
        assert float(solution.lower_bound[i]) <= best + slack
        assert best - slack <= float(solution.objective[i]) <= best + 3e-4 * abs(best)
    wild_duals_stay_below(whole.select(torch.tensor([1])), best, solution.x[1:])


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("kind", "reads"), CASES, ids=str)
def test_other_networks(kind, reads, tmp_path):
    one = problem("mask", regularizer=network(kind, reads), batch=1)
    read = {place.name for place in places_read(list(one.regularizer.layers), reads)}
    assert {*one.regularizer.readings} == {"output", *read}
    pooled = [names for names, term in lift(one).f if term.pooled]
    assert pooled == ([("v2,1", "v2,2")] if reads == ("bias_1", "bias_2") else [])
    agree(one, tmp_path)


@pytest.mark.parametrize("method", [cl.PDHG(), cl.LBFGS(), cl.NMAPG(), cl.Subgradient(0.02),
                                    cl.PDHG(cl.PaperSteps((0.1, 0.1)))])  # fmt: skip
def test_every_method_descends_to_the_same_bound(method):
    torch.manual_seed(0)
    net = cl.networks.adaptive(
        channels=4, kernel=3, widths=(4,), blocks=1, smoothing=0.5, depth=2, reads=ALL
    )
    one = problem(regularizer=net, box=None)
    bound = cl.solve(one, stop=cl.StopWhen(gap=1e-6)).lower_bound
    solution = cl.solve(one, method=method, stop=cl.StopWhen(gap=1e-3, max_iterations=600))
    assert (solution.objective >= bound).all()
    assert (solution.objective <= bound * 1.01).all()


def test_the_last_layer_is_left_out_where_all_of_its_units_are_on(tmp_path):
    """Only factors of links: h_1 >= 0, so that the second layer is linear where x is not flat."""
    one = problem(regularizer=network(reads=("links",)), batch=2)
    head = SaturatedHead.of(one)
    link, weight = one.regularizer.link_2_1, one.regularizer.layers[1].previous.weight
    by_hand = F.conv_transpose2d(one.network.output.expand(2, 4, 8, 8), weight, padding=1) * link
    torch.testing.assert_close(head.problem.network.output, by_hand)
    agree(one.select(torch.tensor([0])), tmp_path)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_single_precision_claims_hold_in_double_precision(smoothing):
    torch.manual_seed(1)
    net = cl.networks.adaptive(
        channels=4, kernel=3, widths=(4,), blocks=1, smoothing=smoothing, depth=2, reads=ALL
    )
    one = problem(regularizer=net).to(dtype=torch.float32)
    solution = cl.solve(one)
    better = cl.solve(one.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-7))
    assert (solution.lower_bound <= better.objective).all()
    assert (better.lower_bound <= solution.objective).all()


# Batches, starts, and guides that read the noise only


def test_a_batch_gives_what_single_images_give():
    """Images with small and with large factors of their links have the same steps."""
    net = network(reads=("output", "links"))
    whole = problem(regularizer=net, batch=3)
    together = cl.solve(whole, stop=cl.StopWhen(gap=1e-4))
    for i in range(3):
        one = whole.select(torch.tensor([i]))
        assert torch.equal(one.regularizer.link_2_1, whole.regularizer.link_2_1[i : i + 1])
        alone = cl.solve(one, stop=cl.StopWhen(gap=1e-4))
        torch.testing.assert_close(together.x[i : i + 1], alone.x, rtol=1e-9, atol=1e-9)


def test_steps_do_not_depend_on_the_factors_of_other_images():
    map_ = network().layers[1].previous.operator((4, 8, 8))
    for factors in (torch.rand(3, 4, 8, 8), torch.full((1, 4, 8, 8), 1e-3)):
        weakened = Weakened((map_, Diagonal(factors)))
        assert weakened.norm((4, 8, 8)) == map_.norm((4, 8, 8))
        assert lanczos_norm(weakened, (4, 8, 8)) <= map_.norm((4, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two layers", "linked"])
def test_warm_starts_reach_the_same_optimum(kind):
    whole = problem("parallel beam", regularizer=network(kind))
    first = cl.solve(whole, stop=NEAR)
    for start in (first.x, first.state, torch.zeros_like(first.x)):
        again = cl.solve(whole, start=start, stop=NEAR)
        assert (again.lower_bound <= first.objective).all()
        assert (first.lower_bound <= again.objective).all()
        assert (again.gap <= 2e-4).all()


def test_guides_that_read_the_noise_only_give_numbers_for_each_channel(tmp_path):
    net = network("linked", guide=by_noise)
    with torch.no_grad():
        net.guide.numbers.copy_(torch.randn(net.guide.numbers.shape))
    one = problem(regularizer=net, batch=1)
    assert {tuple(read.shape) for read in one.regularizer.readings.values()} == {(1, 4, 1, 1)}
    assert one.regularizer.premise == ""
    agree(one, tmp_path)
    (verdict,) = cl.verify(cl.solve(one).proof.save(tmp_path / "y.proof"))
    assert verdict.premise == ""


def test_images_of_a_batch_have_their_own_noise_levels():
    levels = torch.tensor([0.05, 0.4])
    y = torch.rand(2, *SHAPE)
    made = [*layers("abs"), stack()[1]]
    for kind in (u_net, by_noise):
        net = AdaptiveNetwork(made, kind(1, 16), reads=ALL)
        whole = net.condition(y, levels).readings
        for i in range(2):
            alone = net.condition(y[i : i + 1], float(levels[i])).readings
            for name, read in alone.items():
                torch.testing.assert_close(whole[name][i : i + 1], read, rtol=1e-12, atol=1e-14)


# Variants of the iterations and of the certificate


@pytest.mark.parametrize("guide", [Scattered, by_noise], ids=["pixels", "noise"])
@pytest.mark.parametrize("kind", ["huber", "groups"])
def test_strips_give_the_same_iterates_and_the_same_certificate(guide, kind, monkeypatch):
    torch.manual_seed(0)
    y = torch.rand(2, 1, 37, 12)
    regularizer = network(kind, ("output", "biases"), guide=guide)
    whole = cl.VariationalProblem(
        fidelity=cl.L1(y), regularizer=regularizer, weight=1.0, noise=NOISE
    )
    found = []
    for worthwhile in (10**9, 1):
        for module in (tiled_iterations, one_pass):
            monkeypatch.setattr(module, "WORTHWHILE", worthwhile)
            monkeypatch.setattr(module, "STRIP", 4 * 12 * 5)
        solver = RestartedPDHG(whole, lift(whole))
        tiled = isinstance(solver.iterations, tiled_iterations.TiledIterations)
        assert tiled == (one_pass.OnePass.of(whole.network) is not None) == (worthwhile == 1)
        state = solver.advance(solver.start(whole.initial_image()), 23)
        found.append((state.x, *state.v.values(), cl.certify(whole, state.x, state.v).gap))
    for plain, strips in zip(*found, strict=True):
        torch.testing.assert_close(strips, plain, rtol=1e-7, atol=1e-9)


def test_kernels_take_biases_of_channels_and_of_pixels():
    pytest.importorskip("triton")
    from convexlift.solvers.fused_kernels import FirstLayer

    for reads, guide, biased in (
        (("biases",), Scattered, True), (("output",), Scattered, False), (ALL[:2], by_noise, False)
    ):  # fmt: skip
        net = network("huber", reads, guide=guide)
        asked = problem(regularizer=net).to(dtype=torch.float32)
        layer = FirstLayer.of(lift(asked))
        assert layer.bias.shape == ((len(asked.fidelity.y), 4, *SHAPE[1:]) if biased else (4,))


# Files and proofs


@pytest.mark.parametrize("reads", READS, ids=str)
def test_a_loaded_network_gives_the_same_solution_to_the_last_bit(reads, tmp_path):
    net = network("linked", reads, guide=u_net, largest_bias=1.5)
    cl.save(net, tmp_path / "net")
    again = cl.load(tmp_path / "net")
    assert (again.reads, again.largest_bias) == (reads, 1.5)
    short = cl.StopWhen(max_iterations=60)
    first, second = (cl.solve(problem(regularizer=each), stop=short) for each in (net, again))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.lower_bound, second.lower_bound)


def test_files_of_output_weights_alone_are_as_they_always_were():
    names = ["layers", "guide", "in_channels", "floor", "ceiling"]
    assert list(cl.networks.adaptive().arguments()) == names


def test_proofs_with_other_numbers_are_refused_by_name(tmp_path):
    whole = problem(regularizer=network())
    head, arrays = proof_files.contents(whole, proof_files.evidence(whole))
    verdicts = verify(proof_files.store(tmp_path / "a.proof", head, arrays))
    assert {verdict.premise for verdict in verdicts} == {PREMISE}
    link, bias = arrays["network.link_2_1"], arrays["network.bias_1"]

    def changed(values, number):
        other = values.copy()
        other[1, 2, 3, 4] = number
        return other

    for name, other, reason in [
        ("link_2_1", changed(link, -1e-300), "previous has negative weights"),
        ("link_2_1", changed(link, np.nan), "'network.link_2_1' must hold finite numbers"),
        ("link_2_1", link[:, :, :-1], "does not fit"),
        ("link_2_1", link[:1], "claims"),  # those of the first image for both
        ("link_2_1", link / 2, "claims"),
        ("link_1_0", link, r"\['network.link_1_0'\] have no meaning"),
        ("bias_1", changed(bias, np.inf), "'network.bias_1' must hold finite numbers"),
        ("bias_1", bias[:, :3], "does not fit"),
        ("bias_1", -bias, "claims"),
        ("bias_3", bias, r"\['network.bias_3'\] have no meaning"),
        ("layers.0.bias", bias[0, :, 0, 0], r"\['network.layers.0.bias'\] have no meaning"),
    ]:
        wrong = {**arrays, f"network.{name}": np.ascontiguousarray(other)}
        file = proof_files.store(tmp_path / "b.proof", proof_files.complete(head, wrong), wrong)
        with pytest.raises(ProofRejected, match=reason):
            verify(file)


# Bad input


def test_what_does_not_fit_is_refused():
    made = stack()
    known = "one or several of output, biases, links, bias_1, bias_2, link_2_1; got "
    for reads in ((), ("weights",), "biases", ("output", "bias_3"), ("link_1_2",)):
        with pytest.raises(ValueError, match=known):
            AdaptiveNetwork(made, Scattered(), reads=reads)
    with pytest.raises(ValueError, match=r"several of output, biases, bias_1; got \('links'"):
        cl.networks.adaptive(channels=4, reads=("links",))
    with pytest.raises(ValueError, match=r"gives 4 numbers .* needs 16 for its output, bia"):
        AdaptiveNetwork(made, Scattered(), reads=ALL)
    with pytest.raises(ValueError, match="needs largest_bias > 0"):
        network(largest_bias=0.0)
    with pytest.raises(ValueError, match="pixels of layer 3, which must be as large as the image"):
        network("pooled", ("biases",))
    with pytest.raises(ValueError, match="depth must be at least 1"):
        cl.networks.adaptive(depth=0)
    conditioned = network(reads=("biases",)).condition(torch.rand(1, *SHAPE), NOISE)
    with pytest.raises(ValueError, match="condition the network on their data"):
        conditioned(torch.rand(1, 1, 9, 9))
    conditioned = network(reads=("links",)).condition(torch.rand(1, *SHAPE), NOISE)
    for number in (-1e-9, 1.1, math.nan):
        with torch.no_grad():
            conditioned.link_2_1[0, 1, 2, 3] = number
        with pytest.raises(ValueError, match="link_2_1 of the network"):
            conditioned.check_convexity()


def test_only_output_weights_make_a_map():
    y = torch.rand(1, *SHAPE)
    assert network(reads=("biases", "links")).condition(y, NOISE).weight_map is None
    assert network().condition(y, NOISE).weight_map.shape == (1, 1, *SHAPE[1:])
