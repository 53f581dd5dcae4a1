"""Sinograms as NPY or TIFF files, with their geometry in a JSON file of the same name.

``scan.npy`` holds the projections (rows, angles, bins), or (angles, bins); ``scan.flat.npy`` and
``scan.dark.npy`` the fields, if any; ``scan.json`` names them and has the geometry. TIFF files
with a page for each row can replace any of the NPY files for reading.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import load_extra
from convexlift.files.limits import require_plausible
from convexlift.files.tiff import Tiff, open_tiff
from convexlift.scans.formats import ScanFileError, SinogramFormat, SinogramOptions, reading
from convexlift.scans.sinograms import (
    QUANTITIES,
    Sinogram,
    as_array,
    as_tensor,
    from_record,
    to_record,
)

FORMAT = "convexlift sinogram"
_ARRAYS = ("projections", "flat", "dark")
_KEYS = {"format", "version", "quantity", "geometry", "arrays"}


class _ArrayFormat(SinogramFormat):
    """Arrays with a JSON file of the same name."""

    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The arrays named by the JSON file, if their digests match."""
        if options.angles is not None or options.angle_unit is not None:
            raise ValueError(f"the angles of {path} are in {path.with_suffix('.json').name}")
        record = _read_record(path)
        tensors = {}
        for name, entry in record["arrays"].items():
            file = path if name == "projections" else path.with_name(entry["file"])
            if (expected := entry.get("sha256")) is not None and _digest(file) != expected:
                raise ScanFileError(
                    f"{file} is not the file that {path.with_suffix('.json')} was written with; "
                    "copy both again, or take sha256 out of the JSON file"
                )
            array = _read_array(file, options.max_megapixels)[options.rows]
            with reading(file, "a sinogram"):
                if array.size:
                    require_plausible(file, array.shape, array.itemsize, options.max_megapixels)
                tensors[name] = as_tensor(array)
        with reading(path, "a sinogram"):
            return Sinogram(
                geometry=from_record(record["geometry"]), quantity=record["quantity"], **tensors
            )


class TiffSinogram(_ArrayFormat):
    """Pages (angles, bins), one for each row; for reading only."""

    name = "TIFF"
    suffixes = Tiff.suffixes


class NpySinogram(_ArrayFormat):
    """An array (rows, angles, bins)."""

    name = "NPY"
    suffixes = (".npy",)

    def write(self, sinogram: Sinogram, path: Path) -> None:
        """Write the arrays first and the JSON file last, which completes the sinogram."""
        arrays = {}
        for name in _ARRAYS:
            if (tensor := getattr(sinogram, name)) is None:
                continue
            file = path if name == "projections" else path.with_suffix(f".{name}.npy")
            with atomic_path(file) as part:
                with part.open("wb") as stream:
                    np.save(stream, as_array(tensor), allow_pickle=False)
                arrays[name] = {"file": file.name, "sha256": _digest(part)}
        record = {
            "format": FORMAT,
            "version": 1,
            "quantity": sinogram.quantity,
            "geometry": to_record(sinogram.geometry),
            "arrays": arrays,
        }
        with atomic_path(path.with_suffix(".json")) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _read_array(file: Path, max_megapixels: float | None) -> NDArray[Any]:
    is_tiff = file.suffix.lower() in Tiff.suffixes
    with reading(file, "TIFF" if is_tiff else "NPY"):
        if is_tiff:
            load_extra("tifffile", "TIFF files")
            with open_tiff(file, max_megapixels) as opened:
                array: NDArray[Any] = opened.asarray()
        else:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        if array.ndim == 2:
            array = array[None]
        if array.ndim != 3 or array.dtype.kind not in "biuf":
            raise ScanFileError(
                f"{file} holds {array.dtype} of shape {array.shape}; write real numbers "
                "(rows, angles, bins) or (angles, bins)"
            )
        return array


def _read_record(path: Path) -> dict[str, Any]:
    side = path.with_suffix(".json")
    if not side.exists():
        raise ScanFileError(
            f"{path} needs {side.name} beside it, with the angles and the detector; write both by "
            "write_sinogram(Sinogram(projections, geometry), path)"
        )
    with reading(side, "the geometry of a sinogram"):
        record = json.loads(side.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ScanFileError(f'{side} does not say "format": "{FORMAT}"')
        if record.get("version") != 1:
            raise ScanFileError(f"{side} has the version {record.get('version')!r}; 1 is supported")
        if unknown := set(record) - _KEYS:
            raise ScanFileError(f"{side} has the unknown keys {', '.join(sorted(unknown))}")
        record.setdefault("quantity", "counts")
        record.setdefault("arrays", {"projections": {}})
        if record["quantity"] not in QUANTITIES:
            raise ScanFileError(f"{side} needs quantity to be one of {', '.join(QUANTITIES)}")
        if not isinstance(record.get("geometry"), dict):
            raise ScanFileError(f"{side} has no geometry")
        _require_arrays(side, record["arrays"])
        return record


def _require_arrays(side: Path, arrays: Any) -> None:
    if not isinstance(arrays, dict) or not {"projections"} <= set(arrays) <= set(_ARRAYS):
        raise ScanFileError(f"{side} needs arrays to be projections, and optionally flat and dark")
    for name, entry in arrays.items():
        file = entry.get("file", "") if isinstance(entry, dict) else None
        # A name with a folder in it could point anywhere.
        beside = isinstance(file, str) and Path(file).name == file
        if not beside or (name != "projections" and not file):
            raise ScanFileError(f"{side} needs the name of a file beside it for {name}")


def _digest(file: Path) -> str:
    with reading(file, "NPY"), file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
