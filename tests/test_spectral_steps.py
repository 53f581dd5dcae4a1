"""Steps that differ with the frequency: valid, right, and worth it."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift import phantoms
from convexlift.operators.spectral import SpectralFilter, energies
from convexlift.problems.network_duals import BOX_DUAL
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.primal_dual import lifted_start
from convexlift.solvers.spectral_steps import FourierCoupling, FourierSteps, majorant
from convexlift.tasks import SparseViewCT
from convexlift.tensors import Blocks

SIZE = 24
SCANNERS = {
    "parallel": 20.0 * cl.ParallelBeam(SIZE, 18, 36, float(SIZE)),
    "limited": cl.ParallelBeam((SIZE, 20), 9, 30, (24.0, 20.0)),
    "fan": 5.0 * cl.FanBeam(
        SIZE, 30, 40, extent=float(SIZE), source_distance=60.0, detector_distance=30.0
    ),
}  # fmt: skip


def networks() -> dict[str, cl.InputConvexNetwork]:
    torch.manual_seed(0)
    return {
        "tv": cl.TotalVariation(),
        "ridge": cl.networks.ridge(channels=4, kernel=5),
        "deep ridge": cl.networks.ridge(channels=4, kernel=3, depth=3, inner_channels=3),
        "zeros around": cl.networks.ridge(channels=3, kernel=3, padding="zero"),
    }


def problem(name: str = "tv", batch: int = 1, box=(0.0, None), weight: float = 3.0):
    clean = phantoms.shepp_logan(SIZE).clamp_min(0).expand(batch, -1, -1, -1)
    task = SparseViewCT(scanner=SCANNERS["parallel"], box=box)
    generators = [torch.Generator().manual_seed(i) for i in range(batch)]
    return task.measure(clean, generators).problem(networks()[name], weight)


def both(stated):
    """With steps of frequencies, and with one step for all of them."""
    saddle = cl.lift(stated, dualise_box=True)
    coupling = FourierCoupling(saddle, stated.fidelity.y)
    return RestartedPDHG(stated, saddle, coupling), RestartedPDHG(stated, cl.lift(stated))


# The metric


@pytest.mark.parametrize("name", SCANNERS)
def test_rays_are_majorised(name):
    K = SCANNERS[name]
    _covers(K, K.input_shape)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("padding", ["zero", "reflect", "circular", "replicate"])
@pytest.mark.parametrize("size", [(8, 8), (31, 64), (70, 50)])
def test_convolutions_are_majorised_at_any_size(padding, size):
    layer = cl.networks.ridge(channels=5, kernel=7, padding=padding).layers[0]
    _covers(layer.skip.operator((1, *size)), (1, *size))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("padding", ["zero", "reflect", "replicate"])
@pytest.mark.parametrize(
    ("kind", "size"), [("bars", (60, 60)), ("bars", (57, 61)), ("random", (32, 32))]
)
def test_convolutions_with_zeros_in_their_spectra_are_majorised(kind, size, padding):
    """Two rows of opposite signs, far apart; random filters of mean zero."""
    channels, kernel = (1, 11) if kind == "bars" else (8, 7)
    skip = cl.networks.ridge(channels=channels, kernel=kernel, padding=padding).layers[0].skip
    with torch.no_grad():
        if kind == "bars":
            skip.weight.zero_()
            skip.weight[..., 0, :], skip.weight[..., -1, :] = 1.0, -1.0
        else:
            skip.weight -= skip.weight.mean((-2, -1), keepdim=True)
    _covers(skip.operator((1, *size)), (1, *size))


@pytest.mark.parametrize("kernel", ["large", "zero"])
def test_other_convolutions_are_left_to_one_step(kernel):
    net = cl.networks.ridge(channels=1, kernel=13 if kernel == "large" else 3)
    if kernel == "zero":
        torch.nn.init.zeros_(net.layers[0].skip.weight)
    clean = phantoms.shepp_logan(SIZE).clamp_min(0)
    measured = SparseViewCT(scanner=SCANNERS["parallel"]).measure(clean, [torch.Generator()])
    stated = measured.problem(net, 1.0)
    assert not FourierCoupling.applies(stated)
    solution = cl.solve(stated, stop=cl.StopWhen(gap=None, max_iterations=30))
    assert torch.isfinite(solution.x).all()


@pytest.mark.parametrize("size", [(8, 8), (9, 20)])
def test_differences_are_majorised(size):
    _covers(cl.networks.ForwardDifferences().operator((1, *size)), (1, *size))


def _covers(K, shape):
    """<x, H x> >= ||K x||^2 for the x that power iteration finds worst."""
    _, height, width = shape
    spectrum = majorant(K, height, width, torch.zeros(()))
    assert (spectrum > 0).all()
    half = SpectralFilter(spectrum.rsqrt(), width)
    x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(7))
    for _ in range(400):
        x = half(K.adjoint(K(half(x / x.norm()))))
    assert x.norm() <= 1 + 1e-9


@pytest.mark.parametrize("width", [7, 8])
def test_energies_give_inner_products(width):
    x = torch.randn(3, 1, 6, width)
    spectrum = torch.rand(6, width // 2 + 1)
    spectrum[[1, 2]] = spectrum[[5, 4]]  # of a real and even kernel
    A = SpectralFilter(spectrum, width)
    torch.testing.assert_close((spectrum * energies(x)).sum((1, 2, 3)), (x * A(x)).sum((1, 2, 3)))
    cl.check_operator(A, (1, 6, width))


def test_lengths_and_ways_are_those_of_the_metric():
    stated = problem("deep ridge", batch=2)
    solver, _ = both(stated)
    u, v = lifted_start(stated, solver.saddle, stated.initial_image())
    other = Blocks({name: part + torch.randn_like(part) for name, part in u.items()})
    sigma = Blocks({name: torch.tensor([0.5, 2.0]) for name in v})
    tau = solver.coupling.tau(sigma)
    assert isinstance(tau, FourierSteps)
    du = u - other
    lengths = solver.coupling.squared_lengths(tau * du, tau)  # <T du, T^-1 T du>
    for name, value in du.dot(tau * du).items():
        torch.testing.assert_close(lengths[name], value)
    way = solver.coupling.way(u, other)
    for row, product in solver.saddle.K(du).norms().items():
        assert (product <= way[row] * (1 + 1e-9)).all()


# The solver


def test_the_default_takes_them():
    solver = cl.PDHG().solver(problem("ridge"))
    assert isinstance(solver.coupling, FourierCoupling)
    blurred = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 8, 8)), operator=cl.Blur.gaussian(1.0),
        regularizer=networks()["ridge"], weight=1.0, box=(0, 1),
    )  # fmt: skip
    assert not isinstance(cl.PDHG().solver(blurred).coupling, FourierCoupling)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "box"),
    [("tv", (0.0, None)), ("ridge", (0.0, 0.5)), ("ridge", None), ("deep ridge", (0.0, None))],
)
def test_the_same_optimum_as_with_one_step(name, box):
    stated = problem(name, box=box)
    fourier, plain = both(stated)
    assert FourierCoupling.applies(stated)
    assert (BOX_DUAL in fourier.saddle.K.rows) == (box is not None)
    with torch.no_grad():
        start = stated.initial_image()
        ours = fourier.advance(fourier.start(start), 400).x
        theirs = plain.advance(plain.start(start), 800).x
    assert stated.bounds.contains(ours).all()
    torch.testing.assert_close(stated.objective(ours), stated.objective(theirs), rtol=1e-4, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["tv", "ridge"])
def test_fewer_iterations_to_the_same_certificate(name):
    stated = problem(name)
    fourier, plain = both(stated)
    needed = []
    for solver in (fourier, plain):
        with torch.no_grad():
            state = solver.start(stated.initial_image())
            gap = 1.0
            while gap > 1e-3 and int(state.memory.total) < 2000:
                state = solver.advance(state, 10)
                gap = float(cl.certify(stated, state.x, state.duals).gap)
        needed.append(int(state.memory.total))
    assert needed[0] <= 0.8 * needed[1], needed


def test_images_of_a_batch_do_not_mind_each_other():
    together = cl.solve(problem(batch=3), stop=cl.StopWhen(gap=1e-3, max_iterations=2000))
    assert all(status is cl.Status.CONVERGED for status in together.status)
    third = problem(batch=3)
    alone = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(third.fidelity.y[2:], 50.0), operator=third.operator,
        regularizer=third.regularizer, weight=third.weight, box=(0.0, None),
    )  # fmt: skip
    single = cl.solve(alone, stop=cl.StopWhen(gap=1e-3, max_iterations=2000))
    assert int(single.iterations[0]) == int(together.iterations[2])
    torch.testing.assert_close(single.x, together.x[2:], rtol=1e-6, atol=1e-9)


def test_a_solution_is_a_start():
    stated = problem("ridge")
    first = cl.solve(stated, stop=cl.StopWhen(gap=1e-3, max_iterations=2000))
    again = cl.solve(stated, start=first.state, stop=cl.StopWhen(gap=1e-3))
    assert int(again.iterations[0]) == 0
    paper = cl.PDHG(steps=cl.PaperSteps((1.0, 1.0)))
    other = cl.solve(stated, method=paper, stop=cl.StopWhen(gap=None, max_iterations=5))
    assert torch.isfinite(cl.solve(stated, start=other.state).objective).all()


def test_a_solution_of_another_scanner_is_a_start():
    first = cl.solve(problem("ridge"), stop=cl.StopWhen(gap=1e-2))
    task = SparseViewCT(scanner=20.0 * cl.ParallelBeam(SIZE, 12, 30, float(SIZE)))
    clean = phantoms.shepp_logan(SIZE).clamp_min(0)
    stated = task.measure(clean, [torch.Generator().manual_seed(1)]).problem(
        networks()["ridge"], 3.0
    )
    again = cl.solve(stated, start=first.state, stop=cl.StopWhen(gap=1e-2))
    assert again.status[0] is cl.Status.CONVERGED
    assert torch.isfinite(cl.certify(stated, again.x, first.duals).gap).all()


def test_what_cannot_be_dualised_is_still_refused():
    with pytest.raises(ValueError, match="no closed-form prox"):
        cl.PDHG(dualise_fidelity=False).solver(problem("ridge"))


def test_a_scanner_with_a_minus_is_certified_too():
    clean = phantoms.shepp_logan(SIZE).clamp_min(0)
    A = -1.0 * cl.ParallelBeam(SIZE, 18, 36, float(SIZE))
    stated = cl.VariationalProblem(
        fidelity=cl.SquaredL2(A(clean)), operator=A, regularizer=cl.TotalVariation(),
        weight=1.0, box=(0.0, None),
    )  # fmt: skip
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-2, max_iterations=3000))
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL


# Double precision, where single does not suffice


def many_photons(batch: int = 1) -> cl.VariationalProblem:
    """Line integrals from up to 1e6 photons: A x - y is not much larger than rounding errors."""
    clean = phantoms.shepp_logan(40).clamp_min(0).expand(batch, -1, -1, -1)
    A = cl.ParallelBeam(40, 60, 60, 40.0)
    decay = 4.6 / float(A(clean).max())  # a hundredth passes
    generator = torch.Generator().manual_seed(0)
    counts = torch.poisson(1e6 * torch.exp(-decay * A(clean)), generator=generator)
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(-(counts / 1e6).log() / decay, counts * decay**2), operator=A,
        regularizer=cl.TotalVariation(), weight=30.0, box=(0, 2),
    )  # fmt: skip


@pytest.mark.single_precision
def test_iterations_go_on_in_double_precision_where_rounding_stops_them(monkeypatch):
    stated, stop = many_photons().to(dtype=torch.float32), cl.StopWhen(gap=1e-4, max_iterations=600)
    solution = cl.solve(stated, stop=stop)
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.x.dtype == torch.float32
    assert solution.state.u["x"].dtype == torch.float64
    assert float(cl.certify(stated, solution.x, solution.duals).gap) <= 1e-4
    again = cl.solve(stated, start=solution.state, stop=stop)  # begins in single precision
    assert again.status[0] is cl.Status.CONVERGED
    assert int(again.iterations) < int(solution.iterations) / 4
    monkeypatch.setattr(RestartedPDHG, "more_precise", lambda self, state: None)
    without = cl.solve(stated, stop=stop)
    assert without.status[0] is not cl.Status.CONVERGED
