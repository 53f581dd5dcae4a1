"""Model cards: purpose, origin and test results of a trained regularizer."""

from __future__ import annotations

import dataclasses
import math
import textwrap
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convexlift.json_values import construct, read

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
        seed: of the random numbers.
        training_time: in seconds.
        machine: on which it was trained.
        results: numbers by data set, as in ``{"test": {"psnr": 28.3, "ssim": 0.81}}``.
        not_for: uses to avoid.
        citation: the work to cite.
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
        return [
            ("Task", self.task),
            ("Weight", f"{self.weight:g}"),
            ("For other tasks", _numbers(others)),
            ("Chosen by", self.weight_choice),
            ("Not for", self.not_for),
            *(
                ("" if i else "Results", f"{name}: {_numbers(values)}")
                for i, (name, values) in enumerate(self.results.items())
            ),
            ("Training data", self.data),
            ("Licence", self.license),
            ("Recipe", ", ".join(f"{key} {value}" for key, value in self.recipe.items())),
            ("Command", self.command),
            ("Commit", self.commit),
            ("Seed", "" if self.seed is None else str(self.seed)),
            ("Training time", _duration(self.training_time)),
            ("Machine", self.machine),
            ("Cite", self.citation),
        ]


def _numbers(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in values.items())


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 600:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
