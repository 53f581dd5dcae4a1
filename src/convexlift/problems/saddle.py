"""Saddle-point problems  min_u max_v  <K u, v> + g(u) - sum_i f_i*(v_i)  with named blocks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from convexlift.functionals.terms import DualTerm, PrimalTerm
from convexlift.networks.bound_network import BackwardPass, BoundNetwork
from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Blocks, Shape, TensorRecord, expand_per_image


def primal_name(source: int) -> str:
    """x for source 0, else z_1, z_2, ..."""
    return "x" if source == 0 else f"z{source}"


def dual_names(layer: int, layers: int) -> tuple[str, ...]:
    """(v_{i,1}, v_{i,2}) for the layers with an epigraph, v_L for the last one."""
    return (f"v{layer}",) if layer == layers else (f"v{layer},1", f"v{layer},2")


DATA_DUAL = "v0"
"""The dual block of a dualised fidelity."""
BOX_DUAL = "vx"
"""That of a dualised box."""


def made_feasible(
    network: BoundNetwork, weight: float, like: Tensor, duals: Blocks, *, to_image: bool = True
) -> BackwardPass:
    """The backward pass with p_i the nearest to v_{i,1} that has slopes in dom h_i*."""
    count = len(network.layers)

    def clip(i: int, t: Tensor) -> Tensor:
        return network.layers[i - 1].activation.clip_to_slopes(duals[dual_names(i, count)[0]], t)

    return network.backward(weight, like, clip, to_image=to_image)


def feasible_duals(network: BoundNetwork, weight: float, like: Tensor, duals: Blocks) -> Blocks:
    """The dual variables p_i themselves, and that of the data as it is."""
    count = len(network.layers)
    feasible = made_feasible(network, weight, like, duals, to_image=False).p
    parts = {dual_names(i, count)[0]: p for i, p in enumerate(feasible, start=1)}
    if DATA_DUAL in duals:
        parts[DATA_DUAL] = duals[DATA_DUAL]
    return Blocks(parts)


def fitting_duals(network: BoundNetwork, x: Tensor, duals: Blocks | None) -> Blocks | None:
    """Dual variables, if they have the shapes of this network's preactivations; else None."""
    if duals is None:
        return None
    count, batch = len(network.layers), x.shape[0]
    for i, layer in enumerate(network.layers, start=1):
        part = duals.get(dual_names(i, count)[0])
        channels, *others = layer.shape
        if part is None or part.shape != (batch, layer.activation.group * channels, *others):
            return None
    return duals


@dataclass(frozen=True, eq=False)
class BlockOperator(TensorRecord):
    """K, by rows: ``rows[v][u]`` is the operator from primal block u to dual block v."""

    rows: dict[str, dict[str, LinearOperator]]
    shapes: dict[str, Shape]

    def __call__(self, u: Blocks) -> Blocks:
        """K u."""
        return Blocks({v: _sum([K(u[name]) for name, K in row.items()])
                       for v, row in self.rows.items()})  # fmt: skip

    def adjoint(self, v: Blocks) -> Blocks:
        """K* v."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.shapes}
        for dual, row in self.rows.items():
            for name, K in row.items():
                parts[name].append(K.adjoint(v[dual]))
        return Blocks({name: _sum(terms) for name, terms in parts.items()})

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

    def prox_g(self, u: Blocks, tau: Blocks) -> Blocks:
        """prox_g^T, block by block; the free blocks stay."""
        return Blocks(
            {
                name: self.g[name].prox(part, expand_per_image(tau[name], part))
                if name in self.g
                else part
                for name, part in u.items()
            }
        )

    def prox_f_conjugate(self, v: Blocks, sigma: Blocks) -> Blocks:
        """prox_{f_i*}^{S_i} for every i."""
        parts: dict[str, Tensor] = {}
        for names, term in self.f:
            values = tuple(v[name] for name in names)
            steps = tuple(expand_per_image(sigma[name], v[name]) for name in names)
            parts.update(zip(names, term.conjugate_prox(values, steps), strict=True))
        return Blocks(parts)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
