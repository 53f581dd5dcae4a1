"""The lift: layers become epigraphs, and the nested problem a flat convex one (paper section 3).

    z_i = h_i(a_i)   is replaced by   z_i >= h_i(a_i),   i = 1, ..., L-1.

Since R is nondecreasing in every z_i, larger z_i never help: the minimisers x are the same (the
paper's Theorem), and each constraint is the epigraph of an activation, onto which one projects
unit by unit. In a residual layer the constraint reads (a_i, z_i - z_{i-1}) in epi h_i.

For a layer that is used only through a pooling P, p_i >= P h_i(a_i) is enough (``pooling``). The
block "z1" then holds p_1, and v_{1,2} has its size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.functionals.terms import (
    BoxTerm,
    CircularFidelityTerm,
    DiagonalFidelityTerm,
    DualBoxTerm,
    DualFidelityTerm,
    DualTerm,
    EpigraphTerm,
    LastLayerTerm,
    LinearTerm,
    PooledEpigraphTerm,
    PrimalTerm,
)
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.problems.pooling import pooled_layers
from convexlift.problems.saddle import (
    BOX_DUAL,
    DATA_DUAL,
    BlockOperator,
    SaddlePointProblem,
    dual_names,
    made_feasible,
    primal_name,
)
from convexlift.problems.tiled_objective import OnePass
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, Shape


def lift(
    problem: VariationalProblem,
    *,
    dualise_fidelity: bool | None = None,
    pooled: bool = True,
    dualise_box: bool = False,
) -> SaddlePointProblem:
    """The saddle-point problem with the same minimisers x.

    Args:
        problem: the nested problem.
        dualise_fidelity: whether D(A x) becomes f_0(K_0 u) instead of a part of g; by default
            only where it must, that is, where D(A x) has no closed-form prox. It has one where A
            is diagonal, and for the squared L2 norm without a box where A is a circular blur.
        pooled: whether layers before a pooling are bounded in the mean, where that is enough;
            without it, every layer unit by unit, as in the paper.
        dualise_box: whether the box around a dualised fidelity becomes another f(I x), so that x
            itself is free.
    """
    network, operator = problem.network, problem.operator
    closed_form = _fidelity_term(problem)
    if dualise_fidelity is None:
        dualise_fidelity = closed_form is None

    rows: dict[str, dict[str, LinearOperator]] = {}
    f: list[tuple[tuple[str, ...], DualTerm]] = []
    g: dict[str, PrimalTerm] = {}
    shapes: dict[str, Shape] = {"x": problem.image_shape}

    if dualise_fidelity:
        rows[DATA_DUAL] = {"x": operator}  # K_0 = (A 0 ... 0)
        f.append(((DATA_DUAL,), DualFidelityTerm(problem.fidelity)))
        if not dualise_box:
            g["x"] = BoxTerm(problem.bounds)
        elif not problem.bounds.is_everything:
            rows[BOX_DUAL] = {"x": Identity()}
            f.append(((BOX_DUAL,), DualBoxTerm(problem.bounds)))
    elif closed_form is not None:
        g["x"] = closed_form
    else:
        raise ValueError(
            f"the fidelity behind {type(operator).__name__} has no closed-form prox; "
            "leave dualise_fidelity unset"
        )

    count = len(network.layers)
    pools = pooled_layers(network) if pooled else {}
    for i, layer in enumerate(network.layers, start=1):
        names = dual_names(i, count)
        rows[names[0]] = {primal_name(j): K for j, K in layer.operators.items()}
        if i < count:  # K_i has the rows (V_{i-1} ... W_{i-1} ...) and (... I ...)
            shapes[primal_name(i)] = layer.shape
            rows[names[1]] = {primal_name(i): Identity()}
            if layer.residual:
                rows[names[1]][primal_name(i - 1)] = -Identity()
            f.append((names, EpigraphTerm(layer.activation, layer.bias)))
            if i in pools:  # p_i >= P h_i(a_i) instead
                pooling = pools[i].pooling
                shapes[primal_name(i)] = pooling.output_shape(layer.shape)
                f[-1] = (names, PooledEpigraphTerm(layer.activation, layer.bias, pooling.pool_size))
        else:
            weights = problem.weight * network.output
            f.append((names, LastLayerTerm(layer.activation, layer.bias, weights)))
            if layer.residual:
                g[primal_name(i - 1)] = LinearTerm(weights)
    for i, pool in pools.items():
        rows[dual_names(pool.user, count)[0]][primal_name(i)] = pool.rest
    return SaddlePointProblem(BlockOperator(rows, shapes), tuple(f), g)


def _fidelity_term(problem: VariationalProblem) -> PrimalTerm | None:
    """D(A x), with the box, as a part of g where it has a closed-form prox."""
    fidelity, operator = problem.fidelity, problem.operator
    if operator.diagonal is not None:
        return DiagonalFidelityTerm(fidelity, operator.diagonal.to(fidelity.y), problem.bounds)
    if isinstance(fidelity.curvature, float) and problem.bounds.is_everything:
        transfer, root = operator.transfer(problem.image_shape), math.sqrt(fidelity.curvature)
        if transfer is not None:
            return CircularFidelityTerm(
                root * transfer, root * torch.fft.rfft2(fidelity.y.double())
            )
    return None


def lifted_start(
    problem: VariationalProblem,
    saddle: SaddlePointProblem,
    x: Tensor,
    duals: Blocks | None = None,
) -> tuple[Blocks, Blocks]:
    """Primal blocks by a forward pass from the image x, dual blocks by one backward pass.

    The duals are those of the tangent at x: p_i = h_i'(a_i) t_i for v_{i,1}, -t_i for v_{i,2}
    (the sum of t_i over a block, where layer i was lifted after its pooling),
    and f'(A x) for a dualised fidelity, so that a good image starts with good duals. Or p_i
    comes from the ``duals`` of an earlier solution by any method, made feasible.
    """
    count = len(problem.network.layers)
    one_pass = OnePass.of(problem.network)
    u = {"x": x}
    v = {}
    if count == 1 and one_pass is not None and duals is None:
        v[dual_names(1, 1)[0]] = one_pass.tangent(problem.weight, x)
    else:
        layers = problem.network.hidden(x)
        if duals is None:
            backward = problem.network.tangent(problem.weight, x, layers.a)
        else:
            backward = made_feasible(problem.network, problem.weight, x, duals)
        for i in range(1, count + 1):
            names = dual_names(i, count)
            v[names[0]] = backward.p[i - 1]
            if i < count:
                u[primal_name(i)] = layers.z[i - 1]
                v[names[1]] = -backward.t[i - 1]
    for names, term in saddle.f:
        if isinstance(term, PooledEpigraphTerm):
            (block,) = saddle.K.rows[names[1]]
            u[block] = term.block_means(u[block])
            v[names[1]] = term.size**2 * term.block_means(v[names[1]])
    if DATA_DUAL in saddle.K.rows:
        gradient = problem.fidelity.gradient(problem.operator(x))
        known = None if duals is None else duals.get(DATA_DUAL)
        if known is not None and known.shape != gradient.shape:  # of another scanner
            known = None
        v[DATA_DUAL] = problem.fidelity.clip_to_conjugate_domain(
            gradient if known is None else known
        )
    if BOX_DUAL in saddle.K.rows:  # the part of the force that pushes against the box
        v[BOX_DUAL] = torch.zeros_like(x)
        force = saddle.K.adjoint(Blocks(v))["x"]
        v[BOX_DUAL] = problem.bounds.pressure(x, -force)
    return Blocks(u), Blocks({name: v[name] for name in saddle.K.rows})
