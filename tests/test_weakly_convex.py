"""Weakly convex regularizers: bounds beside CVXPY and brute force, norms beside dense matrices."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import safetensors.numpy
import torch
from dense import dense_matrix
from parts import spline_epigraph
from torch import Tensor

import convexlift as cl
from convexlift.networks import Chain, Convolution
from convexlift.networks.maps import LinearMap
from convexlift.problems.filter_norms import largest_eigenvalue
from convexlift.proofs import METADATA, sealed
from convexlift.solvers.convex_sequence import solve_sequence
from convexlift.solvers.loop import solve_roughly

KNOTS, TAIL = (0.05, 0.4), 0.5
SIZE = (7, 6)


def filters(kind: str = "zero") -> LinearMap:
    torch.manual_seed(3)
    if kind == "chain":
        return Chain(Convolution(1, 2, 3), Convolution(2, 4, 3))
    return Convolution(1, 4, 3, padding=kind)


def network(kind: str = "zero") -> cl.WeaklyConvexNetwork:
    """psi steep at 0, then concave, then linear: phi'' is 0 where psi'' = -rho."""
    h = cl.QuadraticSpline(KNOTS, tail=TAIL)
    layer = cl.ConvexLayer(h, channels=4, skip=filters(kind), bias=False)
    net = cl.WeaklyConvexNetwork([layer])
    with torch.no_grad():
        net.layers[0].shares.copy_(torch.tensor([1.0, 0.0]).expand(4, -1))
        net.output.copy_(0.2 + 0.3 * torch.rand(4))
        net.concavity.copy_(TAIL * net.output)
    return net


def top(net: cl.WeaklyConvexNetwork, size: tuple[int, int] = SIZE) -> float:
    """The largest eigenvalue of sum_c rho_c V_c* V_c."""
    V = dense_matrix(net.layers[0].skip.operator((1, *size)), (1, *size))
    rho = net.concavity.detach().repeat_interleave(size[0] * size[1]).numpy()
    return float(np.linalg.eigvalsh(V.T @ (rho[:, None] * V))[-1])


def problem(share: float, kind: str = "zero", box=None, batch: int = 1) -> cl.WeaklyConvexProblem:
    """Denoising with ||M|| this share of the modulus of the data term."""
    net = network(kind)
    y = torch.rand((batch, 1, *SIZE), generator=torch.Generator().manual_seed(0))
    return cl.WeaklyConvexProblem(
        fidelity=cl.SquaredL2(y), regularizer=net, weight=share / top(net), box=box
    )


def objective(stated: cl.WeaklyConvexProblem, u: Tensor) -> Tensor:
    """J(u) from its definition."""
    distance = (stated.fidelity.weights * (u - stated.fidelity.y) ** 2).flatten(1).sum(1) / 2
    return distance + stated.weight * stated.regularizer(u)


def lowest(stated: cl.WeaklyConvexProblem, around: Tensor, kappa: float = 0.0) -> float:
    """The smallest J(u) + kappa/2 |u - around|^2 that L-BFGS of torch finds from several starts."""
    best = float("inf")
    for seed in range(6):
        torch.manual_seed(seed)
        u = (around if seed == 0 else 2 * torch.rand_like(around) - 0.5).clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [u], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
        )

        def loss(u=u, optimiser=optimiser) -> Tensor:
            optimiser.zero_grad()
            value = objective(stated, u).sum() + kappa / 2 * (u - around).square().sum()
            value.backward()
            return value

        optimiser.step(loss)
        best = min(best, float(loss().detach()))
    return best


# Norms


@pytest.mark.parametrize("kind", ["zero", "circular", "chain", "reflect"])
@pytest.mark.parametrize("size", [(7, 6), (5, 11), (14, 14)])
def test_eigenvalues_are_bounded_from_above_and_closely(kind, size):
    net = network(kind)
    V = net.layers[0].skip.operator((1, *size))
    exact = top(net, size)
    found = largest_eigenvalue(V, net.concavity.detach(), (1, *size))
    assert exact <= found
    closely = kind != "zero"  # small images see less than the torus around them
    assert found <= exact * (1 + 1e-6 if closely else 1.5)


def test_large_images_have_a_bound_unless_edges_forbid_one():
    for kind in ("zero", "circular", "chain"):
        V = filters(kind).operator((1, 64, 50))
        bound = largest_eigenvalue(V, torch.ones(4), (1, 64, 50))
        assert V.norm((1, 64, 50)) ** 2 / 1.02**2 <= bound < 50 * V.norm((1, 64, 50)) ** 2


def test_other_paddings_have_a_bound_by_row_sums_however_large_the_image(tmp_path):
    V = filters("reflect").operator((1, 64, 50))
    bound = largest_eigenvalue(V, torch.ones(4), (1, 64, 50))
    assert V.norm((1, 64, 50)) ** 2 / 1.02**2 <= bound < 200 * V.norm((1, 64, 50)) ** 2
    y = torch.rand(1, 1, 36, 40)
    stated = cl.WeaklyConvexProblem(
        fidelity=cl.SquaredL2(y), regularizer=network("reflect"), weight=0.5
    )
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-3, max_iterations=20_000))
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL  # by a factorisation
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"


def test_the_symbol_of_a_chain_is_no_bound():
    """Shifted to both sides and back, then subtracted: 0 inside, but not at the edges."""
    chain = Chain(Convolution(1, 2, 3), Convolution(2, 1, 3))
    first, second = (link.weight.data.zero_() for link in chain.maps)
    first[0, 0, 1, 2] = first[1, 0, 1, 0] = 1
    second[0, 0, 1, 0], second[0, 1, 1, 2] = 1, -1
    spectra = [torch.fft.fft2(kernel, s=(64, 64)) for kernel in (first, second)]
    symbol = torch.einsum("oixy,icxy->ocxy", spectra[1], spectra[0]).abs().max()
    assert float(symbol) < 1e-12
    for size in (8, 40):
        V = chain.operator((1, size, size))
        assert largest_eigenvalue(V, torch.ones(1), (1, size, size)) >= 1
        assert float(V(torch.ones(1, 1, size, size)).detach().abs().max()) == 1


# Bounds


def optimum(stated: cl.WeaklyConvexProblem) -> float:
    """The minimum by CVXPY, of D - 1/2 <x, M x> as one convex quadratic form."""
    shape = stated.image_shape
    V = dense_matrix(stated.filters, shape)
    pixels = shape[1] * shape[2]
    rho = stated.regularizer.concavity.detach().repeat_interleave(pixels).numpy()
    H = np.eye(pixels) - stated.weight * V.T @ (rho[:, None] * V)
    y = stated.fidelity.y.flatten().numpy()
    x, z = cp.Variable(pixels), cp.Variable(4 * pixels)
    h = stated.network.layers[0].activation
    constraints = spline_epigraph(cp, h, V @ x, z)
    if np.isfinite(stated.bounds.lower):
        constraints += [x >= stated.bounds.lower, x <= stated.bounds.upper]
    weights = stated.regularizer.output.detach().repeat_interleave(pixels).numpy()
    value = cp.quad_form(x, cp.psd_wrap(H)) / 2 - y @ x + y @ y / 2 + stated.weight * weights @ z
    return float(cp.Problem(cp.Minimize(value), constraints).solve(cp.CLARABEL))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("box", [None, (0, 1), (0.2, 0.7)])
@pytest.mark.parametrize("share", [0.3, 0.9])
@pytest.mark.parametrize("kind", ["circular", "chain"])
def test_convex_objectives_get_a_global_proof(kind, share, box, tmp_path):
    stated = problem(share, kind, box)
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-6, max_iterations=20_000))
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL
    assert float(objective(stated, solution.x).detach()) == pytest.approx(float(solution.objective))
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"
    best = optimum(stated)
    slack = 1e-6 * best  # accuracy of the other solver
    for bound, value in (
        (float(solution.lower_bound), float(solution.objective)),
        (verdict.lower_bound, verdict.objective),
    ):
        assert best * (1 - 3e-6) - slack <= bound <= best + slack
        assert best - slack <= value <= best * (1 + 3e-6) + slack


@pytest.mark.parametrize("share", [1.1, 3.0])
@pytest.mark.parametrize("box", [None, (0, 1)])
def test_other_objectives_get_a_critical_point_and_never_a_global_claim(share, box, tmp_path):
    stated = problem(share, "chain", box)
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-5, max_iterations=20_000))
    assert solution.guarantee[0] is cl.Guarantee.CRITICAL
    assert float(solution.gap) <= 1e-5
    kappa = solution.proof.claim.kappa
    assert kappa > stated.weight * top(stated.regularizer) - 1
    if box is None:  # the unconstrained proximal problem
        assert float(solution.lower_bound) <= lowest(stated, solution.x, kappa) + 1e-9
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert (verdict.guarantee, verdict.kappa) == ("CRITICAL", kappa)
    assert "|u - x|^2 added" in str(verdict)


def test_global_bounds_hold_for_every_start_of_another_solver():
    stated = problem(0.98, "chain")
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-4, max_iterations=20_000))
    assert float(solution.lower_bound) <= lowest(stated, solution.x) + 1e-10


def test_a_slight_lack_of_convexity_is_part_of_the_bound_over_a_box():
    stated = problem(1.001, "chain", (-0.5, 1.5))
    assert stated.curvature < 0
    solution = cl.solve(stated, stop=cl.StopWhen(gap=0.05, max_iterations=5_000))
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL
    free = cl.WeaklyConvexProblem(
        fidelity=stated.fidelity, regularizer=stated.regularizer, weight=stated.weight
    )
    assert cl.solve(free).guarantee[0] is cl.Guarantee.CRITICAL  # without a box nothing bounds it
    assert float(solution.lower_bound) <= lowest(free, solution.x) + 1e-10


@pytest.mark.parametrize("what", ["kappa", "concavity", "centre", "bound"])
def test_a_proof_of_less_than_it_claims_is_rejected(what, tmp_path):
    """With digests that fit: whoever changes a file can compute them too."""
    solution = cl.solve(problem(1.5, "chain"), stop=cl.StopWhen(gap=1e-5, max_iterations=20_000))
    path = solution.proof.save(tmp_path / "x.proof")
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        sheet = json.loads(file.metadata()[METADATA])
    if what == "kappa":
        sheet["kappa"] = 0.0
        sheet["claims"][0]["guarantee"] = "GLOBAL"
    elif what == "concavity":
        arrays["network.concavity"] = -arrays["network.concavity"]
    elif what == "centre":
        arrays["centre"] = arrays["centre"] + 0.3
    else:
        sheet["claims"][0]["lower_bound"] += 1e-3 * sheet["claims"][0]["objective"]
    sheet.pop("sha256"), sheet.pop("network_sha256"), sheet.pop("digest")
    path.write_bytes(sealed(sheet, arrays))
    with pytest.raises(cl.ProofRejected):
        cl.verify(path)


def test_missing_pixels_end_in_a_critical_point(tmp_path):
    net = network("circular")
    y = torch.rand((1, 1, *SIZE), generator=torch.Generator().manual_seed(1))
    seen = (torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) > 0.3).to(y)
    stated = cl.WeaklyConvexProblem(
        fidelity=cl.WeightedL2(y, seen), regularizer=net, weight=0.3 / top(net), box=(0, 1)
    )
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-3, max_iterations=20_000))
    assert solution.guarantee[0] is cl.Guarantee.CRITICAL
    assert float(solution.gap) <= 1e-3
    values = solution.history["objective"].flatten()
    assert float(values.diff().max()) <= 1e-6 * float(values[0])  # never increases
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "CRITICAL"


def test_batches_and_single_precision():
    stated = problem(0.8, "zero", batch=3).to(dtype=torch.float32)
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-3))
    assert set(solution.status) == {cl.Status.CONVERGED}
    assert solution.x.dtype is torch.float32
    exact = problem(0.8, "zero", batch=3)
    for i in range(3):
        alone = cl.WeaklyConvexProblem(
            fidelity=cl.SquaredL2(exact.fidelity.y[i : i + 1]), regularizer=exact.regularizer,
            weight=exact.weight,
        )  # fmt: skip
        best = float(cl.solve(alone, stop=cl.StopWhen(gap=1e-6, max_iterations=20_000)).objective)
        assert float(solution.lower_bound[i]) <= best * (1 + 1e-6)


def test_the_callback_stops_a_sequence():
    seen = []
    solution = cl.solve(
        problem(0.9, "chain"), stop=cl.StopWhen(gap=1e-9), callback=lambda p: seen.append(p) or True
    )
    assert solution.status[0] is cl.Status.STOPPED
    assert len(seen) == len(solution.history) == 1


def test_an_interrupted_sequence_keeps_its_best_image():
    stated = problem(0.9)

    def interrupt(_) -> None:
        raise KeyboardInterrupt

    stop = cl.StopWhen(gap=0.0, max_iterations=1000)
    solution = cl.solve(stated, stop=stop, callback=interrupt)
    assert solution.status == (cl.Status.INTERRUPTED,)
    value = float(objective(stated, solution.x).detach())
    assert float(solution.objective) == pytest.approx(value)
    assert float(solution.lower_bound) <= float(solution.objective)


def test_an_interrupt_inside_a_convex_problem_ends_the_sequence():
    def interrupted(*args, **kwargs):
        return replace(solve_roughly(*args, **kwargs), status=(cl.Status.INTERRUPTED,))

    stop = cl.StopWhen(gap=0.0, max_iterations=1000)
    solution = solve_sequence(problem(0.9), interrupted, stop)
    assert solution.status == (cl.Status.INTERRUPTED,)
    assert len(solution.history) == 1


def test_convex_problems_get_what_is_left_of_the_limits():
    stops = []

    def noted(*args, stop, **kwargs):
        stops.append(stop)
        return solve_roughly(*args, stop=stop, **kwargs)

    solve_sequence(problem(0.9), noted, cl.StopWhen(gap=0.0, max_iterations=50, seconds=100.0))
    assert stops[0].max_iterations == 50
    assert all(later.max_iterations < earlier.max_iterations for earlier, later in pairwise(stops))
    assert all(later.seconds < earlier.seconds <= 100 for earlier, later in pairwise(stops))


def test_bad_statements_are_refused():
    net, y = network(), torch.rand(1, 1, *SIZE)
    with pytest.raises(TypeError, match="got the data themselves"):
        cl.WeaklyConvexProblem(fidelity=y, regularizer=net, weight=1.0)
    with pytest.raises(TypeError, match="operator must be a LinearOperator"):
        cl.WeaklyConvexProblem(fidelity=cl.L1(y), operator=abs, regularizer=net, weight=1.0)
    with pytest.raises(TypeError, match="convex ones belong to"):
        cl.WeaklyConvexProblem(
            fidelity=cl.SquaredL2(y), regularizer=cl.networks.ridge(), weight=1.0
        )
    with pytest.raises(ValueError, match="weight must be positive"):
        cl.WeaklyConvexProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=-1.0)
    with pytest.raises(ValueError, match="one layer, without bias"):
        cl.WeaklyConvexNetwork(cl.networks.convolutional().layers)
