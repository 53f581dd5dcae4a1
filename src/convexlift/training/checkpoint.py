"""Checkpoints: everything a run needs to go on as if it had never stopped.

Samples and noise are functions of (seed, step), so the step is the state of all randomness that
the loop itself uses; PyTorch's global generator is saved too, for objectives that draw from it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.training.disk_errors import writing

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
        _require_stored(path)
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
    for name, value in content.items():
        if not _KINDS[name](value):
            raise ValueError(
                f"{path} is not a readable checkpoint (its {name} is damaged); "
                "delete it, or choose another folder"
            )
    return Checkpoint(**content)


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Name the file in errors about a state that does not fit the run it is restored to."""
    try:
        yield
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ValueError(
            f"{path} does not fit this run ({_first_line(error)}); delete it, or choose another "
            "folder"
        ) from None


def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimiser, which by itself does not compare shapes."""
    optimiser.load_state_dict(state)
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(
                    f"{name} of the optimiser has the shape {tuple(value.shape)} for a parameter "
                    f"of the shape {tuple(parameter.shape)}"
                )


def _require_stored(path: Path) -> None:
    """Raise unless the file is an archive without compression: nothing in it can be inflated."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    held = sum(entry.file_size for entry in entries)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its parts are compressed, which those of checkpoints are not")
    if held > path.stat().st_size:
        raise ValueError("it declares more bytes than it has")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_state(value: Any) -> bool:
    """Whether it is a state dict: tensors, or what modules keep beside them, by name."""
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _is_best(value: Any) -> bool:
    return value is None or (
        _is_state(value)
        and all(_is_number(value.get(name)) for name in ("psnr", "ssim", "weight"))
        and all(_is_count(value.get(name)) for name in ("step", "misses"))
        and all(_is_state(value.get(name)) for name in ("network", "objective"))
    )


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_state(row) and "step" in row and all(map(_is_number, row.values())) for row in value
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "network": _is_state,
    "objective": _is_state,
    "optimiser": lambda value: _is_state(value) and {"state", "param_groups"} <= value.keys(),
    "best": _is_best,
    "rows": _are_rows,
    "identity": lambda value: _is_state(value) and all(isinstance(v, str) for v in value.values()),
    "weight": lambda value: value is None or _is_number(value),
    "generator": lambda value: isinstance(value, Tensor) and value.dtype is torch.uint8,
    "seconds": _is_number,
}
"""Whether a value can be the field of a checkpoint."""


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
