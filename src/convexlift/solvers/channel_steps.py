"""Dual step sizes that differ from channel to channel, for filters of very different weights.

In R(x) = sum_k w_k h(V_k x), the dual variable of channel k is as large as w_k, and one step sigma
for all of them suits only the largest. With the factors

    d_k = w_k / |V_k|,    sigma_k = sigma d_k,    tau = SAFETY / (sigma ||D^(1/2) V||^2),

steps are balanced channel by channel, and ||S^(1/2) K T^(1/2)|| < 1 as before. Rescaling V_k, with
the inverse scale in w_k h, changes the iterates of no other channel. |V_k| is the size of the
responses to white noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.networks.bound_network import IMAGE
from convexlift.operators.imaging import Diagonal
from convexlift.operators.linear import LinearOperator
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.network_duals import dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Choice
from convexlift.solvers.scaled_steps import ScaledCoupling

(ROW,) = dual_names(1, 1)
SPREAD = 4.0
"""The ratio of largest to median factor above which channels get their own steps (measured)."""
LEAST = 1e-30
"""The smallest factor, also for channels without weight, whose dual variables are zero."""


class ChannelCoupling(ScaledCoupling):
    """n_i ||K_ij||^2, with the norm of D^(1/2) V for the filters."""

    choice = Choice(
        "steps", "one for each channel, block and image", "the weights of channels differ widely"
    )

    def __init__(self, saddle: SaddlePointProblem, factors: Tensor) -> None:
        super().__init__(saddle, {ROW: factors})
        (V,) = saddle.K.rows[ROW].values()
        scaled = Diagonal(factors.sqrt()) @ V
        self.weights[ROW] = {"x": scaled.norm(saddle.K.shapes["x"]) ** 2}

    @staticmethod
    def factors_of(problem: VariationalProblem) -> Tensor | None:
        """d_k, (1, C, 1, 1), with maximum 1, for one layer with one weight for each channel.

        None for other networks, and if the factors differ little.
        """
        *others, layer = problem.network.layers
        weights = problem.network.output
        alike = len(weights) == 1 == weights[0, 0].numel() and layer.activation.group == 1
        if others or not alike or len(layer.shape) != 3:
            return None
        sizes = _response_sizes(layer.operators[IMAGE], problem)
        # On the CPU: a GPU takes longer for a few numbers, and the host would wait for it.
        d = _relative(weights.cpu(), sizes)
        middle = float(torch.where(d > 0, d, math.nan).nanmedian())  # NaN if all weights are 0
        if not middle * SPREAD < 1:
            return None
        return _relative(weights, sizes.to(weights.device)).clamp_min(LEAST)


def _relative(weights: Tensor, sizes: Tensor) -> Tensor:
    d = torch.where(sizes > 0, weights / sizes, 0.0)
    return d / d.max()


def _response_sizes(V: LinearOperator, problem: VariationalProblem) -> Tensor:
    """|V_k|, (1, C, 1, 1), on the CPU."""
    if V.convolution is not None:
        return V.convolution.weight.cpu().square().sum((1, 2, 3)).sqrt().reshape(1, -1, 1, 1)
    noise = torch.randn(problem.image_shape, generator=torch.Generator().manual_seed(0))
    responses = V(noise[None].to(problem.fidelity.y)).square()
    return responses.mean(tuple(range(2, responses.ndim)), keepdim=True).sqrt().cpu()
