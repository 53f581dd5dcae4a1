"""Steps for rays of very different weights: valid, right, and worth it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import convexlift as cl
from convexlift import phantoms
from convexlift.problems.network_duals import BOX_DUAL, DATA_DUAL
from convexlift.solvers.forecast import Forecast
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.spectral_steps import FourierCoupling
from convexlift.solvers.weighted_rays import WeightedRays
from convexlift.tensors import Blocks

SIZE = 24


def scan(
    name: str = "tv",
    contrasts=(2000.0,),
    box=(0.0, 2.0),
    dead: float = 0.0,
    unit: float = 1.0,
    dose: float = 1e4,
) -> cl.VariationalProblem:
    """Line integrals from photons, of which 1 / contrast pass the densest part."""
    torch.manual_seed(0)
    A = cl.ParallelBeam(SIZE, 18, 36, float(SIZE))
    clean = phantoms.shepp_logan(SIZE).clamp_min(0)
    decays = [float(torch.tensor(c).log() / A(clean).max()) for c in contrasts]
    counts = torch.cat([torch.poisson(dose * torch.exp(-d * A(clean))) for d in decays]).clamp_min(
        1
    )
    decay = torch.tensor(decays)[:, None, None, None]
    alive = torch.rand(counts.shape) >= dead
    network = cl.TotalVariation() if name == "tv" else cl.networks.ridge(channels=4, kernel=5)
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(-(counts / dose).log() / decay, unit * alive * counts * decay**2),
        operator=A, regularizer=network, weight=3.0 * unit, box=box,
    )  # fmt: skip


def coupled(stated: cl.VariationalProblem) -> tuple[RestartedPDHG, WeightedRays]:
    solver = cl.PDHG().solver(stated)
    assert isinstance(solver, RestartedPDHG)
    assert isinstance(solver.coupling, WeightedRays)
    return solver, solver.coupling


def columns(linear) -> Tensor:
    """The matrix of a linear map of images, in double precision."""
    eye = torch.eye(SIZE**2, dtype=torch.float64).reshape(-1, 1, SIZE, SIZE)
    return torch.cat([linear(part).flatten(1) for part in eye.split(96)]).T


@pytest.mark.parametrize(("name", "contrast"), [("tv", 2000.0), ("ridge", 50.0)])
def test_the_steps_satisfy_the_condition_of_pdhg(name, contrast):
    """||S^(1/2) K T^(1/2)|| < 1, by dense matrices, for several sigma."""
    solver, coupling = coupled(scan(name, (contrast,)))
    coupling, K = coupling.in_double(), solver.saddle.K
    for shares in ((1.0, 1.0, 1.0), (1.0, 1e-6, 1e-6), (1e-6, 1e-6, 1.0)):
        one = torch.ones(1, dtype=torch.float64)
        sigma = Blocks({v: s * one for v, s in zip(K.rows, shares, strict=True)})
        S, tau = coupling.dual_steps(sigma), coupling.tau(sigma)
        T = columns(lambda x, tau=tau: (tau * Blocks({"x": x}))["x"])
        torch.testing.assert_close(T, T.T, rtol=1e-6, atol=1e-12 * float(T.abs().max()))
        metric = torch.zeros_like(T)
        for v, row in K.rows.items():
            matrix = columns(row["x"])
            like = row["x"](torch.zeros(1, 1, SIZE, SIZE))
            metric += matrix.T @ (S.step(v, like).expand_as(like).flatten()[:, None] * matrix)
        half = torch.linalg.cholesky(T)
        largest = torch.linalg.eigvalsh(half.T @ metric @ half).max()
        assert 0.2 < float(largest) < 1  # valid, and not much shorter than needed


def test_lengths_and_ways_are_those_of_the_metric():
    solver, coupling = coupled(scan("ridge", (2000.0, 100.0)))
    coupling = coupling.in_double()
    u = Blocks({"x": torch.randn(2, 1, SIZE, SIZE, dtype=torch.float64)})
    other, sigma = Blocks({"x": torch.zeros_like(u["x"])}), {}
    for v in solver.saddle.K.rows:
        sigma[v] = torch.tensor([0.5, 2.0], dtype=torch.float64)
    tau = coupling.tau(Blocks(sigma))
    lengths = coupling.squared_lengths(tau * u, tau)["x"]  # <T u, T^-1 T u>
    torch.testing.assert_close(lengths, u.dot(tau * u)["x"])
    (white,) = coupling.whitened_moves(tau * u, tau)
    torch.testing.assert_close(white.square().sum((1, 2, 3)), lengths)
    way = coupling.way(u, other)
    for v, product in solver.saddle.K(u).items():
        root = coupling.factors[v].sqrt()
        assert ((root * product).flatten(1).norm(dim=1) <= way[v] * (1 + 1e-9)).all()


def test_even_weights_need_no_scale():
    """Equal weights, other data terms, deep networks, and weights that no pixel notices."""
    stated, y = scan(), scan().fidelity.y
    noise = 1 + 0.01 * torch.rand(y.shape)
    deep = cl.networks.ridge(channels=3, kernel=3, depth=3, inner_channels=2)
    for fidelity, network in [
        (cl.SquaredL2(y), stated.regularizer),
        (cl.WeightedL2(y, torch.full_like(y, 7.0)), stated.regularizer),
        (cl.WeightedL2(y, noise), stated.regularizer),
        (stated.fidelity, deep),
    ]:
        other = cl.VariationalProblem(
            fidelity=fidelity, operator=stated.operator, regularizer=network, weight=1.0, box=(0, 2)
        )
        assert FourierCoupling.applies(other)
        assert WeightedRays.scale(other) is None
    assert "pixel by pixel" in str(cl.explain(stated))


def test_fewer_iterations_to_the_same_optimum():
    stated, stop = scan(), cl.StopWhen(gap=1e-2, max_iterations=2000)
    weighted = cl.solve(stated, stop=stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedRays, "scale", lambda problem: None)
        plain = cl.solve(stated, stop=stop)
    assert int(weighted.iterations) <= 0.8 * int(plain.iterations)
    for one, other in ((weighted, plain), (plain, weighted)):
        assert one.status[0] is cl.Status.CONVERGED
        assert (one.lower_bound <= other.objective).all()


@pytest.mark.parametrize("box", [(0.0, None), None])
def test_rays_that_were_not_measured(box):
    """A third of the rays has no weight, and with it the rays of one corner."""
    solution = cl.solve(scan(box=box, dead=0.3), stop=cl.StopWhen(gap=1e-2, max_iterations=1000))
    assert solution.status[0] is cl.Status.CONVERGED
    coupled(scan(box=box, dead=0.3))


def test_unseen_pixels_have_a_scale():
    A = cl.ParallelBeam(SIZE, 3, 12, float(SIZE), bin_width=1.0)  # too narrow for the corners
    weights = 10 ** -torch.rand(1, 1, 3, 12)
    stated = cl.VariationalProblem(
        fidelity=cl.WeightedL2(torch.rand(1, 1, 3, 12), weights), operator=A,
        regularizer=cl.TotalVariation(), weight=0.1, box=(0, 2),
    )  # fmt: skip
    assert (A.adjoint(weights) == 0).any()
    kappa_squared = WeightedRays.scale(stated)
    assert kappa_squared is not None
    assert (kappa_squared > 0).all()
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-2, max_iterations=1000))
    assert solution.status[0] is cl.Status.CONVERGED


def test_images_of_a_batch_do_not_mind_each_other():
    stop = cl.StopWhen(gap=1e-2, max_iterations=1000)
    both = scan(contrasts=(200.0, 20.0))
    together = cl.solve(both, stop=stop)
    for i in (0, 1):
        y, weights = both.fidelity.y[i : i + 1], both.fidelity.weights[i : i + 1]
        single = cl.VariationalProblem(
            fidelity=cl.WeightedL2(y, weights), operator=both.operator,
            regularizer=both.regularizer, weight=3.0, box=(0, 2),
        )  # fmt: skip
        alone = cl.solve(single, stop=stop)
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.x, together.x[i : i + 1], rtol=1e-3, atol=1e-4)


def test_the_unit_of_the_objective_does_not_matter():
    images = []
    for unit in (1.0, 1e4):
        solver, _ = coupled(scan(unit=unit))
        with torch.no_grad():
            images.append(solver.advance(solver.start(scan().initial_image()), 30).x)
    torch.testing.assert_close(*images, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("gap", "wary", "plain"), [(0.5, True, False), (2.0, False, False)])
def test_rounding_is_looked_for_before_gaps_stall(gap, wary, plain):
    """Once a gap is below 1, at the first check; other solvers wait for more checks."""
    assert cl.PDHG().solver(scan()).wary
    forecast = Forecast(1, 1e-3)
    forecast.note([1.0], [gap], [gap])
    assert forecast.doubtful([True], wary=True) == wary
    assert forecast.doubtful([True], wary=False) == plain


def test_the_factors_are_those_of_the_formula():
    stated = scan()
    _, coupling = coupled(stated)
    D, A = coupling.factors[DATA_DUAL], stated.operator
    kappa_squared = A.adjoint(D) / A.adjoint(torch.ones_like(D))
    torch.testing.assert_close(coupling.factors[BOX_DUAL], kappa_squared, rtol=1e-4, atol=1e-6)
    shares = (stated.fidelity.weights / stated.fidelity.weights.max()) ** 0.6
    torch.testing.assert_close(D / D.max(), shares, rtol=1e-4, atol=1e-6)
