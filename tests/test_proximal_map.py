"""Proximal maps for other libraries: the exact point, and the certified distance to it."""

from __future__ import annotations

import re
import sys
import warnings

import pytest
import torch

import convexlift as cl
from convexlift.operators.foreign import ForeignOperator

STEP = 0.2


def images(count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = 0.2 * torch.randn(count, 1, 8, 8, generator=generator)
    x[..., 2:6, 1:5] += 1
    return x


def network(smoothing: float = 0.0) -> cl.InputConvexNetwork:
    torch.manual_seed(0)
    return cl.networks.convolutional(channels=4, smoothing=smoothing).to(torch.float64)


@pytest.mark.parametrize("regularizer", [cl.TotalVariation(), network()], ids=["tv", "network"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exact_point_is_within_the_certified_distance(regularizer, dtype):
    v = images().to(dtype)
    prox = cl.ProximalMap(regularizer, accuracy=1e-2)
    found = prox(v, STEP)
    finer = cl.ProximalMap(regularizer, accuracy=5e-4)
    distance = (found.double() - finer(v.double(), STEP)).flatten(1).norm(dim=1)
    assert found.dtype == dtype
    assert (prox.error <= 1e-2 * v.flatten(1).norm(dim=1)).all()
    assert (distance <= prox.error + finer.error).all()


def test_the_point_satisfies_the_optimality_condition():
    """(v - x) / step is the gradient at x of a smooth R."""
    v, regularizer = images().double(), cl.networks.ridge(channels=4, kernel=3, smoothing=0.1)
    prox = cl.ProximalMap(regularizer, accuracy=1e-4)
    x = prox(v, STEP)
    torch.testing.assert_close((v - x) / STEP, prox.subgradient(x), rtol=0, atol=1e-2)


def test_subgradients_lie_below_the_regularizer():
    prox, (x, other) = cl.ProximalMap(network()), images().double().split(1)
    inner = (prox.subgradient(x) * (other - x)).sum()
    assert prox.value(other) >= prox.value(x) + inner - 1e-12


def test_values_and_gradients_reach_parameters_in_another_precision():
    """A converted copy would take them away from the network that an optimiser knows."""
    net = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1).float()
    prox, x = cl.ProximalMap(net), images().double().requires_grad_()
    for made in (prox.value(x).sum(), prox.gradient(x).square().sum()):
        slope, *others = torch.autograd.grad(made, [x, *net.parameters()], allow_unused=True)
        assert float(slope.abs().max()) > 0
        assert any(each is not None and float(each.abs().max()) > 0 for each in others)
    exact = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1)
    exact.double().load_state_dict(net.state_dict())
    torch.testing.assert_close(prox.value(x), exact(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        prox.gradient(x).detach(), prox.subgradient(x), rtol=1e-9, atol=1e-12
    )
    # Second derivatives, by differences.
    d = torch.randn_like(x)
    (along,) = torch.autograd.grad((prox.gradient(x) * d).sum(), x)
    ahead, behind = (prox.subgradient(x.detach() + s * 1e-6 * d) for s in (1, -1))
    torch.testing.assert_close(
        (along * d).sum(), ((ahead - behind) * d).sum() / 2e-6, rtol=1e-3, atol=0
    )


def test_what_the_map_cannot_differentiate_is_an_error():
    prox, v = cl.ProximalMap(cl.TotalVariation()), images().requires_grad_()
    with pytest.raises(ValueError, match="requires gradients, which the map does not carry"):
        prox(v, STEP)
    with torch.no_grad():
        assert not prox(v, STEP).requires_grad


def test_a_box_and_a_start_from_the_last_call():
    prox = cl.ProximalMap(cl.TotalVariation(), box=(0, 0.9))
    first, again = prox(images(), STEP), prox(images() + 1e-3, STEP)
    assert first.min() >= 0
    assert first.max() <= 0.9
    assert (again - first).abs().max() < 0.1


def test_small_steps_are_known_relative_to_the_way_they_go():
    """A hundredth of the noise: relative to ||v|| alone, v itself would be exact enough."""
    v, regularizer = images().double(), cl.TotalVariation()
    prox, finer = (
        cl.ProximalMap(regularizer, accuracy=0.1),
        cl.ProximalMap(regularizer, accuracy=1e-5),
    )
    x, exact = prox(v, 1e-3), finer(v, 1e-3)
    moved = (x - v).flatten(1).norm(dim=1)
    assert (prox.error <= 0.1 * moved).all()
    assert ((x - exact).flatten(1).norm(dim=1) <= prox.error + finer.error).all()


def test_an_accuracy_that_cannot_be_reached_is_a_warning():
    prox = cl.ProximalMap(cl.TotalVariation(), accuracy=1e-3, max_iterations=3)
    with pytest.warns(UserWarning, match=r"times accuracy=0\.001 \(ITERATION_LIMIT\)"):
        prox(images(), STEP)
    assert (prox.error > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (cl.ProximalMap(cl.TotalVariation())(torch.zeros(1, 1, 8, 8), 1.0) == 0).all()


def test_images_of_zeros_are_known_as_well_as_others():
    """Algorithms start at them, and no distance is small relative to their norm."""
    v = torch.cat([torch.zeros(1, 1, 8, 8), images(1)])
    even = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1)  # least at 0
    prox, alone = cl.ProximalMap(even, max_iterations=500), cl.ProximalMap(even)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = prox(v, STEP)
        assert (prox.error <= 1e-3 * v.flatten(1).norm(dim=1)).all()
        assert (x[0] == 0).all()
        distance = (x[1:] - alone(v[1:], STEP)).norm()
        assert distance <= prox.error[1] + alone.error[0]
        biased = network()
        torch.nn.init.normal_(biased.layers[0].bias)  # least elsewhere
        tilted = cl.ProximalMap(biased, max_iterations=500)
        moved = tilted(v[:1].double(), STEP)
    assert float(moved.norm()) > 1e-3
    assert float(tilted.error) <= 1e-2 * float(moved.norm())


def test_bad_regularizers_are_named():
    with pytest.raises(TypeError, match=r"must be an InputConvexNetwork.* got Identity"):
        cl.ProximalMap(torch.nn.Identity())
    with pytest.raises(ValueError, match=r"regularizer\.condition\(image, noise\)"):
        cl.ProximalMap(cl.load("photo-open"))
    with pytest.raises(ValueError, match="needs accuracy > 0"):
        cl.ProximalMap(cl.TotalVariation(), accuracy=0)


@pytest.mark.parametrize(
    ("adapter", "advice"), [("deepinv", 'pip install "convexlift[deepinv]"'), ("cil", "conda")]
)
def test_a_missing_library_is_named_with_its_extra(adapter, advice, monkeypatch):
    monkeypatch.setitem(sys.modules, adapter, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"convexlift.{adapter}", raising=False)
    monkeypatch.delitem(vars(cl), adapter, raising=False)
    with pytest.raises(ImportError, match=re.escape(advice)):
        getattr(cl, adapter)


class Doubling(ForeignOperator):
    """2 x, in single precision only, as many libraries compute."""

    def forward(self, x):
        return 2 * x.float()

    def adjoint(self, y):
        return 2 * y.float()


class Affine(Doubling):
    def forward(self, x):
        return 2 * x + 1


def test_foreign_operators_are_examined_and_have_no_proof_file(tmp_path):
    shape, y = (1, 8, 8), cl.SquaredL2(2 * images())
    parts = {"fidelity": y, "regularizer": cl.TotalVariation(), "weight": STEP}
    with pytest.raises(ValueError, match="an affine map"):
        cl.VariationalProblem(operator=Affine(shape, shape), **parts)
    solution = cl.solve(cl.VariationalProblem(operator=Doubling(shape, shape, terms=1), **parts))
    exact = cl.solve(cl.VariationalProblem(operator=2 * cl.Identity(), **parts))
    assert (solution.lower_bound <= exact.objective).all()
    assert (solution.gap <= 1e-3).all()
    with pytest.raises(ValueError, match="the operator Doubling is not the library's own"):
        solution.proof.save(tmp_path / "x.proof")
