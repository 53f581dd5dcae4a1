"""Networks whose weights a guide reads off the data: convex in x, certified, saved."""

from __future__ import annotations

import math

import pytest
import torch
import zoo
from oracle import optimum

import convexlift as cl
from convexlift.networks import AdaptiveNetwork, ConditionedNetwork, Guide, adaptive
from convexlift.problems.lifting import lift
from convexlift.solvers import tiled_iterations
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.tiled_iterations import TiledIterations

NOISE = 0.1


def network(channels: int = 1, smoothing: float = 0.1, **options) -> AdaptiveNetwork:
    """A small network whose guide answers to every pixel."""
    torch.manual_seed(channels)
    net = adaptive(
        in_channels=channels, channels=4, kernel=3, widths=(4, 6), blocks=1, smoothing=smoothing,
        **options,
    )  # fmt: skip
    with torch.no_grad():
        net.output.copy_(1 + torch.rand(4))
        for parameter in net.guide.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape))
    return net


def denoising(batch: int = 2, channels: int = 1, size=(9, 12), **options) -> cl.VariationalProblem:
    torch.manual_seed(0)
    y = torch.rand(batch, channels, *size)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network(channels, **options), weight=1.0, noise=NOISE
    )


class Constant(Guide):
    """The same number everywhere."""

    def __init__(self, number: float, outputs: int = 4) -> None:
        super().__init__()
        self.number, self.in_channels, self.outputs = number, 1, outputs

    def forward(self, picture, noise, seen):
        return picture.new_full((len(picture), self.outputs, *picture.shape[2:]), self.number)


def guided_by(number: float, **options) -> AdaptiveNetwork:
    return AdaptiveNetwork(list(network().layers), Constant(number), **options)


# The regularizer


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_convex_in_x_for_every_y(channels, smoothing):
    net = network(channels, smoothing)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        y, a, b = (torch.randn((2, channels, 7, 10), generator=generator) for _ in range(3))
        convex = net.condition(y, NOISE)
        for share in (0.1, 0.5, 0.8):
            chord = share * convex(a) + (1 - share) * convex(b)
            assert (convex(share * a + (1 - share) * b) <= chord * (1 + 1e-12)).all()


def test_weights_differ_between_pixels_and_are_bounded():
    net = network(floor=0.01)
    weights = net.weights(torch.rand(2, 1, 9, 12), NOISE).detach()
    assert weights.shape == (2, 4, 9, 12)
    assert float(weights.std((2, 3)).min()) > 0
    most = NOISE * net.output.detach()[:, None, None]
    assert (weights >= 0.01 * most * (1 - 1e-12)).all()
    assert (weights <= most * (1 + 1e-12)).all()


def test_the_value_is_the_weighted_sum_of_the_layer():
    net, x, y = network(smoothing=0.0), torch.rand(2, 1, 9, 12), torch.rand(2, 1, 9, 12)
    response = net.layers[0].skip.operator((1, 9, 12))(x).abs()
    expected = (net.weights(y, NOISE) * response).sum((1, 2, 3))
    torch.testing.assert_close(net.condition(y, NOISE)(x), expected)


def deeper() -> list[cl.ConvexLayer]:
    previous = cl.networks.Convolution(4, 4, 3, nonnegative=True)
    second = cl.SmoothedReLU(smoothing=0.2)
    return [
        *network(smoothing=0.1).layers,
        cl.ConvexLayer(second, channels=4, previous=previous, bias=False),
    ]


@pytest.mark.parametrize("layers", ["kinks", "smooth", "two layers", "groups"])
def test_other_noise_levels_are_other_units(layers):
    """With a guide that does not read the level, R(c x; c y, c noise) = c^2 R(x; y, noise)."""
    skip = cl.networks.Convolution(1, 8, 3)
    made = {
        "kinks": list(network(smoothing=0.0).layers),
        "smooth": list(network(smoothing=0.1).layers),
        "two layers": deeper(),
        "groups": [
            cl.ConvexLayer(cl.GroupNorm(2, cl.Huber(0.1)), channels=8, skip=skip, bias=False)
        ],
    }
    net = AdaptiveNetwork(made[layers], Constant(0.3))
    x, y, c = torch.rand(1, 1, 9, 12), torch.rand(1, 1, 9, 12), 2.5
    scaled = net.condition(c * y, c * NOISE)(c * x)
    torch.testing.assert_close(scaled, c**2 * net.condition(y, NOISE)(x))


def test_every_image_may_have_its_noise_level_where_nothing_is_smoothed():
    levels = torch.tensor([0.05, 0.2])
    y, net = torch.rand(2, 1, 9, 12), network(smoothing=0.0)
    together = net.weights(y, levels)
    for i in range(2):
        alone = net.weights(y[i : i + 1], float(levels[i]))
        torch.testing.assert_close(together[i : i + 1], alone)
    with pytest.raises(ValueError, match="one problem for each noise level"):
        network().condition(y, levels)


# Problems


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*zoo.FIDELITIES, "weighted L2"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_solutions_have_the_objective_of_an_independent_solver(name, channels, smoothing):
    data, operator = zoo.fidelity(name, batch=2, channels=channels)
    problem = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=network(channels, smoothing), weight=0.5,
        noise=NOISE, box=(0, 1),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=6000))
    for i in range(2):
        best, _ = optimum(problem.select(torch.tensor([i])))
        slack = 1e-6 * abs(best)  # accuracy of the other solver
        assert float(solution.lower_bound[i]) <= best + slack
        assert best - slack <= float(solution.objective[i]) <= best + 3e-5 * abs(best)


def test_a_deeper_network_has_the_objective_of_an_independent_solver():
    net = AdaptiveNetwork(deeper(), network().guide)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 7, 8)), regularizer=net, weight=1.0, noise=NOISE
    )
    best, _ = optimum(problem)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=6000))
    assert solution.lower_bound <= best * (1 + 1e-6)
    assert solution.objective == pytest.approx(best, rel=3e-5)


def test_behind_a_blur_and_in_tomography():
    torch.manual_seed(0)
    for operator, y in (
        (cl.Blur(torch.full((3, 3), 1 / 9)), torch.rand(1, 1, 8, 8)),
        (cl.ParallelBeam(8, 6, 11), 4 * torch.rand(1, 1, 6, 11)),
    ):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), operator=operator.to(dtype=y.dtype), regularizer=network(),
            weight=1.0, noise=NOISE, box=(0, 1),
        )  # fmt: skip
        best, _ = optimum(problem)
        solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=4000))
        assert solution.lower_bound <= best * (1 + 1e-6)
        assert solution.objective == pytest.approx(best, rel=2e-4)


@pytest.mark.parametrize("method", [cl.PDHG(), cl.LBFGS(), cl.NMAPG(), cl.Subgradient(0.02)])
def test_every_method_descends_to_the_same_bound(method):
    problem = denoising()
    bound = cl.solve(problem, stop=cl.StopWhen(gap=1e-6)).lower_bound
    stop = cl.StopWhen(gap=1e-3, max_iterations=400)
    solution = cl.solve(problem, method=method, stop=stop)
    assert (solution.objective >= bound).all()
    assert (solution.objective <= bound * 1.01).all()


def test_a_batch_gives_what_single_images_give():
    together = cl.solve(denoising(batch=3), stop=cl.StopWhen(gap=1e-4))
    whole = denoising(batch=3)
    for i in range(3):
        alone = cl.solve(whole.select(torch.tensor([i])), stop=cl.StopWhen(gap=1e-4))
        torch.testing.assert_close(together.x[i : i + 1], alone.x, rtol=1e-9, atol=1e-9)
        assert together.gap[i] <= 1e-4


def test_a_state_continues():
    problem = denoising()
    first = cl.solve(problem, stop=cl.StopWhen(gap=0, max_iterations=20))
    more = cl.solve(problem, start=first.state, stop=cl.StopWhen(gap=0, max_iterations=20))
    assert (more.gap < first.gap).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_single_precision_claims_hold_in_double_precision(smoothing):
    problem = denoising(smoothing=smoothing).to(dtype=torch.float32)
    solution = cl.solve(problem)
    better = cl.solve(problem.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-7))
    assert (solution.lower_bound <= better.objective).all()
    assert (better.lower_bound <= solution.objective).all()


# Implementations of an iteration


def iterates(problem, kind, count):
    solver = RestartedPDHG(problem, lift(problem))
    saddle = lift(problem)
    made = kind(saddle, Coupling(saddle))
    solver.iterations = made
    return solver.advance(solver.start(problem.initial_image()), count)


@pytest.mark.parametrize("count", [1, 23])
def test_strips_give_the_same_iterates(count, monkeypatch):
    monkeypatch.setattr(tiled_iterations, "WORTHWHILE", 1)
    monkeypatch.setattr(tiled_iterations, "STRIP", 4 * 12 * 5)
    problem = denoising(size=(37, 12))
    plain, strips = (iterates(problem, kind, count) for kind in (Iterations, TiledIterations))
    for name, part in plain.v.items():
        torch.testing.assert_close(strips.v[name], part, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(strips.x, plain.x, rtol=1e-8, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "shared weights"])
def test_kernels_give_the_same_iterates(shared):
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = denoising().to(device=device, dtype=torch.float32)
    if shared:  # one set of weights for all images
        bound = problem.network
        problem = problem.with_network(type(bound)(bound.layers, bound.output[:1]))

    def in_kernels(saddle, coupling):
        return FusedIterations(saddle, coupling, interpreted=device == "cpu")

    with torch.no_grad():
        double = problem.to(dtype=torch.float64)
        plain, fused = iterates(double, Iterations, 6), iterates(problem, in_kernels, 6)
    torch.testing.assert_close(fused.x.double(), plain.x, rtol=1e-5, atol=1e-6)
    for name, part in plain.v.items():
        torch.testing.assert_close(fused.v[name].double(), part, rtol=1e-5, atol=1e-6)


# Proofs and files


def test_a_proof_is_confirmed_and_a_changed_weight_is_not(tmp_path):
    import safetensors.numpy

    solution = cl.solve(denoising())
    path = solution.proof.save(tmp_path / "x.proof")
    verdicts = cl.verify(path)
    assert [v.gap <= 1e-3 for v in verdicts] == [True, True]
    content = safetensors.numpy.load(path.read_bytes())
    assert content["network.output"].shape == (2, 4, 9, 12)
    raw = bytearray(path.read_bytes())
    raw[raw.rfind(content["network.output"].tobytes())] ^= 1
    (tmp_path / "y.proof").write_bytes(raw)
    with pytest.raises(cl.ProofRejected):
        cl.verify(tmp_path / "y.proof")


def test_saved_and_loaded_it_is_the_same_to_the_last_bit(tmp_path):
    net, y = network(channels=3), torch.rand(1, 3, 9, 12)
    cl.save(net, tmp_path / "net")
    again = cl.load(tmp_path / "net")
    assert isinstance(again, AdaptiveNetwork)
    assert torch.equal(again.weights(y, NOISE), net.weights(y, NOISE))
    assert again.layers[0].activation == net.layers[0].activation


def test_the_network_of_certain_data_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="save the adaptive network"):
        cl.save(network().condition(torch.rand(1, 1, 8, 8), NOISE), tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_a_guide_of_ones_own_needs_a_name_in_files(tmp_path):
    with pytest.raises(ValueError, match="Constant is not registered for files"):
        cl.save(guided_by(0.0), tmp_path / "net")


# Guides at their limits, and bad input


@pytest.mark.parametrize("number", [-math.inf, -1e4, 0.0, 1e4, math.inf])
def test_weights_stay_in_their_bounds_whatever_the_guide_says(number):
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 9, 12)), regularizer=guided_by(number, floor=0.01),
        weight=1.0, noise=NOISE,
    )  # fmt: skip
    share = problem.regularizer.output / (NOISE * guided_by(0.0).output[:, None, None])
    expected = 0.01 + 0.99 * float(torch.sigmoid(torch.tensor(number))) ** 2
    torch.testing.assert_close(share, torch.full_like(share, expected))
    assert cl.solve(problem).status == (cl.Status.CONVERGED,)


def test_a_guide_that_returns_nan_is_an_error():
    with pytest.raises(ValueError, match="weights that are not finite"):
        guided_by(math.nan).condition(torch.rand(1, 1, 8, 8), NOISE)


@pytest.mark.parametrize("noise", [0.0, -1.0, 1e-200, 1e200, math.nan, math.inf, torch.ones(3)])
def test_bad_noise_levels_are_refused(noise):
    with pytest.raises(ValueError, match="noise must be a positive number"):
        network().condition(torch.rand(2, 1, 8, 8), noise)


def test_noise_that_is_not_a_number_is_refused():
    with pytest.raises(TypeError, match=r"noise must be a number or a tensor, got '0\.1'"):
        network().condition(torch.rand(1, 1, 8, 8), "0.1")


def test_problems_say_what_is_missing_or_too_much():
    y = torch.rand(1, 1, 8, 8)
    with pytest.raises(ValueError, match="give noise="):
        cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network(), weight=1.0)
    with pytest.raises(ValueError, match="leave it out"):
        cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(), weight=1.0, noise=NOISE
        )
    with pytest.raises(ValueError, match="reads its weights off the data"):
        network()(y)
    with pytest.raises(ValueError, match=r"\(batch, 1, H, W\), got \(1, 3, 8, 8\)"):
        network().condition(y.expand(-1, 3, -1, -1), NOISE)
    with pytest.raises(ValueError, match=r"picture for the guide is nan at \(0, 0, 2, 3\)"):
        network().condition(
            y.index_put((*map(torch.tensor, (0, 0, 2, 3)),), y.new_tensor(math.nan))
        )
    with pytest.raises(ValueError, match="condition the network on their data"):
        network().condition(y, NOISE)(torch.rand(1, 1, 9, 9))


def test_networks_that_do_not_fit_their_guide_are_refused():
    layers = list(network().layers)
    with pytest.raises(ValueError, match="gives 5 numbers"):
        AdaptiveNetwork(layers, Constant(0.0, outputs=5))
    with pytest.raises(ValueError, match=r"floor must be in \(0, 1\]"):
        guided_by(0.0, floor=0.0)
    skip = cl.networks.Convolution(1, 4, 3)
    with pytest.raises(ValueError, match="no biases"):
        AdaptiveNetwork([cl.ConvexLayer(cl.Abs(), channels=4, skip=skip)], Constant(0.0))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 17)])
def test_every_image_size_works(size):
    y = torch.rand(1, 1, *size)
    net = adaptive(channels=4, kernel=3, padding="replicate", widths=(4, 6, 8), blocks=1)
    assert net.condition(y, NOISE)(y).shape == (1,)


def test_the_conditioned_network_shares_its_filters():
    net = network()
    conditioned = net.condition(torch.rand(1, 1, 8, 8), NOISE)
    assert isinstance(conditioned, ConditionedNetwork)
    assert conditioned.layers[0].skip is net.layers[0].skip


def test_reconstruct_states_the_noise_to_the_guide():
    net, y = network().float(), torch.rand(1, 1, 24, 20).float()
    result = cl.reconstruct(y, task="denoise", regularizer=net, sigma=NOISE, noise="gaussian")
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, noise=NOISE, box=(0, 1)
    )
    expected = cl.solve(problem)
    assert result.weight.value == 1.0
    torch.testing.assert_close(result.x.reshape(expected.x.shape), expected.x)


def test_a_folder_with_two_noise_levels_makes_two_batches(tmp_path):
    from convexlift.images import save_image

    clean = torch.rand(1, 1, 24, 20).float()
    for i, sigma in enumerate((0.02, 0.2)):
        save_image(tmp_path / f"{i}.png", (clean + sigma * torch.randn(clean.shape)).clamp(0, 1))
    sources = cl.reconstruction.find_sources([str(tmp_path)], tmp_path / "out", [".png"])
    options = cl.reconstruction.reconstructor_for(
        "denoise", regularizer=network().float(), noise="gaussian", batch=4
    )
    result = cl.reconstruction.reconstruct_files(sources, options)
    assert result.failures == []
    assert len(list((tmp_path / "out").glob("*.png"))) == 2
