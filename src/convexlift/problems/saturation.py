"""Last layers whose units are all on: the problem without them, and when it is the same.

Trained heads are often saturated: every unit of the last layer has its steepest slope s, where
h(a) = s a - h*(s). With this slope for all units,

    R(x) >= <t, z_{L-1}> + const,    t = W* (s w),

for every x (Fenchel-Young), with equality where all units are on. The right-hand side is a
network with one layer less. Its lower bounds are lower bounds of R; and if its minimiser has all
units on, it is a minimiser with R. Nothing is assumed: certificates are computed with R itself,
with slopes s in the last layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from convexlift.networks.bound_network import BoundNetwork
from convexlift.problems.saddle import dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks


@dataclass(frozen=True, eq=False)
class SaturatedHead:
    """A problem without its last layer, with the numbers that lead back to the whole problem.

    Attributes:
        problem: with R replaced by <t, z_{L-1}>; its objective lacks a constant.
        p: s t_L, the dual variable of the last layer, (1, ...).
    """

    problem: VariationalProblem
    p: Tensor
    _network: BoundNetwork

    @staticmethod
    def of(problem: VariationalProblem) -> SaturatedHead | None:
        """For networks of two layers or more whose last one sees only the one before it."""
        network = problem.network
        *below, last = network.layers
        h = last.activation
        if (
            not below
            or last.residual
            or set(last.operators) != {len(below)}
            or h.group != 1
            or not math.isfinite(h.slopes[1])
        ):
            return None
        on = (h.slopes[1] * network.output).expand((1, *last.shape))
        t = last.operators[len(below)].adjoint(on)
        smaller = problem.with_network(BoundNetwork(tuple(below), t[0]))
        return SaturatedHead(smaller, problem.weight * on, network)

    def holds(self, last: Tensor) -> Tensor:
        """Whether all units of the last layer are on, from its preactivations; (B,)."""
        h = self._network.layers[-1].activation
        return (h.derivative(last) >= h.slopes[1]).flatten(1).all(1)

    def duals(self, v: Blocks) -> Blocks:
        """The dual variables of the problem with the last layer, from those without."""
        batch = next(iter(v.values())).shape[0]
        short, name, last = self._names
        parts = {name if key == short else key: part for key, part in v.items()}
        return Blocks({**parts, last: self.p.expand(batch, *self.p.shape[1:])})

    def duals_without(self, v: Blocks) -> Blocks:
        """The dual variables of the problem without the last layer, from those with it."""
        short, name, last = self._names
        return Blocks({short if key == name else key: p for key, p in v.items() if key != last})

    @property
    def _names(self) -> tuple[str, str, str]:
        """The names of v_{L-1} without the last layer and with it, and of v_L."""
        count = len(self._network.layers)
        (short,), (last,) = dual_names(count - 1, count - 1), dual_names(count, count)
        return short, dual_names(count - 1, count)[0], last
