"""CIL's FISTA and PDHG on the problems of ``compare_libraries.py``; imported if CIL is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from cil.framework import ImageGeometry
from cil.optimisation.algorithms import FISTA, PDHG
from cil.optimisation.functions import (
    BlockFunction,
    L2NormSquared,
    LeastSquares,
    MixedL21Norm,
    TotalVariation,
    ZeroFunction,
)
from cil.optimisation.operators import BlockOperator, GradientOperator, LinearOperator

import convexlift as cl

STEPS = 200
"""Of algorithms with a proximal map of R, unless x changes by less than 1e-5 before, relatively."""
EXPLICIT = 1000
"""Of PDHG with the gradient of the image as an operator: each of its steps is cheap."""

Method = Callable[[Any], tuple[torch.Tensor, str]]


def geometry(shape: torch.Size) -> ImageGeometry:
    """Of images and of data, (1, 1, height, width)."""
    return ImageGeometry(voxel_num_x=shape[-1], voxel_num_y=shape[-2])


class PhysicsOperator(LinearOperator):  # type: ignore[misc, unused-ignore]
    """A deepinv ``LinearPhysics`` as a CIL operator."""

    def __init__(self, case: Any) -> None:
        image = case.physics.A_adjoint(case.y)
        super().__init__(geometry(image.shape), range_geometry=geometry(case.y.shape))
        self.physics = case.physics
        # By ours: CIL's ten power iterations give a lower bound, and steps that are too long.
        self.set_norm(float(cl.deepinv.as_operator(case.physics, case.y).norm(image.shape[1:])))

    def direct(self, x: Any, out: Any = None) -> Any:
        """A x."""
        return self._apply(self.physics.A, x, self.range_geometry(), out)

    def adjoint(self, x: Any, out: Any = None) -> Any:
        """A* x."""
        return self._apply(self.physics.A_adjoint, x, self.domain_geometry(), out)

    def _apply(self, function: Any, x: Any, target: ImageGeometry, out: Any) -> Any:
        with torch.no_grad():
            values = function(torch.from_numpy(x.as_array())[None, None])
        out = target.allocate(None) if out is None else out
        out.fill(values[0, 0].numpy())
        return out


class StandsStill:
    """A callback of CIL: ends a run when x changes by less than 1e-5, relatively."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, algorithm: Any) -> None:
        """After each iteration."""
        x = algorithm.solution.as_array()
        change = np.inf if self.last is None else np.linalg.norm(x - self.last)
        if change < 1e-5 * np.linalg.norm(x):
            raise StopIteration
        self.last = x.copy()


def image(algorithm: Any) -> torch.Tensor:
    """The solution as a tensor."""
    return torch.from_numpy(algorithm.solution.as_array().copy())[None, None]


def parts(case: Any) -> tuple[PhysicsOperator, Any]:
    """A and the data."""
    A = PhysicsOperator(case)
    data = A.range_geometry().allocate(0)
    data.fill(case.y[0, 0].numpy())
    return A, data


def fista(their_variation: bool) -> Method:
    """FISTA with a proximal map of R: ours, or that of CIL's ``TotalVariation``."""

    def run(case: Any) -> tuple[torch.Tensor, str]:
        A, data = parts(case)
        R = (
            TotalVariation(max_iteration=100)
            if their_variation
            else cl.cil.RegularizerFunction(case.regularizer)
        )
        algorithm = FISTA(
            initial=A.domain_geometry().allocate(0), f=LeastSquares(A, data, c=0.5),
            g=case.weight * R, update_objective_interval=0,
        )  # fmt: skip
        algorithm.run(STEPS, callbacks=[StandsStill()])
        return image(algorithm), "nothing"

    return run


def pdhg(case: Any) -> tuple[torch.Tensor, str]:
    """PDHG with our proximal map of R, and the data term behind A."""
    A, data = parts(case)
    R = case.weight * cl.cil.RegularizerFunction(case.regularizer)
    algorithm = PDHG(f=0.5 * L2NormSquared(b=data), g=R, operator=A, update_objective_interval=0)
    algorithm.run(STEPS, callbacks=[StandsStill()])
    return image(algorithm), "nothing"


def explicit_pdhg(case: Any) -> tuple[torch.Tensor, str]:
    """PDHG with total variation as a norm of the gradient; in denoising it states a gap."""
    A, data = parts(case)
    fidelity, variation = 0.5 * L2NormSquared(b=data), case.weight * MixedL21Norm()
    gradient = GradientOperator(A.domain_geometry())
    denoising = "denoising" in case.name
    algorithm = (
        PDHG(f=variation, g=fidelity, operator=gradient, update_objective_interval=0)
        if denoising
        else PDHG(
            f=BlockFunction(fidelity, variation), g=ZeroFunction(),
            operator=BlockOperator(A, gradient), update_objective_interval=0,
        )
    )  # fmt: skip
    algorithm.run(EXPLICIT, callbacks=[])
    if not denoising:
        return image(algorithm), "a gap with a penalty in place of a constraint, no bound"
    algorithm.update_objective()
    gap = algorithm.primal_dual_gap[-1] / algorithm.dual_objective[-1]
    return image(algorithm), f"gap {100 * float(gap):.2g} %, without rounding errors"


def cil_methods(case: Any) -> Iterator[tuple[str, Method]]:
    """CIL's algorithms for a case."""
    yield "CIL FISTA, our function", fista(their_variation=False)
    yield "CIL PDHG, our function", pdhg
    if case.total_variation:
        yield "CIL FISTA, its TotalVariation", fista(their_variation=True)
        yield f"CIL PDHG, its MixedL21Norm, {EXPLICIT} iterations", explicit_pdhg
