"""The regularizer and its affine minorants, with their slack at given images.

For slopes s_i in dom h_i*, a backward pass (``BoundNetwork.backward``) gives

    weight R(x) = <c, x> + const + sum_i <t_i, h_i(a_i) + h_i*(s_i) - s_i a_i>,

whose last sum, of nonnegative local terms, is the slack of the minorant <c, x> + const at x.

``OnePass`` computes R and the minorant together, strip of rows by strip of rows. Where the first
layer is a convolution of the image, only a = V x + b and its dual variable v are large. The
multipliers t of that layer come from the layers above, by a backward pass that does not depend on
a. So one pass over strips and channels that stay in a processor's cache,

    z = h(a),    p = s t = clip(v),    loss = t (h(a) + h*(s) - s a),    c <- c + V* p,

reads v once and stores neither a nor z nor p; on a GPU it may be one kernel (``FusedPass``). Above
it, only <W_L, z> is needed if there is no other layer, or else the block means P z: the image of a
smaller network. For R alone, without v, the pass is z = h(a).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.networks.activations import Activation
from convexlift.networks.bound_network import (
    IMAGE,
    BackwardPass,
    BoundLayer,
    BoundNetwork,
    ForwardPass,
)
from convexlift.operators.linear import LinearOperator
from convexlift.problems.fused_pass import FusedPass
from convexlift.problems.network_duals import dual_names
from convexlift.problems.packed_slopes import CODES, feasible, pack
from convexlift.problems.pooled_layers import above_pooling
from convexlift.strips import at_once, channel_slices, local
from convexlift.tensors import Blocks, Scalar, sum_per_image

CACHED = 2**18
"""Numbers processed at once in the plain computation."""
STRIP = 2**19
"""Numbers of a in a strip (2 MB), a size at which convolutions are fast on a CPU."""
CHUNK = 2**17
"""Numbers in a few channels of a strip (0.5 MB), a size at which all other steps are fast."""
WORTHWHILE = 2**17
"""Layers with fewer numbers are computed at once."""
LARGE = 2**26
"""Numbers of a, of one image, from which a GPU has strips, too: there, they only save memory."""


@dataclass(frozen=True, eq=False)
class Minorant:
    """<c, x> + const <= weight R(x).

    Attributes:
        c: the slope, (B, C, H, W).
        witness: dual variables which, made feasible, are the p_i = s_i t_i.
        losses: the local terms of each layer, summed over channels; () if they were not kept.
        slack: the sum of all local terms, (B,).
    """

    c: Tensor
    witness: Blocks
    losses: tuple[Tensor, ...]
    slack: Tensor

    @staticmethod
    def of(network: BoundNetwork, layers: ForwardPass, backward: BackwardPass) -> Minorant:
        """The minorant of a forward pass at the images and a backward pass."""
        losses, slack = layer_losses(network, layers, backward)
        count = len(network.layers)
        witness = {dual_names(i, count)[0]: p for i, p in enumerate(backward.p, start=1)}
        return Minorant(backward.c, Blocks(witness), losses, slack)


def layer_losses(
    network: BoundNetwork, layers: ForwardPass, backward: BackwardPass
) -> tuple[tuple[Tensor, ...], Tensor]:
    """t_i (h_i(a_i) + h_i*(s_i) - s_i a_i) summed over channels, and over everything."""
    parts = [
        _layer_loss(layer.activation, a, t, p)
        for layer, a, t, p in zip(network.layers, layers.a, backward.t, backward.p, strict=True)
    ]
    return tuple(loss for loss, _ in parts), torch.stack([total for _, total in parts]).sum(0)


def _layer_loss(h: Activation, a: Tensor, t: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """A few channels at a time, so that intermediate results stay in the cache."""
    count = t.shape[1]
    some = max(1, CACHED * count // t.numel())
    place, total = torch.zeros_like(t[:, :1]), t.new_zeros(t.shape[0], dtype=torch.float64)
    for outputs, inputs in channel_slices(h.group, count, some):
        _, loss = h.select(outputs).value_and_loss(a[:, inputs], p[:, inputs], t[:, outputs])
        place += loss.sum(1, keepdim=True)
        total += sum_per_image(loss)
    return place, total


def regularizer_at(network: BoundNetwork, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """R at x, and a_L unless it is large; no other layer is kept."""
    one_pass = OnePass.of(network)
    if one_pass is not None:
        return one_pass.value(x)
    layers = network.forward(x)
    return network.value(layers.z[-1]), layers.a[-1]


class OnePass:
    """The pass over the strips of one network, image by image."""

    def __init__(
        self, network: BoundNetwork, above: tuple[LinearOperator, BoundNetwork] | None
    ) -> None:
        self.network, self._upper = network, above
        self.pooling = None if above is None else above[0]
        self.layer: BoundLayer = network.layers[0]
        operator = self.layer.operators[IMAGE].convolution
        assert operator is not None
        self.operator = operator
        device = operator.weight.device
        self._cached = device.type == "cpu"
        self._divided = self._cached or math.prod(self.layer.shape) >= LARGE
        self._strip = at_once(STRIP, device)

    @staticmethod
    def of(network: BoundNetwork) -> OnePass | None:
        """The pass for a large convolution of stride 1, the only layer or pooled; else None."""
        first, *above = network.layers
        if (
            first.operators[IMAGE].convolution is None
            or first.activation.group * torch.Size(first.shape).numel() < WORTHWHILE
        ):
            return None
        if not above:
            return OnePass(network, None)
        upper = above_pooling(network)
        return None if upper is None else OnePass(network, upper)

    def __call__(
        self, weight: Scalar, x: Tensor, duals: Blocks
    ) -> tuple[Tensor, Minorant, Tensor | None]:
        """R at x, the minorant of weight R from dual variables, made feasible, and a_L if small."""
        count = len(self.network.layers)
        used = Blocks({n: duals[n] for i in range(count) for n in dual_names(i + 1, count)[:1]})
        v, *others = used.values()
        above = self._above(x).with_duals(weight, others)
        padded = self.operator.padding(x)
        fused = FusedPass.of(self.network, x, v.dtype, above.numbers, above.pool)
        if fused is not None:
            above.received, slack, c = fused(above.weight, above.numbers, padded, v)
            regularizer, rest, last = above.finish()
            return regularizer, Minorant(c, used, (), slack + rest), last
        c = torch.zeros_like(padded)
        slack = x.new_zeros(x.shape[0], dtype=torch.float64)
        h = self.layer.activation
        for image, rows, halo in self._strips(x.shape[0]):
            a = self._preactivation(padded, image, rows, halo)
            for outputs, inputs in self._channels(a):
                t = above.multipliers((image, outputs, rows))
                p = feasible(h, v[image, inputs, rows], t)
                z, loss = h.select(outputs).value_and_loss(a[:, inputs], p, t)
                above.take((image, outputs, rows), z)
                slack[image] += sum_per_image(loss)
                a[:, inputs] = p  # overwrites a
            c[image, :, halo] += self.operator.adjoint_on_padded(a)
        regularizer, rest, last = above.finish()
        minorant = Minorant(self.operator.padding.adjoint(c), used, (), slack + rest)
        return regularizer, minorant, last

    def value(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """R at x, and a_L if it is small."""
        above, padded = self._above(x), self.operator.padding(x)
        fused = FusedPass.of(self.network, x, x.dtype, self.network.output, above.pool)
        if fused is not None:
            above.received = fused.value(self.network.output, padded)
        else:
            for image, rows, halo in self._strips(x.shape[0]):
                a = self._preactivation(padded, image, rows, halo)
                for outputs, inputs in self._channels(a):
                    h = self.layer.activation.select(outputs)
                    above.take((image, outputs, rows), h.value(a[:, inputs]))
        regularizer, _, last = above.finish()
        return regularizer, last

    def _above(self, x: Tensor) -> _Above:
        if self._upper is None:
            return _Above(self.network, x)
        return _Head(self.layer, *self._upper, x)

    def tangent(self, weight: Scalar, x: Tensor, *, packed: bool = False) -> Tensor:
        """p = t h'(a), of a network with one layer: the dual variable of the tangent at x.

        With ``packed``, its codes (``packed_slopes``).
        """
        assert self.pooling is None
        h, above = self.layer.activation, _Above(self.network, x).with_duals(weight, [])
        padded = self.operator.padding(x)
        dtype = CODES if packed else x.dtype
        fused = FusedPass.of(self.network, x, dtype, above.numbers)
        if fused is not None:
            return fused.tangent(above.weight, above.numbers, padded)
        _, height, width = self.layer.shape
        shape = x.shape[0], self.operator.weight.shape[0], height, width
        p = x.new_empty(shape, dtype=dtype)
        for image, rows, halo in self._strips(x.shape[0]):
            a = self._preactivation(padded, image, rows, halo)
            for outputs, inputs in self._channels(a):
                t = h.spread(above.multipliers((image, outputs, rows)))
                here = t * h.select(outputs).derivative(a[:, inputs])
                p[image, inputs, rows] = pack(h, here, t) if packed else here
        return p

    def _preactivation(self, padded: Tensor, image: slice, rows: slice, halo: slice) -> Tensor:
        """V x + b on one strip."""
        b = self.layer.bias
        here = None if b is None else local(b, image, slice(None), rows)
        return self.operator.on_padded(padded[image, :, halo], here)

    def _strips(self, batch: int) -> Iterator[tuple[slice, slice, slice]]:
        """Images, rows of a, and the rows of the padded image that they depend on."""
        _, height, width = self.layer.shape
        images, step = batch, height
        if self._divided:
            block = 1 if self.pooling is None else self.pooling.pool_size
            rows = max(16, self._strip // (self.operator.weight.shape[0] * width))
            images, step = 1, block * max(1, rows // block)
        for i in range(0, batch, images):
            for rows_of_a, halo in self.operator.strips(step):
                yield slice(i, i + images), rows_of_a, halo

    def _channels(self, a: Tensor) -> Iterator[tuple[slice, slice]]:
        """A few channels of z, and the channels of a they come from."""
        group = self.layer.activation.group
        some = max(1, CHUNK // (group * a[0, 0].numel())) if self._cached else a.shape[1]
        return channel_slices(group, a.shape[1] // group, some)


Place = tuple[slice, slice, slice]
"""Images, channels of z, and rows."""


class _Above:
    """The layers above the first: none here, so that t = weight W_L and R = <W_L, z>.

    Attributes:
        received: what is needed of z: here R.
        numbers: t / ``weight``: for each channel, for each pixel, or for each pooling block.
        pool: the side of these blocks, or 0.
    """

    pool = 0

    def __init__(self, network: BoundNetwork, x: Tensor) -> None:
        self.numbers = network.output
        self.received = x.new_zeros(x.shape[0], dtype=torch.float64)

    def with_duals(self, weight: Scalar, duals: list[Tensor]) -> _Above:
        """Also the multipliers t, from the dual variables of these layers."""
        self.weight = weight
        return self

    def multipliers(self, place: Place) -> Tensor:
        """t at this place, or numbers that broadcast to it."""
        return self.weight * local(self.numbers, *place)

    def take(self, place: Place, z: Tensor) -> None:
        """Receive z at this place."""
        self.received[place[0]] += sum_per_image(local(self.numbers, *place) * z)

    def finish(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """R(x), the slack of the layers above, and the preactivations of the last layer."""
        return self.received, torch.zeros_like(self.received), None


class _Head(_Above):
    """The layers above a pooling, as a network of the block means, which are ``received``."""

    def __init__(
        self, pooled: BoundLayer, pooling: LinearOperator, network: BoundNetwork, x: Tensor
    ) -> None:
        self.pooling, self.pool, self.network = pooling, pooling.pool_size, network
        self.received = x.new_empty((x.shape[0], *pooling.output_shape(pooled.shape)))
        self.backward: BackwardPass | None = None

    def with_duals(self, weight: Scalar, duals: list[Tensor]) -> _Head:
        def clip(i: int, t: Tensor) -> Tensor:
            return self.network.layers[i - 1].activation.clip_to_slopes(duals[i - 1], t)

        self.backward = self.network.backward(weight, self.received, clip)
        self.numbers, self.weight = self.backward.c / self.pool**2, 1.0
        return self

    def multipliers(self, place: Place) -> Tensor:
        assert self.backward is not None
        return self.pooling.adjoint(self.backward.c[self._blocks(place)])

    def take(self, place: Place, z: Tensor) -> None:
        size = self.pool
        *others, height, width = z.shape
        blocks = z.reshape(*others, height // size, size, width // size, size)
        # Rows first: several times faster than avg_pool2d on a CPU.
        self.received[self._blocks(place)] = blocks.sum(-3).sum(-1) / size**2

    def finish(self) -> tuple[Tensor, Tensor, Tensor | None]:
        layers = self.network.forward(self.received)
        slack = torch.zeros(len(self.received), dtype=torch.float64, device=self.received.device)
        if self.backward is not None:
            _, slack = layer_losses(self.network, layers, self.backward)
        return self.network.value(layers.z[-1]), slack, layers.a[-1]

    def _blocks(self, place: Place) -> Place:
        image, channels, rows = place
        return image, channels, slice(rows.start // self.pool, rows.stop // self.pool)
