"""Claims about problems with a user's data term or operator."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.solvers import forecast
from convexlift.solvers.loop import solve_roughly


class OwnScales(cl.SquaredL2):
    """scale/2 |w - y|^2 with one scale for each image, written for tensors (batch, ...)."""

    def __init__(self, y, scales):
        super().__init__(y)
        self.scales = scales

    def scale(self, like):
        assert like.ndim == self.y.ndim
        return self.scales.to(like).reshape(-1, *([1] * (like.ndim - 1)))

    def density(self, w):
        return self.scale(w) * (w - self.y) ** 2 / 2

    def gradient(self, w):
        return self.scale(w) * (w - self.y)

    def prox(self, w, step):
        return (w + step * self.scale(w) * self.y) / (1 + step * self.scale(w))

    def conjugate(self, v):
        return v**2 / (2 * self.scale(v)) + v * self.y

    def conjugate_prox(self, v, step):
        return v - step * self.prox(v / step, 1 / step)

    def minimiser(self, c, lower, upper):
        return torch.minimum(torch.maximum(self.y - c / self.scale(c), lower), upper)

    def excess(self, w, c, lower, upper):
        best = self.minimiser(c, lower, upper)
        return (self.density(w) - self.density(best) + c * (w - best)).clamp_min(0)

    def select(self, images):
        return OwnScales(self.y[images], self.scales[images])


@pytest.mark.parametrize("batch", [2, 3])
def test_a_fidelity_of_users_sees_tensors_of_the_shape_of_its_data(batch):
    y, scales = torch.rand(batch, 1, 8, 8), torch.tensor([1.0, 100.0, 5.0])[:batch]
    stop = cl.StopWhen(gap=None, max_iterations=20)
    usual = {"regularizer": cl.TotalVariation(), "weight": 0.1}
    solution = cl.solve(cl.VariationalProblem(fidelity=OwnScales(y, scales), **usual), stop=stop)
    fidelity = cl.WeightedL2(y, scales.reshape(-1, 1, 1, 1))
    own = cl.solve(cl.VariationalProblem(fidelity=fidelity, **usual), stop=stop)
    assert torch.allclose(solution.lower_bound, own.lower_bound)


class HalfInSingle(cl.LinearOperator):
    """x / 2 for float32 only, with an error of its own for others."""

    def __init__(self, error, factor):
        self.error, self.factor = error, factor

    def forward(self, x):
        if x.dtype != torch.float32:
            raise self.error("float32 only")
        return x / 2

    adjoint = forward

    @property
    def diagonal(self):
        return self.factor


@pytest.mark.parametrize("solve", [cl.solve, solve_roughly])
@pytest.mark.parametrize("factor", [None, torch.tensor(0.5)])
@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError])
def test_operators_for_single_precision_do_not_meet_double_precision(
    monkeypatch, error, factor, solve
):
    monkeypatch.setattr(forecast, "PROGRESS", -1.0)  # every gap has stalled
    torch.set_default_dtype(torch.float32)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(2, 1, 8, 8)), operator=HalfInSingle(error, factor),
        regularizer=cl.TotalVariation(), weight=0.1, box=(0, 1),
    )  # fmt: skip
    solution = solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=100))
    assert solution.state.x.dtype is torch.float32
    assert float(solution.gap.max()) < 0.01
