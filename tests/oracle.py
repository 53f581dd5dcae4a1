"""The same problems stated to CVXPY, from nothing but matrices: an independent optimum."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
from dense import dense_matrix

import convexlift as cl


def groups(h: cl.GroupNorm, a: cp.Expression, shape: tuple[int, ...]) -> list[cp.Expression]:
    """The first, second, ... members of all groups, in the order of z."""
    number = np.arange(int(np.prod(shape))).reshape(-1, h.size, *shape[1:])
    return [a[number[:, k].flatten()] for k in range(h.size)]


def activation_epigraph(
    h: cl.Activation, a: cp.Expression, z: cp.Expression, shape: tuple[int, ...]
) -> list:
    """Constraints that say h(a) <= z, from textbook formulas; a is a flattened ``shape``."""
    if isinstance(h, cl.SmoothedLeakyReLU):  # psi_nu(a) = min_b  b^2/(2 nu) + (a - b)_+
        b = cp.Variable(a.shape)
        psi = cp.square(b) / (2 * h.smoothing) + cp.pos(a - b)
        return [b >= 0, h.slope * a + (1 - h.slope) * psi <= z]
    if isinstance(h, cl.ReLU):
        return [cp.pos(a) <= z]
    if isinstance(h, cl.LeakyReLU):
        return [a <= z, h.slope * a <= z]
    if isinstance(h, cl.Softplus):
        return [cp.logistic(h.sharpness * a) / h.sharpness <= z]
    if isinstance(h, cl.ELU):  # min over b <= 0 of alpha (e^b - 1) + (a - b)_+
        b = cp.Variable(a.shape)
        return [b <= 0, h.alpha * (cp.exp(b) - 1) + cp.pos(a - b) <= z]
    if isinstance(h, cl.GroupNorm):  # one group in each row of pixels x channels
        lengths = cp.Variable(z.shape)
        parts = [cp.reshape(p, (1, z.size), order="C") for p in groups(h, a, shape)]
        cone = cp.norm(cp.vstack(parts), 2, axis=0) <= lengths
        return [cone, *activation_epigraph(h.profile, lengths, z, shape)]
    if isinstance(h, cl.Abs):
        return [cp.abs(a) <= z]
    if isinstance(h, cl.HalfSquare):
        return [cp.square(a) / 2 <= z]
    if isinstance(h, cl.Huber):
        return [cp.huber(a / h.delta, 1) * h.delta / 2 <= z]
    raise TypeError(h)


def optimum(problem: cl.VariationalProblem) -> tuple[float, np.ndarray]:
    """The optimal value and a minimiser, for a batch of one, to high accuracy."""
    shape = problem.image_shape
    x = cp.Variable(int(np.prod(shape)))
    constraints: list = []
    values = [x]
    shapes = [shape]
    for layer in problem.network.layers:
        a = 0
        for source, operator in layer.operators.items():
            a = a + dense_matrix(operator, shapes[source]) @ values[source]
            inner = operator.output_shape(shapes[source])
        if layer.bias is not None:
            a = a + layer.bias.expand(inner).flatten().numpy()
        z = cp.Variable(int(np.prod(layer.shape)))
        lifted = z - values[-1] if layer.residual else z
        constraints += activation_epigraph(layer.activation, a, lifted, inner)
        values.append(z)
        shapes.append(layer.shape)
    weights = problem.network.output.expand(shapes[-1]).flatten().numpy()
    regularizer = weights @ values[-1]

    w = dense_matrix(problem.operator, shape) @ x
    y = problem.fidelity.y.flatten().numpy()
    if isinstance(problem.fidelity, cl.SquaredL2):
        data = cp.sum_squares(w - y) / 2
    elif isinstance(problem.fidelity, cl.WeightedL2):
        omega = problem.fidelity.weights.expand_as(problem.fidelity.y).flatten().numpy()
        data = omega @ cp.square(w - y) / 2
    elif isinstance(problem.fidelity, cl.L1):
        data = problem.fidelity.scale * cp.norm1(w - y)
    elif isinstance(problem.fidelity, cl.KullbackLeibler):
        r = problem.fidelity.background.expand_as(problem.fidelity.y).flatten().numpy()
        data = cp.sum(cp.kl_div(y, w + r))
    else:
        raise TypeError(problem.fidelity)
    if np.isfinite(problem.bounds.lower):
        constraints.append(x >= problem.bounds.lower)
    if np.isfinite(problem.bounds.upper):
        constraints.append(x <= problem.bounds.upper)

    statement = cp.Problem(cp.Minimize(data + problem.weight * regularizer), constraints)
    with warnings.catch_warnings():  # "may be inaccurate": not all reach so small a tolerance
        warnings.simplefilter("ignore")
        statement.solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10, max_iter=500
        )
    assert statement.status in ("optimal", "optimal_inaccurate"), statement.status
    return float(statement.value), x.value.reshape(1, *shape)
