"""``cl.solve`` as a reconstructor of deepinv, with its fidelities."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.models import Reconstructor
from deepinv.optim import data_fidelity as fidelities
from deepinv.physics import LinearPhysics
from torch import Tensor

from convexlift.deepinv.physics import as_data, as_operator
from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2, WeightedL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.images import psnr
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.problems.variational import VariationalProblem
from convexlift.proximal_map import matching
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Progress, Solution, StopWhen
from convexlift.solvers.solve import solve

Bounds = Box | tuple[float | None, float | None] | None


def as_problem(
    y: Any,
    physics: LinearPhysics,
    regularizer: InputConvexNetwork,
    weight: float,
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
        weight: gamma, deepinv's ``lambda_reg``.
        data_fidelity: deepinv's ``L2`` (the default), ``L1`` or ``PoissonLikelihood``. The last
            becomes the exact Kullback-Leibler divergence of the counts y / gain and their
            expectation A x / gain + bkg, and needs ``box=(0, None)`` unless bkg > 0. Nothing of
            theirs is computed with.
        box: bounds on the image.
        noise: standard deviation, for a regularizer that reads the data; by default the noise
            level of the physics.
    """
    data, operator = as_data(y).detach(), as_operator(physics, y)
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


class CertifiedReconstructor(Reconstructor):  # type: ignore[misc, unused-ignore]
    """argmin_x  D(A x, y) + weight R(x), with a certified gap for each image.

    A deepinv ``Reconstructor``: ``model(y, physics)`` is an image, and the model works in
    ``deepinv.test`` and in the evaluations of ``deepinv.Trainer``. It does not carry gradients.
    Images of a batch have their own stops: four at once give what four calls give.

    Args:
        regularizer: R.
        weight: gamma, deepinv's ``lambda_reg``; 1 suits regularizers that read the data.
        data_fidelity: see ``as_problem``.
        box: bounds on the image.
        noise: see ``as_problem``.
        stop: when to stop; by default at a certified relative gap of 1e-3.
        method: of ``cl.solve``.

    Attributes:
        solution: the last ``Solution``, with lower bounds, gaps, history and proof.
    """

    def __init__(
        self,
        regularizer: InputConvexNetwork,
        weight: float = 1.0,
        *,
        data_fidelity: fidelities.DataFidelity | None = None,
        box: Bounds = None,
        noise: float | Tensor | None = None,
        stop: StopWhen | None = None,
        method: Method | None = None,
    ) -> None:
        super().__init__()
        self.regularizer, self.weight, self.data_fidelity = regularizer, weight, data_fidelity
        self.box, self.noise, self.stop, self.method = box, noise, stop, method
        self.solution: Solution | None = None

    @torch.no_grad()
    def forward(
        self,
        y: Any,
        physics: LinearPhysics,
        init: Tensor | None = None,
        x_gt: Tensor | None = None,
        compute_metrics: bool = False,
        **_: Any,
    ) -> Any:
        """The images; with ``compute_metrics`` also curves of cost, gap and PSNR, as deepinv's."""
        problem = as_problem(
            y, physics, self.regularizer, self.weight,
            data_fidelity=self.data_fidelity, box=self.box, noise=self.noise,
        )  # fmt: skip
        ratios: list[Tensor] = []

        def compare(progress: Progress) -> None:
            if x_gt is not None:
                ratios.append(psnr(progress.x, x_gt.to(progress.x)).cpu())

        callback = compare if compute_metrics else None
        solution = solve(problem, method=self.method, stop=self.stop, start=init, callback=callback)
        self.solution = solution
        if not compute_metrics:
            return solution.x
        curves = {"cost": solution.history["objective"], "gap": solution.history["gap"]}
        if ratios:
            curves["psnr"] = torch.stack(ratios)
        return solution.x, {name: curve.T.tolist() for name, curve in curves.items()}
