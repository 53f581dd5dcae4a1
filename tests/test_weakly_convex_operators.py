"""Critical points of weakly convex problems behind operators and with other data terms.

The oracle is CVXPY: the proximal problem J(u) + kappa/2 |u - x|^2 is convex, and its minimum must
be between the claimed bound and the claimed objective.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from dense import dense_matrix
from parts import spline_epigraph
from test_weakly_convex import SIZE, network

import convexlift as cl
from convexlift.networks import Convolution

STOP = cl.StopWhen(gap=1e-3, max_iterations=20_000)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def complex_network() -> cl.WeaklyConvexNetwork:
    """The same potentials on images of two channels."""
    one = network()
    layer = cl.ConvexLayer(
        one.layers[0].activation, channels=4, skip=Convolution(2, 4, 3), bias=False
    )
    net = cl.WeaklyConvexNetwork([layer], in_channels=2)
    with torch.no_grad():
        net.layers[0].shares.copy_(one.layers[0].shares)
        net.output.copy_(one.output)
        net.concavity.copy_(one.concavity)
    return net


def blur(boundary: str = "reflect") -> cl.Blur:
    return cl.Blur.gaussian(0.8, boundary=boundary, radius=1)


def stated(kind: str, batch: int = 1) -> cl.WeaklyConvexProblem:
    """A problem of each kind, whose objective is not convex."""
    image = random(batch, 1, *SIZE)
    seen = cl.Mask(random(1, 1, *SIZE, seed=1) > 0.3)
    net, A, box, weight = network("circular"), cl.Identity(), (0, 1), 1.0
    match kind.split():
        case ["blur", *where]:
            A, box = blur(*where), None
            data = cl.SquaredL2(A(image) + 0.05 * random(*image.shape, seed=2))
        case ["boxed", "blur"]:
            A = blur()
            data = cl.WeightedL2(A(image), 0.5 + random(*image.shape, seed=3))
        case ["CT"]:
            A = cl.ParallelBeam(image_size=6, angles=4, bins=9)
            image = random(batch, 1, 6, 6)
            noise = random(batch, *A.output_shape((1, 6, 6)), seed=2)
            data, box = cl.SquaredL2(A(image) + 0.3 * noise), None
        case ["mask", "L1"]:
            A, data = seen, cl.L1(seen(image))
        case ["mask"]:
            A, data = seen, cl.SquaredL2(seen(image))
        case ["L1"]:
            data, weight = cl.L1(image, 0.5), 2.0
        case ["Poisson"]:
            data = cl.KullbackLeibler((10 * image).round(), 0.1)
            box, weight = (0, None), 5.0
        case ["blurred", "Poisson"]:
            A = blur()
            data = cl.KullbackLeibler((10 * A(image)).round(), 0.5)
            box, weight = (0, None), 5.0
        case ["MRI"]:
            net, box = complex_network(), None
            A = cl.MRI((random(*SIZE, seed=4) > 0.5).double())
            data = cl.SquaredL2(A(random(batch, 2, *SIZE)))
    return cl.WeaklyConvexProblem(
        fidelity=data, operator=A, regularizer=net, weight=weight, box=box
    )


def lowest_near(problem: cl.WeaklyConvexProblem, x: torch.Tensor, kappa: float) -> float:
    """The minimum of J(u) + kappa/2 |u - x|^2 by CVXPY."""
    shape, pixels = problem.image_shape, problem.image_shape[1] * problem.image_shape[2]
    V, A = (dense_matrix(each, shape) for each in (problem.filters, problem.operator))
    rho = problem.regularizer.concavity.detach().repeat_interleave(pixels).numpy()
    H = kappa * np.eye(V.shape[1]) - problem.weight * V.T @ (rho[:, None] * V)
    at, y = x.flatten().numpy(), problem.fidelity.y.flatten().numpy()
    u, z = cp.Variable(V.shape[1]), cp.Variable(V.shape[0])
    constraints = spline_epigraph(cp, problem.network.layers[0].activation, V @ u, z)
    for end, sign in ((problem.bounds.lower, 1), (problem.bounds.upper, -1)):
        if np.isfinite(end):
            constraints.append(sign * u >= sign * end)
    f, w = problem.fidelity, A @ u
    match type(f).__name__:
        case "L1":
            data = f.scale * cp.norm1(w - y)
        case "KullbackLeibler":
            data = cp.sum(cp.kl_div(y, w + float(f.background)))
        case _:
            weights = (f.weights * torch.ones_like(f.y)).flatten().numpy()
            data = cp.sum(cp.multiply(weights / 2, cp.square(w - y)))
    output = problem.regularizer.output.detach().repeat_interleave(pixels).numpy()
    value = data + problem.weight * output @ z + cp.quad_form(u, cp.psd_wrap(H)) / 2
    value += -kappa * at @ u + kappa / 2 * at @ at
    return float(cp.Problem(cp.Minimize(value), constraints).solve(cp.CLARABEL))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind",
    ["blur", "CT", "boxed blur", "blurred Poisson", "mask", "blur circular", "MRI", "Poisson",
     "mask L1", "L1"],
)  # fmt: skip
def test_every_problem_ends_in_a_critical_point_with_a_proof(kind, tmp_path):
    problem = stated(kind)
    solution = cl.solve(problem, stop=STOP)
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.guarantee[0] is cl.Guarantee.CRITICAL
    values = solution.history["objective"].flatten()
    assert bool((values.diff() <= 1e-3 * values[0]).all())  # it never increases, but for gaps
    kappa = solution.proof.claim.kappa
    best = lowest_near(problem, solution.x, kappa)
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert (verdict.guarantee, verdict.kappa) == ("CRITICAL", kappa)
    slack = 1e-6 * abs(best)  # accuracy of the other solver
    for bound, value in (
        (float(solution.lower_bound), float(solution.objective)),
        (verdict.lower_bound, verdict.objective),
    ):
        assert best - 2e-3 * abs(best) <= bound <= best + slack
        assert best - slack <= value
    assert float(problem.objective(solution.x)) == pytest.approx(float(solution.objective))


def test_images_that_are_not_critical_have_large_gaps():
    from convexlift.problems.weakly_convex import weak_claim

    problem = stated("boxed blur")
    solution = cl.solve(problem, stop=STOP)
    moved = problem.bounds.project(solution.x + 0.1 * random(*solution.x.shape, seed=9))
    worse = weak_claim(problem, moved, solution.duals)
    assert float(worse.gap) > 10 * float(solution.gap)
    assert float(worse.lower_bound) <= lowest_near(problem, moved, worse.kappa) * (1 + 1e-6)


def test_without_a_concave_part_the_point_is_the_minimum_of_the_convex_problem():
    weak = stated("boxed blur")
    with torch.no_grad():
        weak.regularizer.concavity.zero_()
    same = cl.WeaklyConvexProblem(
        fidelity=weak.fidelity, operator=weak.operator, regularizer=weak.regularizer, weight=0.5,
        box=(0, 1),
    )  # fmt: skip
    found = cl.solve(same, stop=STOP)
    best = cl.solve(same.convex, stop=cl.StopWhen(gap=1e-5, max_iterations=20_000))
    assert float(found.objective) == pytest.approx(float(best.objective), rel=1e-3)


def test_batches_behind_an_operator_have_a_claim_for_each_image():
    problem = stated("blur", batch=3)
    solution = cl.solve(problem, stop=STOP)
    assert set(solution.guarantee) == {cl.Guarantee.CRITICAL}
    for i in range(3):
        alone = cl.WeaklyConvexProblem(
            fidelity=cl.SquaredL2(problem.fidelity.y[i : i + 1]), operator=problem.operator,
            regularizer=problem.regularizer, weight=problem.weight, box=problem.box,
        )  # fmt: skip
        x = solution.x[i : i + 1]
        best = lowest_near(alone, x, solution.proof.claim.kappa)
        assert float(solution.lower_bound[i]) <= best * (1 + 1e-6)


def test_single_precision_and_an_operator_that_knows_no_other():
    class Halving(cl.LinearOperator):
        """x / 2, in single precision only."""

        def __init__(self):
            self.half = torch.tensor(0.5, dtype=torch.float32)

        def forward(self, x):
            if x.dtype != torch.float32:
                raise RuntimeError("single precision only")
            return self.half.float() * x

        adjoint = forward

    net, y = network("circular").float(), random(1, 1, *SIZE).float()
    problem = cl.WeaklyConvexProblem(
        fidelity=cl.SquaredL2(0.5 * y), operator=Halving(), regularizer=net, weight=0.2, box=(0, 1)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3))
    assert solution.x.dtype is torch.float32
    assert solution.guarantee[0] is cl.Guarantee.CRITICAL
    assert float(solution.gap) <= 1e-3


def test_bad_arguments_of_solve_are_refused_before_any_work():
    problem = stated("blur")
    y = problem.fidelity.y.clone().requires_grad_()
    learned = cl.WeaklyConvexProblem(
        fidelity=cl.SquaredL2(y), operator=problem.operator, regularizer=problem.regularizer,
        weight=1.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="the fidelity of the problem requires gradients"):
        cl.solve(learned)
    with pytest.raises(ValueError, match="differentiable=True is for convex problems"):
        cl.solve(learned, differentiable=True)
    with pytest.raises(ValueError, match="start is nan at index"):
        cl.solve(problem, start=torch.full_like(y, float("nan")).detach())
    with pytest.raises(TypeError, match=r"start must be a torch\.Tensor"):
        cl.solve(problem, start=y.detach().numpy())
    with pytest.raises(TypeError, match=r"stop must be a cl\.StopWhen"):
        cl.solve(problem, stop=1e-3)
    with pytest.raises(ValueError, match="write both, or neither"):
        cl.solve(problem, hypergradient=cl.Implicit())


def test_a_changed_dual_variable_of_the_data_proves_less(tmp_path):
    import json

    import safetensors.numpy
    from safetensors import safe_open

    from convexlift.proofs import METADATA, sealed

    path = cl.solve(stated("blur"), stop=STOP).proof.save(tmp_path / "x.proof")
    arrays = safetensors.numpy.load_file(path)
    with safe_open(path, framework="numpy") as file:
        sheet = json.loads(file.metadata()[METADATA])
    arrays["dual.data"] = arrays["dual.data"] + 0.1
    sheet = {k: v for k, v in sheet.items() if k not in ("sha256", "network_sha256", "digest")}
    path.write_bytes(sealed(sheet, arrays))
    with pytest.raises(cl.ProofRejected, match="lower_bound is"):
        cl.verify(path)


@pytest.mark.parametrize("kind", ["blur", "boxed blur"])
def test_autocast_changes_nothing(kind):
    problem = stated(kind).to(dtype=torch.float32)
    stop = cl.StopWhen(gap=1e-3, max_iterations=200)
    plain = cl.solve(problem, stop=stop)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = cl.solve(problem, stop=stop)
    assert torch.equal(cast.x, plain.x)
    assert torch.equal(cast.lower_bound, plain.lower_bound)
