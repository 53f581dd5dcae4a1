"""Files of a training run: the log, and the checkpoint from which it can be resumed.

Samples and noise are functions of (seed, step), so the step determines all random numbers of the
loop itself; PyTorch's global generator is saved too, for objectives that draw from it. A checkpoint
also holds the settings of its run as plain values, and runs with other settings are refused.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.training.image_sets import ImageSet

FORMAT = 1
Row = dict[str, float]
"""Numbers of a step, by their column in the log."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk or an exhausted quota."""


class WriteError(OSError):
    """A file could not be written; the message says which one, why, and what to do."""

    def __init__(self, path: Path, cause: OSError) -> None:
        reason = cause.strerror or " ".join(str(cause).split())
        advice = "make room there" if cause.errno in FULL else "check the disk and its permissions"
        super().__init__(f"{path} cannot be written ({reason}); {advice}")
        self.errno = cause.errno


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn disk errors into ``WriteError``."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(path, error) from error


class RunLog(contextlib.AbstractContextManager["RunLog"]):
    """Rows of numbers by step, written immediately to a CSV file and, if installed, TensorBoard.

    The columns are fixed by the caller; missing values stay empty. A resumed run first rewrites the
    rows up to its checkpoint, so that none appears twice.

    Args:
        folder: the folder of ``log.csv`` and TensorBoard's event files; None writes nothing.
        columns: the columns of the table.
        rows: the rows of the run so far.
    """

    def __init__(
        self, folder: Path | None, columns: Sequence[str], rows: Sequence[Mapping[str, float]]
    ) -> None:
        self.columns = tuple(columns)
        self.rows: list[Row] = [dict(row) for row in rows]
        self._path = None if folder is None else folder / "log.csv"
        self._board: Any = None
        if folder is None or self._path is None:
            return
        with writing(self._path):
            self._board = _tensorboard(folder, self.rows)
            remove_leftovers([self._path])  # left by a process that was killed while writing
            with atomic_path(self._path) as part, part.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.columns)
                writer.writeheader()
                writer.writerows(self._text(row) for row in self.rows)

    def __exit__(self, *raised: object) -> None:
        try:
            if self._board is not None:
                self._board.close()
        except OSError:
            if raised[1] is None:  # otherwise the first disk error is already being raised
                raise

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row and write it immediately."""
        self.rows.append(dict(row))
        if self._path is None:
            return
        with writing(self._path):
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(self._text(row))
            if self._board is not None:
                for name, value in row.items():
                    if name != "step":
                        self._board.add_scalar(name, value, int(row["step"]))

    def _text(self, row: Mapping[str, float]) -> dict[str, str]:
        return {name: f"{row[name]:.9g}" for name in self.columns if name in row}


def _tensorboard(folder: Path, rows: Sequence[Mapping[str, float]]) -> Any:
    """A writer of event files, or None if TensorBoard is not installed.

    Steps after the last of ``rows``, written by an earlier run, are removed.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    next_step = int(rows[-1]["step"]) + 1 if rows else 0
    return SummaryWriter(str(folder), purge_step=next_step)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after ``step`` steps."""

    step: int  # number of completed steps
    network: dict[str, Tensor]  # its state dict
    objective: dict[str, Any]  # its state dict
    optimiser: dict[str, Any]  # its state dict
    best: dict[str, Any] | None  # the state dict with the best validation, or None before the first
    rows: list[Row]  # the log so far
    identity: dict[str, str]  # settings that must be the same when the run is resumed, by name
    weight: float | None  # the regularization weight of the last validation
    generator: Tensor  # the state of PyTorch's global generator
    seconds: float  # training time so far


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a killed process leaves the old checkpoint or the new one."""
    remove_leftovers([path])
    content = io.BytesIO()  # on a full disk, torch.save raises errors that do not say so
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


@contextlib.contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Name the file in errors about a state that does not fit the run."""
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
    """Load the state of an optimiser, and check shapes, which PyTorch does not."""
    optimiser.load_state_dict(state)
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(
                    f"{name} of the optimiser has the shape {tuple(value.shape)} for a parameter "
                    f"of the shape {tuple(parameter.shape)}"
                )


def _require_stored(path: Path) -> None:
    """Raise unless the archive is uncompressed, so that nothing in it can inflate."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    held = sum(entry.file_size for entry in entries)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its parts are compressed; convexlift writes them uncompressed")
    if held > path.stat().st_size:
        raise ValueError("it declares more bytes than it has")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_state(value: Any) -> bool:
    """Whether a value is a state dict: tensors and other state by name."""
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
"""Tests for the fields of a checkpoint, by name."""


def check_identity(path: Path, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise unless the run is resumed with the settings it was started with."""
    for name in {**now, **saved}:
        before, here = saved.get(name, "nothing"), now.get(name, "nothing")
        if before != here:
            raise ValueError(
                f"{path} was written with {name} = {before}, but this run has {here}; "
                "start it with the same settings, or choose another folder"
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def plain_settings(value: Any) -> Any:
    """Settings as JSON values.

    Records become mappings with their class under "kind"; tensors and sets of images become a
    fingerprint. Only the class of other objects is kept.
    """
    if isinstance(value, ImageSet):
        return {"images": len(value), "sha256": value.fingerprint()}
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().contiguous().numpy()
        return {"shape": list(value.shape), "sha256": hashlib.sha256(numbers.data).hexdigest()}
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: plain_settings(getattr(value, each.name)) for each in fields(value)}
        return {"kind": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return {str(key): plain_settings(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_settings(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def identity(**parts: Any) -> dict[str, str]:
    """Settings that must be the same when a run is resumed: ``{"options.steps": "20", ...}``."""

    def flat(value: Any, place: str) -> dict[str, str]:
        if isinstance(value, Mapping):
            items = [(f"{place}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            items = [(f"{place}[{i}]", item) for i, item in enumerate(value)]
        else:
            return {place: str(value)}
        return {name: text for at, item in items for name, text in flat(item, at).items()}

    settings = plain_settings(parts)
    return {at: text for name in settings for at, text in flat(settings[name], name).items()}
