"""Sinograms in HDF5 files of the Data Exchange layout, used at synchrotrons.

``/exchange/data`` holds projections (theta, y, x), or in the order of its attribute ``axes``;
``data_white`` and ``data_dark`` the fields; ``theta`` the angles, in the unit of its attribute.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.atomic import atomic_path
from convexlift.files.formats import load_extra
from convexlift.files.limits import allowed_megapixels
from convexlift.scans import isolated_hdf5
from convexlift.scans.formats import (
    AngleUnit,
    ScanFileError,
    SinogramFormat,
    SinogramOptions,
    reading,
)
from convexlift.scans.isolated_hdf5 import (
    DETECTOR_PIXEL,
    FRAMES,
    GEOMETRY,
    read_members,
    run_isolated,
)
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

FIRST_SECONDS, BYTES_A_SECOND = 20, 10**7
"""Default reading time: a constant, plus the length of the file over this rate."""
SPARE_BYTES = 512 * 2**20
"""Memory of the reading process in addition to the arrays."""

Arrays = dict[str, NDArray[Any]]
Texts = dict[str, str]


class DataExchange(SinogramFormat):
    """HDF5 files, read in a separate process."""

    name = "HDF5"
    suffixes = (".h5", ".hdf5", ".hdf", ".nxs")
    isolated = True  # callers with their own limits may switch this off

    def read(self, path: Path, options: SinogramOptions) -> Sinogram:
        """The sinogram, or some detector rows of it."""
        load_extra("h5py", "HDF5 files")
        rows = options.rows
        with reading(path, "HDF5 in the layout Data Exchange"):
            length = path.stat().st_size
            megapixels = options.max_megapixels or allowed_megapixels(length, 1)
            arguments: dict[str, Any] = {
                "path": str(path.absolute()),
                "rows": [rows.start, rows.stop, rows.step],
                "megapixels": megapixels,
            }
            if self.isolated:
                arrays, texts = run_isolated(
                    Path(isolated_hdf5.__file__),
                    "read_members",
                    arguments,
                    seconds=options.read_seconds or FIRST_SECONDS + length // BYTES_A_SECOND,
                    extra_bytes=SPARE_BYTES + int(3 * 8e6 * megapixels),
                )
            else:
                arrays, texts = read_members(**arguments)
            angles = options.angles
            if angles is None:
                angles = _angles(path, arrays, texts, options.angle_unit)
            return Sinogram(
                **{name: as_tensor(arrays[name]) for name in FRAMES if name in arrays},
                geometry=_geometry(path, arrays, texts, angles),
                quantity=_quantity(texts["description"]),
            )

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
                    dataset = exchange.create_dataset(member, data=np.ascontiguousarray(frames))
                    dataset.attrs["axes"] = f"theta{member.removeprefix('data')}:y:x"
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


def _angles(
    path: Path, arrays: Arrays, texts: Texts, angle_unit: AngleUnit | None
) -> tuple[float, ...]:
    if "theta" not in arrays:
        raise ScanFileError(
            f"{path} has no /exchange/theta; write read_sinogram(path, angles=...) in radians"
        )
    unit = (angle_unit or texts["theta_unit"]).strip().lower()
    if not unit:
        raise ScanFileError(
            f"{path} does not give the unit of /exchange/theta; write read_sinogram(path, "
            "angle_unit='degrees') or 'radians'"
        )
    if unit not in _ANGLES:
        raise ScanFileError(
            f"{path} has /exchange/theta in {unit[:40]!r}; write read_sinogram(path, "
            "angle_unit='degrees') or 'radians'"
        )
    return tuple((arrays["theta"] * _ANGLES[unit]).tolist())


def _geometry(path: Path, arrays: Arrays, texts: Texts, angles: tuple[float, ...]) -> ScanGeometry:
    if texts["geometry"]:
        record = json.loads(texts["geometry"])
        if not isinstance(record, dict):
            raise ScanFileError(f"{path} has a damaged geometry; write the file again")
        return from_record({**record, "angles": angles})
    if not arrays.get("pixel", np.empty(0)).size:
        return ParallelGeometry(angles=angles, unit="pixel")
    unit = texts["pixel_unit"].strip().lower()
    if unit not in _LENGTHS:
        raise ScanFileError(f"{path} has {DETECTOR_PIXEL} in {unit[:40]!r}; use m, mm, um or nm")
    width = float(arrays["pixel"][0]) * _LENGTHS[unit]
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
