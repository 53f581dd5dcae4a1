"""Problems that once had no finite objective, no bound, or first steps that led nowhere."""

from __future__ import annotations

import math

import parts
import pytest
import torch
from checked_proofs import confirm
from oracle import optimum

import convexlift as cl
from convexlift.operators.imaging import Diagonal

SHARP = torch.tensor([[-0.2, 0.4, -0.2], [0.3, 1.0, 0.1], [-0.3, 0.2, -0.1]], dtype=torch.float64)
EDGY = torch.tensor([[0.9, 0.3, -0.6]], dtype=torch.float64)


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def stated(A: cl.LinearOperator, fidelity: cl.Fidelity, box, weight=0.05):
    return cl.VariationalProblem(
        fidelity=fidelity, operator=A, regularizer=cl.TotalVariation(isotropic=False).double(),
        weight=weight, box=box,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_without_background_whose_domain_is_approached_from_outside(dtype, tmp_path):
    """A x = 0 where there are no counts: iterates are never quite inside, the solution is."""
    A = cl.Blur(SHARP, "circular")
    clean = torch.where(images(2, 1, 6, 6) > 0.6, 1.0, 0.0).double()
    counts = torch.where(A(clean) > 0.3, A(clean), 0.0)
    problem = stated(A, cl.KullbackLeibler(counts), (0.0, None))
    assert (problem.objective(problem.initial_image()) == torch.inf).all()
    solution = cl.solve(problem.to(dtype=dtype), stop=cl.StopWhen(gap=1e-3, max_iterations=400))
    assert solution.status == (cl.Status.CONVERGED,) * 2
    assert solution.guarantee == (cl.Guarantee.GLOBAL,) * 2
    for i in range(2):
        one = stated(A, cl.KullbackLeibler(counts[i : i + 1]), (0.0, None))
        _, x = optimum(one)  # outside as well, by the tolerance of the oracle
        inside = torch.as_tensor(x).reshape(1, 1, 6, 6).clamp_min(0) + 1e-4
        best = float(one.objective(inside))
        assert float(solution.lower_bound[i]) <= best
        assert float(solution.objective[i]) <= best * (1 + 1e-3)
    confirm(problem.to(dtype=dtype), solution.proof.claim, tmp_path / "x.proof")


@pytest.mark.parametrize("box", [(0.0, None), (None, 1.0)])
def test_one_sided_boxes_behind_kernels_with_negative_weights_are_certified(box, tmp_path):
    """The bound holds everywhere, up to an independent optimum."""
    A = cl.Blur(EDGY, "replicate")
    y = A(images(1, 1, 5, 7)) + 0.1 * (images(1, 1, 5, 7).flip(-1) - 0.5)
    problem = stated(A, cl.SquaredL2(y), box)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=400))
    assert solution.status == (cl.Status.CONVERGED,)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    best, _ = optimum(problem)
    assert float(solution.lower_bound) <= best * (1 + 1e-6)
    assert float(solution.objective) <= best * (1 + 1.1e-3)
    confirm(problem, solution.proof.claim, tmp_path / "x.proof")


def test_a_layer_that_is_nearly_dead_at_the_start_does_not_stop_the_others():
    """Softplus at -60 has values and slopes of 1e-27: sizes that first steps must not follow."""
    torch.manual_seed(0)
    layers = [
        cl.ConvexLayer(
            parts.Softplus(sharpness=10.0), channels=2, skip=cl.networks.Convolution(1, 2, 3)
        ),
        cl.ConvexLayer(
            parts.Softplus(sharpness=10.0), channels=2, residual=True,
            previous=cl.networks.Convolution(2, 2, 3, nonnegative=True),
        ),
    ]  # fmt: skip
    network = cl.InputConvexNetwork(layers).double()
    with torch.no_grad():
        network.layers[0].bias.fill_(-6.0)
        network.project_()
    A = cl.Blur(SHARP.abs() / 3, "reflect")
    y = A(images(1, 1, 6, 6))
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=A, regularizer=network, weight=1e-3, box=(0.2, 0.8)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=400))
    assert solution.status == (cl.Status.CONVERGED,)
    start = problem.objective(problem.bounds.project(problem.initial_image()))
    assert float(solution.objective) < float(start)


class Hinge(cl.Fidelity):
    """f(w) = (y - w)_+, whose conjugate is finite on [-1, 0]: an end of the domain is 0."""

    smooth = False
    conjugate_domain = (-1.0, 0.0)

    def density(self, w):
        return (self.y - w).clamp_min(0)

    def gradient(self, w):
        return torch.where(w < self.y, -1.0, 0.0)

    def prox(self, w, step):
        return torch.where(w > self.y, w, torch.minimum(w + step, self.y))

    def conjugate(self, v):
        return torch.where((v >= -1) & (v <= 0), v * self.y, math.inf)

    def minimiser(self, c, lower, upper):
        free = torch.where(c < 0, math.inf, torch.where(c > 1, -math.inf, self.y))
        return torch.minimum(torch.maximum(free, lower), upper)

    def excess(self, w, c, lower, upper):
        best = self.minimiser(c, lower, upper)
        finite = torch.where(best.isfinite(), best, 0.0)
        rest = self.density(w) - self.density(finite) + c * (w - finite)
        unbounded = torch.where(c == 0, self.density(w), math.inf)
        return torch.where(best.isfinite(), rest, unbounded).clamp_min(0)


def test_bounds_hold_for_data_terms_whose_conjugate_ends_at_zero():
    y = -torch.ones(1, 1, 12, 12)
    y[..., 6, 6] = 5.0
    cl.check_functional(Hinge(y))
    blur = cl.Blur(torch.ones(3, 3) / 9, "replicate")
    problem = cl.VariationalProblem(
        fidelity=Hinge(y), operator=blur, regularizer=cl.TotalVariation(), weight=0.01,
        box=(0, None),
    )  # fmt: skip
    assert float(problem.objective(torch.full_like(y, 6.0))) == 0.0  # the smallest there is
    for iterations in (1, 3, 10, 100):
        stop = cl.StopWhen(gap=1e-3, max_iterations=iterations)
        assert float(cl.solve(problem, stop=stop).lower_bound) <= 0.0


def three_smooth_layers() -> cl.InputConvexNetwork:
    h = cl.SmoothedReLU(smoothing=0.2)
    first = cl.ConvexLayer(h, channels=3, skip=cl.networks.Convolution(1, 3, 3))
    others = [
        cl.ConvexLayer(h, channels=3, previous=cl.networks.Convolution(3, 3, 3, nonnegative=True))
        for _ in range(2)
    ]
    network, draw = cl.InputConvexNetwork([first, *others]).double(), torch.Generator()
    with torch.no_grad():
        for part in network.parameters():
            part.copy_(torch.randn(part.shape, generator=draw.manual_seed(0)) / 3)
        network.output.fill_(1.0)
        network.project_()
    return network


def test_pdhg_takes_over_where_lbfgs_stalls():
    """Where d < 0 and counts need d x >= 0, x = 0: every line search ends at once."""
    draw = torch.Generator().manual_seed(0)
    d, x = (f(1, 1, 8, 8, generator=draw, dtype=torch.float64) for f in (torch.randn, torch.rand))
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler((d * x).clamp_min(0)), operator=Diagonal(d),
        regularizer=three_smooth_layers(), weight=0.05, box=(0, None),
    )  # fmt: skip
    assert "PDHG follows" in str(cl.explain(problem))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=150, check_every=2))
    assert solution.status == (cl.Status.CONVERGED,)
    alone = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-3, max_iterations=10))
    assert float(alone.gap) > 0.01  # a given method is used alone
