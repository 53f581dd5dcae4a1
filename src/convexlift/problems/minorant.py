"""Minorants of the regularizer of a problem, and the images that go with them."""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.decisions import decided
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.network_duals import dual_names, feasible_duals, made_feasible
from convexlift.problems.one_pass import Minorant, OnePass
from convexlift.problems.packed_slopes import CODES, Duals, PackedDual
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, converted, expand_per_image


def minorant_at(problem: VariationalProblem, at: Evaluation, duals: Blocks) -> Minorant:
    """From dual variables, made feasible; in one pass if the layers were not kept."""
    network, weight = problem.network, problem.weight
    one_pass = None if at.has_layers else OnePass.of(network)
    if one_pass is not None:
        return one_pass(weight, at.x, duals)[1]
    return Minorant.of(network, at.layers, made_feasible(network, weight, at.x, duals))


def _curvatures(problem: VariationalProblem) -> Tensor | None:
    """k d^2, the second derivatives of D(A x) in single pixels, of quadratic data; else None."""
    d, k = problem.operator.diagonal, problem.fidelity.curvature
    return None if d is None or k is None else k * converted(d, problem.fidelity.y).square()


def image_of_duals(
    problem: VariationalProblem, x: Tensor, duals: Blocks
) -> tuple[Tensor, Tensor, Tensor] | None:
    """argmin_x D(A x, y) + <c, x> in the box, c the slope of dual variables; two objectives.

    At a solution, the solution itself. For quadratic data of single pixels, all of them seen; else
    None. The objectives are those of this image and of x, which may be any images.
    """
    d, k, y = problem.operator.diagonal, problem.fidelity.curvature, problem.fidelity.y
    curvatures = _curvatures(problem)
    if d is None or k is None or curvatures is None or not decided(curvatures.gt(0).all()):
        return None
    d = converted(d, y)
    network, weight, one_pass = problem.network, problem.weight, OnePass.of(problem.network)

    def image(c: Tensor) -> Tensor:
        return problem.bounds.project((k * d * y - c) / curvatures)

    if one_pass is None:
        found = image(made_feasible(network, weight, x, duals).c)
        return found, problem.evaluate(found).objective, problem.evaluate(x).objective
    regularizer, minorant, _ = one_pass(weight, x, duals)
    found, before = image(minorant.c), problem.evaluation(x, regularizer).objective
    return found, problem.evaluation(found, one_pass.value(found)[0]).objective, before


def better_image(problem: VariationalProblem, x: Tensor, duals: Blocks) -> Tensor:
    """The image that goes with dual variables, where there is one and it is better than x.

    Iterations in which duals count more (``Coupling.dual_weight``) leave images behind.
    """
    if (found := image_of_duals(problem, x, duals)) is None:
        return x
    image, objective, before = found
    return torch.where(expand_per_image(objective < before, x), image, x)  # x for NaN


def proving_duals(problem: VariationalProblem, x: Tensor, witness: Blocks) -> tuple[Blocks, Duals]:
    """The dual variables of a claim, to be kept and to be read.

    Packed ones of a single layer, which are large, stay packed: the slopes of their codes are
    feasible. ``claims.unpacked`` gives the numbers that were read, to the last bit.
    """
    network, weight = problem.network, problem.weight
    (name, *_) = dual_names(1, len(network.layers))
    if len(network.layers) > 1 or witness[name].dtype is not CODES:
        duals = feasible_duals(network, weight, x, witness)
        return duals, duals
    h = network.layers[0].activation
    return witness, {**witness, name: PackedDual(h, witness[name], weight * network.output)}
