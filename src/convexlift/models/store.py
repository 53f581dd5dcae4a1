"""``save`` and ``load``: networks in files.

Both files of a model are numbers and text: nothing in them is ever executed. ``load`` returns a
convex network with the described architecture and finite weights; anything else is a ValueError
that names the file and the cause.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.json_values import listed
from convexlift.models.cards import ModelCard
from convexlift.models.describe import build, describe
from convexlift.models.files import Layout, PathLike, Sheet, find, naming, pair, read_sheet
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.tensors import first_non_finite

PRECISIONS = ("float16", "float32", "float64")


def save(
    network: InputConvexNetwork,
    path: PathLike,
    card: ModelCard | None = None,
    *,
    half: bool = False,
) -> Path:
    """Write a network as ``path.safetensors`` and ``path.json``; returns the former.

    A failure leaves earlier files as they were. If the process dies between the two, the files do
    not match, and ``load`` reports it.

    Args:
        network: built from the library's activations and maps.
        path: with or without either ending.
        card: information for users; the card of a loaded network is written only if it is
            given here (``card=network.card``), since training invalidates it.
        half: store float16, at half the size of float32; ``load`` converts to float32.
    """
    if card is not None and not isinstance(card, ModelCard):
        raise ValueError(f"card must be a ModelCard, got a {type(card).__name__}")
    weights, sheet_file = pair(path)
    for target in (Path(path), weights, sheet_file):
        if target.is_dir():
            raise ValueError(f"{target} is a folder; name a file in it, such as {target / 'model'}")
    architecture = describe(network)
    tensors = _stored_tensors(network, half)
    network.check_convexity()
    _compare({name: Layout.of(t) for name, t in tensors.items()}, _expected(architecture, tensors))
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    sheet = Sheet(
        architecture=architecture,
        card=card,
        sha256=hashlib.sha256(data).hexdigest(),
        tensors={name: Layout.of(tensor) for name, tensor in tensors.items()},
    )
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
    """The network of a file or a shipped model; its card is ``network.card``.

    Args:
        name_or_path: a name in ``models.names()``, or a path with or without either ending. A
            string is a path if it has a separator or an ending, or if such a file exists.
        device: the CPU by default.
        dtype: float32 or float64; by default the precision it was saved in, float32 for half.
    """
    target = _check_device(device)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
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
            found = {name: Layout.of(tensor) for name, tensor in tensors.items()}
            _compare(found, sheet.tensors, "its description")
        with naming(sheet_file):
            _require_proportion(sheet.architecture, len(tensors))
            expected = _expected(sheet.architecture, tensors)
        with naming(weights):
            _compare(found, expected)
        with naming(sheet_file), _undisturbed():
            network = build(sheet.architecture)
        with naming(weights):
            network.to(dtype=dtype or _precision(tensors))
            _fill(network, tensors)
    network.card = sheet.card
    return network.to(target)


def _stored_tensors(network: InputConvexNetwork, half: bool) -> dict[str, Tensor]:
    """Copies of all weights on the CPU, finite and in the precision of the file."""
    _refuse_shared(network)
    tensors = {}
    for name, value in network.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        dtype = torch.half if half and tensor.is_floating_point() else tensor.dtype
        tensors[name] = _converted(name, tensor, dtype, "save with half=False").clone()
    return tensors


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


def _refuse_shared(network: InputConvexNetwork) -> None:
    seen: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if (other := seen.setdefault(id(parameter), name)) != name:
            raise ValueError(
                f"{other} and {name} are the same tensor, which a file cannot express; "
                "give each layer its own map (copy.deepcopy)"
            )


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


def _precision(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """float64 for double precision; float32 for single and half."""
    is_double = any(tensor.dtype is torch.float64 for tensor in tensors.values())
    return torch.float64 if is_double else torch.float32


def _fill(network: InputConvexNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Copy the values into the network, which checks that it is convex."""
    wanted = network.state_dict()
    for name, tensor in tensors.items():
        _converted(name, tensor, wanted[name].dtype, "load it with dtype=torch.float64")
    network.load_state_dict(dict(tensors))


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


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Draw initial weights on the CPU, without advancing the global random numbers."""
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        yield
