"""Checkpoints: everything a run needs to go on as if it had never stopped.

Samples and noise are functions of (seed, step), so the step is the state of all randomness that
the loop itself uses; PyTorch's global generator is saved too, for objectives that draw from it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convexlift.images import atomic_path, remove_leftovers
from convexlift.training.disk import writing

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after ``step`` steps.

    Attributes:
        step: how many were done.
        network: its state dict.
        objective: its state dict.
        optimiser: its state dict.
        best: the state dict with the best validation, or None before the first.
        rows: the log so far.
        identity: what must be the same when the run goes on (options, data), by name.
        weight: the regularization weight of the last validation.
        generator: the state of PyTorch's global generator.
        seconds: of training so far.
    """

    step: int
    network: dict[str, Tensor]
    objective: dict[str, Any]
    optimiser: dict[str, Any]
    best: dict[str, Any] | None
    rows: list[dict[str, float]]
    identity: dict[str, str]
    weight: float | None
    generator: Tensor
    seconds: float


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write to a temporary name, then rename: a kill leaves the old checkpoint or the new one."""
    remove_leftovers([path])
    content = io.BytesIO()  # torch.save to a full disk raises errors that do not say so
    torch.save({"format": FORMAT, **vars(checkpoint)}, content)
    with writing(path), atomic_path(path) as part:
        part.write_bytes(content.getbuffer())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read tensors and plain values only; nothing in the file is executed."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"there is no checkpoint {path}") from None
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable checkpoint ({_first_line(error)}); "
            "delete it, or choose another folder"
        ) from None
    names = {"format", *(each.name for each in fields(Checkpoint))}
    if not isinstance(content, dict) or content.keys() != names or content["format"] != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of convexlift")
    del content["format"]
    return Checkpoint(**content)


def check_identity(path: Path, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise unless the run is resumed with what it was started with."""
    for name in {**now, **saved}:
        before, here = saved.get(name, "nothing"), now.get(name, "nothing")
        if before != here:
            raise ValueError(
                f"{path} was written with {name} = {before}, but this run has {here}; "
                "start it with the same settings, or choose another folder"
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
