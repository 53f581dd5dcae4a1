"""``cl.solve`` as a reconstructor of deepinv."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.models import Reconstructor
from deepinv.optim.data_fidelity import DataFidelity
from deepinv.physics import LinearPhysics
from torch import Tensor

from convexlift.deepinv.problem import Bounds, as_problem
from convexlift.images import psnr
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.solvers.method import Method
from convexlift.solvers.solution import Progress, Solution, StopWhen
from convexlift.solvers.solve import solve
from convexlift.tensors import Scalar


class CertifiedReconstructor(Reconstructor):  # type: ignore[misc, unused-ignore]
    """argmin_x  D(A x, y) + weight R(x), with a certified gap for each image.

    A deepinv ``Reconstructor``: ``model(y, physics)`` is an image, and the model works in
    ``deepinv.test`` and ``deepinv.Trainer``. Images of a batch have their own stops: four at once
    give what four calls give.

    To train R (and the weight, if it is a ``torch.nn.Parameter``), say ``differentiable=True``: the
    images then carry gradients, except under ``torch.no_grad()``, as in deepinv's evaluations.
    Optimisers move weights of R below zero, which would end its convexity; ``keep_convex`` has them
    moved back after every step.

    Args:
        regularizer: R.
        weight: gamma, deepinv's ``lambda_reg``; 1 suits regularizers that read the data.
        data_fidelity: see ``as_problem``.
        box: bounds on the image.
        noise: see ``as_problem``.
        stop: when to stop; by default at a certified relative gap of 1e-3. For training, 1e-5.
        method: of ``cl.solve``.
        differentiable: whether images carry gradients, as in ``cl.solve``.

    Attributes:
        solution: the last ``Solution``, with lower bounds, gaps, history and proof.
    """

    def __init__(
        self,
        regularizer: InputConvexNetwork,
        weight: Scalar = 1.0,
        *,
        data_fidelity: DataFidelity | None = None,
        box: Bounds = None,
        noise: float | Tensor | None = None,
        stop: StopWhen | None = None,
        method: Method | None = None,
        differentiable: bool = False,
    ) -> None:
        super().__init__()
        self.regularizer, self.weight, self.data_fidelity = regularizer, weight, data_fidelity
        self.box, self.noise, self.stop, self.method = box, noise, stop, method
        self.differentiable = differentiable
        self.solution: Solution | None = None

    def keep_convex(self, optimizer: torch.optim.Optimizer) -> None:
        """Set negative weights of R to zero after every step of the optimiser."""
        optimizer.register_step_post_hook(lambda *_: self.regularizer.project_())

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
        learning = self.differentiable and torch.is_grad_enabled()
        problem = as_problem(
            y, physics, self.regularizer, self.weight,
            data_fidelity=self.data_fidelity, box=self.box, noise=self.noise,
        )  # fmt: skip
        data, place = problem.fidelity.y, self.regularizer.output
        if learning and (data.dtype, data.device) != (place.dtype, place.device):
            raise ValueError(  # a copy was converted, whose parameters no optimiser knows
                f"the data are {data.dtype} on {data.device}, but the regularizer is {place.dtype} "
                f"on {place.device}: convert one of them, for gradients of its own parameters"
            )
        ratios: list[Tensor] = []

        def compare(progress: Progress) -> None:
            if x_gt is not None:
                ratios.append(psnr(progress.x, x_gt.to(progress.x)).cpu())

        callback = compare if compute_metrics else None
        solution = solve(
            problem, method=self.method, stop=self.stop, start=init, callback=callback,
            differentiable=learning,
        )  # fmt: skip
        self.solution = solution
        if not compute_metrics:
            return solution.x
        curves = {"cost": solution.history["objective"], "gap": solution.history["gap"]}
        if ratios:
            curves["psnr"] = torch.stack(ratios)
        return solution.x, {name: curve.T.tolist() for name, curve in curves.items()}
