"""Sinograms in HDF5 files of the Data Exchange layout, and as NPY or TIFF files beside a JSON file.

Data Exchange is the layout of synchrotrons: ``/exchange/data`` holds projections (theta, y, x), or
in the order of its attribute ``axes``; ``data_white`` and ``data_dark`` the fields; ``theta`` the
angles, in the unit of its attribute.

``scan.npy`` holds the projections (rows, angles, bins), or (angles, bins); ``scan.flat.npy`` and
``scan.dark.npy`` the fields, if any; ``scan.json`` names them and has the geometry. TIFF files
with a page for each row can replace any of the NPY files for reading.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import allowed_numbers, load_extra, require_plausible
from convexlift.files.tiff import Tiff, open_tiff
from convexlift.json_values import construct
from convexlift.scans.files import (
    AngleUnit,
    ScanFileError,
    SinogramFormat,
    SinogramOptions,
    reading,
)
from convexlift.scans.hdf5_process import GEOMETRY, Item, read_hdf5
from convexlift.scans.sinograms import (
    QUANTITIES,
    ParallelGeometry,
    Quantity,
    ScanGeometry,
    Sinogram,
    as_array,
    as_tensor,
    from_record,
    to_record,
)

_ANGLES = {
    **dict.fromkeys(["deg", "degs", "degree", "degrees", "\N{DEGREE SIGN}"], math.pi / 180),
    **dict.fromkeys(["rad", "rads", "radian", "radians"], 1.0),
}
_LENGTHS = {  # in mm; without a unit, Data Exchange means SI
    **dict.fromkeys(["", "m", "meter", "metre", "meters", "metres"], 1e3),
    **dict.fromkeys(["mm", "millimeter", "millimetre"], 1.0),
    **dict.fromkeys(
        ["um", "\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m", "micron", "microns"], 1e-3
    ),
    "nm": 1e-6,
}

FORMAT, VERSION = "convexlift sinogram", 1
"""The first two entries of the JSON files."""

DETECTOR_PIXEL = "/measurement/instrument/detector/actual_pixel_size_x"
FRAMES = {
    "projections": "/exchange/data", "flat": "/exchange/data_white", "dark": "/exchange/data_dark"
}  # fmt: skip
_EXCHANGE, _THETA = "/exchange", "/exchange/theta"


class DataExchange(SinogramFormat):
    """HDF5 files, read in a separate process."""

    name = "HDF5"
    suffixes = (".h5", ".hdf5", ".hdf", ".nxs")

    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The sinogram, or some detector rows of it."""
        load_extra("h5py", "HDF5 files")
        most = allowed_numbers(path, 1)
        with reading(path, "HDF5 in the layout Data Exchange"):
            names = (_EXCHANGE, _THETA, DETECTOR_PIXEL, *FRAMES.values())
            found = read_hdf5(path, names, options.rows, most)
            arrays = {name: item for name, item in found.items() if item.numbers.size}
            if FRAMES["projections"] not in arrays:
                raise ValueError("it has no /exchange/data, so it is not a Data Exchange file")
            frames = {
                name: as_tensor(_frames(key, arrays[key]))
                for name, key in FRAMES.items()
                if key in arrays
            }
            if options.views is not None:
                geometry = options.views.geometry(frames["projections"].shape[1])
            else:
                angles = options.angles
                if angles is None:
                    angles = _angles(path, arrays.get(_THETA), options.angle_unit)
                record = found[_EXCHANGE].attributes[GEOMETRY]
                geometry = _geometry(path, record, arrays.get(DETECTOR_PIXEL), angles)
            description = arrays[FRAMES["projections"]].attributes["description"]
            quantity = options.quantity or _quantity(description)
            return Sinogram(geometry=geometry, quantity=quantity, **frames)

    def write(self, sinogram: Sinogram, path: Path) -> None:
        """Write for other programs, with the full geometry as an attribute of ``/exchange``."""
        h5py = load_extra("h5py", "HDF5 files")
        geometry = sinogram.geometry
        with atomic_path(path) as part, h5py.File(part, "w") as file:
            file["implements"] = "exchange:measurement"
            exchange = file.create_group("exchange")
            for name, member in FRAMES.items():
                tensor = getattr(sinogram, name)
                if tensor is not None:
                    frames = as_array(tensor).swapaxes(0, 1)
                    dataset = file.create_dataset(member, data=np.ascontiguousarray(frames))
                    dataset.attrs["axes"] = f"theta{member.removeprefix('/exchange/data')}:y:x"
                    dataset.attrs["units"] = "counts" if sinogram.quantity == "counts" else "1"
            exchange["data"].attrs["description"] = sinogram.quantity
            exchange["theta"] = np.degrees(np.array(geometry.angles))
            exchange["theta"].attrs["units"] = "deg"
            record = to_record(geometry)
            del record["angles"]
            exchange.attrs[GEOMETRY] = json.dumps(record)
            if isinstance(geometry, ParallelGeometry) and geometry.unit == "mm":
                # Rays are parallel: a detector bin has the same width in the object.
                pixel = file.create_dataset(DETECTOR_PIXEL, data=geometry.bin_width)
                pixel.attrs["units"] = "mm"


def _frames(name: str, item: Item) -> NDArray[Any]:
    """(rows, frames, bins) of a dataset (frames, rows, bins), or in the order of its ``axes``."""
    if item.numbers.ndim != 3:
        shape = item.numbers.shape
        raise ValueError(f"its {name} has the shape {shape}; three dimensions are needed")
    axes = [axis.split("_")[0] for axis in item.attributes["axes"].split(":") if axis]
    axes = axes or ["theta", "y", "x"]
    if sorted(axes) != ["theta", "x", "y"]:
        raise ValueError(f"its {name} has the axes {axes}, not theta, y and x")
    return item.numbers.transpose([axes.index(axis) for axis in ("y", "theta", "x")])


def _angles(path: Path, theta: Item | None, angle_unit: AngleUnit | None) -> tuple[float, ...]:
    if theta is None:
        raise ScanFileError(
            f"{path} has no /exchange/theta; if its views are evenly spaced, add --beam parallel "
            "or --beam fan; in Python, write read_sinogram(path, angles=...) in radians"
        )
    unit = (angle_unit or theta.attributes["units"]).strip().lower()
    if unit not in _ANGLES:
        problem = "has /exchange/theta in" if unit else "does not give the unit of /exchange/theta"
        raise ScanFileError(
            f"{path} {problem}{f' {unit[:40]!r}' if unit else ''}; add --angle-unit degrees or "
            "radians; in Python, write read_sinogram(path, angle_unit='degrees') or 'radians'"
        )
    return tuple((theta.numbers.astype(np.float64).ravel() * _ANGLES[unit]).tolist())


def _geometry(path: Path, text: str, pixel: Item | None, angles: tuple[float, ...]) -> ScanGeometry:
    if text:
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ScanFileError(f"{path} has a damaged geometry; write the file again")
        return from_record({**record, "angles": angles})
    if pixel is None:
        return ParallelGeometry(angles=angles, unit="pixel")
    unit = pixel.attributes["units"].strip().lower()
    if unit not in _LENGTHS:
        raise ScanFileError(f"{path} has {DETECTOR_PIXEL} in {unit[:40]!r}; use m, mm, um or nm")
    width = float(pixel.numbers.flat[0]) * _LENGTHS[unit]
    if not 0 < width < 100:
        raise ScanFileError(
            f"{path} has {DETECTOR_PIXEL} of {width:g} mm, so its unit is missing or wrong; "
            "set the attribute 'units' of that dataset"
        )
    return ParallelGeometry(angles=angles, bin_width=width)


def _quantity(description: str) -> Quantity:
    """The quantity named in the description; counts by default, as the layout prescribes."""
    text = description.strip().lower()
    return next((known for known in QUANTITIES if known == text), "counts")


# Arrays beside a JSON file ------------------------------------------------------------------------


@dataclass(frozen=True)
class _ArrayFile:
    file: str = ""
    sha256: str | None = None

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file:  # it could point anywhere
            raise ValueError(f"{self.file!r} is not the name of a file beside it")


@dataclass(frozen=True)
class _Record:
    """The content of the JSON file."""

    geometry: Mapping[str, Any]
    quantity: Quantity = "counts"
    arrays: Mapping[str, _ArrayFile] = field(default_factory=lambda: {"projections": _ArrayFile()})

    def __post_init__(self) -> None:
        if not {"projections"} <= set(self.arrays) <= set(FRAMES):
            raise ValueError("it needs arrays to be projections, and optionally flat and dark")
        for name, array in self.arrays.items():
            if name != "projections" and not array.file:
                raise ValueError(f"it needs the name of a file beside it for {name}")


class _ArrayFormat(SinogramFormat):
    """Arrays with a JSON file of the same name."""

    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The arrays named by the JSON file, if their digests match."""
        if options.angles is not None or options.angle_unit is not None:
            raise ValueError(f"the angles of {path} are in {path.with_suffix('.json').name}")
        record, tensors = _read_record(path, options), {}
        for name, entry in record.arrays.items():
            file = path if name == "projections" else path.with_name(entry.file)
            if entry.sha256 is not None and _digest(file) != entry.sha256:
                raise ScanFileError(
                    f"{file} is not the file that {path.with_suffix('.json')} was written with; "
                    "copy both again, or take sha256 out of the JSON file"
                )
            array = _read_array(file)[options.rows]
            with reading(file, "a sinogram"):
                if array.size:
                    require_plausible(file, array.shape, array.itemsize)
                tensors[name] = as_tensor(array)
        with reading(path, "a sinogram"):
            views, quantity = options.views, options.quantity or record.quantity
            number = tensors["projections"].shape[1]
            geometry = from_record(record.geometry) if views is None else views.geometry(number)
            return Sinogram(geometry=geometry, quantity=quantity, **tensors)


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
        record: dict[str, Any] = {
            "format": FORMAT, "version": VERSION, "quantity": sinogram.quantity,
            "geometry": to_record(sinogram.geometry), "arrays": {},
        }  # fmt: skip
        for name in FRAMES:
            if (tensor := getattr(sinogram, name)) is None:
                continue
            file = path if name == "projections" else path.with_suffix(f".{name}.npy")
            with atomic_path(file) as part:
                with part.open("wb") as stream:
                    np.save(stream, as_array(tensor), allow_pickle=False)
                record["arrays"][name] = {"file": file.name, "sha256": _digest(part)}
        with atomic_path(path.with_suffix(".json")) as part:
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _read_array(file: Path) -> NDArray[Any]:
    is_tiff = file.suffix.lower() in Tiff.suffixes
    with reading(file, "TIFF" if is_tiff else "NPY"):
        if is_tiff:
            load_extra("tifffile", "TIFF files")
            with open_tiff(file) as opened:
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


def is_geometry(side: Path) -> bool:
    """Whether a JSON file describes a sinogram, and is not, for example, the record of a result."""
    return side.is_file() and FORMAT in side.read_text(encoding="utf-8", errors="replace")


def files_beside(path: Path) -> list[Path]:
    """The JSON file beside an array that describes it as a sinogram, and the fields it names."""
    side = path.with_suffix(".json")
    if not is_geometry(side):
        return []
    try:
        arrays = _read_record(path, SinogramOptions()).arrays
    except ScanFileError:  # reading the sinogram explains why
        return [side]
    fields = [array.file for name, array in arrays.items() if name != "projections"]
    return [side, *(path.with_name(field) for field in fields)]


def _read_record(path: Path, options: SinogramOptions) -> _Record:
    side = path.with_suffix(".json")
    if options.views is not None and not is_geometry(side):
        if options.quantity is None:
            raise ScanFileError(
                f"{path} does not say what its numbers are; give the quantity, one of "
                f"{', '.join(QUANTITIES)}"
            )
        return _Record({})
    if not side.exists():
        raise ScanFileError(
            f"{path} needs {side.name} beside it, with the angles and the detector (docs/files.md "
            "shows one); if its views are evenly spaced, say so instead: --beam parallel "
            "--quantity 'line integrals', or views=cl.scans.EvenViews() and quantity= in Python"
        )
    with reading(side, "the geometry of a sinogram"):
        content = json.loads(side.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ScanFileError(
                f'{side} does not say "format": "{FORMAT}"; if the views are evenly spaced, --beam '
                "parallel or --beam fan replaces it"
            )
        if (version := content.pop("version", None)) != VERSION:
            raise ScanFileError(f"{side} has the version {version!r}; {VERSION} is supported")
        return construct(
            _Record, content, "the record", lambda value, kind, at: construct(kind, value, at)
        )


def _digest(file: Path) -> str:
    with reading(file, "NPY"), file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
