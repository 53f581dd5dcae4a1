"""Readings of a detector: their flat and dark fields, and the values that they can have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.npy import read_npy
from convexlift.option_values import Quantity
from convexlift.reconstruction.contents import Array, InputError
from convexlift.reconstruction.noise import photons_of
from convexlift.scans.files import reading
from convexlift.scans.sinogram_formats import NpySinogram, TiffSinogram, is_geometry
from convexlift.scans.sinograms import EvenViews
from convexlift.tensors import Shape
from convexlift.transmission import Field, fitted_field

FieldLike = float | str | os.PathLike[str] | Array

LARGEST: dict[Quantity, tuple[float, str]] = {
    "line integrals": (30.0, "-log of a transmission"),  # one photon in 10^13 arrives
    "transmission": (10.0, "counts over counts without object"),
}
"""The largest plausible values of a quantity, and its meaning."""
OUTLIERS = 0.1
"""Up to this share may be larger: rays without a photon, and pixels that do not work."""
IMPOSSIBLE = 745.0
"""Above -log of every positive number in double precision."""

STEADY, VARIED = 0.05, 0.2
"""The spread of means over rows, and over columns, of the counts of a sinogram, in logarithms."""


def require_described(
    path: Path, *, views: EvenViews | None, quantity: Quantity | None, has_level: bool
) -> None:
    """Name all options that an array without a geometry beside it still needs, in one message.

    Args:
        path: the file of the projections.
        views: the rays, if given.
        quantity: the meaning of the numbers, if given.
        has_level: whether the flat field of X-rays or the background of emissions is given.
    """
    side = path.with_suffix(".json")
    if path.suffix.lower() not in (*NpySinogram.suffixes, *TiffSinogram.suffixes):
        return
    if is_geometry(side) or (views is None and side.exists()):  # reading it names its faults
        return
    needed = []
    if views is None:
        needed.append("--beam parallel or fan (evenly spaced views)")
    if quantity is None:
        needed.append("--quantity counts, transmission or 'line integrals'")
    if needed and quantity in (None, "counts") and not has_level:
        needed.append("--flat FLAT.npy for counts (readings without object)")
    if needed:
        other = f"; for other views, it needs {side.name} beside it" if views is None else ""
        raise InputError(
            f"{path} does not say how it was measured: add {'; '.join(needed)}{other} "
            "(docs/files.md)"
        )


def read_field(name: str, given: FieldLike | None) -> Tensor | None:
    """A flat or dark field, given as a number, an array or an NPY file."""
    if given is None or isinstance(given, Tensor | np.ndarray):
        return None if given is None else torch.as_tensor(given).float()
    try:
        return torch.tensor(float(given))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        path = Path(str(given))
    if not path.is_file():
        raise InputError(f"--{name} is a number or an NPY file, and there is no file {path}")
    with reading(path, "NPY"):
        array = read_npy(path)
        if array.dtype.kind not in "biuf":
            raise InputError(f"--{name} needs real numbers, and {path} holds {array.dtype}")
        return torch.from_numpy(array.astype(np.float32))


def require_fitting(name: str, field: Field | None, readings: Tensor) -> None:
    """Check a field against readings (rows, 1, angles, bins), and name their axes if it differs."""
    if field is None:
        return
    try:
        fitted_field(name, field, readings)
    except ValueError as error:
        shape = tuple(torch.as_tensor(field).shape)
        advice = _transposed(name, shape, readings.shape)
        if advice is None:
            raise
        raise InputError(advice) from error


def _transposed(name: str, shape: Shape, readings: Shape) -> str | None:
    """The advice for a field that does not fit; None if its last axis does."""
    rows, _, angles, bins = readings
    if not shape or shape[-1] in (1, bins):
        return None
    advice = (
        f"the scan is read as {angles} angles (down) of {bins} bins (across)"
        f"{f' for each of {rows} rows' if rows > 1 else ''}, but --{name} has {shape[-1]} bins"
    )
    if shape[-1] == angles:
        advice += (
            "; the scan seems to be transposed: save its array with the last two axes swapped, "
            "np.save('turned.npy', array.swapaxes(-1, -2))"
        )
    return f"{advice}; the last axis of both must be the bins of the detector"


def can_be(quantity: Quantity, values: Tensor) -> bool:
    """Whether at most a few values are larger than the quantity can be."""
    if quantity not in LARGEST:
        return True
    largest, _ = LARGEST[quantity]
    few = float((values > largest).double().mean()) <= OUTLIERS
    return few and not bool((values > IMPOSSIBLE).any())


def may_be_counts(page: NDArray[Any]) -> bool:
    """Whether an array (angles, bins) has the first property of photons behind an object.

    The integral of -log I over a view is the mass of the object and the same for all angles, while
    the object makes bins differ. In pictures, rows differ about as much as columns.
    """
    logarithms = np.log(np.maximum(np.asarray(page, float), 1.0))
    spread = float(logarithms.std())
    views, bins = (float(logarithms.mean(axis).std()) for axis in (1, 0))
    return spread > 0 and views <= STEADY * spread and bins >= VARIED * spread


def require_possible(quantity: Quantity, values: Tensor) -> None:
    """Refuse counts that were called transmissions or line integrals."""
    if not can_be(quantity, values):
        name = "transmissions" if quantity == "transmission" else quantity
        raise InputError(
            f"values up to {float(values.max()):.6g} cannot be {name} ({LARGEST[quantity][1]}); "
            "if they are photon counts, write --quantity counts --flat FLAT.npy, with the readings "
            "without object"
            + (
                "; if they are sums over pixels, without a logarithm, give their noise, --sigma"
                if quantity == "line integrals"
                else ""
            )
        )


def integrals_of(y: Tensor, quantity: Quantity) -> Tensor:
    """Line integrals of transmissions; other data unchanged."""
    return y if quantity == "line integrals" else -torch.log(y.clamp_min(1e-6))


def estimated_photons(integrals: Tensor) -> float:
    """Photons in a free ray, estimated from line integrals."""
    photons = photons_of(integrals)
    if photons is None:
        raise InputError("the noise of these data cannot be estimated; give --photons or --sigma")
    return photons
