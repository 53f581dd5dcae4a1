"""Bounds for images that are bounded on one side only: dual variables repaired pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import convexlift as cl
from convexlift.phantoms import shepp_logan

SIZE = 24


def scan(box, sign: float = 1.0, size: int = SIZE, views: int = 20) -> cl.VariationalProblem:
    """A noisy scan; with sign -1, of the negative image."""
    A = cl.ParallelBeam(image_size=size, angles=views, bins=size)
    noise = 0.02 * torch.randn((1, 1, views, size), generator=torch.Generator().manual_seed(0))
    y = A(shepp_logan(size).double()) + noise.double()
    data = cl.SquaredL2(sign * y)
    return cl.VariationalProblem(
        fidelity=data, operator=A, regularizer=cl.TotalVariation(), weight=0.02, box=box
    ).to(dtype=torch.float64)


def after(problem: cl.VariationalProblem, iterations: int) -> cl.Solution:
    stop = cl.StopWhen(gap=0.0, max_iterations=iterations)
    return cl.solve(problem, method=cl.PDHG(), stop=stop)


def test_bounds_over_all_images_do_not_lag():
    """Without repairs, those of x >= 0 were three times as far away as those of a box."""
    gaps = [float(after(scan(box), 120).gap) for box in ((0, None), (0, 2))]
    assert gaps[0] < gaps[1]
    y = torch.rand((1, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(0))
    problem = cl.VariationalProblem(  # |x - y| grows with a slope of 1 only
        fidelity=cl.L1(y), regularizer=cl.TotalVariation(), weight=0.4, box=(0, None)
    )
    solution = cl.solve(problem)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert int(solution.iterations) <= 80


def test_upper_ends_are_the_mirror_image():
    mirrored = ((0, None), 1), ((None, 0), -1)
    gaps = [float(after(scan(box, sign), 160).gap) for box, sign in mirrored]
    assert gaps[1] == pytest.approx(gaps[0], rel=1e-6)


@pytest.mark.parametrize("box", [(0, None), (None, 1)])
def test_missing_pixels_with_one_bound_have_a_global_proof(box, tmp_path):
    """Nothing but p bounds <c, x> at a pixel that no datum sees."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand((1, 1, SIZE, SIZE), generator=generator) > 0.4).double()
    clean = shepp_logan(SIZE).double()
    y = mask * (clean + 0.1 * torch.randn(clean.shape, generator=generator).double())
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=cl.Mask(mask), regularizer=cl.TotalVariation(),
        weight=0.1, box=box,
    )  # fmt: skip
    solution = cl.solve(problem)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert solution.status == (cl.Status.CONVERGED,)
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"
    assert np.isclose(verdict.gap, float(solution.gap), rtol=0.1, atol=1e-6)


def test_images_of_a_batch_have_no_influence_on_each_other():
    """One image lags behind its bound near x, and the other does not."""
    generator = torch.Generator().manual_seed(0)
    noisy = torch.rand((1, 1, SIZE, SIZE), generator=generator)
    y = torch.cat([noisy, torch.full_like(noisy, 0.5)])

    def solved(data: Tensor) -> cl.Solution:
        problem = cl.VariationalProblem(
            fidelity=cl.L1(data), regularizer=cl.TotalVariation(), weight=0.4, box=(0, None)
        )
        return cl.solve(problem)

    both = solved(y)
    for i in range(2):
        alone = solved(y[i : i + 1])
        assert int(both.iterations[i]) == int(alone.iterations)
        assert float(both.lower_bound[i]) == pytest.approx(float(alone.lower_bound), rel=1e-12)


def test_filters_of_zeros_and_single_precision_are_no_obstacle():
    net = cl.networks.ridge(channels=1, kernel=3)
    torch.nn.init.zeros_(net.layers[0].skip.weight)
    y = torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    for regularizer in (net, cl.TotalVariation()):
        problem = cl.VariationalProblem(
            fidelity=cl.L1(y), operator=cl.Mask(y > 0.3), regularizer=regularizer, weight=0.1,
            box=(0, None),
        ).to(dtype=torch.float32)  # fmt: skip
        solution = cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=20))
        assert solution.guarantee == (cl.Guarantee.GLOBAL,)
