"""A network's architecture as JSON, and back.

    {"layers": [{"activation": {"LeakyReLU": {"slope": 0.2}}, "channels": 32,
                 "skip": {"Convolution": {"in_channels": 1, ...}}, ...}, ...],
     "in_channels": 1, "image_size": null}

An object is written as the arguments of its constructor. Which arguments there are is read off
the constructor's signature, and their values off the attributes of the same names; ``PARTS`` says
how to find those that are kept otherwise. An activation or a map that is new in the library needs
one line there. Descriptions name classes of this list only: reading one runs nothing else.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from convexlift.models.values import construct, listed, parameters, plain
from convexlift.networks.activations import Abs, Activation, LeakyReLU, ReLU
from convexlift.networks.exponential_activations import ELU, Softplus
from convexlift.networks.group_activations import GroupNorm
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import (
    AveragePool,
    Chain,
    Convolution,
    Dense,
    ForwardDifferences,
    LinearMap,
)
from convexlift.networks.smooth_activations import (
    HalfSquare,
    Huber,
    SmoothedLeakyReLU,
    SmoothedReLU,
)

Description = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A class that descriptions may name, and where its constructor's arguments are found.

    Args:
        kind: the class.
        arguments: functions of an object, for the arguments it has no attribute of that name for.
    """

    kind: type[Any]
    arguments: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


PARTS: dict[str, Part] = {
    part.kind.__name__: part
    for part in (
        Part(Abs),
        Part(ELU),
        Part(GroupNorm),
        Part(HalfSquare),
        Part(Huber),
        Part(LeakyReLU),
        Part(ReLU),
        Part(SmoothedLeakyReLU),
        Part(SmoothedReLU),
        Part(Softplus),
        Part(AveragePool),
        Part(ForwardDifferences),
        Part(Chain, {"maps": lambda chain: list(chain.maps)}),
        Part(
            Convolution,
            {
                "in_channels": lambda convolution: convolution.weight.shape[1],
                "out_channels": lambda convolution: convolution.weight.shape[0],
                "kernel_size": lambda convolution: convolution.weight.shape[2],
            },
        ),
        Part(
            Dense,
            {
                "in_features": lambda dense: dense.weight.shape[1],
                "out_features": lambda dense: dense.weight.shape[0],
            },
        ),
    )
}
"""The activations and maps that descriptions may name. Adding one to the library? Here."""

NETWORK = Part(InputConvexNetwork, {"layers": lambda network: list(network.layers)})
LAYER = Part(
    ConvexLayer,
    {
        "links": lambda layer: {int(source): link for source, link in layer.links.items()},
        "bias": lambda layer: layer.bias is not None,
    },
)
START = "nonnegative"
"""The argument of maps that concerns their starting weights only, and is not described."""


def describe(network: InputConvexNetwork) -> Description:
    """The architecture of a network: JSON values from which ``build`` makes it again.

    Raises ValueError where a part is none of the library's, naming it. A subclass is described
    as the plain network it is, unless it changes what a network does.
    """
    if not isinstance(network, InputConvexNetwork):
        raise ValueError(f"only an InputConvexNetwork can be described, not {type(network)}")
    if changed := _overridden(type(network)):
        raise ValueError(
            f"{type(network).__name__} changes {listed(changed)} of InputConvexNetwork, which a "
            "description of its layers cannot say; state it as an InputConvexNetwork"
        )
    return _arguments(network, NETWORK, "network")


def build(description: Any) -> InputConvexNetwork:
    """The network of a description, with random starting weights.

    Raises ValueError naming the place, such as ``network.layers[0].activation``, where the
    description has unknown names, wrong types, or values the constructors refuse.
    """
    try:
        return construct(InputConvexNetwork, description, "network", _Builder())
    except RecursionError:
        raise ValueError("the network's maps are nested too deeply") from None


@dataclass(frozen=True)
class _Builder:
    """Makes the parts of a network, maps with nonnegative weights or with free ones."""

    nonnegative: bool = True

    def __call__(self, value: Any, kind: type[Any], place: str) -> Any:
        """The layer, activation or map that ``value`` describes."""
        if kind is ConvexLayer:
            skip = {"skip": _Builder(nonnegative=False)}
            return construct(ConvexLayer, value, place, self, make_for=skip)
        known = {name: part for name, part in PARTS.items() if issubclass(part.kind, kind)}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ValueError(
                f'{place} must be written as {{"NAME": {{...}}}} with one of the names '
                f"{listed(known)}; got {value!r}"
            )
        ((name, content),) = value.items()
        if name not in known:
            raise ValueError(f"{place}: {name!r} is not known; known are {listed(known)}")
        part = known[name].kind
        fixed = {START: self.nonnegative} if START in parameters(part) else {}
        return construct(part, content, f"{place}.{name}", self, fixed=fixed)


def _arguments(thing: Any, part: Part, place: str) -> Description:
    """What its constructor was given, as JSON values."""
    content = {}
    for name in parameters(part.kind, leave_out=(START,)):
        argument = part.arguments.get(name, operator.attrgetter(name))
        content[name] = _encode(argument(thing), f"{place}.{name}")
    return content


def _encode(value: Any, place: str) -> Any:
    if type(value) is ConvexLayer:
        return _arguments(value, LAYER, place)
    part = PARTS.get(type(value).__name__)
    if part is not None and type(value) is part.kind:
        return {type(value).__name__: _arguments(value, part, f"{place}.{type(value).__name__}")}
    if isinstance(value, Mapping):
        return {str(key): _encode(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Activation | nn.Module):
        base = Activation if isinstance(value, Activation) else LinearMap
        known = [name for name, part in PARTS.items() if issubclass(part.kind, base)]
        raise ValueError(
            f"{place}: {type(value).__name__} is none of the library's own and cannot be "
            f"described; known are {listed(known)}"
        )
    return plain(value, place)


def _overridden(kind: type[Any]) -> list[str]:
    """What a subclass of InputConvexNetwork does otherwise than it."""
    own = kind.__mro__[: kind.__mro__.index(InputConvexNetwork)]
    harmless = {"__init__", "__repr__", "extra_repr"}
    return sorted(
        name
        for cls in own
        for name, value in vars(cls).items()
        if (inspect.isroutine(value) or isinstance(value, property))
        and name in dir(InputConvexNetwork)
        and name not in harmless
        and not name.startswith("__annotate")
    )
