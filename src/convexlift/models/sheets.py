"""The sheet beside the weights: architecture, card, hash, and the layout of every tensor."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from convexlift.models.cards import ModelCard
from convexlift.models.describe import Description
from convexlift.models.values import construct

FORMAT, VERSION = "convexlift model", 1


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


def read_sheet(path: Path) -> Sheet:
    """The sheet in a file; ValueError names the file and what is wrong with it."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number in JSON")

    with naming(path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"this is not valid JSON ({error})") from None
        return Sheet.from_json(content)


def _make_part(value: Any, kind: type[Any], place: str) -> Any:
    """The card or the layouts of a sheet."""
    return ModelCard.from_json(value) if kind is ModelCard else construct(kind, value, place)


def compare(
    found: Mapping[str, Layout], wanted: Mapping[str, Layout], whose: str = "its architecture"
) -> None:
    """ValueError names the first tensor that is missing, too many, or of another layout."""
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ValueError(f"the tensor {name} of {whose} is missing")
        if name not in wanted:
            raise ValueError(f"the tensor {name} is none of {whose}")
        if found[name] != wanted[name]:
            raise ValueError(f"the tensor {name} is {found[name]}, in {whose} {wanted[name]}")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors begin with the file they are about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
