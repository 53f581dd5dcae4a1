"""Epigraphs of pooled layers: the mean of an activation over each block of pixels is bounded.

    f(a, p) = 0 if (1/N) sum_{k in block} h(a_k + b) <= p for every block, +inf otherwise.

With y = v_1/sigma_1 + b and p_0 = v_2/sigma_2, the projection of a block onto this set has one
multiplier mu >= 0. It is zero if mean h(y) <= p_0, and else the root of the decreasing function

    phi(mu) = mean_k h(prox_{eta h}(y_k)) - p_0 - mu/sigma_2,      eta = mu/(N sigma_1),
    -phi'(mu) = mean_k h'(a_k)^2 / (1 + eta h''(a_k)) / (N sigma_1) + 1/sigma_2,

where a_k = prox_{eta h}(y_k). The dual step is v_2 = -mu and v_{1,k} = (mu/N) h'(a_k).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import DualTerm
from convexlift.networks.activations import Activation

MAX_PASSES = 160
"""Enough for bisection alone, over all magnitudes of a double; a few are usual."""
PLAIN_PASSES = 8
"""After so many Newton steps, every other one halves the bracket instead."""


@dataclass(frozen=True, eq=False)
class PooledEpigraphTerm(DualTerm):
    """f(a, p) = 0 if the block means of h(a + b) are at most p; its dual pair is (v_1, v_2).

    v_1 has the resolution of a, v_2 that of the blocks of ``size`` x ``size`` pixels.
    """

    activation: Activation
    bias: Tensor | None
    size: int
    pooled = True

    def conjugate_prox(
        self, v: tuple[Tensor, ...], sigma: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """((mu/N) h'(projection), -mu)."""
        y = v[0] / sigma[0]
        y = y if self.bias is None else y + self.bias
        blocks = split_blocks(y, self.size)
        sigma_a = sigma[0].unsqueeze(-1)
        mu = mean_multiplier(self.activation, blocks, v[1] / sigma[1], sigma[0], sigma[1])
        t = (mu / self.size**2).unsqueeze(-1)
        return join_blocks(self.activation.scaled_slope(blocks, t, sigma_a), self.size), -mu

    def block_means(self, z: Tensor) -> Tensor:
        """From the resolution of a to that of p."""
        return F.avg_pool2d(z, self.size)


def split_blocks(y: Tensor, size: int) -> Tensor:
    """(B, C, H, W) -> (B, C, H/size, W/size, size^2), the pixels of a block side by side."""
    batch, channels, height, width = y.shape
    grid = y.reshape(batch, channels, height // size, size, width // size, size)
    return grid.transpose(3, 4).flatten(-2)


def join_blocks(blocks: Tensor, size: int) -> Tensor:
    """The inverse of ``split_blocks``."""
    batch, channels, rows, columns, _ = blocks.shape
    grid = blocks.reshape(batch, channels, rows, columns, size, size).transpose(3, 4)
    return grid.reshape(batch, channels, rows * size, columns * size)


def mean_multiplier(
    h: Activation, y: Tensor, p: Tensor, sigma_a: Tensor, sigma_p: Tensor
) -> Tensor:
    """The multipliers mu of the projections onto {(a, p): mean_k h(a_k) <= p}, one a block.

        min_{a, p'}  sigma_a/2 sum_k (a_k - y_k)^2 + sigma_p/2 (p' - p)^2   s. t.  mean h(a) <= p'

    Newton's method in a bracket. Since |h'(a_k)| <= |h'(y_k)|, its first step, without h'',
    does not go past the root: the start of all others. Blocks that are done are left out.

    Args:
        h: the activation, of one variable.
        y: (..., N), a block in the last dimension.
        p: (...).
        sigma_a: the weight of a, broadcast to p.
        sigma_p: the weight of p, broadcast to p.
    """
    count, eps = y.shape[-1], torch.finfo(y.dtype).eps
    rows, target = y.reshape(-1, count), p.reshape(-1)
    per_a = (1 / (count * sigma_a)).expand_as(p).reshape(-1)  # eta = mu per_a
    per_p = (1 / sigma_p).expand_as(p).reshape(-1)

    top, steepness = h.mean_at_prox(rows, None)
    excess, steepest = top - target, per_p + per_a * steepness
    # Rounding errors of phi are eps times these: mean |h(a)| <= mean |h(y)| + eta mean h'(y)^2.
    sizes = torch.linalg.vector_norm(rows, dim=-1) * (steepness / count).sqrt()
    scale = top.abs() + target.abs() + sizes
    outside = excess > 0
    found = torch.where(outside, excess / steepest, 0.0)
    largest = (excess / per_p).clamp_max(torch.finfo(y.dtype).max / 4)
    numbers = (target, per_a, per_p, steepest, scale, found, torch.zeros_like(found), largest)
    state = torch.stack(numbers)

    index = torch.arange(len(found), device=found.device)
    kept = outside.nonzero().squeeze(1)
    for number in range(MAX_PASSES):
        if len(kept) < len(index):  # leave out the blocks that are done
            index, rows, state = index[kept], rows[kept], state[:, kept]
        if not len(kept):
            break
        target, per_a, per_p, steepest, scale, mu, low, high = state
        value, rate = h.mean_at_prox(rows, (mu * per_a).unsqueeze(-1))
        phi = value - target - mu * per_p
        before = phi >= 0
        low, high = torch.where(before, mu, low), torch.where(before, high, mu)
        newton = mu + phi / (per_p + per_a * rate)
        done = (phi.abs() <= 8 * eps * (scale + mu * steepest)) | (high - low <= 2 * eps * high)
        usable = (newton >= low) & (newton <= high)
        if number >= PLAIN_PASSES and number % 2:
            usable = usable & done
        if not bool(usable.all()):
            newton = torch.where(usable, newton, _middle(low, high))
        found[index] = newton
        state[-3:] = torch.stack((newton, low, high))
        kept = (~done).nonzero().squeeze(1)
    return found.reshape(p.shape)


def _middle(low: Tensor, high: Tensor) -> Tensor:
    """Of the magnitudes, where both are known; else of the numbers."""
    middle = torch.where(low > 0, low.sqrt() * high.sqrt(), 0.5 * high)
    return torch.minimum(torch.maximum(middle, low), high)
