"""State dicts from files, without executing anything, and descriptions of their formats."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from convexlift.json_values import listed
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import LinearMap
from convexlift.tensors import first_non_finite

ADVICE = "give a state dict written by torch.save, or a model written by convexlift.save"
CONFIG = "config.json"
LARGEST_CONFIG = 2**20
ORIGINAL = "parametrizations.weight.original"
"""The name of a weight before its parametrization."""
WEAKLY_CONVEX = "a weakly convex ridge regularizer (WCRR); only convex ones are read"
LEARNED_REGULARIZERS = "Hertrich et al. 2025, github.com/johertrich/LearnedRegularizers"


@dataclass(frozen=True, eq=False)
class Source:
    """The tensors of a file in double precision, and further inputs of its conversion.

    Attributes:
        path: the file.
        tensors: the tensors by name, without the prefixes of wrappers.
        config: the content of the ``config.json`` beside the file or its folder, or None.
        noise: the standard deviation of the noise, in units of the image, or None.
        strong_convexity: mu of a term mu/2 |x|^2 that a state dict does not contain, or None.
    """

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None = None
    noise: float | None = None
    strong_convexity: float | None = None

    def require(self, names: Collection[str]) -> None:
        """Raise ValueError unless these are the names of all tensors."""
        wanted, found = set(names), set(self.tensors)
        if wanted != found:
            raise ValueError(
                f"its tensors do not fit its format: missing are {listed(sorted(wanted - found))}, "
                f"unexpected are {listed(sorted(found - wanted))}"
            )

    def take(self, name: str, *shape: int | None) -> Tensor:
        """A tensor of this shape, None for any size; ValueError otherwise."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ValueError(f"the tensor {name} of its format is missing")
        fits = tensor.ndim == len(shape) and tensor.numel() > 0
        if not fits or any(n not in (None, m) for n, m in zip(shape, tensor.shape, strict=True)):
            expected = ", ".join("any" if n is None else str(n) for n in shape)
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not ({expected})")
        if (place := first_non_finite(tensor)) is not None:
            raise ValueError(f"{name} has entries that are not finite, the first at {place}")
        return tensor

    def number(self, name: str) -> float:
        """A tensor with one entry."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.numel() != 1:
            raise ValueError(f"the number {name} of its format is missing")
        return float(self.take(name, *[1] * tensor.ndim))

    def setting(self, *names: str) -> Any:
        """A value of the configuration, by the names that lead to it."""
        value: Any = self.config
        for name in names:
            if not isinstance(value, dict) or name not in value:
                raise ValueError(
                    f"this format needs {'.'.join(names)} of the file {CONFIG} that its authors "
                    "publish with it; copy that file beside the weights, or into the folder above"
                )
            value = value[name]
        return value


@dataclass(frozen=True)
class Format:
    """A published format.

    Args:
        name: the name for ``load(..., format=name)``.
        authors: its authors and its source.
        holds: its content in a few words.
        fits: whether a file with tensors of these names has the format.
        convert: makes the network, in double precision.
        terms: the terms of use of the files, as far as they are known.
        options: the options of ``load`` that it takes.
        clue: a word of the file name, where weakly convex ones have the same tensors.
    """

    name: str
    authors: str
    holds: str
    fits: Callable[[Collection[str]], bool]
    convert: Callable[[Source], InputConvexNetwork]
    terms: str = "no licence is stated by the authors"
    options: tuple[str, ...] = ()
    clue: str = ""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name; nothing in the file is executed."""
    if not path.is_file():
        raise ValueError("there is no such file")
    content = _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # a checkpoint
    if not isinstance(content, dict) or not all(
        isinstance(each, Tensor) and each.is_floating_point() for each in content.values()
    ):
        raise ValueError(f"it does not hold named tensors of numbers only; {ADVICE}")
    for name, tensor in content.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name} claims {tensor.numel():,} numbers, and the file has fewer")
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration beside a file or in the folder above, if there is one."""
    for folder in (path.parent, path.parent.parent):
        file = folder / CONFIG
        if file.is_file():
            try:
                if file.stat().st_size > LARGEST_CONFIG:
                    raise ValueError("it is too long")
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ValueError(f"{file} cannot be read as JSON ({error})") from None
            return content if isinstance(content, dict) else None
    return None


def _pickled(path: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the protocols of pickles
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises IndexError and others for damaged files
        # Its message is left out: it advises to load the file in a way that can run code.
        reason = f"damaged, or with objects that could run code: {type(error).__name__}"
        raise ValueError(f"not a file of weights alone ({reason}); {ADVICE}") from None


def _safetensors(path: Path) -> Any:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"not a readable safetensors file ({error})") from None


def zero_mean(weight: Tensor) -> Tensor:
    """Filters minus their means, the parametrization of several authors."""
    return weight - weight.mean((1, 2, 3), keepdim=True)


def filled(map_: LinearMap, weight: Tensor) -> LinearMap:
    """A map in double precision with these weights."""
    map_ = map_.double()
    map_.get_parameter("weight").data.copy_(weight)
    return map_


def filled_layer(layer: ConvexLayer, bias: Tensor | None = None) -> ConvexLayer:
    """A layer in double precision with this bias."""
    layer = layer.double()
    if layer.bias is not None and bias is not None:
        layer.bias.data.copy_(bias)
    return layer


def unwrapped(source: Source) -> tuple[Source, float, float]:
    """The regularizer without its wrapper exp(alpha - 2 s) R(exp(s) x), and both factors."""
    if "alpha" not in source.tensors:
        return source, 1.0, 1.0
    alpha, s = source.number("alpha"), source.number("scale")
    inner = {
        name.removeprefix("regularizer."): tensor
        for name, tensor in source.tensors.items()
        if name not in ("alpha", "scale")
    }
    return replace(source, tensors=inner), math.exp(alpha - 2 * s), math.exp(s)
