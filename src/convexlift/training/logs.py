"""Logs of a run: a CSV file and, where the package is installed, TensorBoard."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from convexlift.files.atomic import atomic_path, remove_leftovers
from convexlift.training.disk_errors import writing


class RunLog:
    """Rows of numbers by step, written as they come.

    The columns are fixed by the caller; values that a row does not have stay empty. A resumed
    run first rewrites the rows up to its checkpoint, so that none appears twice.

    Args:
        folder: gets ``log.csv``, and TensorBoard's event files; None writes nothing.
        columns: of the table.
        rows: those of the run so far.
    """

    def __init__(
        self, folder: Path | None, columns: Sequence[str], rows: Sequence[Mapping[str, float]]
    ) -> None:
        self.columns = tuple(columns)
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]
        self._path = None if folder is None else folder / "log.csv"
        self._board: Any = None
        if folder is None or self._path is None:
            return
        with writing(self._path):
            self._board = _tensorboard(folder, self.rows)
            remove_leftovers([self._path])
            with atomic_path(self._path) as part, part.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.columns)
                writer.writeheader()
                writer.writerows(self._text(row) for row in self.rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board is None:
            return
        try:
            self._board.close()
        except OSError:
            if error is None:  # else the disk has failed already, and that is being said
                raise

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row, at once."""
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
    """A writer of event files, or None where TensorBoard is not installed.

    What earlier runs wrote of steps after those in ``rows`` is taken back.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    next_step = int(rows[-1]["step"]) + 1 if rows else 0
    return SummaryWriter(str(folder), purge_step=next_step)
