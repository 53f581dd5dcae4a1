"""Layers before a pooling: all that the layers above them read are means over blocks of pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convexlift.networks.bound_network import IMAGE, BoundNetwork
from convexlift.networks.huber_mixture import Mixture
from convexlift.operators.linear import Composition, Identity, LinearOperator


@dataclass(frozen=True, eq=False)
class Pooled:
    """The map W P of layer ``user``, in its two parts: ``rest`` is W, ``pooling`` is P."""

    user: int
    rest: LinearOperator
    pooling: LinearOperator


def pooled_layers(network: BoundNetwork) -> dict[int, Pooled]:
    """The layers, by number, that can be lifted after their pooling.

    Such a layer treats its channels one by one and alike, is neither residual nor an addend of a
    residual layer, and has one user, whose map begins with a pooling.
    """
    found = {}
    for i, layer in enumerate(network.layers[:-1], start=1):
        users = {j: user.operators[i] for j, user in enumerate(network.layers, start=1)
                 if i in user.operators}  # fmt: skip
        residual = layer.residual or network.layers[i].residual
        of_channels = isinstance(layer.activation, Mixture)  # the mean is taken without channels
        if layer.activation.group != 1 or of_channels or residual or len(users) != 1:
            continue
        ((user, operator),) = users.items()
        first, *others = [step for step, _ in operator.steps(layer.shape)]
        if first.pool_size > 1:
            rest = tuple(reversed(others)) or (Identity(),)
            found[i] = Pooled(user, Composition(rest), first)
    return found


def above_pooling(network: BoundNetwork) -> tuple[LinearOperator, BoundNetwork] | None:
    """The pooling of the first layer, and the layers above it as a network of block means.

    None if there is no such pooling, or if one of these layers reads the image.
    """
    pooled = pooled_layers(network).get(1)
    above = network.layers[1:]
    if pooled is None or any(IMAGE in layer.operators for layer in above):
        return None
    layers = tuple(
        replace(layer, operators={j - 1: pooled.rest if j == 1 else operator
                                  for j, operator in layer.operators.items()})
        for layer in above
    )  # fmt: skip
    return pooled.pooling, BoundNetwork(layers, network.output)
