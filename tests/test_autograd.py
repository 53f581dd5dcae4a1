"""Gradients through ``solve``: gradcheck, and finite differences at kinks."""

from __future__ import annotations

import pytest
import torch
from learned_problems import SIZE, kernel, pixels, ridge, state_of
from marks import slow
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

import convexlift as cl

EXACT = cl.Implicit(damping=0.0, iterations=1000, tolerance=1e-12)
KINKS = cl.ValueFunction(b=1e-5, gap=None, max_iterations=10_000)
TWO_LAYERS = {"depth": 2, "inner_channels": 2, "reads": ("output", "biases", "links")}
SHARP = cl.StopWhen(gap=1e-10, max_iterations=20_000)


class Model(nn.Module):
    """Data, the weight and a number of the operator or data term -> reconstructions."""

    def __init__(self, state, net, **options):
        super().__init__()
        self.net, self.state, self.options = net, state, {"stop": SHARP, **options}

    def forward(self, y, weight, *others):
        fidelity, operator, box = self.state(y, *others)
        problem = cl.VariationalProblem(
            fidelity=fidelity, operator=operator, regularizer=self.net, weight=weight, box=box
        )
        return cl.solve(problem, differentiable=True, **self.options).x


def check(model, weight=0.5, others=(), y=None, **tolerances):
    """gradcheck in the data, the weight, the others, and two parameters of the network."""
    learned = ["output", "layers.0.skip.weight", "layers.0.shares"]
    known = dict(model.net.named_parameters())
    names = [f"net.{name}" for name in learned if name in known]
    parameters = [model.get_parameter(name).detach().clone() for name in names]
    inputs = [pixels() if y is None else y, torch.tensor(weight), *others, *parameters]
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]

    def call(*tensors):
        data, parameters = tensors[: -len(names)], tensors[-len(names) :]
        return functional_call(model, dict(zip(names, parameters, strict=True)), data)

    assert gradcheck(call, inputs, fast_mode=True, **{"eps": 1e-5, "atol": 1e-5, **tolerances})


MASK = torch.ones(SIZE, SIZE, dtype=torch.float64)
MASK[1, 2] = MASK[4, 3] = 0
RAYS = cl.ParallelBeam(SIZE, 7, 9).to(dtype=torch.float64)


class Echo(cl.LinearOperator):
    """A x = x + share S x, with the shift S by one column on the torus."""

    def __init__(self, share: torch.Tensor) -> None:
        self.share = share

    def forward(self, x):
        return x + self.share * x.roll(1, -1)

    def adjoint(self, y):
        return y + self.share * y.roll(-1, -1)


SMOOTH = {
    "L2": (lambda y: (cl.SquaredL2(y), cl.Identity(), None), ()),
    "L2 in a box": (lambda y: (cl.SquaredL2(y), cl.Identity(), (0.4, 0.6)), ()),
    "weighted L2, learned weights": (
        lambda y, omega: (cl.WeightedL2(y, omega), cl.Identity(), None), [1 + pixels()]
    ),
    "KL, learned background": (
        lambda y, r: (cl.KullbackLeibler(y, r), cl.Identity(), (0, None)), [torch.tensor(0.1)]
    ),
    "masked L2": (lambda y: (cl.SquaredL2(y), cl.Mask(MASK), (0, 1)), ()),
    "blurred L2, learned kernel": (
        lambda y, k: (cl.SquaredL2(y), cl.Blur(k), None), [kernel()]
    ),
    "blurred KL, learned kernel": (
        lambda y, k: (cl.KullbackLeibler(y, 0.1), cl.Blur(k), (0, None)), [kernel()]
    ),
    "circular blur": (lambda y, k: (cl.SquaredL2(y), cl.Blur(k, "circular"), None), [kernel()]),
    "a user's operator": (
        lambda y, share: (cl.SquaredL2(y), Echo(share), (0, 1)), [torch.tensor(0.3)]
    ),
    "operators composed": (
        lambda y, k: (cl.SquaredL2(y), 2 * cl.Mask(MASK) @ cl.Blur(k), (0, 1)), [kernel()]
    ),
    "rays": (lambda y: (cl.SquaredL2(y), RAYS, None), ()),
}  # fmt: skip


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_with_smooth_networks(name):
    state, others = SMOOTH[name]
    y = RAYS(pixels()) if name == "rays" else None
    # Rounding is bounded less tightly for an operator of which only products are known.
    stop = cl.StopWhen(gap=1e-7) if "user" in name else SHARP
    atol = 1e-3 if "user" in name else 1e-5
    # Unseen pixels are known to 1e-8 at this gap, so that differences need longer steps.
    eps = 1e-3 if name == "masked L2" else 1e-6
    model = Model(state, ridge(), hypergradient=EXACT, stop=stop)
    check(model, others=others, y=y, atol=atol, eps=eps)


def test_gradients_reach_the_shares_of_profiles():
    net = cl.networks.ridge(channels=2, kernel=3, profiles=3, smoothing=0.2)
    net.layers[0].shares.data.copy_(torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]))
    check(Model(lambda y: (cl.SquaredL2(y), cl.Identity(), None), net, hypergradient=EXACT),
          eps=1e-6)  # fmt: skip


@pytest.mark.slow
def test_pixels_that_an_l1_term_holds_move_with_the_data():
    # Objectives in double precision do not tell images apart that differ by 1e-8, so that
    # solutions are known to this only, and differences need longer steps.
    tolerances = {"eps": 1e-4, "atol": 1e-4}
    model = Model(lambda y: (cl.L1(y), cl.Identity(), (0, 1)), ridge(), hypergradient=EXACT)
    check(model, weight=4.0, **tolerances)
    y = pixels().requires_grad_()
    x = model(y, 4.0)
    held = x == y
    assert 0.1 < float(held.double().mean()) < 0.9
    masked = Model(lambda y: (cl.L1(y), 2 * cl.Mask(MASK), (0, 1)), ridge(), hypergradient=EXACT)
    check(masked, weight=4.0, y=2 * MASK * pixels(), **tolerances)


KINKED = {
    "L2": (SMOOTH["L2"][0], (), 0.5),
    "L2 in a box": (SMOOTH["L2 in a box"][0], (), 0.5),
    "KL, learned background": (*SMOOTH["KL, learned background"], 0.5),
    "L1": (lambda y: (cl.L1(y), cl.Identity(), (0, 1)), (), 1.9),
    "blurred L2, learned kernel": (*SMOOTH["blurred L2, learned kernel"], 0.2),
    "masked L2": (SMOOTH["masked L2"][0], (), 0.2),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KINKED)
def test_gradients_with_kinks(name):
    state, others, weight = KINKED[name]
    model = Model(state, ridge(smoothing=0.0), hypergradient=KINKS)
    check(model, weight=weight, others=others, eps=1e-5, atol=2e-3, rtol=2e-3)


def test_images_that_kinks_hold_against_a_pull_do_not_bend():
    """No warning, which would be an error here: what is left of x_b - x are errors of solves."""
    model = Model(KINKED["L1"][0], ridge(smoothing=0.0), hypergradient=KINKS)
    y, weight = pixels().flip(2, 3).requires_grad_(), torch.tensor(3.0)
    slope, direction = torch.linspace(-1, 1, y.numel()).reshape(y.shape), torch.randn(y.shape)
    (found,) = torch.autograd.grad((slope * model(y, weight)).sum(), y)
    ends = [(slope * model(y + step * direction, weight)).sum() for step in (1e-5, -1e-5)]
    exact = float((ends[0] - ends[1]).detach()) / 2e-5
    assert float((found * direction).sum()) == pytest.approx(exact, rel=5e-3)


def test_the_default_is_accurate_in_single_precision_for_smooth_networks_and_kinks():
    """Against the gradient in double precision with tight tolerances."""
    for smoothing, exact in ((0.1, EXACT), (0.0, KINKS)):
        found = []
        for dtype, options in (
            (torch.float64, {"hypergradient": exact, "stop": SHARP}),
            (torch.float32, {"stop": cl.StopWhen(gap=1e-5)}),
        ):
            net = ridge(smoothing).to(dtype)
            y = pixels().to(dtype).requires_grad_()
            x = cl.solve(state_of(y, net), differentiable=True, **options).x
            assert x.dtype is dtype
            slope = torch.linspace(-1, 1, x.numel(), dtype=dtype).reshape(x.shape)
            inputs = [y, *net.parameters()]
            gradients = torch.autograd.grad((slope * x).sum(), inputs)
            found.append(torch.cat([g.flatten().double() for g in gradients]))
        error = (found[0] - found[1]).norm() / found[0].norm()
        assert float(error) < 0.02, smoothing


def test_images_of_a_batch_do_not_influence_each_other():
    net, strategy = ridge(), EXACT
    y = torch.cat([pixels(), pixels().flip(2), pixels().flip(3)]).requires_grad_()
    slope = torch.rand_like(y)
    slope[1] = 0.0
    x = cl.solve(state_of(y, net), stop=SHARP, differentiable=True, hypergradient=strategy).x
    (together,) = torch.autograd.grad((slope * x).sum(), y)
    for i in range(3):
        alone = y[i : i + 1].detach().requires_grad_()
        problem = state_of(alone, net)
        x = cl.solve(problem, stop=SHARP, differentiable=True, hypergradient=strategy).x
        (own,) = torch.autograd.grad((slope[i : i + 1] * x).sum(), alone)
        torch.testing.assert_close(together[i : i + 1], own, atol=1e-6, rtol=1e-5)
    assert not together[1].any()


def test_the_scale_of_a_loss_does_not_matter():
    y = pixels().requires_grad_()
    x = cl.solve(state_of(y, ridge(0.0)), differentiable=True, stop=cl.StopWhen(gap=1e-6)).x
    slope = torch.rand_like(x)
    first, second = (
        torch.autograd.grad((factor * slope * x).sum(), y, retain_graph=True)[0]
        for factor in (1.0, 1e6)
    )
    torch.testing.assert_close(1e6 * first, second, rtol=1e-6, atol=0)
    assert not torch.autograd.grad((0 * x).sum(), y)[0].any()


@pytest.mark.parametrize("options", [{}, {"reads": ("biases",)}, slow(TWO_LAYERS)], ids=str)
def test_gradients_reach_the_guide_of_an_adaptive_network(options):
    """Along a random direction of all its parameters, and of the data, which it reads as well."""
    torch.manual_seed(0)
    small = {"channels": 2, "kernel": 3, "smoothing": 0.5, "widths": (3,), "blocks": 1}
    net = cl.networks.adaptive(**small, **options)
    y = pixels(1, 1, 6, 6).requires_grad_()

    def solved(y, **options):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, noise=0.2
        )
        return cl.solve(problem, stop=SHARP, **options).x

    inputs = [y, *net.parameters()]
    slope = torch.rand_like(y)
    x = solved(y, differentiable=True, hypergradient=EXACT)
    gradients = torch.autograd.grad((slope * x).sum(), inputs)
    directions = [torch.randn_like(each) * each.detach().abs().mean() for each in inputs]
    exact = []
    for sign in (1e-5, -1e-5):
        with torch.no_grad():
            for each, direction in zip(inputs, directions, strict=True):
                each.add_(sign * direction)
            exact.append(float((slope * solved(y)).sum()))
            for each, direction in zip(inputs, directions, strict=True):
                each.sub_(sign * direction)
    ours = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    assert ours == pytest.approx((exact[0] - exact[1]) / 2e-5, rel=1e-3)
    # The last layer of a guide starts near zero, and some units of the first are off.
    assert sum(bool(g.any()) for g in gradients) > 0.5 * len(gradients)


def test_only_the_image_carries_gradients_and_once():
    y = pixels().requires_grad_()
    solution = cl.solve(state_of(y, ridge()), differentiable=True)
    assert solution.x.requires_grad
    others = (solution.objective, solution.gap, solution.state.x, solution.proof.claim.x)
    assert not any(each.requires_grad for each in others)
    with pytest.raises(RuntimeError, match="differentiated once; leave out create_graph=True"):
        torch.autograd.grad(solution.x.sum(), y, create_graph=True)
    with torch.no_grad():
        plain = cl.solve(state_of(y, ridge()))
    assert torch.equal(plain.x, solution.x)
    frozen = ridge().requires_grad_(False)
    assert not cl.solve(state_of(pixels(), frozen), differentiable=True).x.requires_grad


def test_networks_are_solved_with_as_they_are():
    """Parameters of modules require gradients, and so do weights that a guide read."""
    assert not cl.solve(state_of(pixels(), ridge())).x.requires_grad
    net = cl.networks.adaptive(channels=2, kernel=3, widths=(3,), blocks=1)
    problem = state_of(pixels(1, 1, 6, 6), net, noise=0.1, weight=1.0)
    assert not cl.solve(problem).x.requires_grad
    made = {"net.output": 2 * ridge().output}
    plain = Model(lambda y: (cl.SquaredL2(y), cl.Identity(), None), ridge())
    plain.forward = lambda y: cl.solve(state_of(y, plain.net)).x
    with pytest.raises(ValueError, match="the regularizer of the problem requires gradients"):
        functional_call(plain, made, (pixels(),))


def test_a_parameter_whose_function_is_the_attribute_is_found():
    """An operator that keeps its parameter and uses what it made of it."""
    log_scale = torch.tensor(0.1, requires_grad=True)

    class Kept(Echo):
        def __init__(self, parameter):
            self.parameter = parameter
            super().__init__(0.3 * parameter.exp())

    x = cl.solve(
        state_of(pixels(), ridge(), operator=Kept(log_scale), box=(0, 1)), differentiable=True
    ).x
    assert bool(torch.autograd.grad(x.sum(), log_scale)[0].any())
