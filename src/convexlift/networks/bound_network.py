"""A network on images of one shape: forward and backward passes, gradient and Hessian of R."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convexlift.networks.activations import Activation, conjugate_at
from convexlift.operators.linear import LinearOperator
from convexlift.strips import channel_slices
from convexlift.tensors import Scalar, Shape, TensorRecord, sum_per_image

Apply = Callable[[Tensor], Tensor]
"""v -> H v."""
IMAGE = 0
"""The source number of the image x, beside 1, 2, ... for z_1, z_2, ..."""
PARTS = 6
"""The most parts into which a network is divided: each convolves the whole image."""
LARGEST_PART = 2**26
"""The most numbers of a part nevertheless (0.5 GB in double precision)."""


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The preactivations a_1..a_L and the layers z_1..z_L at some image."""

    a: tuple[Tensor, ...]
    z: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class BackwardPass:
    """Multipliers t_1..t_L, their slopes' products p_i = s_i t_i, and c = sum_i V_{i-1}* p_i.

    t_i has the shape of z_i, p_i and s_i the shape of a_i.

    With a_i(x) from a forward pass, and for every choice of slopes s_i in dom h_i*,

        weight R(x) = <c, x> + const + sum_i <t_i, h_i(a_i) + h_i*(s_i) - s_i a_i>,

    whose last sum is nonnegative: <c, x> + const is an affine minorant of weight R, and its
    tangent at x (c a subgradient) if s_i is a slope of h_i at a_i.
    """

    t: tuple[Tensor, ...]
    p: tuple[Tensor, ...]
    c: Tensor


@dataclass(frozen=True, eq=False)
class BoundLayer(TensorRecord):
    """One layer on inputs of known shape: operators by source (0 is the image).

    ``shape`` is the shape of z; the preactivation has ``activation.group`` times its channels.
    ``bias`` has one number for each of them, (1, C, 1, 1) or (1, n), or one for each image, channel
    and pixel, (B, C, H, W), where biases were read off the data.
    """

    activation: Activation
    operators: dict[int, LinearOperator]
    bias: Tensor | None
    residual: bool
    shape: Shape

    def affine(self, values: Sequence[Tensor]) -> Tensor:
        """a = sum_j K_j z_j + b, where values = (x, z_1, ..., z_{i-1})."""
        total = self.linear(values)
        return total if self.bias is None else total + self.bias

    def linear(self, values: Sequence[Tensor]) -> Tensor:
        """sum_j K_j z_j."""
        terms = [operator(values[source]) for source, operator in self.operators.items()]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


@dataclass(frozen=True, eq=False)
class BoundNetwork(TensorRecord):
    """A network on images of one shape: the form in which problems use it.

    ``output`` is W_L: one weight for each channel, (1, C, 1, 1), or one for each image, channel and
    pixel, (B, C, H, W), where weights were read off the data, or are the same in each ``block`` of
    pixels with that side, since the layers above were left out.
    """

    layers: tuple[BoundLayer, ...]
    output: Tensor
    block: int = 1

    @property
    def bounded_below(self) -> bool:
        """Whether slope 0 in the last layer gives a constant minorant of R."""
        last = self.layers[-1]
        return last.activation.slopes[0] <= 0 <= last.activation.slopes[1] and not last.residual

    def minimum_bound(self) -> Tensor:
        """<W_L, min h_L> = -<W_L, h_L*(0)> <= R(x) for every x, if ``bounded_below``.

        One number, or one for each image.
        """
        last, W = self.layers[-1], self.output
        h = last.activation
        if h.plain and conjugate_at(h, 0.0, W.dtype) == 0:
            return W.new_zeros(len(W), dtype=torch.float64)
        # Channel by channel: products for all pixels would be large.
        sums = W.reshape(*W.shape[:2], -1).sum(2, dtype=torch.float64)
        zeros = torch.zeros_like(W[(...,) + (slice(1),) * (W.ndim - 2)])
        at_zero = conjugate_at(h, 0.0, W.dtype) if h.plain else h.conjugate(h.spread(zeros))
        lowest = sums * -(at_zero.flatten(1) if isinstance(at_zero, Tensor) else at_zero)
        repeated = torch.Size(last.shape).numel() // W[0].numel()  # over the pixels of a channel
        return repeated * lowest.sum(1)

    def saturated(self, last: Tensor) -> Tensor:
        """Whether all units of the last layer have their steepest slope, from a_L; (B,)."""
        h = self.layers[-1].activation
        return (h.derivative(last) >= h.slopes[1]).flatten(1).all(1)

    def in_parts(self, most: int) -> list[tuple[slice, BoundNetwork]]:
        """Networks with some of the channels each, whose sum is R, and the channels of a.

        As few as have at most ``most`` numbers a for each image, but no more than ``PARTS`` unless
        these would be very large. Only one convolution of the image can be divided; others are one
        part.
        """
        first, *others = self.layers
        whole: list[tuple[slice, BoundNetwork]] = [(slice(None), self)]
        operator = first.operators[IMAGE].convolution if IMAGE in first.operators else None
        if others or operator is None or len(first.operators) > 1 or first.residual:
            return whole
        h, (channels, *size) = first.activation, first.shape
        numbers = h.group * math.prod(first.shape)
        most_parts = max(PARTS, -(-numbers // LARGEST_PART))
        count = min(most_parts, channels, -(-numbers // most))
        if count <= 1:
            return whole
        parts = []
        for outputs, inputs in channel_slices(h.group, channels, -(-channels // count)):
            output = self.output[:, outputs]
            layer = replace(
                first,
                activation=h.select(outputs),
                operators={IMAGE: operator.some_channels(inputs)},
                bias=None if first.bias is None else first.bias[:, inputs],
                shape=(operator.weight[inputs].shape[0] // h.group, *size),
            )
            parts.append((inputs, BoundNetwork((layer,), output)))
        return parts

    def source_shape(self, source: int, image_shape: Shape) -> Shape:
        """The shape of x, or of a layer's z."""
        return image_shape if source == IMAGE else self.layers[source - 1].shape

    def forward(self, x: Tensor) -> ForwardPass:
        """All preactivations and layers at x."""
        below = self.hidden(x)
        last = self.layers[-1]
        z = last.activation.value(below.a[-1])
        return replace(below, z=(*below.z, z + below.z[-1] if last.residual else z))

    def hidden(self, x: Tensor) -> ForwardPass:
        """a_1..a_L and z_1..z_{L-1}, which a backward pass needs."""
        values, preactivations = [x], []
        *below, last = self.layers
        for layer in below:
            preactivations.append(layer.affine(values))
            z = layer.activation.value(preactivations[-1])
            values.append(z + values[-1] if layer.residual else z)
        preactivations.append(last.affine(values))
        return ForwardPass(tuple(preactivations), tuple(values[1:]))

    def value(self, z: Tensor) -> Tensor:
        """R = <W_L, z_L> for each image."""
        return sum_per_image(self.output * z)

    def backward(
        self,
        weight: Scalar,
        like: Tensor,
        choose: Callable[[int, Tensor], Tensor],
        *,
        to_image: bool = True,
    ) -> BackwardPass:
        """Propagate t_L = weight W_L backwards, with p_i = choose(i, t_i) at each layer.

        Args:
            weight: gamma > 0.
            like: a batch of images, for its size.
            choose: gives p_i = s_i t_i for layer i (from 1) with s_i in dom h_i*.
            to_image: whether c is wanted; zero otherwise.
        """
        count = len(self.layers)
        batch = like.shape[0]
        t: list[Tensor | None] = [None] * (count + 1)
        t[count] = (weight * self.output).expand((batch, *self.layers[-1].shape))
        c = torch.zeros_like(like)
        p: list[Tensor] = []
        for i in range(count, 0, -1):
            layer = self.layers[i - 1]
            t_i = t[i]
            if t_i is None:  # a layer without users
                t_i = t[i] = like.new_zeros((batch, *layer.shape))
            p_i = choose(i, t_i)
            p.insert(0, p_i)
            for source, operator in layer.operators.items():
                if source != IMAGE:
                    t[source] = _add(t[source], operator.adjoint(p_i))
                elif to_image:
                    c = c + operator.adjoint(p_i)
            if layer.residual:
                t[i - 1] = _add(t[i - 1], t_i)
        return BackwardPass(tuple(t_i for t_i in t[1:] if t_i is not None), tuple(p), c)

    def tangent(
        self,
        weight: Scalar,
        x: Tensor,
        preactivations: Sequence[Tensor],
        *,
        mean: bool = False,
        to_image: bool = True,
    ) -> BackwardPass:
        """The backward pass with s_i = h_i'(a_i): c is a subgradient of weight R at x.

        At a kink the slope is one of the two beside it or, with ``mean``, their mean.
        """

        def slopes(i: int, t: Tensor) -> Tensor:
            h, a = self.layers[i - 1].activation, preactivations[i - 1]
            return h.spread(t) * (h.mean_slope(a) if mean else h.derivative(a))

        return self.backward(weight, x, slopes, to_image=to_image)


def _add(left: Tensor | None, right: Tensor) -> Tensor:
    return right if left is None else left + right


# Derivatives that training can differentiate. Autograd could differentiate its own gradient of R,
# but the derivative of the derivative of a convolution is there a convolution with kernels as large
# as the image; here there are only convolutions and their adjoints, also in the derivatives.


def gradient(network: BoundNetwork, x: Tensor) -> Tensor:
    """grad R(x) = sum_i V_{i-1}* (t_i h_i'(a_i)), differentiable in x and in the weights."""
    return network.tangent(1.0, x, network.hidden(x).a, mean=True).c


@torch.no_grad()
def steepness(network: BoundNetwork, images: Tensor) -> float:
    """||grad R||, the norm of all images together."""
    return float(gradient(network, images).norm())


@torch.no_grad()
def hessian(network: BoundNetwork, x: Tensor) -> Apply:
    """v -> H v with the Hessian H of R at x; kinks do not bend.

    With s_i = h_i'(a_i), and a dot for the derivative along v,

        a.  = V v + sum_j W_j z_j.,   z.  = s a.,   p.  = t h''(a) a.  + s t.
    """
    a = network.hidden(x).a
    t = network.tangent(1.0, x, a, mean=True, to_image=False).t
    hs = [layer.activation for layer in network.layers]
    slopes = [h.mean_slope(a_i) for h, a_i in zip(hs, a, strict=True)]
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
