"""Anderson's extrapolation of relaxed iterations, w <- w + 1.9 (P(w) - w).

With the residuals r_j = P(w_j) - w_j of the last iterations, every few iterations

    w <- sum_j a_j (w_j + 1.9 r_j),    a = argmin ||sum_j a_j r_j||^2,    sum_j a_j = 1,

in the metric of the steps. Near a solution P is nearly affine, and this is GMRES for P(w) = w: a
few directions that converge slowly no longer hold up the others. If an extrapolation enlarges the
residual, the iteration goes back to w + 1.9 r, where it came from. Every image of a batch
extrapolates by itself, from the iterations since its steps last changed.

D. G. Anderson, J. ACM 12 (1965); for maps with kinks, with a safeguard: J. Zhang, B. O'Donoghue and
S. Boyd, SIAM J. Optim. 30 (2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.tensors import Blocks, choose_images

DEPTH = 10
"""The most differences of residuals that are combined."""
EVERY = 5
"""Iterations between extrapolations, which are cheap compared with that many iterations."""
LEAST = 10
"""Iterations with the same steps before the first extrapolation (measured: 5 are too few)."""
RIDGE = 1e-8
"""Added to the diagonal of the normal equations, relative to its sum."""


class Past:
    """The last iterations, newest last; an object that is never modified.

    Attributes:
        residuals: r_j in the metric of the steps, or a sample of its entries, (B, N) each.
        ahead: w_j + 1.9 r_j.
        count: iterations of each image since its steps last changed, (B,).
        trial: ||r|| before an extrapolation that must not enlarge it, else +inf, (B,).
    """

    def __init__(
        self,
        residuals: tuple[Tensor, ...],
        ahead: tuple[tuple[Blocks, Blocks], ...],
        count: Tensor,
        trial: Tensor,
    ) -> None:
        self.residuals, self.ahead = residuals[-DEPTH - 1 :], ahead[-DEPTH - 1 :]
        self.count, self.trial = count, trial

    @staticmethod
    def none(batch: int) -> Past:
        """Before the first iteration."""
        count = torch.zeros(batch, dtype=torch.long)
        return Past((), (), count, torch.full((batch,), math.inf, dtype=torch.float64))

    def next(
        self, r: Tensor, ahead: tuple[Blocks, Blocks], relaxed: Tensor
    ) -> tuple[tuple[Blocks, Blocks], Past]:
        """The next w, after an iteration with residual r that leads to ``ahead``; and the new past.

        ``relaxed``: which images did not restart and are not Halpern iterations, (B,).
        """
        w, worse, nothing = ahead, torch.zeros_like(relaxed), torch.full_like(self.trial, math.inf)
        if bool((self.trial < math.inf).any()):
            worse = relaxed & (self.trial < math.inf) & ~(_length(r) <= self.trial)
            w = choose_images(worse, self.ahead[-1], w)
        count = torch.where(relaxed & ~worse, self.count + 1, 0)
        past = Past((*self.residuals, r), (*self.ahead, ahead), count, nothing)
        due = (count >= LEAST) & (count % EVERY == 0)
        if not bool(due.any()):
            return w, past
        weights = past._weights()
        due &= weights.isfinite().all(1)
        trial = torch.where(due, _length(r), nothing)
        w = choose_images(due, past._combined(weights), w)
        return w, Past(past.residuals, past.ahead, count, trial)

    def _weights(self) -> Tensor:
        """a, (B, iterations), in double precision on the CPU; zero before the steps changed."""
        r = torch.stack(self.residuals, 1).double()
        changes = r.diff(dim=1)
        k = changes.shape[1]
        known = (torch.arange(k) >= k + 1 - self.count[:, None]).double()
        normal = (changes @ changes.mT).cpu() * known[:, None] * known[:, :, None]
        right = (changes @ r[:, -1:].mT).cpu()[..., 0] * known
        ridge = RIDGE * normal.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
        system = normal + torch.diag_embed(ridge + (1 - known))
        shares = torch.linalg.solve_ex(system, right)[0]
        # sum_j a_j r_j = r_k - sum_j shares_j (r_{j+1} - r_j)
        last = torch.zeros_like(shares[:, :1])
        return torch.cat([shares, last + 1], 1) - torch.cat([last, shares], 1)

    def _combined(self, weights: Tensor) -> tuple[Blocks, Blocks]:
        """sum_j a_j (w_j + 1.9 r_j)."""
        like = next(iter(self.ahead[-1][0].values()))
        u, v = Blocks({}), Blocks({})
        for a, (ahead_u, ahead_v) in zip(weights.to(like).unbind(1), self.ahead, strict=True):
            u = ahead_u * a if not u else u + ahead_u * a
            v = ahead_v * a if not v else v + ahead_v * a
        return u, v


def _length(r: Tensor) -> Tensor:
    """||r||, (B,), on the CPU."""
    length: Tensor = torch.linalg.vector_norm(r, dim=1)
    return length.double().cpu()
