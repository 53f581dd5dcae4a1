"""Iterations that are extrapolated from the last ones by Anderson's method (``anderson``)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from convexlift.problems.lifting import SaddlePointProblem
from convexlift.solvers.anderson import Past
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.iterations import Iterations, RestartState
from convexlift.solvers.method import DoesNotApply
from convexlift.solvers.restart_rules import Array
from convexlift.tensors import Blocks

MEMORABLE = 2**20
"""The most variables of an image that are extrapolated, from eleven arrays of that size."""
SAMPLE = 2**14
"""About as many entries of a residual determine the coefficients; they are an odd number apart."""


class ExtrapolatedIterations(Iterations):
    """Iterations on whole tensors, relaxed and extrapolated (``anderson``)."""

    name = "extrapolated"
    advantage = "few enough variables to keep those of the last iterations"

    def __init__(self, saddle: SaddlePointProblem, coupling: Coupling) -> None:
        super().__init__(saddle, coupling)
        shapes = {**saddle.K.shapes, **saddle.K.row_shapes()}
        count = sum(map(math.prod, shapes.values()))
        if count > MEMORABLE:
            raise DoesNotApply(f"{count} variables are too many to keep those of many iterations")

    def load(self, state: RestartState, active: Tensor) -> None:
        """With the past."""
        super().load(state, active)
        self.past = Past.none(len(self.w_u["x"])) if state.past is None else state.past

    def iterate(self, tau: Blocks, sigma: Blocks, mix: Array, *, measure: bool) -> None:
        """As in ``Iterations``, with an extrapolation after every few relaxed iterations."""
        relaxed = torch.from_numpy((mix[1] != 0) & (mix[2] == 0))
        for k in range(mix.shape[1]):
            super().iterate(tau, sigma, mix[:, k : k + 1], measure=measure)
            if not bool(relaxed[k].any()):
                self.past = Past.none(len(relaxed[k]))
                continue
            du, dv = self.u - self.old_u, self.v - self.old_v
            r = self.coupling.whitened(du, dv, tau, sigma)
            sample = r[:, :: r.shape[1] // SAMPLE | 1].clone()
            ahead = self.w_u, self.w_v
            (self.w_u, self.w_v), self.past = self.past.next(sample, ahead, relaxed[k])

    def store(self, state: RestartState, tau: Blocks, sigma: Blocks) -> RestartState:
        """The state with its past."""
        return replace(super().store(state, tau, sigma), past=self.past)
