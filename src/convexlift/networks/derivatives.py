"""Derivatives of networks, written out so that training can differentiate them.

Autograd could differentiate its own gradient of R. But its derivative of the derivative of a
convolution is a convolution with kernels as large as the image; here there are only convolutions
and their adjoints, also in the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.networks.bound_network import BackwardPass, BoundNetwork

Apply = Callable[[Tensor], Tensor]
"""v -> H v."""


def gradient(network: BoundNetwork, x: Tensor) -> Tensor:
    """grad R(x) = sum_i V_{i-1}* (t_i h_i'(a_i)), differentiable in x and in the weights."""
    return _backward(network, x, _slopes(network, network.hidden(x).a)).c


@torch.no_grad()
def hessian(network: BoundNetwork, x: Tensor) -> Apply:
    """v -> H v with the Hessian H of R at x; kinks do not bend.

    With s_i = h_i'(a_i), and a dot for the derivative along v,

        a.  = V v + sum_j W_j z_j.,   z.  = s a.,   p.  = t h''(a) a.  + s t.
    """
    a = network.hidden(x).a
    slopes = _slopes(network, a)
    t = _backward(network, x, slopes, to_image=False).t
    hs = [layer.activation for layer in network.layers]
    bends = [_bend(h, a_i, t_i) for h, a_i, t_i in zip(hs, a, t, strict=True)]

    @torch.no_grad()
    def apply(v: Tensor) -> Tensor:
        values, moved = [v], []
        *below, last = network.layers
        for layer, s in zip(below, slopes, strict=False):
            moved.append(layer.linear(values))
            z = s * moved[-1]
            if layer.activation.group > 1:
                z = z.reshape(len(v), layer.shape[0], -1, *layer.shape[1:]).sum(2)
            values.append(z + values[-1] if layer.residual else z)
        moved.append(last.linear(values))

        def change(i: int, t: Tensor) -> Tensor:
            bent = bends[i - 1](moved[i - 1])
            return bent if i == len(hs) else bent + slopes[i - 1] * hs[i - 1].spread(t)

        return network.backward(0.0, v, change).c

    return apply


def _slopes(network: BoundNetwork, preactivations: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(network.layers, preactivations, strict=True)
    return [layer.activation.mean_slope(a) for layer, a in pairs]


def _backward(
    network: BoundNetwork, x: Tensor, slopes: Sequence[Tensor], *, to_image: bool = True
) -> BackwardPass:
    def choose(i: int, t: Tensor) -> Tensor:
        return network.layers[i - 1].activation.spread(t) * slopes[i - 1]

    return network.backward(1.0, x, choose, to_image=to_image)


def _bend(h: Activation, a: Tensor, t: Tensor) -> Apply:
    """v -> t h''(a) v, by autograd."""
    a = a.detach().requires_grad_()
    with torch.enable_grad():
        s = h.mean_slope(a)
    if not s.requires_grad:
        return torch.zeros_like
    each = h.spread(t).expand_as(s)
    if h.group > 1:  # h'' mixes the channels of a group, and is symmetric
        return lambda v: torch.autograd.grad(s, a, each * v, retain_graph=True)[0]
    (second,) = torch.autograd.grad(s, a, each)
    return second.mul
