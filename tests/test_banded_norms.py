"""Band factorisations: entries and eigenvalues beside dense matrices, proofs that are refused."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import safetensors.numpy
import torch
from dense import dense_matrix

import convexlift as cl
from convexlift.networks import Chain, Convolution
from convexlift.networks.maps import LinearMap
from convexlift.operators.linear import LinearOperator
from convexlift.problems import banded_norms
from convexlift.problems.banded_norms import band_matrix, eigenvalue_below, estimate, factored_bound
from convexlift.proofs import METADATA, sealed

WEIGHTS = torch.tensor([0.3, 1.0, 0.2, 0.6])


def chain(channels: int = 1, padding: str = "zero", kernels: tuple[int, int] = (3, 3)) -> Chain:
    torch.manual_seed(4)
    first = Convolution(channels, 2, kernels[0], padding=padding)
    return Chain(first, Convolution(2, 4, kernels[1], padding=padding))


def gram(V: LinearOperator, shape: tuple[int, int, int]) -> np.ndarray:
    matrix = np.asarray(dense_matrix(V, shape))
    rows = WEIGHTS.repeat_interleave(shape[1] * shape[2]).numpy()
    return matrix.T @ (rows[:, None] * matrix)


CASES = [
    ((1, 20, 14), "zero", (3, 3)),  # 6 r + 1 = 13
    ((1, 14, 21), "zero", (3, 3)),
    ((1, 30, 7), "reflect", (3, 5)),
    ((1, 6, 17), "replicate", (3, 3)),
    ((2, 15, 14), "zero", (3, 3)),
    ((1, 40, 3), "zero", (1, 3)),
]


@pytest.mark.parametrize(("shape", "padding", "kernels"), CASES)
@pytest.mark.parametrize("panel", [1, 60])
def test_bounds_are_above_the_largest_eigenvalue_and_closely(
    shape, padding, kernels, panel, monkeypatch
):
    monkeypatch.setattr(banded_norms, "PANEL", panel)
    V = chain(shape[0], padding, kernels).operator(shape)
    M = gram(V, shape)
    top = float(np.linalg.eigvalsh(M)[-1])
    matrix = band_matrix(V, WEIGHTS, shape)
    whole = np.zeros((matrix.rows, matrix.n) * 2)
    for i in range(matrix.rows):
        for j in range(max(0, i - matrix.band), i + 1):
            whole[i, :, j] = matrix.block(i, j)
            whole[j, :, i] = matrix.block(i, j).T
    order = np.arange(math.prod(shape)).reshape(shape)
    order = order.transpose((1, 0, 2) if shape[1] >= shape[2] else (2, 0, 1)).ravel()
    np.testing.assert_allclose(whole.reshape(M.shape), M[np.ix_(order, order)], atol=1e-12)
    for above in (1e-6, 1e-2, 3.0):
        found = eigenvalue_below(matrix, top * (1 + above))
        assert top * (1 + above) <= found <= top * (1 + above) * (1 + 1e-9)
    for below in (1e-6, 0.5):
        assert eigenvalue_below(matrix, top * (1 - below)) == math.inf


@pytest.mark.parametrize(("shape", "padding", "kernels"), CASES[:3])
def test_estimates_and_what_comes_of_them(shape, padding, kernels):
    V = chain(shape[0], padding, kernels).operator(shape)
    top = float(np.linalg.eigvalsh(gram(V, shape))[-1])
    assert top * (1 - 1e-4) <= estimate(V, WEIGHTS, shape) <= top * (1 + 1e-5)
    level, bound = factored_bound(V, WEIGHTS, shape, 1.001 * top, 0.0)
    assert top <= bound < 1.001 * top
    assert level <= bound
    scaled = factored_bound(V, 10 * WEIGHTS, shape, 20 * top, 0.0)  # remembered
    assert scaled.bound == pytest.approx(10 * bound, rel=1e-12)
    assert factored_bound(V, WEIGHTS, shape, 0.9 * top, 0.0) is None


def test_what_has_no_band_or_would_take_too_long_is_left_alone(monkeypatch):
    around = chain(padding="circular").operator((1, 9, 9))
    assert factored_bound(around, WEIGHTS, (1, 9, 9), 1e9, 0.0) is None
    monkeypatch.setattr(banded_norms, "MOST_WORK", 1.0)
    plain = chain().operator((1, 9, 9))
    assert factored_bound(plain, WEIGHTS, (1, 9, 9), 1e9, 0.0) is None


def problem(
    share: float = 0.97, skip: LinearMap | None = None, shape: tuple[int, int, int] = (1, 40, 36)
) -> cl.WeaklyConvexProblem:
    """Denoising of more pixels than a dense matrix is made for."""
    h, skip = cl.QuadraticSpline((0.05, 0.4), tail=0.5), skip or chain()
    layer = cl.ConvexLayer(h, channels=4, skip=skip, bias=False)
    net = cl.WeaklyConvexNetwork([layer], in_channels=shape[0])
    with torch.no_grad():
        net.layers[0].shares.copy_(torch.tensor([1.0, 0.0]).expand(4, -1))
        net.output.copy_(WEIGHTS)
        net.concavity.copy_(0.5 * WEIGHTS)
    top = 0.5 * estimate(skip.operator(shape), WEIGHTS, shape)
    y = torch.rand((1, *shape), generator=torch.Generator().manual_seed(0))
    return cl.WeaklyConvexProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=share / top)


def test_the_checker_factorises_too_and_refuses_levels_that_are_too_low(tmp_path):
    stated = problem()
    assert 0 < stated.curvature <= 0.03
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-4, max_iterations=20_000))
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL
    path = solution.proof.save(tmp_path / "x.proof")
    (verdict,) = cl.verify(path)
    assert verdict.guarantee == "GLOBAL"
    assert verdict.gap <= 1.01e-4
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        sheet = json.loads(file.metadata()[METADATA])
    for level, reason in (
        (0.9, "only .* is proved|not finite"),  # below the eigenvalue: there is no factor
        (None, "only .* is proved|not finite"),
        (math.nan, "in place of a number"),
        ("high", "in place of a number"),
    ):
        changed = {**sheet, "level": level}
        if level is None:
            del changed["level"]
        path.write_bytes(sealed(changed, arrays))
        with pytest.raises(cl.ProofRejected, match=reason):
            cl.verify(path)


def test_an_objective_that_is_hardly_not_convex_gets_no_global_claim():
    stated = problem(1.0005)
    assert stated.curvature < 0
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-2, max_iterations=5000))
    assert solution.guarantee[0] is cl.Guarantee.CRITICAL


@pytest.mark.slow
def test_a_checker_with_larger_error_bounds_confirms_the_claim(tmp_path):
    # Rows of 270 unknowns, for which the checker's bounds on rounding are twice the solver's.
    torch.manual_seed(4)
    stated = problem(0.99, Convolution(3, 4, 3, padding="replicate"), (3, 90, 90))
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-2, max_iterations=3000))
    assert math.isfinite(stated.level.level)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert cl.verify(solution.proof.save(tmp_path / "x.proof"))[0].guarantee == "GLOBAL"


def test_a_bound_for_another_ceiling_does_not_take_the_room_of_this():
    V, shape = chain().operator((1, 40, 36)), (1, 40, 36)
    top = estimate(V, WEIGHTS, shape)
    for ceiling in (1.1 * top, 1.0005 * top):
        _, bound = factored_bound(V, WEIGHTS, shape, ceiling, 0.0)
        assert ceiling - bound >= 0.4 * (ceiling - top)


def test_chains_in_chains_have_proofs_that_are_confirmed(tmp_path):
    stated = problem(skip=Chain(Chain(*chain().maps[:1]), *chain().maps[1:]))
    assert math.isfinite(stated.level.level)
    solution = cl.solve(stated, stop=cl.StopWhen(gap=1e-3, max_iterations=5000))
    assert cl.verify(solution.proof.save(tmp_path / "x.proof"))[0].guarantee == "GLOBAL"


@pytest.mark.parametrize("kernel", [(1.5e-162, 5e-16), (1.6e-163, 3e-18)], ids=str)
@pytest.mark.parametrize("kind", ["level", "chain"])
def test_squares_that_underflow_prove_nothing(kind, kernel, tmp_path):
    """J(1) < 0 by exact rational numbers, though V^T V is zero in double precision."""
    size, (a, weight) = 8, kernel
    skip = Convolution(1, 1, 3)
    if kind == "chain":
        skip = Chain(skip, Convolution(1, 1, 1))
    layer = cl.ConvexLayer(cl.QuadraticSpline((0.05, 0.4), tail=0.5), channels=1, skip=skip,
                           bias=False)  # fmt: skip
    net = cl.WeaklyConvexNetwork([layer])
    with torch.no_grad():
        net.concavity.fill_(0.001)
    y = torch.rand((1, 1, size, size))
    data = cl.WeightedL2(y, torch.ones_like(y))
    stated = cl.WeaklyConvexProblem(fidelity=data, regularizer=net, weight=1.0, box=(-1, 1))
    path = cl.solve(stated).proof.save(tmp_path / "x.proof")
    arrays = dict(safetensors.numpy.load_file(path))
    with safetensors.safe_open(path, framework="numpy") as file:
        sheet = json.loads(file.metadata()[METADATA])
    for name in ("x", "y", "centre", "dual.1"):
        arrays[name] = np.zeros_like(arrays[name], dtype=np.float64)
    first = "network.layers.0.skip" + ".maps.0" * (kind == "chain")
    arrays[f"{first}.weight"] = np.full((1, 1, 3, 3), a)
    if kind == "chain":
        arrays["network.layers.0.skip.maps.1.weight"] = np.ones((1, 1, 1, 1))
    arrays["network.concavity"], arrays["network.output"] = np.array([1e307]), np.zeros(1)
    arrays["fidelity.weights"] = np.full_like(arrays["y"], weight)
    sheet |= {"kappa": 0.0, "claims": [
        {"objective": 0.0, "lower_bound": 0.0, "gap": 0.0, "guarantee": "GLOBAL"}
    ]}  # fmt: skip
    sheet.pop("level", None)
    if kind == "level":
        sheet["level"] = 1e-20
    ones = np.pad(np.ones((size, size), int), 1)
    responses = sum(ones[i : i + size, j : j + size] for i in range(3) for j in range(3))
    concave = sum((int(n) * Fraction(a)) ** 2 for n in responses.flat)
    assert Fraction(weight) / 2 * size**2 < Fraction(1e307) / 2 * concave
    path.write_bytes(sealed(sheet, arrays))
    with pytest.raises(cl.ProofRejected):
        cl.verify(path)
