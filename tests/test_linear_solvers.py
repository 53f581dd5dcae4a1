"""Linear systems of the implicit function theorem, against dense solves."""

from __future__ import annotations

import pytest
import torch

from convexlift.solvers.linear_solvers import conjugate_gradients, minimal_residuals

SHAPE = (2, 3, 4)
SIZE = 24
SOLVERS = {"cg": conjugate_gradients, "minres": minimal_residuals}
every_solver = pytest.mark.parametrize("method", SOLVERS.values(), ids=SOLVERS)


def matrices(batch: int, rank: int = SIZE) -> torch.Tensor:
    """Symmetric, with the eigenvalues 1, ..., rank, and zeros for the rest."""
    frames = torch.linalg.qr(torch.randn(batch, SIZE, SIZE))[0]
    values = torch.where(torch.arange(SIZE) < rank, torch.arange(SIZE) + 1.0, 0.0)
    return frames @ torch.diag(values) @ frames.mT


def applied(H: torch.Tensor, counts: list[int] | None = None):
    def apply(v: torch.Tensor) -> torch.Tensor:
        if counts is not None:
            counts.append(1)
        return (H @ v.flatten(1)[..., None])[..., 0].reshape(v.shape)

    return apply


def solve(method, H, r, start=None, iterations=60, tolerance=1e-12, counts=None):
    start = torch.zeros_like(r) if start is None else start
    apply = applied(H, counts)
    return method(apply, r, start=start, iterations=iterations, tolerance=tolerance)


@every_solver
def test_the_solution_is_that_of_a_dense_solve(method):
    H, r = matrices(5), torch.randn(5, *SHAPE)
    exact = torch.linalg.solve(H, r.flatten(1)).reshape(r.shape)
    torch.testing.assert_close(solve(method, H, r), exact, atol=1e-9, rtol=1e-9)
    # Krylov spaces of SIZE eigenvalues are exhausted after SIZE steps.
    torch.testing.assert_close(
        solve(method, H, r, iterations=SIZE, tolerance=1e-300), exact, atol=1e-6, rtol=1e-6
    )


def test_minimal_residuals_solve_singular_systems_that_have_solutions():
    H = matrices(3, rank=10)
    r = applied(H)(torch.randn(3, *SHAPE))
    q = solve(minimal_residuals, H, r)
    torch.testing.assert_close(applied(H)(q), r, atol=1e-9, rtol=1e-9)
    # From zero on nothing leaves the range of H: this is the shortest solution.
    shortest = (torch.linalg.pinv(H) @ r.flatten(1)[..., None])[..., 0].reshape(r.shape)
    torch.testing.assert_close(q, shortest, atol=1e-8, rtol=1e-8)


@every_solver
def test_nothing_on_the_right(method):
    H, r = matrices(2), torch.randn(2, *SHAPE)
    r[0] = 0
    q = solve(method, H, r)
    assert torch.equal(q[0], torch.zeros(SHAPE))
    assert torch.isfinite(q).all()
    # Also from a start that is not the solution, and with no equations at all.
    assert float(solve(method, H, r, torch.ones_like(r))[0].abs().max()) < 1e-9
    assert torch.isfinite(solve(method, torch.zeros_like(H), r)).all()


@every_solver
def test_images_do_not_influence_each_other(method):
    """One is there at once, one never: each ends as it does alone."""
    H, r = matrices(3), torch.randn(3, *SHAPE)
    H[1] = 2 * torch.eye(SIZE)
    r[2] *= 1e6
    counts = []
    q = solve(method, H, r, tolerance=1e-8, counts=counts)
    for i in range(3):
        alone = solve(method, H[i : i + 1], r[i : i + 1], tolerance=1e-8)
        torch.testing.assert_close(q[i : i + 1], alone, atol=0, rtol=1e-12)
    torch.testing.assert_close(q[1], r[1] / 2, atol=1e-14, rtol=1e-14)
    assert len(counts) > 10
