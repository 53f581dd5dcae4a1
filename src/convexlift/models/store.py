"""Networks in files: weights in NAME.safetensors, all else in NAME.json beside them.

The JSON file holds the architecture, the card, and the SHA-256 of the weights' file, which ties
the two together. Both files are numbers and text: nothing that is read is ever executed. What
``load`` returns is a network that has the described architecture, finite weights, and is convex;
anything else is a ValueError that names the file and the cause.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from convexlift.images import atomic_path
from convexlift.models.cards import ModelCard
from convexlift.models.describe import Description, build, describe
from convexlift.models.values import construct, listed
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.tensors import first_non_finite

FORMAT, VERSION = "convexlift model", 1
WEIGHTS, SHEET = ".safetensors", ".json"
PRECISIONS = ("float16", "float32", "float64")
SHIPPED = resources.files("convexlift") / "models" / "weights"
"""The folder of the models inside the package."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Layout:
    """Shape and precision of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        """The layout of a tensor."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


@dataclass(frozen=True)
class Sheet:
    """What stands beside the weights: the content of the JSON file.

    Args:
        architecture: the description from which the network is built.
        card: its card, if it has one.
        sha256: of the weights' file, in hexadecimal digits.
        tensors: shape and precision of each tensor in it, by name.
    """

    architecture: Mapping[str, Any]
    card: ModelCard | None
    sha256: str
    tensors: Mapping[str, Layout]

    @property
    def parameters(self) -> int:
        """How many numbers the file of weights holds."""
        return sum(math.prod(layout.shape) for layout in self.tensors.values())

    def to_json(self) -> Description:
        """The content of the file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "architecture": self.architecture,
            "card": None if self.card is None else self.card.to_json(),
            "sha256": self.sha256,
            "tensors": {
                name: {"shape": list(layout.shape), "dtype": layout.dtype}
                for name, layout in self.tensors.items()
            },
        }

    @classmethod
    def from_json(cls, content: Any) -> Sheet:
        """The sheet in a file's content; ValueError if it is none, or of another version."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'this is no model: it does not say "format": "{FORMAT}"')
        if (version := content.get("version")) != VERSION:
            raise ValueError(
                f"the format has version {version!r}, but this convexlift reads {VERSION} only; "
                "update convexlift, or save the network again"
            )
        fields = {key: content[key] for key in content if key not in ("format", "version")}
        return construct(cls, fields, "model", _make_part)


def save(
    network: InputConvexNetwork,
    path: PathLike,
    card: ModelCard | None = None,
    *,
    half: bool = False,
) -> Path:
    """Write a network as ``path.safetensors`` and ``path.json``; returns the former.

    A failure leaves the files that were there before. If the process dies between the two, the
    files do not fit together, and ``load`` says so.

    Args:
        network: the network, built of the library's activations and maps.
        path: where to, with or without either ending.
        card: what others should know; the card of a loaded network is written only if it is
            given here (``card=network.card``), since training makes it untrue.
        half: store float16, at half the size of float32; ``load`` gives float32 again.
    """
    if card is not None and not isinstance(card, ModelCard):
        raise ValueError(f"card must be a ModelCard, got a {type(card).__name__}")
    weights, sheet_file = _files(path)
    for target in (Path(path), weights, sheet_file):
        if target.is_dir():
            raise ValueError(f"{target} is a folder; name a file in it, such as {target / 'model'}")
    architecture = describe(network)
    network.check_convexity()
    tensors = _stored_tensors(network, half)
    _compare({name: Layout.of(t) for name, t in tensors.items()}, _expected(architecture, tensors))
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    sheet = Sheet(
        architecture=architecture,
        card=card,
        sha256=hashlib.sha256(data).hexdigest(),
        tensors={name: Layout.of(tensor) for name, tensor in tensors.items()},
    )
    text = json.dumps(sheet.to_json(), indent=2, allow_nan=False) + "\n"
    # Both are on the disk before the first takes its name; the sheet comes last.
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
    """The network of a file, or one inside the package; its card is ``network.card``.

    Args:
        name_or_path: a name among ``models.names()``, or a path with or without either ending.
            A text is a path if it has a separator or an ending, or if there is such a file.
        device: where to put it; the CPU by default.
        dtype: float32 or float64; by default the precision it was saved in, float32 for half.
    """
    target = _check_device(device)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    with _find(name_or_path) as (weights, sheet_file):
        sheet = _read_sheet(sheet_file)
        data = weights.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != sheet.sha256.lower():
            raise ValueError(
                f"{weights} is not the file that {sheet_file.name} describes: its SHA-256 is "
                f"{digest[:12]}..., not {sheet.sha256[:12]}... One of the two was damaged, "
                "changed or copied alone, or its writing was interrupted; save or copy both again"
            )
        with _naming(weights):
            tensors = _parse(data)
            found = {name: Layout.of(tensor) for name, tensor in tensors.items()}
            _compare(found, sheet.tensors, "its description")
        with _naming(sheet_file), _undisturbed():
            network = build(sheet.architecture)
        with _naming(weights):
            _compare(found, _expected(sheet.architecture, tensors, network))
            network.to(dtype=dtype or _precision(tensors))
            _fill(network, tensors)
    network.card = sheet.card
    return network.to(target)


def names() -> tuple[str, ...]:
    """The models inside the package, which ``load`` takes by name."""
    if not SHIPPED.is_dir():
        return ()
    files = {entry.name for entry in SHIPPED.iterdir()}
    return tuple(
        sorted(
            name.removesuffix(SHEET)
            for name in files
            if name.endswith(SHEET) and name.removesuffix(SHEET) + WEIGHTS in files
        )
    )


def sheet(name_or_path: PathLike) -> Sheet:
    """Architecture, card and tensors' shapes of a model, without its weights."""
    with _find(name_or_path) as (_, sheet_file):
        return _read_sheet(sheet_file)


def card(name_or_path: PathLike) -> ModelCard:
    """The card of a model, without its weights; ValueError if it has none."""
    found = sheet(name_or_path).card
    if found is None:
        raise ValueError(f"{name_or_path} has no card; save it with card=ModelCard(...)")
    return found


def _stored_tensors(network: InputConvexNetwork, half: bool) -> dict[str, Tensor]:
    """Copies of all weights on the CPU, finite and in the precision of the file."""
    _refuse_shared(network)
    tensors = {}
    for name, value in network.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        if (place := first_non_finite(tensor)) is not None:
            raise ValueError(f"refusing to save: {name} is {float(tensor[place])} at {place}")
        tensors[name] = tensor.half() if half and tensor.is_floating_point() else tensor.clone()
        if (place := first_non_finite(tensors[name])) is not None:
            raise ValueError(
                f"{name} is {float(tensor[place]):g} at {place}, too large for half precision "
                f"(at most {torch.finfo(torch.half).max:g}); save with half=False"
            )
    return tensors


def _refuse_shared(network: InputConvexNetwork) -> None:
    seen: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if (other := seen.setdefault(id(parameter), name)) != name:
            raise ValueError(
                f"{other} and {name} are one and the same tensor, which a file cannot say; "
                "give each layer a map of its own (copy.deepcopy)"
            )


def _expected(
    architecture: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    network: InputConvexNetwork | None = None,
) -> dict[str, Layout]:
    """The layouts of an architecture's tensors in the precision of ``tensors``."""
    if network is None:
        with _undisturbed():
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
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ValueError(f"the tensor {name} of {whose} is missing")
        if name not in wanted:
            raise ValueError(f"the tensor {name} is none of {whose}")
        if found[name] != wanted[name]:
            raise ValueError(f"the tensor {name} is {found[name]}, in {whose} {wanted[name]}")


def _precision(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """float64 for double precision; float32 for single and half."""
    is_double = any(tensor.dtype is torch.float64 for tensor in tensors.values())
    return torch.float64 if is_double else torch.float32


def _fill(network: InputConvexNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Put the values into the network, which checks that it is convex."""
    for name, tensor in tensors.items():
        if (place := first_non_finite(tensor)) is not None:
            raise ValueError(f"{name} is {float(tensor[place])} at {place}")
    network.load_state_dict(dict(tensors))
    for name, tensor in network.state_dict().items():
        if (place := first_non_finite(tensor)) is not None:
            raise ValueError(
                f"{name} is {float(tensors[name][place]):g} at {place}, too large for "
                f"{Layout.of(tensor).dtype}; load it with dtype=torch.float64"
            )


def _parse(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    # A KeyError is a precision that torch does not have.
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"this is no safetensors file that can be read ({error})") from None


def _read_sheet(path: Path) -> Sheet:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number in JSON")

    with _naming(path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is not valid JSON ({error})") from None
        return Sheet.from_json(content)


def _make_part(value: Any, kind: type[Any], place: str) -> Any:
    """The card or the layouts of a sheet."""
    return ModelCard.from_json(value) if kind is ModelCard else construct(kind, value, place)


@contextlib.contextmanager
def _find(name_or_path: PathLike) -> Iterator[tuple[Path, Path]]:
    """The two files of a model, which exist."""
    weights, sheet_file = _files(name_or_path)
    if not _is_path(name_or_path) and name_or_path in names():
        with (
            resources.as_file(SHIPPED / f"{name_or_path}{WEIGHTS}") as weights,
            resources.as_file(SHIPPED / f"{name_or_path}{SHEET}") as sheet_file,
        ):
            yield weights, sheet_file
        return
    missing = [file for file in (weights, sheet_file) if not file.is_file()]
    if len(missing) == 1:
        (present,) = {weights, sheet_file} - set(missing)
        raise ValueError(
            f"{missing[0]} is missing beside {present.name}; a model is a pair of files"
        )
    if missing:
        raise ValueError(_nothing_there(name_or_path, weights, sheet_file))
    yield weights, sheet_file


def _nothing_there(name_or_path: PathLike, weights: Path, sheet_file: Path) -> str:
    path = Path(name_or_path)
    if not _is_path(name_or_path) and not path.is_dir():
        if not names():
            return f"there is no model {str(path)!r}: none are shipped, and no {weights} is here"
        return f"there is no model {str(path)!r}; the models shipped are {listed(names())}"
    if path.is_dir():
        inside = sorted(file.stem for file in path.glob(f"*{SHEET}"))
        return f"{path} is a folder; name a model in it (there: {listed(inside)})"
    if path.is_file() and path not in (weights, sheet_file):
        return (
            f"{path} is no model: a model is a pair of files NAME{WEIGHTS} and NAME{SHEET}, "
            "written by convexlift.save"
        )
    return f"there is no model {path}: neither {weights.name} nor {sheet_file.name} exists there"


def _is_path(name_or_path: PathLike) -> bool:
    """Whether this means a file: a Path, a separator, an ending, or such a file is there."""
    if not isinstance(name_or_path, str):
        return True
    separated = any(s in name_or_path for s in (os.sep, os.altsep) if s)
    return (
        separated
        or Path(name_or_path).suffix != ""
        or any(file.is_file() for file in _files(name_or_path))
    )


def _files(path: PathLike) -> tuple[Path, Path]:
    """The files of weights and of all else, for a path with or without either ending."""
    whole = Path(path)
    stem = whole.name
    for ending in (WEIGHTS, SHEET):
        stem = stem.removesuffix(ending) if whole.name.endswith(ending) else stem
    if stem in ("", ".", ".."):
        raise ValueError(f"{str(path)!r} names no file; write a path such as folder/model")
    return whole.with_name(stem + WEIGHTS), whole.with_name(stem + SHEET)


def _check_device(device: torch.device | str | None) -> torch.device:
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used ({reason}); try 'cpu'") from None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Starting weights are drawn on the CPU, and the random numbers go on as if they were not."""
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        yield


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors begin with the file they are about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
