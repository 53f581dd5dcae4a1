"""A network's architecture as JSON, and back.

    {"layers": [{"activation": {"LeakyReLU": {"slope": 0.2}}, "channels": 32,
                 "skip": {"Convolution": {"in_channels": 1, ...}}, ...}, ...],
     "in_channels": 1, "image_size": null}

An activation or a map is written as its name and the arguments of its constructor
(``ProblemPart.arguments``). Descriptions name registered classes only (``parts.PARTS``), and their
arguments are checked against type hints: reading one executes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from convexlift.json_values import construct, listed, parameters, plain
from convexlift.networks.activations import Activation
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import LinearMap
from convexlift.parts import ProblemPart, known_parts, overridden

Description = dict[str, Any]


START = "nonnegative"
"""The argument of maps that affects only initial weights, and is not described."""


def describe(network: InputConvexNetwork) -> Description:
    """The architecture of a network as JSON values, from which ``build`` makes it again.

    Raises ValueError, naming the part, if a part is not registered for files. A subclass is
    described as a plain network, unless it overrides the behaviour of one.
    """
    if not isinstance(network, InputConvexNetwork):
        raise ValueError(f"only an InputConvexNetwork can be described, not {type(network)}")
    changed = [name for name in overridden(type(network), InputConvexNetwork) if name != "card"]
    if changed:
        raise ValueError(
            f"{type(network).__name__} overrides {listed(changed)} of InputConvexNetwork, which a "
            "description of its layers cannot express; build it as an InputConvexNetwork"
        )
    return _written(network, "network")


def build(description: Any) -> InputConvexNetwork:
    """The network of a description, with random initial weights.

    Raises ValueError naming the place, such as ``network.layers[0].activation``, where the
    description has unknown names, wrong types, or values that the constructors refuse.
    """
    try:
        return construct(InputConvexNetwork, description, "network", _Builder())
    except RecursionError:
        raise ValueError("the network's maps are nested too deeply") from None


@dataclass(frozen=True)
class _Builder:
    """Makes the parts of a network, maps with nonnegative or with free weights."""

    nonnegative: bool = True

    def __call__(self, value: Any, kind: type[Any], place: str) -> Any:
        """The layer, activation or map described by ``value``."""
        if kind is ConvexLayer:
            skip = {"skip": _Builder(nonnegative=False)}
            return construct(ConvexLayer, value, place, self, make_for=skip)
        known = known_parts(kind)
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ValueError(
                f'{place} must be written as {{"NAME": {{...}}}} with one of the names '
                f"{listed(known)}; got {value!r}"
            )
        ((name, content),) = value.items()
        if name not in known:
            raise ValueError(f"{place}: {name!r} is unknown; known are {listed(known)}")
        part = known[name]
        fixed = {START: self.nonnegative} if START in parameters(part) else {}
        return construct(part, content, f"{place}.{name}", self, fixed=fixed)


def _written(thing: ProblemPart | ConvexLayer | InputConvexNetwork, place: str) -> Description:
    """The arguments of a part's constructor, as JSON values."""
    arguments = thing.arguments().items()
    return {name: _encode(value, f"{place}.{name}") for name, value in arguments}


def _encode(value: Any, place: str) -> Any:
    if type(value) is ConvexLayer:
        return _written(value, place)
    if isinstance(value, ProblemPart) and value.part_name is not None:
        return {value.part_name: _written(value, f"{place}.{value.part_name}")}
    if isinstance(value, Mapping):
        return {str(key): _encode(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Activation | nn.Module):
        base = Activation if isinstance(value, Activation) else LinearMap
        raise ValueError(
            f"{place}: {type(value).__name__} is not registered for files; known are "
            f"{listed(known_parts(base))}; register yours by class {type(value).__name__}(..., "
            f'name="{type(value).__name__}")'
        )
    return plain(value, place)
