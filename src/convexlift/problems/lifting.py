"""The lift: layers become epigraphs, and the nested problem a flat convex one (paper section 3).

    z_i = h_i(a_i)   is replaced by   z_i >= h_i(a_i),   i = 1, ..., L-1.

Since R is nondecreasing in every z_i, larger z_i never help: the minimisers x are the same (the
paper's Theorem), and each constraint is the epigraph of an activation, onto which one projects
unit by unit. In a residual layer the constraint reads (a_i, z_i - z_{i-1}) in epi h_i.

Where the only user of z_i is a map W P with P the mean over blocks of pixels, R depends on z_i
through P z_i alone, and the constraint may be put on the mean:

    p_i >= P h_i(a_i),    a_{i+1} = W p_i + ...

The minimisers x are the same again (the paper's Theorem for the convex function P h_i), and p_i is
smaller than z_i by the size of a block. The block "z1" then holds p_1, and v_{1,2} has its size.

The result is a saddle-point problem with named blocks,

    min_u max_v  <K u, v> + g(u) - sum_i f_i*(v_i),    u = (x, z_1, ..., z_{L-1}).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

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
from convexlift.problems.network_duals import BOX_DUAL, DATA_DUAL, dual_names, primal_name
from convexlift.problems.pooled_layers import pooled_layers
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks, Shape, TensorRecord, converted


@dataclass(frozen=True, eq=False)
class BlockOperator(TensorRecord):
    """K, by rows: ``rows[v][u]`` is the operator from primal block u to dual block v."""

    rows: dict[str, dict[str, LinearOperator]]
    shapes: dict[str, Shape]

    def __call__(self, u: Blocks) -> Blocks:
        """K u."""
        return Blocks({v: reduce(torch.add, [K(u[name]) for name, K in row.items()])
                       for v, row in self.rows.items()})  # fmt: skip

    def adjoint(self, v: Blocks) -> Blocks:
        """K* v."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.shapes}
        for dual, row in self.rows.items():
            for name, K in row.items():
                parts[name].append(K.adjoint(v[dual]))
        return Blocks({name: reduce(torch.add, terms) for name, terms in parts.items()})

    def row_shapes(self) -> dict[str, Shape]:
        """The shapes of the dual blocks."""
        blocks = ((v, *next(iter(row.items()))) for v, row in self.rows.items())
        return {v: tuple(K.output_shape(self.shapes[name])) for v, name, K in blocks}

    def squared_norms(self) -> dict[str, dict[str, float]]:
        """||K_vu||^2 for every block, an upper estimate."""
        return {
            v: {name: K.norm(self.shapes[name]) ** 2 for name, K in row.items()}
            for v, row in self.rows.items()
        }


@dataclass(frozen=True, eq=False)
class SaddlePointProblem(TensorRecord):
    """min_u  sum_i f_i(K_i u) + g(u), the form PDHG works on (paper section 4).

    Attributes:
        K: the operator, rows named after the dual blocks.
        f: f_0 (if the fidelity is dualised), f_1, ..., f_L, each with the names of its rows.
        g: the primal terms; blocks without one are free.
    """

    K: BlockOperator
    f: tuple[tuple[tuple[str, ...], DualTerm], ...]
    g: dict[str, PrimalTerm]

    def force(self, v: Blocks) -> Blocks:
        """K* v, plus the slopes of the linear terms in g."""
        found = dict(self.K.adjoint(v))
        for name, term in self.g.items():
            if isinstance(term, LinearTerm):
                found[name] = found[name] + term.cost
        return Blocks(found)

    def prox_g(self, u: Blocks, tau: Blocks) -> Blocks:
        """prox_g^T of the other terms, block by block; the free blocks stay."""
        curved = {n: term for n, term in self.g.items() if not isinstance(term, LinearTerm)}
        return Blocks(
            {
                name: curved[name].prox(part, tau.step(name, part)) if name in curved else part
                for name, part in u.items()
            }
        )

    def prox_f_conjugate(self, v: Blocks, sigma: Blocks) -> Blocks:
        """prox_{f_i*}^{S_i} for every i."""
        parts: dict[str, Tensor] = {}
        for names, term in self.f:
            values = tuple(v[name] for name in names)
            steps = tuple(sigma.step(name, v[name]) for name in names)
            parts.update(zip(names, term.conjugate_prox(values, steps), strict=True))
        return Blocks(parts)


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
            only where D(A x) has no closed-form prox. It has one if A is diagonal, and for the
            squared L2 norm without a box if A is a circular blur.
        pooled: whether layers before a pooling are bounded in the mean, where that suffices;
            otherwise every layer is bounded unit by unit, as in the paper.
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
            f.append((names, LastLayerTerm(layer.activation, layer.bias, weights, network.block)))
            if layer.residual:
                g[primal_name(i - 1)] = LinearTerm(weights)
    for i, pool in pools.items():
        rows[dual_names(pool.user, count)[0]][primal_name(i)] = pool.rest
    return SaddlePointProblem(BlockOperator(rows, shapes), tuple(f), g)


@dataclass(frozen=True)
class Lift:
    """``lift`` with some of its options."""

    dualise_fidelity: bool | None = None
    dualise_box: bool = False

    def __call__(self, problem: VariationalProblem) -> SaddlePointProblem:
        """The saddle-point problem."""
        return lift(problem, **vars(self))


def _fidelity_term(problem: VariationalProblem) -> PrimalTerm | None:
    """D(A x), with the box, as a part of g where it has a closed-form prox."""
    fidelity, operator = problem.fidelity, problem.operator
    if operator.diagonal is not None:
        return DiagonalFidelityTerm(
            fidelity, converted(operator.diagonal, fidelity.y), problem.bounds
        )
    if isinstance(fidelity.curvature, float) and problem.bounds.is_everything:
        transfer, root = operator.transfer(problem.image_shape), math.sqrt(fidelity.curvature)
        if transfer is not None:
            return CircularFidelityTerm(
                root * transfer, root * torch.fft.rfft2(fidelity.y.double())
            )
    return None
