"""Objective and certificate in one pass are those of the plain computation, in less memory."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch.utils._python_dispatch import TorchDispatchMode

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense
from convexlift.operators import convolution
from convexlift.problems import one_pass as tiled_objective
from convexlift.problems.certificate import judge
from convexlift.problems.lifting import lift
from convexlift.problems.network_duals import feasible_duals, fitting_duals
from convexlift.problems.one_pass import OnePass, regularizer_at
from convexlift.solvers.primal_dual import lifted_start
from convexlift.solvers.saturated_head import SaturatedHead
from convexlift.tensors import Blocks

BATCH, HEIGHT, WIDTH, CHANNELS = 2, 44, 20, 6
ACTIVATIONS = zoo.NAMED
PADDINGS = ("zero", "reflect", "circular", "replicate")


def problem(activation="huber", padding="reflect", kind="one layer") -> cl.VariationalProblem:
    """Two images of different scales, with pixels unseen and a channel that does not count."""
    torch.manual_seed(1)
    h = ACTIVATIONS[activation]
    first = cl.ConvexLayer(h, channels=CHANNELS, skip=Convolution(1, CHANNELS, 5, padding=padding))
    torch.nn.init.normal_(first.bias, std=0.2)
    layers = [first]
    if kind != "one layer":
        blocks = CHANNELS * (HEIGHT // 4) * (WIDTH // 4)
        head = Chain(AveragePool(4), Dense(blocks, 5, nonnegative=True))
        layers.append(cl.ConvexLayer(cl.SmoothedReLU(), channels=5, previous=head))
        torch.nn.init.normal_(layers[-1].bias, mean=1.0)
    net = cl.InputConvexNetwork(layers, image_size=(HEIGHT, WIDTH))
    torch.nn.init.uniform_(net.output, 0.1, 1.0)
    net.output.data[1] = 0.0
    y = torch.rand(BATCH, 1, HEIGHT, WIDTH) * torch.tensor([0.3, 3.0])[:, None, None, None]
    made = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y),
        regularizer=net,
        weight=0.4,
        operator=cl.Mask(torch.rand(HEIGHT, WIDTH) > 0.2),
        box=(0.0, 4.0),
    ).to(dtype=torch.float64)
    if kind == "weights of pixels":
        head = SaturatedHead.of(made)
        assert head is not None
        return head.problem
    return made


def image_and_duals(stated: cl.VariationalProblem) -> tuple[torch.Tensor, Blocks]:
    """Near the data, and duals of the tangent moved beyond the slopes here and there."""
    with torch.no_grad():
        x = stated.initial_image()
        _, v = lifted_start(stated, lift(stated, pooled=False), x)
        moved = {n: p + 0.5 * p.abs().mean() * torch.randn_like(p) for n, p in v.items()}
    return (x + 0.1 * torch.rand_like(x)).clamp(0, 4), Blocks(moved)


def in_one_pass(monkeypatch, wanted: bool = True) -> None:
    """Strips of 16 rows, the last one shorter, and chunks of a few channels."""
    monkeypatch.setattr(tiled_objective, "WORTHWHILE", 1 if wanted else 10**12)
    monkeypatch.setattr(tiled_objective, "STRIP", 1)
    monkeypatch.setattr(tiled_objective, "CHUNK", 16 * WIDTH * 4)
    monkeypatch.setattr(convolution, "SHARES", 1)
    monkeypatch.setattr(convolution, "FEW_ROWS", 4)


CASES = [
    *((h, "reflect", "one layer") for h in ACTIVATIONS),
    *(("huber", padding, "one layer") for padding in PADDINGS),
    *((h, "zero", "pooled") for h in ("leaky", "smoothed", "softplus", "abs")),
    *((h, "reflect", "weights of pixels") for h in ("leaky", "smoothed", "huber")),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("activation", "padding", "kind"), CASES)
def test_one_pass_gives_the_plain_objective_and_bounds(activation, padding, kind, monkeypatch):
    stated = problem(activation, padding, kind)
    x, duals = image_and_duals(stated)
    with torch.no_grad():
        in_one_pass(monkeypatch, False)
        assert OnePass.of(stated.network) is None
        plain, expected = judge(stated, x, duals)
        in_one_pass(monkeypatch)
        assert OnePass.of(stated.network) is not None
        fast, bounds = judge(stated, x, duals)
        for name in ("objective", "regularizer", "data_term", "prediction", "last"):
            torch.testing.assert_close(getattr(fast, name), getattr(plain, name))
        value, last = regularizer_at(stated.network, x)
        torch.testing.assert_close(value, plain.regularizer)
        if kind == "pooled":
            torch.testing.assert_close(last, plain.last)
        torch.testing.assert_close(stated.objective(x), plain.objective)
        for one, other in zip(fast.layers.z, plain.layers.z, strict=True):
            torch.testing.assert_close(one, other)
        for one, other in ((bounds.everywhere, expected.everywhere), (bounds.near, expected.near)):
            assert (other.gap > 0).all()
            torch.testing.assert_close(one.gap, other.gap, rtol=1e-12, atol=0)
            torch.testing.assert_close(one.data.pixels, other.data.pixels)
            proof = feasible_duals(stated.network, stated.weight, x, one.witness)
            assert proof.keys() == other.witness.keys()
            for block, part in other.witness.items():
                torch.testing.assert_close(proof[block], part)


@pytest.mark.parametrize("kind", ["one layer", "pooled"])
def test_bounds_of_one_pass_hold_in_single_precision(kind, monkeypatch):
    """Whatever the dual variables: random ones, and the best there are."""
    in_one_pass(monkeypatch)
    exact = problem("smoothed", kind=kind)
    best = cl.solve(exact, stop=cl.StopWhen(gap=1e-7, max_iterations=4000, check_every=50))
    stated = exact.to(dtype=torch.float32)
    x, duals = image_and_duals(stated)
    known = Blocks({name: part.float() for name, part in best.duals.items()})
    for v in (duals, known, Blocks({name: 100 * part for name, part in duals.items()})):
        with torch.no_grad():
            evaluation, bounds = judge(stated, x, v)
        lower = evaluation.objective - bounds.everywhere.gap
        assert (lower <= best.objective + 1e-5 * best.objective.abs()).all()
    # The last one is a bound that says something.
    _, bounds = judge(stated, best.x.float(), known)
    assert (bounds.everywhere.gap <= 1e-4 * best.objective.abs()).all()


@pytest.mark.parametrize("kind", ["one layer", "pooled"])
@pytest.mark.parametrize("gap", [1e-2, 1e-4])
def test_solves_stop_at_the_same_check_with_the_same_proof(kind, gap, monkeypatch):
    stated, stop = problem("smoothed", kind=kind), cl.StopWhen(gap=gap)
    in_one_pass(monkeypatch, False)
    plain = cl.solve(stated, stop=stop)
    in_one_pass(monkeypatch)
    fast = cl.solve(stated, stop=stop)
    assert plain.status == fast.status == (cl.Status.CONVERGED,) * BATCH
    assert fast.iterations.tolist() == plain.iterations.tolist()
    assert fast.history["iteration"].tolist() == plain.history["iteration"].tolist()
    torch.testing.assert_close(fast.history["gap"], plain.history["gap"], rtol=1e-5, atol=0)
    # A bound depends on its duals alone: those that are returned prove it, plainly.
    in_one_pass(monkeypatch, False)
    with torch.no_grad():
        evaluation, bounds = judge(stated, stated.initial_image(), fast.duals)
    proved = evaluation.objective - bounds.everywhere.gap
    torch.testing.assert_close(proved, fast.lower_bound, rtol=1e-9, atol=0)
    layer = stated.network.layers[-1]
    t = (stated.weight * stated.network.output).expand(BATCH, *layer.shape)
    last = list(fast.duals.values())[-1]
    assert torch.equal(layer.activation.clip_to_slopes(last, t), last)


@pytest.mark.parametrize("activation", ["huber", "leaky", "group huber"])
@pytest.mark.parametrize("kind", ["one layer", "weights of pixels"])
def test_the_first_duals_are_those_of_the_tangent(activation, kind, monkeypatch):
    if kind == "weights of pixels" and activation.startswith("group"):
        pytest.skip("groups of channels are not pooled")
    stated = problem(activation, kind=kind)
    with torch.no_grad():
        x = stated.initial_image() + 0.1
        network = stated.network
        plain = network.tangent(stated.weight, x, network.forward(x).a)
        in_one_pass(monkeypatch)
        u, v = lifted_start(stated, lift(stated), x)
    assert set(u) == {"x"}
    torch.testing.assert_close(v["v1"], plain.p[0])


class Largest(TorchDispatchMode):
    """The largest tensor that is made, not counting views."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in inputs:
            self.numel = max(self.numel, made.numel())
        return made


@pytest.mark.parametrize("kind", ["one layer", "pooled"])
def test_nothing_as_large_as_the_layer_is_made(kind, monkeypatch):
    stated = problem("leaky", kind=kind)
    x, duals = image_and_duals(stated)
    layer = BATCH * CHANNELS * HEIGHT * WIDTH
    made = []
    for wanted in (False, True):
        in_one_pass(monkeypatch, wanted)
        with torch.no_grad(), Largest() as largest:
            judge(stated, x, duals)
        made.append(largest.numel)
    assert made[0] >= layer
    assert made[1] <= layer / 4


def test_which_networks_have_a_pass(monkeypatch):
    in_one_pass(monkeypatch)
    shape = (1, 32, 32)
    assert OnePass.of(cl.networks.ridge().bind(shape)) is not None
    assert OnePass.of(cl.networks.baseline(image_size=32).bind(shape)) is not None
    assert OnePass.of(cl.networks.convolutional().bind(shape)) is None
    assert OnePass.of(cl.networks.deep(image_size=32).bind(shape)) is None
    strided = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Convolution(1, 2, 3, stride=2))
    assert OnePass.of(cl.InputConvexNetwork([strided]).bind(shape)) is None
    dense = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Dense(32**2, 2))
    assert OnePass.of(cl.InputConvexNetwork([dense], image_size=(32, 32)).bind(shape)) is None
    # A head that sees the image too needs the plain way.
    blocks = Chain(AveragePool(4), Dense(2 * 8**2, 3, nonnegative=True))
    first = cl.ConvexLayer(cl.ReLU(), channels=2, skip=Convolution(1, 2, 3))
    second = cl.ConvexLayer(cl.ReLU(), channels=3, previous=blocks, skip=Dense(32**2, 3))
    both = cl.InputConvexNetwork([first, second], image_size=(32, 32))
    assert OnePass.of(both.bind(shape)) is None


@pytest.mark.parametrize("h", [*zoo.ACTIVATIONS, *zoo.GROUPS.values()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_loss_are_what_they_say(h, dtype):
    torch.manual_seed(0)
    channels = 6
    a = torch.randn(2, channels, 30, 30, dtype=dtype) * 10 ** torch.linspace(-6, 2, 30, dtype=dtype)
    t = torch.rand(1, channels // h.group, 1, 1, dtype=dtype)
    t[:, 0] = 0.0
    p = h.clip_to_slopes(torch.randn_like(a), t)
    value, loss = h.value_and_loss(a, p, t)
    torch.testing.assert_close(value, h.value(a))
    assert (loss >= 0).all()
    assert not loss[:, 0].any()
    a, p, t = a.double(), p.double(), t.double()
    s = p[:, h.group :] / h.spread(t[:, 1:])
    exact = t[:, 1:] * h.fenchel_young(a[:, h.group :], h.clip(s))
    torch.testing.assert_close(loss[:, 1:].double(), exact, rtol=1e-4, atol=1e-6)
    _, none = h.value_and_loss(a, h.spread(t) * h.derivative(a), t)
    assert float(none.max()) <= 1e-11


def test_a_bound_of_the_minimum_counts_every_pixel():
    network = problem("elu").network
    h, w = network.layers[-1].activation, network.output
    losses = w * h.conjugate(torch.zeros_like(w))
    expected = -losses.expand(1, *network.layers[-1].shape).sum((1, 2, 3))
    assert float(expected) < 0
    torch.testing.assert_close(network.minimum_bound(), expected)


def test_distances_are_norms_of_differences():
    torch.manual_seed(0)
    left, right = (Blocks({"v": torch.randn(3, 50, 90, 70), "x": torch.randn(3, 4)}) for _ in "ab")
    for name, norm in (left - right).norms().items():
        torch.testing.assert_close(left.distances(right)[name], norm)


def test_duals_fit_by_their_shapes():
    network = problem("group").network
    x = torch.rand(BATCH, 1, HEIGHT, WIDTH)
    right = Blocks({"v1": torch.zeros(BATCH, CHANNELS, HEIGHT, WIDTH)})
    assert fitting_duals(network, x, right) is right
    assert fitting_duals(network, x, Blocks({"v1": right["v1"][:, :3]})) is None
    assert fitting_duals(network, x, Blocks({"v1,1": right["v1"]})) is None
