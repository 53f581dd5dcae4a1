"""Which layers of a network are lifted after their pooling.

Where the only user of z_i is a map W P with P the mean over blocks of pixels, R depends on z_i
through P z_i alone, and the constraint z_i >= h_i(a_i) may be put on the mean:

    p_i >= P h_i(a_i),    a_{i+1} = W p_i + ...

The minimisers x are those of the lift at full resolution (the paper's Theorem for the convex
function P h_i), and p_i is smaller than z_i by the size of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from convexlift.networks.bound_network import BoundNetwork
from convexlift.operators.linear import Composition, Identity, LinearOperator


@dataclass(frozen=True, eq=False)
class Pooled:
    """The map W P of layer ``user``, in its two parts: ``rest`` is W, ``pooling`` is P."""

    user: int
    rest: LinearOperator
    pooling: LinearOperator


def pooled_layers(network: BoundNetwork) -> dict[int, Pooled]:
    """The layers, by number, that can be lifted after their pooling.

    They take one channel at a time, are not residual and not added to in a residual layer, and
    have one user, whose map begins with a pooling.
    """
    found = {}
    for i, layer in enumerate(network.layers[:-1], start=1):
        users = {j: user.operators[i] for j, user in enumerate(network.layers, start=1)
                 if i in user.operators}  # fmt: skip
        residual = layer.residual or network.layers[i].residual
        if layer.activation.group != 1 or residual or len(users) != 1:
            continue
        ((user, operator),) = users.items()
        first, *others = [step for step, _ in operator.steps(layer.shape)]
        if first.pool_size > 1:
            rest = tuple(reversed(others)) or (Identity(),)
            found[i] = Pooled(user, Composition(rest), first)
    return found
