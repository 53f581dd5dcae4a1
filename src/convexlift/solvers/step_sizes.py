"""Step sizes of PDHG: diagonal T and S with ||S^(1/2) K T^(1/2)|| < 1, for any lift.

Row i of K acts on several primal blocks j. With n_i blocks in a row,

    ||S^(1/2) K u||^2 = sum_i sigma_i ||sum_j K_ij u_j||^2
                     <= sum_j (sum_i sigma_i n_i ||K_ij||^2) ||u_j||^2,

so that tau_j = safety / sum_i sigma_i n_i ||K_ij||^2 satisfies the condition for any sigma. In
the paper's networks every row has one block, and this is its rule (step-size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.problems.saddle import SaddlePointProblem
from convexlift.solvers.method import Choice
from convexlift.tensors import Blocks

SAFETY = 0.999
"""Upper bound on ||S^(1/2) K T^(1/2)||^2."""


class Coupling:
    """n_i ||K_ij||^2 for every block of K, from which step sizes follow.

    Attributes:
        recent: whether steps are balanced for the recent displacement from the start, rather than
            for the total one at first (measured).
        scalar: whether a step is one number for each block and image.
    """

    recent = False
    scalar = True
    choice = Choice("steps", "one for each block and image", "rebalanced at every restart")

    def __init__(self, saddle: SaddlePointProblem) -> None:
        squared = saddle.K.squared_norms()
        self.weights = {
            v: {name: len(row) * value for name, value in row.items()} for v, row in squared.items()
        }

    def tau(self, sigma: Blocks) -> Blocks:
        """tau_j = SAFETY / sum_i sigma_i n_i ||K_ij||^2."""
        totals: dict[str, Tensor] = {}
        for v, row in self.weights.items():
            for name, weight in row.items():
                totals[name] = totals.get(name, torch.zeros_like(sigma[v])) + weight * sigma[v]
        return Blocks({name: SAFETY / total for name, total in totals.items()})

    def reach(self, u_sizes: Blocks) -> Blocks:
        """sqrt(sum_j n_i ||K_ij||^2 ||du_j||^2) for every row i, a bound on its movement."""
        return Blocks(
            {
                v: torch.stack([w * u_sizes[name] ** 2 for name, w in row.items()]).sum(0).sqrt()
                for v, row in self.weights.items()
            }
        )

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """The reach of u - other."""
        return self.reach(u.distances(other))

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """||du_j||^2 / tau_j for every block j."""
        return quotients(du.squares(), tau)

    @staticmethod
    def balanced_sigma(reach: Blocks, v_sizes: Blocks) -> Blocks:
        """sigma_i = ||dv_i|| / reach_i.

        It minimises sum_j ||du_j||^2 / tau_j + sum_i ||dv_i||^2 / sigma_i, the bound on the
        distance that PDHG has to travel. Zero or not finite where a size is.
        """
        return quotients(v_sizes, reach)


def quotients(sizes: Blocks, steps: Blocks) -> Blocks:
    """sizes / steps, block by block; each (B,)."""
    return Blocks({name: value / steps[name] for name, value in sizes.items()})


@dataclass(frozen=True)
class PaperSteps:
    """sigma_i = c_i / ||K_i||^2, the paper's rule with its hyperparameters c.

    ||K_i|| is the norm of the row with the layer's maps, ||V_{i-1}|| or ||W_{i-1}||; both dual
    blocks of an epigraph share sigma_i. tau_j follows.

    Args:
        c: (c_1, ..., c_L), preceded by c_0 where the fidelity is dualised. The paper uses
            (0.01, 0.001) for inpainting, (500, 100, 0.1) for CT, (500, 100, 5, 0.5, 0.1) for
            CT with the deeper network.
    """

    c: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.c or not all(0 < value < math.inf for value in self.c):
            raise ValueError(f"PaperSteps needs positive numbers c, got {self.c}")

    def sigma(self, saddle: SaddlePointProblem, like: Tensor) -> Blocks:
        """One number for each dual block and image."""
        if len(self.c) != len(saddle.f):
            needed = ", ".join(f"c_{rows[0][1]}" for rows, _ in saddle.f)
            raise ValueError(
                f"this problem needs {len(saddle.f)} step-size parameters c = ({needed}), "
                f"got {len(self.c)}: {self.c}"
            )
        squared = saddle.K.squared_norms()
        ones = like.new_ones(like.shape[0])
        sigma: dict[str, Tensor] = {}
        for c, (names, _) in zip(self.c, saddle.f, strict=True):
            norm = sum(squared[names[0]].values())
            for name in names:
                sigma[name] = (c / norm) * ones
        return Blocks(sigma)


@dataclass(frozen=True)
class AdaptiveSteps:
    """Steps that need no tuning: balanced at the start, and again at every restart.

    Between restarts, iterations are relaxed on smooth problems, and otherwise reflected Halpern
    iterations, pulled back towards the last restart. The rules come from the linear-programming
    codes PDLP and cuPDLPx; with an L1 fidelity and (leaky) ReLUs the problem *is* a linear program.
    """
