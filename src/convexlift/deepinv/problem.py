"""Physics and fidelities of deepinv as problems."""

from __future__ import annotations

from typing import Any

from deepinv.optim import data_fidelity as fidelities
from deepinv.physics import LinearPhysics
from torch import Tensor

from convexlift.deepinv.physics import as_data, as_operator
from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2, WeightedL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.problems.variational import VariationalProblem
from convexlift.proximal_map import matching
from convexlift.tensors import Scalar

Bounds = Box | tuple[float | None, float | None] | None


def as_problem(
    y: Any,
    physics: LinearPhysics,
    regularizer: InputConvexNetwork,
    weight: Scalar,
    *,
    data_fidelity: fidelities.DataFidelity | None = None,
    box: Bounds = None,
    noise: float | Tensor | None = None,
) -> VariationalProblem:
    """min_x  D(A x, y) + weight R(x)  over the box, from deepinv's physics and fidelity.

    Args:
        y: data; a tensor, or a ``TensorList`` of stacked physics.
        physics: A.
        regularizer: R.
        weight: gamma, deepinv's ``lambda_reg``; a number, or a tensor that requires gradients.
        data_fidelity: deepinv's ``L2`` (the default), ``L1`` or ``PoissonLikelihood``. The last
            becomes the exact Kullback-Leibler divergence of the counts y / gain and their
            expectation A x / gain + bkg, and needs ``box=(0, None)`` unless bkg > 0. Nothing of
            theirs is computed with.
        box: bounds on the image.
        noise: standard deviation, for a regularizer that reads the data; by default the noise
            level of the physics.
    """
    data, operator = as_data(y), as_operator(physics, y)
    if noise is None and regularizer.reads_data:
        noise = getattr(physics.noise_model, "sigma", None)
        if isinstance(noise, Tensor):
            noise = float(noise) if noise.numel() == 1 else noise.flatten().to(data)
    fidelity, operator = _fidelity(data_fidelity, data, operator)
    return VariationalProblem(
        fidelity=fidelity, operator=operator, regularizer=matching(regularizer, data),
        weight=weight, box=box, noise=noise,
    )  # fmt: skip


def _fidelity(
    given: fidelities.DataFidelity | None, y: Tensor, operator: LinearOperator
) -> tuple[Fidelity, LinearOperator]:
    """Our fidelity, and the operator that predicts its data."""
    kind = type(given)
    if given is None:
        return SquaredL2(y), operator
    if kind is fidelities.L2:
        scale = float(given.norm)  # 1 / sigma^2
        return (SquaredL2(y) if scale == 1 else WeightedL2(y, scale)), operator
    if kind is fidelities.L1:
        return L1(y), operator
    if kind is fidelities.PoissonLikelihood:
        gain = float(given.gain)
        counts = y / gain if given.normalize else y
        expected = operator if gain == 1 else (1 / gain) * operator
        return KullbackLeibler(counts, given.bkg), expected
    raise TypeError(
        "data_fidelity must be L2, L1 or PoissonLikelihood of deepinv.optim.data_fidelity (or None "
        f"for L2), got {kind.__name__}; state other problems with cl.VariationalProblem and "
        "cl.deepinv.as_operator(physics, y)"
    )
