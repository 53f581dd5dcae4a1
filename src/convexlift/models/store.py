"""``save`` and ``load``: networks in files, and their architecture as JSON.

Both files of a model are numbers and text: nothing in them is ever executed. ``load`` returns a
convex network with the described architecture and finite weights; anything else is a ValueError
that names the file and the cause. An architecture is written as

    {"layers": [{"activation": {"LeakyReLU": {"slope": 0.2}}, "channels": 32,
                 "skip": {"Convolution": {"in_channels": 1, ...}}, ...}, ...],
     "in_channels": 1, "image_size": null}

where an activation or a map has its name and the arguments of its constructor
(``ProblemPart.arguments``). Descriptions name registered classes only (``parts.PARTS``), and their
arguments are checked against type hints.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.json_values import construct, listed, parameters, plain
from convexlift.models.files import (
    SCALE,
    Layout,
    ModelCard,
    PathLike,
    Sheet,
    find,
    naming,
    pair,
    read_sheet,
)
from convexlift.models.interop import loading
from convexlift.networks.activations import Activation
from convexlift.networks.adaptive import AdaptiveNetwork, ConditionedNetwork
from convexlift.networks.guides import Guide
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import LinearMap
from convexlift.parts import ProblemPart, known_parts, overridden
from convexlift.tensors import first_non_finite, is_own

PRECISIONS = ("float16", "float32", "float64")
MANY = 1024
"""Tensors with fewer numbers are never stored in 8 bits: that saves little, and biases matter."""
MOST = 2**26
"""The most numbers of a tensor with shared rows: a small file must not fill the memory."""


def save(
    network: InputConvexNetwork,
    path: PathLike,
    card: ModelCard | None = None,
    *,
    half: bool = False,
    eight_bit: bool = False,
) -> Path:
    """Write a network as ``path.safetensors`` and ``path.json``; returns the former.

    A failure leaves earlier files as they were. If the process dies between the two, the files do
    not match, and ``load`` reports it.

    Args:
        network: built from the library's activations and maps.
        path: with or without either ending.
        card: information for users; the card of a loaded network is written only if given here
            (``card=network.card``), since training invalidates it.
        half: store float16, at half the size of float32; ``load`` converts to float32.
        eight_bit: store large tensors as integers from -127 to 127 with a scale for each row, at a
            quarter of the size; each weight moves by up to 0.4 % of the largest in its row.
    """
    if card is not None and not isinstance(card, ModelCard):
        raise ValueError(f"card must be a ModelCard, got a {type(card).__name__}")
    weights, sheet_file = pair(path)
    for target in (Path(path), weights, sheet_file):
        if target.is_dir():
            raise ValueError(f"{target} is a folder; name a file in it, such as {target / 'model'}")
    if isinstance(network, ConditionedNetwork):
        raise ValueError(
            "this network has the weights of certain data; save the adaptive network that it was "
            "made from, or solution.proof for these data"
        )
    architecture = describe(network)
    tensors = _stored_tensors(network, half)
    network.check_convexity()
    _compare(_layouts(tensors), _expected(architecture, tensors))
    tensors = _in_eight_bits(tensors) if eight_bit else tensors
    layouts = _layouts(tensors)
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    sheet = Sheet(architecture, card, hashlib.sha256(data).hexdigest(), layouts)
    text = json.dumps(sheet.to_json(), indent=2, allow_nan=False) + "\n"
    remove_leftovers([sheet_file, weights])
    # Both files are complete before either is renamed; the sheet is renamed last.
    with atomic_path(sheet_file) as sheet_part, atomic_path(weights) as weights_part:
        weights_part.write_bytes(data)
        sheet_part.write_text(text, encoding="utf-8")
    return weights


def load(
    name_or_path: PathLike,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> InputConvexNetwork:
    """The network of a file, a shipped model or a repository; its card is ``network.card``.

    Args:
        name_or_path: a name in ``models.names()``, or a path with or without either ending. A
            string is a path if it has a separator or an ending, or if such a file exists. A file
            that ends with .pt or .pth is a published one (``interop.load``). ``org/name``, unless
            there is a folder ``org``, is a repository of the Hugging Face Hub, downloaded once.
        device: the CPU by default.
        dtype: float32 or float64; by default the precision it was saved in, float32 for half.
    """
    target = _check_device(device)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if Path(name_or_path).suffix in loading.ENDINGS:
        return loading.load(name_or_path, dtype=dtype).to(target)
    with find(name_or_path) as (weights, sheet_file):
        sheet = read_sheet(sheet_file)
        data = weights.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != sheet.sha256.lower():
            raise ValueError(
                f"{weights} is not the file that {sheet_file.name} describes: its SHA-256 is "
                f"{digest[:12]}..., not {sheet.sha256[:12]}... One of the two was damaged, "
                "changed or copied alone, or its writing was interrupted; save or copy both again"
            )
        with naming(weights):
            tensors = _parse(data)
            _compare(_layouts(tensors), sheet.tensors, "its description")
            tensors = _from_eight_bits(tensors)
        with naming(sheet_file):
            _require_proportion(sheet.architecture, len(tensors))
            expected = _expected(sheet.architecture, tensors)
        with naming(weights):
            _compare(_layouts(tensors), expected)
        # Initial weights are drawn on the CPU, and do not change the global random numbers.
        with naming(sheet_file), torch.random.fork_rng(devices=()), torch.device("cpu"):
            network = build(sheet.architecture)
        double = any(tensor.dtype is torch.float64 for tensor in tensors.values())
        network.to(dtype=dtype or (torch.float64 if double else torch.float32))
        with naming(weights):
            wanted = network.state_dict()
            for name, tensor in tensors.items():
                _converted(name, tensor, wanted[name].dtype, "load it with dtype=torch.float64")
            network.load_state_dict(tensors)  # this checks that the network is convex
    network.card = sheet.card
    return network.to(target)


def _stored_tensors(network: InputConvexNetwork, half: bool) -> dict[str, Tensor]:
    """Copies of all weights on the CPU, finite and in the precision of the file."""
    seen: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if (other := seen.setdefault(id(parameter), name)) != name:
            raise ValueError(
                f"{other} and {name} are the same tensor, which a file cannot express; "
                "give each layer its own map (copy.deepcopy)"
            )
    tensors = {}
    for name, value in network.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        dtype = torch.half if half and tensor.is_floating_point() else tensor.dtype
        tensors[name] = _converted(name, tensor, dtype, "save with half=False").clone()
    return tensors


def _layouts(tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    return {name: Layout.of(tensor) for name, tensor in tensors.items()}


def _in_eight_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Large tensors as codes -127 ... 127, and the scale of each row; 0 stays 0.

    Rows with the same codes are stored once: critics often end with identical units. Filters on the
    image are not rounded, since filters of mean zero would then respond to brightness.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        large = tensor.numel() >= MANY and tensor.ndim > 1 and tensor.is_floating_point()
        if not large or name.endswith(".skip.weight"):
            stored[name] = tensor
            continue
        rows = tensor.flatten(1)
        scale = rows.abs().amax(1) / 127
        codes = (rows / torch.where(scale > 0, scale, 1.0)[:, None]).round()
        # A tiny scale is itself rounded, and 128 would become -128.
        codes = codes.clamp(-127, 127).to(torch.int8).reshape(tensor.shape)
        alike = tensor.numel() <= MOST and bool((codes == codes[:1]).all())
        stored[name], stored[name + SCALE] = codes[:1].clone() if alike else codes, scale
    return stored


def _from_eight_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of ``_in_eight_bits``; ValueError if codes and scales do not match."""
    numbers = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALE)}
    for name in tensors.keys() - numbers.keys():
        codes, scale = numbers.get(name.removesuffix(SCALE)), tensors[name]
        fits = codes is not None and codes.dtype is torch.int8 and codes.ndim and scale.ndim == 1
        if codes is None or not fits or len(codes) not in (1, len(scale)):
            raise ValueError(f"the tensor {name} does not fit any 8-bit tensor beside it")
        if (count := len(scale) * math.prod(codes.shape[1:])) > max(MOST, codes.numel()):
            raise ValueError(f"the tensor {name} makes {count} numbers of {codes.numel()}")
        if not bool((scale >= 0).all() & (scale < torch.inf).all()):
            raise ValueError(f"the tensor {name} must be nonnegative and finite")
        rows = scale.reshape(-1, *[1] * (codes.ndim - 1))
        numbers[name.removesuffix(SCALE)] = codes.to(scale.dtype) * rows
    return numbers


def _converted(name: str, tensor: Tensor, dtype: torch.dtype, advice: str) -> Tensor:
    """The tensor in another precision; ValueError if it is not finite, or too large."""
    if (place := first_non_finite(tensor)) is not None:
        raise ValueError(f"{name} is {float(tensor[place])} at {place}; weights must be finite")
    converted = tensor.to(dtype)
    if (place := first_non_finite(converted)) is not None:
        raise ValueError(
            f"{name} is {float(tensor[place]):g} at {place}, too large for "
            f"{Layout.of(converted).dtype} (at most {torch.finfo(dtype).max:g}); {advice}"
        )
    return converted


def _expected(architecture: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    """The layouts of an architecture's tensors in the precision of ``tensors``.

    The network is built without memory for its weights, whatever their declared size.
    """
    with torch.device("meta"):
        network = build(architecture)
    floating = sorted({Layout.of(t).dtype for t in tensors.values() if t.is_floating_point()})
    if len(floating) != 1 or floating[0] not in PRECISIONS:
        raise ValueError(
            f"all weights must be of one precision out of {listed(PRECISIONS)}, but are "
            f"{listed(floating)}; convert the network with .to(torch.float32)"
        )
    return {
        name: Layout(tuple(t.shape), floating[0]) if t.is_floating_point() else Layout.of(t)
        for name, t in network.state_dict().items()
    }


def _compare(
    found: Mapping[str, Layout], wanted: Mapping[str, Layout], whose: str = "its architecture"
) -> None:
    """Raise ValueError for the first tensor that is missing, unexpected, or of another layout."""
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ValueError(f"the tensor {name} of {whose} is missing")
        if name not in wanted:
            raise ValueError(f"the tensor {name} is not part of {whose}")
        if found[name] != wanted[name]:
            raise ValueError(f"the tensor {name} is {found[name]}, but in {whose} {wanted[name]}")


def _require_proportion(architecture: Mapping[str, Any], tensors: int) -> None:
    """Raise if a description has far more parts than tensors, and would take long to build.

    A layer with two maps and a bias has three tensors, and seven objects in its description.
    """
    parts = 0
    waiting: list[Any] = [architecture]
    while waiting:
        each = waiting.pop()
        parts += isinstance(each, Mapping)
        inside = each.values() if isinstance(each, Mapping) else each
        waiting += [item for item in inside if isinstance(item, Mapping | list)]
    if parts > 64 + 16 * tensors:
        raise ValueError(
            f"its architecture has {parts} parts, too many for a file with {tensors} tensors; save "
            "the network again with convexlift.save"
        )


def _parse(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    # KeyError: a precision that torch does not have.
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"not a readable safetensors file ({error})") from None


def _check_device(device: torch.device | str | None) -> torch.device:
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used ({reason}); try 'cpu'") from None


# Architectures -----------------------------------------------------------------------------------

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
    if changed and not is_own(network):
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
        known = description if isinstance(description, Mapping) else {}
        if "concave" in known:
            raise ValueError(
                "it is a weakly convex network, which versions from 0.2 on do not read"
            )
        kind = AdaptiveNetwork if "guide" in known else InputConvexNetwork
        return construct(kind, description, "network", _Builder())
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
            raise ValueError(
                f"{place}: {name!r} is unknown; known are {listed(known)}. If it is a class of "
                "your own, import its module first"
            )
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
        base = next((kind for kind in (Activation, Guide) if isinstance(value, kind)), LinearMap)
        raise ValueError(
            f"{place}: {type(value).__name__} is not registered for files; known are "
            f"{listed(known_parts(base))}; register yours by class {type(value).__name__}(..., "
            f'name="{type(value).__name__}")'
        )
    return plain(value, place)
