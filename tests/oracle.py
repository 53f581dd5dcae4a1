"""The same problems stated to CVXPY, from nothing but matrices: an independent optimum."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import torch
from dense import dense_matrix
from parts import ACTIVATIONS, FIDELITIES

import convexlift as cl

EPIGRAPHS = {type(entry.h): entry.epigraph for entry in ACTIVATIONS if entry.epigraph}
DATA_TERMS = {type(e.make(torch.ones(1, 1))): e.stated for e in FIDELITIES.values() if e.stated}


def groups(h: cl.GroupNorm, a: cp.Expression, shape: tuple[int, ...]) -> list[cp.Expression]:
    """The first, second, ... members of all groups, in the order of z."""
    number = np.arange(int(np.prod(shape))).reshape(-1, h.size, *shape[1:])
    return [a[number[:, k].flatten()] for k in range(h.size)]


def activation_epigraph(
    h: cl.Activation, a: cp.Expression, z: cp.Expression, shape: tuple[int, ...]
) -> list:
    """Constraints that say h(a) <= z, from textbook formulas; a is a flattened ``shape``."""
    if isinstance(h, cl.GroupNorm):  # one group in each row of pixels x channels
        lengths = cp.Variable(z.shape)
        members = [cp.reshape(p, (1, z.size), order="C") for p in groups(h, a, shape)]
        cone = cp.norm(cp.vstack(members), 2, axis=0) <= lengths
        return [cone, *activation_epigraph(h.profile, lengths, z, shape)]
    return EPIGRAPHS[type(h)](cp, h, a, z)


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
            a = a + layer.bias[0].expand(inner).flatten().numpy()
        z = cp.Variable(int(np.prod(layer.shape)))
        lifted = z - values[-1] if layer.residual else z
        constraints += activation_epigraph(layer.activation, a, lifted, inner)
        values.append(z)
        shapes.append(layer.shape)
    weights = problem.network.output[0].expand(shapes[-1]).flatten().numpy()
    regularizer = weights @ values[-1]

    w = dense_matrix(problem.operator, shape) @ x
    y = problem.fidelity.y.flatten().numpy()
    data = DATA_TERMS[type(problem.fidelity)](cp, problem.fidelity, w, y)
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
