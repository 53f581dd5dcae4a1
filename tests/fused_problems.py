"""Small problems for iterations in kernels, and solvers with kernels and without."""

from __future__ import annotations

import torch

import convexlift as cl
from convexlift.functionals.fidelity import Anchored
from convexlift.problems.lifting import lift
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.restart_rules import RestartRules

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def one_layer(padding, smoothing, fidelity, kernel=3, size=(9, 12)) -> cl.VariationalProblem:
    """Two images whose data, hence steps and restarts, are very different.

    Tiles of 8 x 16 reach out of them.
    """
    torch.manual_seed(0)
    net = cl.networks.ridge(channels=5, kernel=kernel, padding=padding, smoothing=smoothing)
    y = torch.rand(2, 1, *size) * torch.tensor([0.3, 1.0])[:, None, None, None]
    masked = cl.Mask(torch.rand(size) > 0.2)
    data, operator = {
        "L2": (cl.SquaredL2(y), masked),
        "L1": (cl.L1(y, 0.7), masked),
        "KL": (cl.KullbackLeibler((20 * y).round(), 0.5), cl.Identity()),
        "anchored": (Anchored(cl.SquaredL2(y), y.flip(-1), 0.3), masked),
    }[fidelity]
    return cl.VariationalProblem(
        fidelity=data, regularizer=net, weight=0.3, operator=operator, box=(0, None)
    ).to(device=DEVICE, dtype=torch.float32)


def baseline(smooth: bool = True) -> cl.VariationalProblem:
    """A network with pooling by 16 and a dense layer, neither all on nor all off."""
    torch.manual_seed(1)
    net = cl.networks.baseline(image_size=32, channels=3, smoothing=0.01 if smooth else 0.0)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.2)
    net.project_()
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(2, 1, 32, 32)), regularizer=net, weight=0.5, box=(0, 1)
    ).to(device=DEVICE, dtype=torch.float32)


def solvers(problem):
    """With plain iterations, and with kernels."""
    plain, fast = (RestartedPDHG(problem, lift(problem)) for _ in range(2))
    plain.iterations = Iterations(plain.saddle, plain.coupling)
    fast.iterations = in_kernels(problem)
    plain.rules = fast.rules = RestartRules(problem)
    return plain, fast


def in_kernels(problem):
    """Kernels for a problem, interpreted where there is no GPU; raises ``DoesNotApply``."""
    saddle = lift(problem)
    return FusedIterations(saddle, Coupling(saddle), interpreted=not ON_GPU)


def anchors(solver, state) -> list[str]:
    """Names of the anchors of a state, where somebody reads them."""
    read = bool((state.memory.total >= solver._restarts.anchored_from).any())
    return ["anchor_u", "anchor_v"] if read else []


def compare(problem, blocks, double=None):
    """As many iterations by both, in blocks, and by the plain one in double precision."""
    double = problem.to(dtype=torch.float64) if double is None else double
    with torch.no_grad():
        plain, fast = solvers(problem)
        exact = RestartedPDHG(double, lift(double))
        exact.iterations, exact.rules = Iterations(exact.saddle, exact.coupling), plain.rules
        start = problem.initial_image()
        expected = plain.advance(plain.start(start), sum(blocks))
        reference = exact.advance(exact.start(start.double()), sum(blocks))
        state = fast.start(start)
        for count in blocks:
            state = fast.advance(state, count)
    # A block inherits the rounding of the others, so the largest of all sets the scale.
    largest = max(part.abs().max() for part in (*reference.u.values(), *reference.v.values()))
    for name in ("u", "v", "w_u", "w_v", *anchors(fast, state)):
        for block, part in getattr(reference, name).items():
            ours, usual = (
                (getattr(run, name)[block] - part).abs().max() for run in (state, expected)
            )
            assert ours <= 4 * usual + 2e-6 * largest, (name, block, ours, usual)
    for name in ("sigma", "tau"):
        for block, part in getattr(expected, name).items():
            torch.testing.assert_close(getattr(state, name)[block], part, rtol=1e-3, atol=0)
    for name in ("inner", "total", "restart_next"):
        torch.testing.assert_close(getattr(state.memory, name), getattr(expected.memory, name))
    torch.testing.assert_close(
        state.memory.residual_at_test, expected.memory.residual_at_test, rtol=1e-4, atol=1e-6
    )
