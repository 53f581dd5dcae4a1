"""Dual variables of a network: their names, their shapes, and how they become feasible."""

from __future__ import annotations

from torch import Tensor

from convexlift.networks.bound_network import BackwardPass, BoundNetwork
from convexlift.problems.packed_slopes import feasible
from convexlift.tensors import Blocks, Scalar


def primal_name(source: int) -> str:
    """x for source 0, else z_1, z_2, ..."""
    return "x" if source == 0 else f"z{source}"


def dual_names(layer: int, layers: int) -> tuple[str, ...]:
    """(v_{i,1}, v_{i,2}) for the layers with an epigraph, v_L for the last one."""
    return (f"v{layer}",) if layer == layers else (f"v{layer},1", f"v{layer},2")


DATA_DUAL = "v0"
"""The dual block of a dualised fidelity."""
BOX_DUAL = "vx"
"""The dual block of a dualised box."""


def made_feasible(
    network: BoundNetwork, weight: Scalar, like: Tensor, duals: Blocks, *, to_image: bool = True
) -> BackwardPass:
    """The backward pass with p_i the nearest to v_{i,1} that has slopes in dom h_i*.

    Dual variables may be packed (``packed_slopes``).
    """
    count = len(network.layers)

    def clip(i: int, t: Tensor) -> Tensor:
        return feasible(network.layers[i - 1].activation, duals[dual_names(i, count)[0]], t)

    return network.backward(weight, like, clip, to_image=to_image)


def feasible_duals(network: BoundNetwork, weight: Scalar, like: Tensor, duals: Blocks) -> Blocks:
    """The dual variables p_i themselves, and the dual variable of the data, unchanged."""
    count = len(network.layers)
    feasible = made_feasible(network, weight, like, duals, to_image=False).p
    parts = {dual_names(i, count)[0]: p for i, p in enumerate(feasible, start=1)}
    if DATA_DUAL in duals:
        parts[DATA_DUAL] = duals[DATA_DUAL]
    return Blocks(parts)


def fitting_duals(network: BoundNetwork, x: Tensor, duals: Blocks | None) -> Blocks | None:
    """Dual variables if they have the shapes of this network's preactivations; else None."""
    if duals is None:
        return None
    count, batch = len(network.layers), x.shape[0]
    for i, layer in enumerate(network.layers, start=1):
        part = duals.get(dual_names(i, count)[0])
        channels, *others = layer.shape
        if part is None or part.shape != (batch, layer.activation.group * channels, *others):
            return None
    return duals
