"""The iterations for w J are those for J: nothing depends on the unit of the objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import convexlift as cl
from convexlift.networks import Convolution
from convexlift.problems.network_duals import BOX_DUAL
from convexlift.solvers.first_steps import first_sigma
from convexlift.solvers.primal_dual import lifted_start

SCALES = (1e4, 1e-4, 1e8)
KERNEL = torch.tensor([[0.1, 0.2, 0.0], [0.2, 0.6, 0.1], [0.0, 0.1, 0.3]])


def images(size: int) -> Tensor:
    """Two images with pixels from 0.2 to 0.8, so that the first ones are inside their boxes."""
    noise = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(2))
    return 0.2 + 0.6 * noise


def two_layers(bias: float) -> cl.InputConvexNetwork:
    """A last layer whose units are all on at first, or all off, by its bias."""
    torch.manual_seed(0)
    first = cl.ConvexLayer(cl.LeakyReLU(0.2), channels=3, skip=Convolution(1, 3, 3))
    previous = Convolution(3, 2, 3, nonnegative=True)
    last = cl.ConvexLayer(cl.ReLU(), channels=2, previous=previous)
    network = cl.InputConvexNetwork([first, last])
    with torch.no_grad():
        network.layers[-1].bias.fill_(bias)
        network.project_()
    return network


def uneven_ridge() -> cl.InputConvexNetwork:
    """Filters whose weights differ by three decades."""
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=4, kernel=3)
    with torch.no_grad():
        network.output.copy_(network.output * 10.0 ** -torch.arange(4.0))
    return network


RAYS = cl.ParallelBeam(24, 12, 36, 24.0)
BLUR = cl.Blur(KERNEL, "reflect")
CASES = {
    "rays": (RAYS, 24, cl.TotalVariation(), (0.0, 2.0)),
    "rays, one bound": (RAYS, 24, cl.TotalVariation(), (0.0, None)),
    "rays, box out of reach": (RAYS, 24, cl.TotalVariation(), (-9.0, 9.0)),
    "matrix": (BLUR, 8, cl.TotalVariation(isotropic=False), (0.0, 0.9)),
    "blur": (BLUR, 26, cl.TotalVariation(), (0.1, 0.9)),
    "channels": (BLUR, 26, uneven_ridge(), (0.1, 0.9)),
    "saturated": (BLUR, 26, two_layers(9.0), (0.1, 0.9)),
    "dead": (BLUR, 26, two_layers(-0.5), (0.1, 0.9)),
    "identity": (cl.Identity(), 26, two_layers(-0.5), None),
}


def problem(case: str, w: float, fidelity: str = "weighted", dtype=torch.float64):
    A, size, network, box = CASES[case]
    A = A.to(dtype=dtype)
    y = A(images(size).to(dtype))
    noise = torch.Generator().manual_seed(3)
    y = y + 0.1 * torch.randn(y.shape, generator=noise).to(dtype)
    omega = torch.rand(y.shape, generator=noise).to(dtype) ** 4
    omega = torch.where(omega < 1e-3, 0.0, omega)  # some data were not measured
    return cl.VariationalProblem(
        fidelity=cl.WeightedL2(y, w * omega) if fidelity == "weighted" else cl.L1(y, w),
        operator=A, regularizer=network.to(dtype), weight=1e-2 * w, box=box,
    )  # fmt: skip


def curves(of: cl.VariationalProblem, w: float, iterations: int = 60) -> Tensor:
    """Objective in units of w, and gap, at every check."""
    stop = cl.StopWhen(gap=None, max_iterations=iterations)
    records = cl.solve(of, stop=stop, method=cl.PDHG()).history.records
    return torch.stack([torch.stack([each.objective / w, each.gap]) for each in records])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("fidelity", ["weighted", "L1"])
@pytest.mark.parametrize("case", CASES)
def test_iterates_and_gaps_do_not_depend_on_the_scale_of_the_objective(case, fidelity):
    expected = curves(problem(case, 1.0, fidelity), 1.0)
    for w in SCALES:
        found = curves(problem(case, w, fidelity), w)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("case", ["rays", "rays, one bound", "blur"])
def test_in_single_precision_the_scale_changes_rounding_only(case):
    expected = curves(problem(case, 1.0, dtype=torch.float32), 1.0)
    for w in SCALES:
        found = curves(problem(case, w, dtype=torch.float32), w)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("w", [1.0, *SCALES])
def test_the_box_gets_a_step_in_proportion_to_the_objective_though_its_dual_is_zero(w):
    stated = problem("rays, box out of reach", w)
    saddle = cl.lift(stated, dualise_box=True)
    solver = cl.PDHG().solver(stated)
    u, v = lifted_start(stated, saddle, stated.initial_image())
    assert not v[BOX_DUAL].any()
    sigma = first_sigma(saddle, solver.coupling, u, v)[BOX_DUAL] / w
    assert (sigma > 1e-6).all()
    assert (sigma < 1e2).all()
