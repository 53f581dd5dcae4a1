"""Model cards, and the files of a model: weights in NAME.safetensors, the rest in NAME.json.

The JSON file, called the sheet, holds the architecture, the card, the shape and precision of every
tensor, and the SHA-256 of the file of weights. Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convexlift.json_values import construct, listed
from convexlift.models.repositories import download, is_repository

if TYPE_CHECKING:
    from torch import Tensor


import dataclasses
import textwrap
import typing
from dataclasses import field

from convexlift.json_values import read
from convexlift.models.recipe_words import noise_levels, recipe_words

WEIGHTS, SHEET = ".safetensors", ".json"
FORMAT, VERSION = "convexlift model", 1
SHIPPED = resources.files("convexlift") / "models" / "weights"
"""The folder of shipped models."""
TRAINED = "model"
"""The model in the folder of a training, which the folder's name refers to."""

PathLike = str | os.PathLike[str]


INDENT = 18


@dataclass(frozen=True)
class ModelCard:
    """Facts to know before using a trained regularizer.

    Args:
        name: a short name.
        summary: one sentence.
        task: the task it was trained for.
        weight: the regularization weight recommended for that task.
        weights: the weights recommended for further tasks, by name; ``task`` is added if it is
            missing.
        weight_choice: how the weights were chosen.
        data: the training data.
        license: the terms of use; tables show the part before a semicolon.
        recipe: the settings of its training.
        command: the command that trained it.
        commit: the version of the code that trained it.
        seed: the seed of the random numbers.
        training_time: the training time in seconds.
        machine: the machine that trained it.
        results: numbers by data set, as in ``{"test": {"psnr": 28.3, "ssim": 0.81}}``.
        not_for: uses to avoid.
        citation: the work to cite.
        best_step: the training step with the best validation, whose weights these are; 0 is the
            start.
    """

    name: str
    summary: str
    task: str
    weight: float
    weights: Mapping[str, float] = field(default_factory=dict)
    weight_choice: str = ""
    data: str = ""
    license: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    commit: str = ""
    seed: int | None = None
    training_time: float | None = None
    machine: str = ""
    results: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    not_for: str = ""
    citation: str = ""
    best_step: int | None = None

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            object.__setattr__(self, name, read(getattr(self, name), hint, f"card.{name}"))
        for name in ("name", "summary", "task"):
            if not getattr(self, name).strip():
                raise ValueError(f"card.{name} must not be empty")
        if self.weights.get(self.task, self.weight) != self.weight:
            raise ValueError(
                f"card.weights says {self.weights[self.task]:g} for {self.task!r}, but "
                f"card.weight says {self.weight:g}"
            )
        object.__setattr__(self, "weights", {self.task: self.weight, **self.weights})
        for task, weight in self.weights.items():
            if weight <= 0:
                raise ValueError(f"card.weights.{task} must be positive, got {weight:g}")
        if self.training_time is not None and self.training_time < 0:
            raise ValueError(f"card.training_time must not be negative, got {self.training_time:g}")

    @property
    def commercial(self) -> bool:
        """Whether the licence allows commercial use: CC0, CC BY, MIT or the public domain."""
        words = self.license.lower()
        # "The code is MIT" does not cover weights that somebody trained with it.
        limited = re.search(r"\bnc\b|non-?commercial|research only|academic|the code is", words)
        free = re.search(r"\bcc0|\bcc[ -]by|\bmit\b|\bbsd[ -]?[23]|public domain|apache", words)
        return free is not None and limited is None

    @property
    def noise_levels(self) -> dict[str, float]:
        """The noise levels that the weights are for, by task, as far as the recipe states them."""
        return noise_levels(self.recipe)

    def to_json(self) -> dict[str, Any]:
        """The card as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> ModelCard:
        """A card from JSON values; ValueError names a wrong, unknown or missing field."""
        return construct(cls, content, "card")

    def text(self, width: int = 80) -> str:
        """The card as readable text, with lines of at most this width."""
        lines = textwrap.wrap(f"{self.name}: {self.summary}", width)
        for label, value in self._rows():
            if value:
                lines += textwrap.wrap(
                    value,
                    max(width, INDENT + 20),
                    initial_indent=f"{label:<{INDENT - 1}} ",
                    subsequent_indent=" " * INDENT,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _rows(self) -> list[tuple[str, str]]:
        others = {task: weight for task, weight in self.weights.items() if task != self.task}
        level = self.noise_levels.get(self.task)
        use = "yes" if self.commercial else "no, or not stated"
        return [
            ("Licence", self.license),
            ("Commercial use", use if self.license else ""),
            ("Task", self.task),
            ("Weight", f"{self.weight:g}" + (f" at noise level {level:g}" if level else "")),
            ("For other tasks", _numbers(others)),
            ("Chosen by", self.weight_choice),
            ("Not for", self.not_for),
            *(
                ("" if i else "Results", f"{name}: {_numbers(values)}")
                for i, (name, values) in enumerate(self.results.items())
            ),
            ("Training data", self.data),
            *recipe_words(self.recipe),
            ("Best step", _best(self.best_step)),
            ("Command", self.command),
            ("Commit", self.commit),
            ("Seed", "" if self.seed is None else str(self.seed)),
            ("Training time", _duration(self.training_time)),
            ("Machine", self.machine),
            ("Cite", self.citation),
        ]


def _numbers(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in values.items())


def _best(step: int | None) -> str:
    if step == 0:
        return "the start: no validated step was better, so train longer or on more images"
    return "" if step is None else f"{step}, by its validation"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 600:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


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


SCALE = ":scale"
"""Ends the names of tensors that hold the scales of 8-bit rows."""


@dataclass(frozen=True)
class Sheet:
    """The content of a model's JSON file.

    Args:
        architecture: the description from which the network is built.
        card: its card, if it has one.
        sha256: the SHA-256 of the file of weights, in hexadecimal digits.
        tensors: shape and precision of each tensor, by name.
    """

    architecture: Mapping[str, Any]
    card: ModelCard | None
    sha256: str
    tensors: Mapping[str, Layout]

    @property
    def parameters(self) -> int:
        """The number of weights of the network, without the scales of 8-bit rows."""
        count = 0
        for name, layout in self.tensors.items():
            if not name.endswith(SCALE):
                rows = self.tensors.get(name + SCALE, layout).shape[
                    :1
                ]  # equal rows are stored once
                count += math.prod((*rows, *layout.shape[1:]))
        return count

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> Sheet:
        """The sheet from a file's content; ValueError for other files and other versions."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'not a model: it does not say "format": "{FORMAT}"')
        if (version := content.get("version")) != VERSION:
            raise ValueError(
                f"the format has version {version!r}, but this convexlift reads {VERSION} only; "
                "update convexlift, or save the network again"
            )

        def make(value: Any, kind: type[Any], place: str) -> Any:
            return construct(kind, value, "card" if kind is ModelCard else place)

        fields = {key: content[key] for key in content if key not in ("format", "version")}
        return construct(cls, fields, "model", make)


def names() -> tuple[str, ...]:
    """The shipped models, which ``load`` takes by name."""
    if not SHIPPED.is_dir():
        return ()
    files = {entry.name for entry in SHIPPED.iterdir()}
    stems = (name.removesuffix(SHEET) for name in files if name.endswith(SHEET))
    return tuple(sorted(stem for stem in stems if stem + WEIGHTS in files))


def card(name_or_path: PathLike) -> ModelCard:
    """The card of a model, without its weights; ValueError if it has none."""
    found = sheet(name_or_path).card
    if found is None:
        raise ValueError(f"{name_or_path} has no card; save it with card=ModelCard(...)")
    return found


def sheet(name_or_path: PathLike) -> Sheet:
    """Architecture, card and tensor shapes of a model, without its weights."""
    with find(name_or_path) as (_, sheet_file):
        return read_sheet(sheet_file)


def shipped_sheets() -> dict[str, Sheet]:
    """The sheets of the shipped models, even if the current folder has files of the same names."""
    found = {}
    for name in names():
        with _find_shipped(name) as (_, sheet_file):
            found[name] = read_sheet(sheet_file)
    return found


def read_sheet(path: Path) -> Sheet:
    """The sheet in a file; ValueError names the file and the fault."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number in JSON")

    with naming(path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not valid JSON ({error})") from None
        return Sheet.from_json(content)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix errors with the name of the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def pair(path: PathLike) -> tuple[Path, Path]:
    """The paths of weights and sheet, for a path with or without either ending."""
    whole = Path(path)
    stem = whole.name
    for ending in (WEIGHTS, SHEET):
        stem = stem.removesuffix(ending) if whole.name.endswith(ending) else stem
    if stem in ("", ".", ".."):
        raise ValueError(f"{str(path)!r} is not a file name; write a path such as folder/model")
    return whole.with_name(stem + WEIGHTS), whole.with_name(stem + SHEET)


@contextlib.contextmanager
def find(name_or_path: PathLike) -> Iterator[tuple[Path, Path]]:
    """The two existing files of a model, which may be a repository of the Hub."""
    if is_repository(name_or_path):
        name_or_path = download(str(name_or_path))
    weights, sheet_file = pair(name_or_path)
    if not _is_path(name_or_path) and name_or_path in names():
        with _find_shipped(str(name_or_path)) as both:
            yield both
        return
    missing = [file for file in (weights, sheet_file) if not file.is_file()]
    if missing and Path(name_or_path).is_dir():  # a training, perhaps; NAME.json may be a record
        inside = pair(Path(name_or_path) / TRAINED)
        if all(file.is_file() for file in inside):
            yield inside
            return
    if len(missing) == 1:
        (present,) = {weights, sheet_file} - set(missing)
        raise ValueError(
            f"{missing[0]} is missing beside {present.name}; a model is a pair of files"
        )
    if missing:
        raise ValueError(_nothing_there(name_or_path, weights, sheet_file))
    yield weights, sheet_file


@contextlib.contextmanager
def _find_shipped(name: str) -> Iterator[tuple[Path, Path]]:
    with (
        resources.as_file(SHIPPED / f"{name}{WEIGHTS}") as weights,
        resources.as_file(SHIPPED / f"{name}{SHEET}") as sheet_file,
    ):
        yield weights, sheet_file


def _nothing_there(name_or_path: PathLike, weights: Path, sheet_file: Path) -> str:
    path = Path(name_or_path)
    if not _is_path(name_or_path) and not path.is_dir():
        if not names():
            return f"there is no model {str(path)!r}: none are shipped, and no {weights} is here"
        return f"there is no model {str(path)!r}; the models shipped are {listed(names())}"
    if path.is_dir():
        inside = sorted(f.stem for f in path.glob(f"*{SHEET}") if f.with_suffix(WEIGHTS).is_file())
        if not inside:
            return f"{path} is a folder without a model"
        return f"{path} is a folder; name a model in it (there: {listed(inside)})"
    if path.is_file() and path not in (weights, sheet_file):
        return (
            f"{path} is not a model: a model is a pair of files NAME{WEIGHTS} and NAME{SHEET}, "
            "written by convexlift.save"
        )
    return f"there is no model {path}: neither {weights.name} nor {sheet_file.name} exists there"


def _is_path(name_or_path: PathLike) -> bool:
    """Whether a file is meant: a Path, a string with a separator or ending, or an existing file."""
    if not isinstance(name_or_path, str):
        return True
    separated = any(s in name_or_path for s in (os.sep, os.altsep) if s)
    return (
        separated
        or Path(name_or_path).suffix != ""
        or any(file.is_file() for file in pair(name_or_path))
    )
