"""The files of a result: the image, its maps, proof and record, and a table of many records."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import load_extra
from convexlift.images import save_image, weight_picture
from convexlift.reconstruction.contents import InputError, naming
from convexlift.reconstruction.reconstructor import Reconstruction
from convexlift.reconstruction.sources import Source

DECADES = 4
"""The range of the picture of a gap map, below its largest value."""
COLUMNS = {
    "input": str, "output": str, "status": str, "gap": float, "objective": float,
    "lower_bound": float, "iterations": int, "seconds": float, "error": str,
}  # fmt: skip
"""Columns of the table."""
TABLES = (".parquet", ".csv")


def require_bound(result: Reconstruction) -> None:
    """Raise unless there is a useful lower bound, without which nothing is proven."""
    record = result.record
    unproven = record["lower_bound"] is None or not math.isfinite(record["objective"])
    if unproven or record["status"] == "NOT_FINITE":
        ended = record["status"].lower().replace("_", " ")
        raise InputError(
            f"no useful lower bound was found with the weight {result.weight.value:.3g} ({ended} "
            f"after {record['iterations']} iterations), so nothing is proven and nothing was "
            "written; choose another --weight, or allow more iterations or time"
        )


def write_result(
    source: Source, result: Reconstruction, *, weight_map: bool = False, proof: bool = False
) -> None:
    """Write the image, its maps and proof if there are any, and last the record.

    If the process is killed in between, an older record does not fit the new image, whose digest it
    lacks.
    """
    record = result.record
    with naming(source.target):
        result.save(source.target)
    record["output_sha256"] = file_digest(source.target)
    if result.gap_map is not None:
        _write_map(result.gap_map, gap_picture(result.gap_map), *source.gap_maps)
        record["gap_map"] = [str(place) for place in source.gap_maps]
    weights = result.weight_map
    if weight_map and weights is not None:
        _write_map(weights, weight_picture(weights), *source.weight_maps)
        record["weight_map"] = [str(place) for place in source.weight_maps]
    if proof:
        with naming(source.proof):
            record["proof"] = str(result.solution.proof.save(source.proof))
    with naming(source.record), atomic_path(source.record) as part:
        part.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_map(values: Tensor, shown: Tensor, numbers: Path, picture: Path) -> None:
    """The numbers of every plane, and a picture of them."""
    with naming(numbers), atomic_path(numbers) as part, part.open("wb") as file:
        np.save(file, values[:, 0].float().cpu().numpy(), allow_pickle=False)
    with naming(picture):
        save_image(picture, shown)


def gap_picture(values: Tensor) -> Tensor:
    """The sum over planes on a logarithmic scale, white at the largest value."""
    total = values.double().sum((0, 1)).clamp_min(0)
    scaled = (total / total.max().clamp_min(1e-300)).clamp_min(10.0**-DECADES)
    return (1 + torch.log10(scaled) / DECADES).clamp(0, 1)


# Results of an earlier run -----------------------------------------------------------------------


def files_digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the contents of files, and of names and contents in folders.

    Files that cannot be read are left out: whoever needs them explains why.
    """
    whole = hashlib.sha256()
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            with contextlib.suppress(OSError):
                if file.is_file():
                    whole.update(f"{file.relative_to(path)} {file_digest(file)}\n".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Overviews of many results -----------------------------------------------------------------------


def require_table(path: Path) -> None:
    """Raise unless a table can be written to a file of this name."""
    if path.suffix.lower() not in TABLES:
        raise InputError(f"--table {path} does not name a table; use the ending .parquet or .csv")
    if path.suffix.lower() == ".parquet":
        load_extra("pyarrow", "Parquet files", "dask")


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A row for each result or failure, in Parquet or CSV, by the ending of the name."""
    columns = {
        name: [None if row.get(name) is None else kind(row[name]) for row in rows]
        for name, kind in COLUMNS.items()
    }
    with naming(path), atomic_path(path) as part:
        if path.suffix.lower() == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
            return
        arrow = load_extra("pyarrow", "Parquet files", "dask")
        kinds = {str: arrow.string(), float: arrow.float64(), int: arrow.int64()}
        schema = arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
        table = arrow.table(columns, schema=schema)
        load_extra("pyarrow.parquet", "Parquet files", "dask").write_table(table, part)
