"""Sinograms in HDF5 files of the layout Data Exchange, which synchrotrons write.

``/exchange/data`` holds projections (theta, y, x), or in the order of its attribute ``axes``;
``data_white`` and ``data_dark`` the fields; ``theta`` the angles, in the unit of its attribute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from convexlift.images import atomic_path
from convexlift.scans.errors import ScanFileError, load_extra, reading
from convexlift.scans.geometry import ParallelGeometry, ScanGeometry, from_record, to_record
from convexlift.scans.sinograms import QUANTITIES, Quantity, Sinogram, as_array, as_tensor

AngleUnit = Literal["degrees", "radians"]
_DEGREE = math.pi / 180
_ANGLES = {
    **dict.fromkeys(("deg", "degs", "degree", "degrees", "\N{DEGREE SIGN}"), _DEGREE),
    **dict.fromkeys(("rad", "rads", "radian", "radians"), 1.0),
}
_LENGTHS = {  # in mm; without a unit, Data Exchange means SI
    **dict.fromkeys(("", "m", "meter", "metre", "meters", "metres"), 1e3),
    **dict.fromkeys(("mm", "millimeter", "millimetre"), 1.0),
    **dict.fromkeys(
        ("um", "\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m", "micron", "microns"), 1e-3
    ),
    **dict.fromkeys(("nm",), 1e-6),
}
_DETECTOR = "/measurement/instrument/detector"
_GEOMETRY = "convexlift_geometry"
_FIELDS = (("flat", "data_white"), ("dark", "data_dark"))


def read_exchange(
    path: Path, rows: slice, angles: Sequence[float] | None, angle_unit: AngleUnit | None
) -> Sinogram:
    """The sinogram of an HDF5 file; only some rows of the detector, if asked for."""
    h5py = load_extra("h5py", "HDF5 files")
    if angle_unit not in (None, "degrees", "radians"):
        raise ValueError(f"angle_unit is 'degrees' or 'radians', got {angle_unit!r}")
    with reading(path, "HDF5 in the layout Data Exchange"), h5py.File(path, "r") as file:
        data = file.get("/exchange/data")
        if not isinstance(data, h5py.Dataset):
            raise ScanFileError(f"{path} has no /exchange/data, so it is no Data Exchange file")
        frames = {"projections": _read_frames(path, data, rows)}
        for name, member in _FIELDS:
            dataset = file.get(f"/exchange/{member}")
            if dataset is not None and dataset.size:  # empty where no field was measured
                frames[name] = _read_frames(path, dataset, rows)
        turned = _read_angles(path, file, angle_unit) if angles is None else tuple(angles)
        return Sinogram(
            **{name: as_tensor(array) for name, array in frames.items()},
            geometry=_read_geometry(path, file, turned),
            quantity=_read_quantity(data),
        )


def write_exchange(sinogram: Sinogram, path: Path) -> None:
    """The sinogram as others read it, and its geometry in full as an attribute of ``/exchange``."""
    h5py = load_extra("h5py", "HDF5 files")
    geometry = sinogram.geometry
    counts = sinogram.quantity == "counts"
    with atomic_path(path) as part, h5py.File(part, "w") as file:
        file["implements"] = "exchange:measurement"
        exchange = file.create_group("exchange")
        for name, member in (("projections", "data"), *_FIELDS):
            tensor = getattr(sinogram, name)
            if tensor is not None:
                frames = as_array(tensor).swapaxes(0, 1)
                dataset = exchange.create_dataset(member, data=np.ascontiguousarray(frames))
                dataset.attrs["axes"] = f"theta{member.removeprefix('data')}:y:x"
                dataset.attrs["units"] = "counts" if counts else "1"
        exchange["data"].attrs["description"] = sinogram.quantity
        exchange["theta"] = np.degrees(np.array(geometry.angles))
        exchange["theta"].attrs["units"] = "deg"
        record = to_record(geometry)
        del record["angles"]
        exchange.attrs[_GEOMETRY] = json.dumps(record)
        if isinstance(geometry, ParallelGeometry) and geometry.unit == "mm":
            # Rays are parallel: bins on the detector are as wide in the object.
            pixel = file.create_dataset(f"{_DETECTOR}/actual_pixel_size_x", data=geometry.bin_width)
            pixel.attrs["units"] = "mm"


def _read_frames(path: Path, dataset: Any, rows: slice) -> NDArray[Any]:
    """(rows, frames, bins) of a dataset (frames, rows, bins), or as its attribute ``axes`` says."""
    if dataset.ndim != 3:
        raise ScanFileError(
            f"{path} has {dataset.name} of the shape {dataset.shape}; three dimensions are needed"
        )
    axes = [axis.split("_")[0] for axis in _text(dataset.attrs.get("axes")).split(":") if axis]
    axes = axes or ["theta", "y", "x"]
    if sorted(axes) != ["theta", "x", "y"]:
        raise ScanFileError(f"{path} has {dataset.name} with axes {axes}, not theta, y and x")
    selection = tuple(rows if axis == "y" else slice(None) for axis in axes)
    try:
        array: NDArray[Any] = dataset[selection]
    except OSError as error:
        if "filter" not in str(error) and "plugin" not in str(error):
            raise
        raise ScanFileError(
            f"{path} has {dataset.name} compressed with a filter that is not installed, pip "
            f"install hdf5plugin and import it before: {error}"
        ) from error
    return array.transpose([axes.index(axis) for axis in ("y", "theta", "x")])


def _read_angles(path: Path, file: Any, angle_unit: AngleUnit | None) -> tuple[float, ...]:
    theta = file.get("/exchange/theta")
    if theta is None:
        raise ScanFileError(
            f"{path} has no /exchange/theta; write read_sinogram(path, angles=...) in radians"
        )
    unit = (angle_unit or _text(theta.attrs.get("units"))).strip().lower()
    if not unit:
        raise ScanFileError(
            f"{path} does not say in which unit /exchange/theta is; write read_sinogram(path, "
            "angle_unit='degrees') or 'radians'"
        )
    if unit not in _ANGLES:
        raise ScanFileError(
            f"{path} has /exchange/theta in {unit!r}; write read_sinogram(path, "
            "angle_unit='degrees') or 'radians'"
        )
    values = np.asarray(theta[()], dtype=np.float64).reshape(-1)
    return tuple((values * _ANGLES[unit]).tolist())


def _read_geometry(path: Path, file: Any, angles: tuple[float, ...]) -> ScanGeometry:
    if (text := _text(file["/exchange"].attrs.get(_GEOMETRY))) != "":
        return from_record({**json.loads(text), "angles": angles})
    pixel = file.get(f"{_DETECTOR}/actual_pixel_size_x")
    if pixel is None:
        return ParallelGeometry(angles=angles, unit="pixel")
    unit = _text(pixel.attrs.get("units")).strip().lower()
    if unit not in _LENGTHS:
        raise ScanFileError(f"{path} has {pixel.name} in {unit!r}; m, mm, um or nm are known")
    width = float(np.asarray(pixel[()]).reshape(-1)[0]) * _LENGTHS[unit]
    if not 0 < width < 100:
        raise ScanFileError(
            f"{path} has {pixel.name} of {width:g} mm, so its unit is missing or wrong; "
            "set the attribute 'units' of that dataset"
        )
    return ParallelGeometry(angles=angles, bin_width=width)


def _read_quantity(data: Any) -> Quantity:
    """What the description says; counts, by the rules of the layout, if it says nothing known."""
    description = _text(data.attrs.get("description")).strip().lower()
    return next((known for known in QUANTITIES if known == description), "counts")


def _text(value: Any) -> str:
    """Attributes are text, bytes, arrays of one of them, or not there."""
    if value is None:
        return ""
    item = np.asarray(value).reshape(-1)[0] if not isinstance(value, str | bytes) else value
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
