"""The objective of an image, rounded up: in double precision, with error bounds (``rounding``)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.networks.bound_network import IMAGE, BoundLayer, BoundNetwork
from convexlift.problems.rounding import (
    Rounded,
    activated,
    channel_sums,
    gamma,
    largest,
    product,
    sum_rate,
    total,
)
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Shape


def objective_above(problem: VariationalProblem, x: Tensor) -> Tensor:
    """J(x) for each image, rounded up; +inf outside the box. Problem and x in double precision."""
    network, weight = problem.network, problem.weight
    values = [Rounded.exact(x)]
    *hidden, last = network.layers
    for layer in hidden:
        z = activated(layer.activation, _preactivation(network, layer, values, problem.image_shape))
        values.append(z + values[-1] if layer.residual else z)
    a = _preactivation(network, last, values, problem.image_shape)
    pixels = math.prod(last.shape[1:])
    parts = [activated(last.activation, a, network.output)]
    if last.residual:  # R = <w, h(a)> + <w, z_{L-1}>
        below = values[-1]
        parts.append(Rounded(channel_sums(network.output * below.value), below.error, below.size))
    regularizer, error = x.new_zeros(len(x)), x.new_zeros(len(x))
    for part in parts:
        each = largest(part.error) + sum_rate(pixels + len(network.output)) * part.size
        error = error + (pixels * network.output * each * (1 + 1e-9)).flatten(1).sum(1)
        regularizer = regularizer + part.value.sum(1)
    regularizer = weight * (regularizer + error)
    data_term, error = total(Rounded.exact(_data_densities(problem, x)))
    data_term = data_term + error
    objective = (data_term + regularizer) + gamma(4) * (data_term + regularizer.abs())
    return torch.where(problem.bounds.contains(x), objective, math.inf)


def _data_densities(problem: VariationalProblem, x: Tensor) -> Tensor:
    """f at every datum, rounded up."""
    w = product(problem.operator, Rounded.exact(x), problem.image_shape)
    return problem.fidelity.density_above(w.value, w.error)


def _preactivation(
    network: BoundNetwork, layer: BoundLayer, values: list[Rounded], image_shape: Shape
) -> Rounded:
    terms = [
        product(K, values[source], shape_of(network, source, image_shape))
        for source, K in layer.operators.items()
    ]
    a = terms[0]
    for term in terms[1:]:
        a = a + term
    if layer.bias is None:
        return a
    size = a.size + layer.bias.abs()
    return Rounded(a.value + layer.bias, a.error + gamma(1) * size, size)


def shape_of(network: BoundNetwork, source: int, image_shape: Shape) -> Shape:
    """The shape of x, or of a layer's z."""
    return image_shape if source == IMAGE else network.layers[source - 1].shape
