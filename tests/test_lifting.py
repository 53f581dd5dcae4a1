"""The lift: structure, the paper's Theorem, its 1D example, and the step-size condition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import zoo
from scipy.optimize import minimize_scalar

import convexlift as cl
from convexlift.networks import Convolution
from convexlift.solvers.coupling import SAFETY, Coupling
from convexlift.solvers.primal_dual import pdhg_update
from convexlift.tensors import Blocks


def test_the_steps_of_the_paper():
    """sigma_1 = c1/||V0||^2, sigma_2 = c2/||W1 P||^2, tau_1 = 1/c1, tau_2 = 1/(sigma_1 + c2)."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2")
    saddle = cl.lift(problem, pooled=False)
    sigma = cl.PaperSteps((0.01, 0.001)).sigma(saddle, torch.zeros(1))
    tau = Coupling(saddle).tau(sigma)
    V0 = saddle.K.rows["v1,1"]["x"].norm()
    W1P = saddle.K.rows["v2"]["z1"].norm()
    assert float(sigma["v1,1"]) == float(sigma["v1,2"]) == pytest.approx(0.01 / V0**2)
    assert float(sigma["v2"]) == pytest.approx(0.001 / W1P**2)
    assert float(tau["x"]) == pytest.approx(SAFETY / 0.01)
    assert float(tau["z1"]) == pytest.approx(SAFETY / (0.01 / V0**2 + 0.001))


def test_the_steps_of_the_papers_deep_network():
    """tau_1 = 1/(c0 + c1), not 1/(c0 + c1 + c2 + c3) as printed: W1 and W2 do not act on x."""
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "KL", "x >= 0")
    saddle = cl.lift(problem, dualise_fidelity=True, pooled=False)
    c = (500.0, 100.0, 5.0, 0.5, 0.1)
    tau = Coupling(saddle).tau(cl.PaperSteps(c).sigma(saddle, torch.zeros(1)))
    assert float(tau["x"]) == pytest.approx(SAFETY / 600)
    W1 = saddle.K.rows["v2,1"]["z1"].norm((3, 8, 8))
    assert float(tau["z2"]) == pytest.approx(SAFETY / (5.0 / W1**2 + 0.5))


def test_wrong_number_of_step_parameters():
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "L2")
    with pytest.raises(
        ValueError, match=r"needs 4 step-size parameters c = \(c_1, c_2, c_3, c_4\)"
    ):
        cl.solve(problem, method=cl.PDHG(steps=cl.PaperSteps((1.0, 2.0))))
    with pytest.raises(ValueError, match="positive numbers"):
        cl.PaperSteps((1.0, -1.0))


def test_blocks_of_the_lift():
    saddle = cl.lift(zoo.problem("skips", cl.ReLU(), "L2"), dualise_fidelity=True)
    assert list(saddle.K.rows) == ["v0", "v1,1", "v1,2", "v2,1", "v2,2", "v3"]
    assert set(saddle.K.rows["v2,1"]) == {"x", "z1"}
    assert set(saddle.K.rows["v3"]) == {"z1", "z2"}
    residual = cl.lift(zoo.problem("residual last", cl.ReLU(), "L2"))
    assert set(residual.K.rows) == {"v1,1", "v1,2", "v2"}
    assert set(residual.g) == {"x", "z1"}


def test_a_blur_must_be_dualised():
    blurred = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 8, 8)),
        operator=cl.Blur.gaussian(1.0),
        regularizer=zoo.network("plain", cl.ReLU()),
        weight=0.1,
    )
    assert "v0" in cl.lift(blurred).K.rows
    with pytest.raises(ValueError, match="no closed-form prox"):
        cl.lift(blurred, dualise_fidelity=False)


def test_the_block_operator_has_an_exact_adjoint():
    saddle = cl.lift(zoo.problem("residual", cl.ReLU(), "KL", batch=2), dualise_fidelity=True)
    u = Blocks({name: torch.randn(2, *shape) for name, shape in saddle.K.shapes.items()})
    v = Blocks({name: torch.randn_like(part) for name, part in saddle.K(u).items()})
    torch.testing.assert_close(
        saddle.K(u).dot(v).total(), u.dot(saddle.K.adjoint(v)).total(), rtol=1e-12, atol=1e-12
    )


def test_one_step_is_the_papers_printed_update():
    """Paper eq. (pdhg-l1), written out once more with plain torch and its printed projection."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1")
    saddle = cl.lift(problem, pooled=False)
    sigma = cl.PaperSteps((0.5, 0.05)).sigma(saddle, torch.zeros(1))
    tau = Coupling(saddle).tau(sigma)
    x, z = torch.rand(1, 1, 8, 8), torch.rand(1, 3, 8, 8)
    v11, v12, v2 = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8), torch.rand(1, 4)
    u, v = pdhg_update(
        saddle, Blocks({"x": x, "z1": z}), Blocks({"v1,1": v11, "v1,2": v12, "v2": v2}), tau, sigma
    )

    layers = problem.network.layers
    V0, W1P = layers[0].operators[0], layers[1].operators[1]
    b0, b1 = layers[0].bias, layers[1].bias
    tau1, tau2 = float(tau["x"]), float(tau["z1"])
    s1, s2 = float(sigma["v1,1"]), float(sigma["v2"])
    y, scale = problem.fidelity.y, problem.fidelity.scale
    point = x - tau1 * V0.adjoint(v11)
    shrunk = y + (point - y).sign() * ((point - y).abs() - tau1 * scale).clamp_min(0)
    z_next = z - tau2 * (v12 + W1P.adjoint(v2))
    x_bar, z_bar = 2 * shrunk - x, 2 * z_next - z
    p, q = (v11 + s1 * V0(x_bar)) / s1 + b0, (v12 + s1 * z_bar) / s1
    proj_p, proj_q = _printed_projection(p, q, 0.2)
    v2_tilde = v2 + s2 * W1P(z_bar)
    gamma_w = problem.weight * problem.network.output
    prox = torch.where((v2_tilde / s2 + b1) > gamma_w / s2, v2_tilde / s2 + b1 - gamma_w / s2,
                       (v2_tilde / s2 + b1).clamp_max(0))  # fmt: skip
    torch.testing.assert_close(u["x"], shrunk)
    torch.testing.assert_close(u["z1"], z_next)
    torch.testing.assert_close(v["v1,1"], s1 * (p - proj_p))
    torch.testing.assert_close(v["v1,2"], s1 * (q - proj_q))
    torch.testing.assert_close(v["v2"], s2 * (v2_tilde / s2 + b1 - prox))


def _printed_projection(p, q, alpha):
    mean, along = (p + q) / 2, (p + alpha * q) / (1 + alpha**2)
    inside = torch.maximum(p, alpha * p) <= q
    right = ~inside & (q.abs() <= p)
    left = ~inside & ~right & (q <= alpha * p) & (p <= -alpha * q)
    first = torch.where(inside, p, torch.where(right, mean, torch.where(left, along, 0.0)))
    second = torch.where(inside, q, torch.where(right, mean, torch.where(left, alpha * along, 0.0)))
    return first, second


@dataclass(frozen=True)
class Exponential(cl.SmoothActivation):
    """h(a) = exp(a): an activation of our own, as in CONTRIBUTING."""

    @property
    def slopes(self):
        return (0.0, math.inf)

    def value(self, a):
        return torch.exp(a)

    def derivative(self, a):
        return torch.exp(a)

    def second_derivative(self, a):
        return torch.exp(a)

    def conjugate(self, s):
        return torch.where(s >= 0, torch.xlogy(s, s) - s, math.inf)


def test_an_activation_of_our_own_passes_the_exam():
    cl.check_activation(Exponential(), scale=1.0)


def identity_map() -> Convolution:
    one = Convolution(1, 1, 1)
    one.weight.data.fill_(1.0)
    return one


@pytest.mark.parametrize("y", [-2.0, 0.3, 1.5, 4.0])
def test_the_papers_one_dimensional_example(y):
    """Section 3: R(x) = exp(x + max(x, 0)), D = (x - y)^2 / 2, as a network and lifted."""
    net = cl.InputConvexNetwork(
        [
            cl.ConvexLayer(cl.ReLU(), channels=1, skip=identity_map(), bias=False),
            cl.ConvexLayer(
                Exponential(), channels=1, skip=identity_map(), previous=identity_map(), bias=False
            ),
        ]
    )
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.full((1, 1, 1, 1), y)), regularizer=net, weight=1.0
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-9, max_iterations=5000))
    brute = minimize_scalar(
        lambda x: 0.5 * (x - y) ** 2 + math.exp(x + max(x, 0.0)),
        bounds=(-10, 10),
        method="bounded",
        options={"xatol": 1e-12},
    )
    assert solution.status == (cl.Status.CONVERGED,)
    assert float(solution.objective) == pytest.approx(brute.fun, rel=1e-8)
    assert float(solution.lower_bound) <= brute.fun + 1e-12
