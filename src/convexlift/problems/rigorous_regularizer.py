"""The regularizer rounded up, and its affine minorants rounded down, in double precision.

For slopes s_i in dom h_i*,

        p_i = s_i t_i,   t_{i-1} = W_{i-1}* p_i,   c = sum_i V_{i-1}* p_i,
        beta = sum_i <p_i, b_{i-1}> - <t_i, h_i*(s_i)>,       weight R(x) >= <c, x> + beta.

Layer by layer, with error bounds (``rounding``). The first layer, much larger than all others, need
not be stored (``rigorous_layer``); the layers above its pooling are then a network by themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.networks.activations import Activation
from convexlift.networks.bound_network import IMAGE, BoundLayer, BoundNetwork
from convexlift.problems.network_duals import dual_names
from convexlift.problems.packed_slopes import Dual, Duals
from convexlift.problems.rigorous_layer import RigorousLayer
from convexlift.problems.rounding import (
    PART,
    Rounded,
    activated,
    channel_means,
    channel_sums,
    conjugate_at_ends,
    elementary,
    gamma,
    is_curved,
    largest,
    pieces,
    product,
    slopes,
    sum_rate,
    underflow,
)
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Scalar, Shape


def regularizer_above(problem: VariationalProblem, x: Tensor) -> Tensor:
    """weight R(x) for each image, rounded up. Problem and x in double precision.

    R is the sum over parts that fit the memory, unless its first layer is never stored.
    """
    network, weight, shape = problem.network, problem.weight, problem.image_shape
    fused = RigorousLayer.of(network, len(x))
    if fused is not None and fused.above is None:
        value, error = fused.value(x, network.output)
        # Where R = 0, as on black images, only a pass that looks at every a finds that exactly.
        if not decided(((value == 0) & (error > 0)).any()):
            return weight * (value + error)
    elif fused is not None and fused.above is not None:
        pooling, head = fused.above
        means, blocks = fused.means(x), pooling.output_shape(fused.sums.layer.shape)
        if not decided(((means.value == 0) & (means.error > 0)).flatten(1).all(1).any()):
            return _regularizer_above(head, weight, means, blocks)
    (_, first), *others = network.in_parts(PART)
    value = _regularizer_above(first, weight, Rounded.exact(x), shape)
    for _, part in others:
        more = _regularizer_above(part, weight, Rounded.exact(x), shape)
        value = (value + more) + gamma(2) * (value.abs() + more.abs())
    return value


def _regularizer_above(
    network: BoundNetwork, weight: Scalar, image: Rounded, image_shape: Shape
) -> Tensor:
    values = [image]
    *hidden, last = network.layers
    for layer in hidden:
        z = activated(layer.activation, _preactivation(network, layer, values, image_shape))
        values.append(z + values[-1] if layer.residual else z)
    a = _preactivation(network, last, values, image_shape)
    pixels = math.prod(last.shape[1:])
    parts = [activated(last.activation, a, network.output)]
    if last.residual:  # R = <W_L, h(a)> + <W_L, z_{L-1}>
        below = values[-1]
        parts.append(Rounded(channel_sums(network.output * below.value), below.error, below.size))
    batch = len(image.value)
    regularizer, error = (image.value.new_zeros(batch) for _ in range(2))
    per_channel = channel_means(network.output)
    for part in parts:
        each = largest(part.error) + sum_rate(pixels + last.shape[0]) * part.size
        error = error + (pixels * per_channel * each * (1 + 1e-9)).flatten(1).sum(1)
        regularizer = regularizer + part.value.sum(1)
    return weight * (regularizer + error)


def _preactivation(
    network: BoundNetwork, layer: BoundLayer, values: list[Rounded], image_shape: Shape
) -> Rounded:
    a = reduce(operator.add, [
        product(K, values[source], network.source_shape(source, image_shape))
        for source, K in layer.operators.items()
    ])  # fmt: skip
    if layer.bias is None:
        return a
    size = a.size + largest(layer.bias)
    return Rounded(a.value + layer.bias, a.error + gamma(1) * size, size)


@dataclass(frozen=True, eq=False)
class RoundedMinorant:
    """weight R(x) >= <c, x> + beta; and >= constant, which is -inf where R has no lower bound."""

    c: Rounded
    beta: Tensor
    constant: Tensor


def minorant_below(
    problem: VariationalProblem, duals: Duals, *, height_only: bool = False
) -> RoundedMinorant:
    """The affine minorant of weight R from any dual variables, rounded down.

    R is divided into parts that fit into memory; the sum of their minorants is a minorant of R.
    With ``height_only``, c may stay 0, which saves the adjoints of the filters.
    """
    network, weight, shape = problem.network, problem.weight, problem.image_shape
    batch, count = problem.batch_size, len(network.layers)
    dual, *others = (duals[dual_names(i, count)[0]] for i in range(1, count + 1))
    fused = RigorousLayer.of(network, batch)
    if fused is not None and fused.reads(dual):
        c, beta = _fused_minorant(fused, network, weight, batch, dual, others)
        return RoundedMinorant(c, beta, _constant(problem))

    def part(channels: slice, network: BoundNetwork) -> tuple[Rounded, Tensor]:
        some = [dual[:, channels], *others]
        return _minorant_below(network, weight, batch, shape, some, height_only)

    first, *more = network.in_parts(PART)
    c, beta = part(*first)
    for each in more:
        its_c, height = part(*each)
        rounding = gamma(2) * (beta.abs() + height.abs())
        c, beta = c + its_c, beta + height - rounding
    return RoundedMinorant(c, beta, _constant(problem))


def _fused_minorant(
    fused: RigorousLayer,
    network: BoundNetwork,
    weight: Scalar,
    batch: int,
    dual: Dual,
    others: Sequence[Dual],
) -> tuple[Rounded, Tensor]:
    """c and beta: the layers above the first give its multipliers t."""
    if fused.above is None:
        unit = isinstance(weight, float) and weight == 1  # weights of pixels are not copied
        output = network.output if unit else weight * network.output
        c, beta, error = fused.minorant(Rounded(output, gamma(1) * largest(output)), dual)
        return c, beta - error
    pooling, head = fused.above
    shape = pooling.output_shape(fused.sums.layer.shape)
    t, above = _minorant_below(head, weight, batch, shape, others, height_only=False)
    c, beta, error = fused.minorant(t, dual)
    return c, above + beta - (error + gamma(2) * (above.abs() + beta.abs()))


def _minorant_below(
    network: BoundNetwork,
    weight: Scalar,
    batch: int,
    image_shape: Shape,
    duals: Sequence[Dual],
    height_only: bool,
) -> tuple[Rounded, Tensor]:
    """c, and beta rounded down."""
    count, output = len(network.layers), weight * network.output
    t: dict[int, Rounded] = {
        count: Rounded(
            output.expand(batch, *network.layers[-1].shape),
            gamma(1) * largest(output) + underflow(largest(network.output)),
        )
    }
    beta, error = output.new_zeros(batch), output.new_zeros(batch)
    c = Rounded.exact(output.new_zeros((batch, *image_shape)))
    for i in range(count, 0, -1):
        layer = network.layers[i - 1]
        h, t_i = layer.activation, t.get(i)
        if t_i is None:  # a layer without users
            t_i = Rounded.exact(output.new_zeros((batch, *layer.shape)))
        p, loss = _chosen(h, duals[i - 1], t_i)
        for part, its_error in (_inner_product(p, layer.bias), loss):
            beta, error = beta + part, error + its_error + gamma(2) * (beta.abs() + part.abs())
        for source, K in layer.operators.items():
            if source == IMAGE and height_only:
                continue
            pulled = product(K, p, network.source_shape(source, image_shape), adjoint=True)
            if source == IMAGE:
                c = c + pulled
            else:
                t[source] = t[source] + pulled if source in t else pulled
        if layer.residual:
            t[i - 1] = t[i - 1] + t_i if i - 1 in t else t_i
    return c, beta - error


def _chosen(h: Activation, dual: Dual, t: Rounded) -> tuple[Rounded, tuple[Tensor, Tensor]]:
    """p = s t for the slopes s nearest to a dual variable; -<t, h*(s)> with its error."""
    p = t.value.new_empty((len(t.value), *dual.shape[1:]))
    pixels = p[0, 0].numel()
    loss, error = t.value.new_zeros(len(p)), t.value.new_zeros(len(p))
    t_error, t_size = (
        each.expand(len(p), t.value.shape[1], *([-1] * (t.value.ndim - 2)))
        for each in (largest(t.error), t.size)
    )
    ends = conjugate_at_ends(h, p)
    sizes, errors = [], []
    for outputs, inputs in pieces(h, p):
        t_here = t.value[:, outputs]
        s = slopes(h, dual[:, inputs].to(p), t_here)
        p[:, inputs] = s * h.spread(t_here)
        steepest = largest(s)
        here = h.spread(t_size[:, outputs])
        sizes.append(steepest * here * (1 + gamma(1)) + underflow(steepest, here))
        errors.append(steepest * h.spread(t_error[:, outputs]) + gamma(1) * sizes[-1])
        errors[-1] = errors[-1] + underflow(steepest, here)
        if is_curved(h):
            values = h.select(outputs).conjugate(s)
            height = (largest(values) + elementary(h) * ends) * (1 + elementary(h))
            rate = elementary(h) + sum_rate(pixels + p.shape[1])
            each = height * t_error[:, outputs] + rate * (height + ends) * t_size[:, outputs]
            error = error + (pixels * each * (1 + 1e-9)).flatten(1).sum(1)
            loss = loss - channel_sums(t_here * values).sum(1)
    return Rounded(p, torch.cat(errors, 1), torch.cat(sizes, 1)), (loss, error)


def _inner_product(p: Rounded, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """<p, b> and its error."""
    if bias is None:
        return p.value.new_zeros(len(p.value)), p.value.new_zeros(len(p.value))
    channels, pixels = p.value.shape[1], p.value[0, 0].numel()
    each = largest(p.error) + sum_rate(pixels + channels) * p.size
    error = (pixels * channel_means(bias.abs()) * each * (1 + 1e-9)).flatten(1).sum(1)
    return channel_sums(bias * p.value).sum(1), error


def _constant(problem: VariationalProblem) -> Tensor:
    """weight min R, rounded down."""
    network = problem.network
    if not network.bounded_below:
        return network.output.new_full((problem.batch_size,), -math.inf)
    minimum = problem.weight * network.minimum_bound()
    size = network.layers[-1].shape
    return (minimum - gamma(64 + math.prod(size)) * minimum.abs()).expand(problem.batch_size)
