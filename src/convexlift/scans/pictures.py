"""Volumes as pictures: TIFF with all digits, PNG through a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from convexlift.images import atomic_path
from convexlift.scans.errors import PathLike, ScanFileError, load_extra
from convexlift.scans.folders import atomic_folder, slice_names
from convexlift.scans.slice_metadata import Places
from convexlift.scans.volumes import Volume
from convexlift.scans.windows import Window, covering, window_named
from convexlift.tensors import first_non_finite


def write_tiff(volume: Volume, path: PathLike) -> Path:
    """HU in float32, a page for each slice, with pixels per centimetre and the places of slices."""
    tifffile = load_extra("tifffile", "TIFF files")
    place = Path(path)
    if place.suffix.lower() not in (".tif", ".tiff"):
        raise ScanFileError(f"{place} is no name of a TIFF file; let it end in .tif")
    dy, dx = volume.spacing
    with atomic_path(place) as part:
        tifffile.imwrite(
            part,
            volume.values.detach().cpu().float().numpy(),
            photometric="minisblack",
            resolution=(10 / dx, 10 / dy),
            resolutionunit="CENTIMETER",
            description=Places.of(volume, range(len(volume.values))).to_text(),
            metadata=None,
        )
    return place


def write_png(
    image: Volume | Tensor,
    path: PathLike,
    *,
    window: Window | str | None = None,
    bits: Literal[8, 16] = 8,
) -> tuple[Path, ...]:
    """Pictures of CT numbers, black at the lower end of the window and white at the upper one.

    A name that ends in ``.png`` takes one slice; any other is a new or empty folder.

    Args:
        image: a volume, or values in HU of the shape (H, W), (slices, H, W) or (slices, 1, H, W).
        path: of the file or folder.
        window: a ``Window``, or the name of one in ``WINDOWS``; the default covers all values.
        bits: 8, or 16 for pictures from which ``read_volume`` makes HU again.

    Returns:
        The files, in the order of the slices.
    """
    pillow = load_extra("PIL.Image", "PNG files")
    if bits not in (8, 16):
        raise ValueError(f"PNG files have 8 or 16 bits here, got {bits}")
    place = Path(path)
    volume = image if isinstance(image, Volume) else None
    values = _slices(image)
    chosen = covering(values) if window is None else window_named(window)
    count = len(values)
    single = place.suffix.lower() == ".png"
    if single and count > 1:
        raise ScanFileError(f"{place} takes one slice, not {count}; write to a folder")
    levels = 2**bits - 1

    def save(target: Path, k: int) -> None:
        pixels: NDArray[Any] = (levels * chosen.apply(values[k].double())).round().numpy()
        scale = {
            "slope": chosen.width / levels,
            "intercept": chosen.low,
            "clipped": chosen.clipped(values[k]),
        }
        options = {} if volume is None else _annotations(volume, k, scale)
        picture = pillow.fromarray(pixels.astype(np.uint8 if bits == 8 else np.uint16))
        picture.save(target, format="PNG", **options)

    if single:
        with atomic_path(place) as part:
            save(part, 0)
        return (place,)
    names = slice_names(count, ".png")
    with atomic_folder(place) as part:
        for k, name in enumerate(names):
            save(part / name, k)
    return tuple(place / name for name in names)


def _slices(image: Volume | Tensor) -> Tensor:
    values = (image.values if isinstance(image, Volume) else image).detach().cpu()
    shape = tuple(values.shape)
    if values.ndim == 4 and shape[1] == 1:
        values = values[:, 0]
    elif values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or 0 in shape:
        raise ValueError(f"write_png takes (H, W), (slices, H, W) or a Volume, got {shape}")
    if (place := first_non_finite(values)) is not None:
        raise ValueError(f"refusing to write pictures: {float(values[place])} at {place}")
    return values


def _annotations(volume: Volume, k: int, scale: dict[str, float | int]) -> dict[str, Any]:
    """Pixels per inch, and the places of slices as text."""
    info = load_extra("PIL.PngImagePlugin", "PNG files").PngInfo()
    info.add_text("Description", Places.of(volume, [k], **scale).to_text())
    dy, dx = volume.spacing
    return {"pnginfo": info, "dpi": (25.4 / dx, 25.4 / dy)}
