"""Gradients through ``solve`` that are not asked for, cannot be computed, or may be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from learned_problems import SIZE, kernel, pixels, ridge, state_of

import convexlift as cl


class InAList(cl.LinearOperator):
    """A x = factor x, with the factor where nobody finds it."""

    def __init__(self, factor):
        self.hidden = [factor]

    def forward(self, x):
        return self.hidden[0] * x

    adjoint = forward


class Detaching(InAList):
    """The same with an attribute, and without a way for gradients."""

    def __init__(self, factor):
        self.factor = factor
        self.hidden = [float(factor.detach())]


LEARNED = {
    "fidelity": lambda t: {"fidelity": cl.SquaredL2(pixels() * t)},
    "operator": lambda t: {"operator": cl.Blur(t * kernel())},
    "weight": lambda t: {"weight": t},
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_requires_gradients_is_an_error_unless_they_are_wanted(name):
    learned = torch.tensor(1.0, requires_grad=True)
    problem = state_of(pixels(), ridge(), **LEARNED[name](learned))
    with pytest.raises(
        ValueError, match=rf"the {name} of the problem require.*differentiable=True"
    ):
        cl.solve(problem)
    with torch.no_grad():
        assert not cl.solve(problem).x.requires_grad
    assert cl.solve(replace(problem.detach())).status == (cl.Status.CONVERGED,)
    assert cl.solve(problem, differentiable=True).x.requires_grad


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda t: {"operator": InAList(t)}, "depends on a tensor of shape .* not an attribute"),
        (lambda t: {"operator": Detaching(t)}, "the operator has a tensor .* finds no way to it"),
        (lambda t: {"box": (0, t)}, r"upper is a plain number.* float\(upper\.detach\(\)\)"),
        (lambda t: {"fidelity": cl.L1(pixels(), t)}, "scale is a plain number"),
        (lambda t: {"operator": t * cl.Identity()}, "factor is a plain number"),
        (
            lambda t: {"operator": cl.ParallelBeam(SIZE, t * torch.arange(3), 9)},
            r"ParallelBeam is not differentiable in its angles; write angles\.detach\(\)",
        ),
    ],
    ids=["hidden", "detached", "box", "scale", "factor", "angles"],
)
def test_what_cannot_receive_gradients_is_an_error(parts, message):
    learned = torch.tensor(1.5, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        cl.solve(state_of(pixels(), ridge(), **parts(learned)), differentiable=True)


def test_a_noise_level_cannot_receive_gradients():
    net = cl.networks.adaptive(channels=2, kernel=3, widths=(3,), blocks=1)
    with pytest.raises(ValueError, match=r"noise=\.\.\. cannot receive gradients"):
        state_of(pixels(1, 1, 6, 6), net, noise=torch.tensor(0.1, requires_grad=True))


def test_weights_changed_before_the_backward_pass_are_noticed():
    net = ridge()
    x = cl.solve(state_of(pixels(), net), differentiable=True).x
    with torch.no_grad():
        net.output.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


def test_a_solve_that_did_not_converge_warns():
    stop = cl.StopWhen(gap=1e-9, max_iterations=2)
    with pytest.warns(RuntimeWarning, match="1 of 1 images did not converge, and their gradients"):
        cl.solve(state_of(pixels(), ridge()), stop=stop, differentiable=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")  # of make_dual
def test_transforms_of_torch_func_are_refused():
    net, y = ridge(), pixels()

    def solved(y):
        return cl.solve(state_of(y, net), differentiable=True).x

    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda y: f(y).sum())):
        with pytest.raises(TypeError, match=r"cannot be stated inside torch\.func\.vmap, grad or"):
            transform(solved)(
                pixels(2, 1, 1, SIZE, SIZE) if transform is torch.func.vmap else pixels()
            )
    with pytest.raises(TypeError, match="counts independent problems"):
        torch.func.vmap(lambda w: cl.solve(state_of(y, net, weight=w)).x)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(y, y)
        with pytest.raises(TypeError, match=r"gradients come from cl\.solve"):
            solved(dual)


def test_strategies_are_objects_for_differentiable_solves():
    problem = state_of(pixels(), ridge())
    with pytest.raises(TypeError, match=r"hypergradient must be cl\.Implicit\(\).* got 'implicit'"):
        cl.solve(problem, differentiable=True, hypergradient="implicit")
    with pytest.raises(ValueError, match="write both, or neither"):
        cl.solve(problem, hypergradient=cl.Implicit())
