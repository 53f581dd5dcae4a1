"""The kind of a file and the task that suits it, from its size, noise and missing pixels."""

from __future__ import annotations

import math
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from convexlift.files.formats import EXPORTS, reason_of
from convexlift.files.tiff import Tiff
from convexlift.reconstruction.contents import (
    DICOM,
    PICTURES,
    Contents,
    InputError,
    open_contents,
)
from convexlift.reconstruction.jpeg_noise import before_compression
from convexlift.reconstruction.noise import estimate_noise, is_line_art, sampled
from convexlift.reconstruction.pictures import Denoiser
from convexlift.reconstruction.readings import (
    can_be,
    estimated_photons,
    integrals_of,
    may_be_counts,
)
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.scans import ScanReconstructor
from convexlift.reconstruction.slices import read_slices
from convexlift.reconstruction.sources import SINOGRAMS, Source, glance, sides
from convexlift.scans.files import read_sinogram
from convexlift.scans.sinograms import Sinogram, as_tensor
from convexlift.transmission import line_integrals

PAINTS = ("#ff00ff", "#00ff00", "#00ffff", "#ff0000")
"""Colours that mark missing parts; photographs have hardly any pixel of them."""
RESULTS = {"denoise": "denoised", "inpaint": "filled", "ct": "slice"}
"""Endings of the names of results, by task."""
PAINTED = 1e-3
"""The least share of pixels in such a colour."""


@dataclass(frozen=True)
class Proposal:
    """The proposed treatment of a file.

    Attributes:
        path: the file.
        about: its content in words, or the reason why nothing can be done.
        task: denoise, inpaint or ct; None if nothing can be done.
        options: the options of the command line, besides the names of files.
        ending: the ending of the result's name.
        otherwise: another possible kind of the file, and the command for it.
    """

    path: Path
    about: str
    task: str | None = None
    options: tuple[str, ...] = ()
    ending: str = ""
    otherwise: str = ""

    @property
    def target(self) -> Path:
        """A name for the result, beside the file."""
        done = RESULTS.get(self.task or "", "")
        return self.path.with_name(f"{self.path.stem}-{done}{self.ending or self.path.suffix}")


def propose(path: Path) -> Proposal:
    """Examine a file; files that cannot be read are described, not raised."""
    ending = path.suffix.lower()
    if (advice := EXPORTS.get(ending)) is not None:
        return Proposal(path, advice)
    if (wrong := glance(path)) is not None:
        return Proposal(path, wrong)
    if ending in SINOGRAMS and (ending not in PICTURES or sides(path)):
        return _scan(path)
    if ending not in PICTURES:
        known = ", ".join(sorted({*PICTURES, *SINOGRAMS}))
        return Proposal(path, f"not a kind of file that is read ({known})")
    try:
        contents = open_contents(path)
    except Exception as error:  # decoders raise nearly every type
        return Proposal(path, _reason(path, error))
    about = about_picture(contents)
    if contents.missing is not None:
        return Proposal(path, about, "inpaint")
    if (colour := painted(contents)) is not None:
        tolerance = ("--colour-tolerance", "20") if ending in (".jpg", ".jpeg") else ()
        return Proposal(path, about, "inpaint", ("--mask-colour", colour, *tolerance))
    return Proposal(path, about, "denoise", otherwise=_as_sinogram(path, contents))


def _as_sinogram(path: Path, contents: Contents) -> str:
    """The command for an array that may be a sinogram; nothing for pictures."""
    stored, is_tiff = contents.picture.stored, path.suffix.lower() in Tiff.suffixes
    if not (is_tiff or path.suffix.lower() == ".npy"):
        return ""
    is_float = stored.dtype.kind == "f"
    if is_tiff and not is_float:  # most are pictures
        deep = stored.dtype.itemsize > 1 and contents.picture.channels == 1
        if not (deep and may_be_counts(stored[0])):
            return ""
    is_integral = is_float and can_be("line integrals", as_tensor(stored))
    numbers = ["line integrals"] if is_integral else ["counts", "--flat", "FLAT.npy"]
    target = str(path.with_name(f"{path.stem}-slice.tif"))
    words = [str(path), "-o", target, "--beam", "parallel", "--quantity", *numbers]
    fields = "" if is_integral else "\nFLAT.npy has the readings without object, one for each bin."
    return (
        "If it is a sinogram with evenly spaced views (docs/files.md):\n"
        f"  convexlift reconstruct ct {shlex.join(words)}{fields}"
    )


def _scan(path: Path) -> Proposal:
    """The proposal for a sinogram."""
    try:
        scan = read_sinogram(path)
        return Proposal(path, about_sinogram(scan), "ct", ending=".tif")
    except Exception as error:  # decoders raise nearly every type
        reason = _reason(path, error)
    return Proposal(path, reason)


def _reason(path: Path, error: Exception) -> str:
    """The reason why a file cannot be read, without its name, which is printed before it."""
    text = reason_of(error)
    bare = text.removeprefix(f"{path} ")
    return f"cannot be read: {text}" if bare == text else bare


def plan(reconstructor: Reconstructor, source: Source) -> list[str]:
    """The contents of a file and its planned result; raises the error that the run would raise."""
    path = source.path
    if (wrong := glance(path)) is not None:
        raise InputError(wrong)
    if isinstance(reconstructor, ScanReconstructor) and not reconstructor.simulate:
        _, scan = reconstructor.read_scan(path)
        return [about_sinogram(scan), about_slices(reconstructor, scan)]
    if isinstance(reconstructor, Denoiser):
        return [about_picture(reconstructor.opened(path, source.target))]
    _, volume, _, _ = read_slices(path)
    slices, height, width = volume.values.shape
    return [f"{slices} slice{'s' * (slices > 1)} of {height} x {width}"]


def about_picture(contents: Contents) -> str:
    """Kind and size, and missing pixels or else the noise."""
    if contents.missing is not None:
        share = 100 * float(contents.missing.double().mean())
        return f"{_kind(contents)}, {share:.2g} % of its numbers are NaN"
    colour = painted(contents)
    return f"{_kind(contents)}, {_noise(contents) if colour is None else f'painted with {colour}'}"


def about_sinogram(scan: Sinogram) -> str:
    """Its numbers, views and detector."""
    rows, views, bins = scan.projections.shape
    geometry = scan.geometry
    angles = sorted(geometry.angles)
    arc = math.degrees(angles[-1] - angles[0])
    unit = " mm" if geometry.unit == "mm" else ""
    width = f" of {geometry.bin_width:g}{unit}" if unit else ""
    fields = [name for name in ("flat", "dark") if getattr(scan, name) is not None]
    beside = f", {' and '.join(fields)} fields" if fields else ""
    low, high = scan.projections.aminmax()
    return (
        f"a sinogram, {scan.quantity} from {float(low):.3g} to {float(high):.3g}{beside}: "
        f"{rows} row{'s' * (rows > 1)}, {views} views over {arc:.4g} degrees, {bins} bins{width}, "
        f"{geometry.beam} beam"
    )


def about_slices(reconstructor: ScanReconstructor, scan: Sinogram) -> str:
    """The slices that would be computed from a scan, and its noise."""
    size, extent = reconstructor.grid(scan)
    in_mm, rows = scan.geometry.unit == "mm", len(scan.projections)
    pixel = f"{extent / size:.3g} mm a pixel, in HU" if in_mm else "per detector pixel"
    found = f"{rows} slice{'s' * (rows > 1)} of {size} x {size}, {pixel}"
    quantity, flat, dark = reconstructor.checked(scan)
    if quantity == "counts" and flat is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line_integrals(scan.data, flat, 0.0 if dark is None else dark)  # refuses dead detectors
    if quantity == "counts" or reconstructor.sigma or reconstructor.photons:
        return found
    photons = estimated_photons(integrals_of(scan.data.float(), quantity))
    return f"{found}; {photons:.3g} photons in a free ray (estimated)"


def painted(contents: Contents) -> str | None:
    """The colour that marks missing parts, if pixels have exactly one such colour."""
    picture = contents.picture
    if picture.channels != 3 or picture.stored.dtype != np.uint8:
        return None
    pixels = picture.stored.reshape(-1, 3, *picture.stored.shape[-2:])
    for colour in PAINTS:
        levels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])[:, None, None]
        near = (np.abs(pixels.astype(np.int16) - levels) <= 2).all(1)
        if near.mean() >= PAINTED:
            return colour
    return None


def _kind(contents: Contents) -> str:
    """Kind, size and depth of an image."""
    picture = contents.picture
    planes, _, height, width = contents.images.shape
    pages = planes // picture.channels
    colour = "in colour" if contents.as_grey().channels == 3 else "grey"
    size = f"{width} x {height}" + (f", {pages} pages" if pages > 1 else "")
    if contents.volume is not None:
        return f"a CT slice in HU, {size}"
    kind = picture.stored.dtype
    depth = "floats" if kind.kind == "f" else f"{8 * kind.itemsize} bits"
    name = "a DICOM image" if Path(contents.name).suffix.lower() in DICOM else "a picture"
    return f"{name}, {size}, {colour}, {depth}"


def _noise(contents: Contents) -> str:
    contents = contents.as_grey()
    images = sampled(contents.images)
    if is_line_art(images, None):
        return "mostly black and white: give --noise and --sigma"
    try:
        with torch.no_grad():
            found = estimate_noise(images, None, "gaussian" if contents.is_dicom else None)
            return str(before_compression(found, contents, None, together=True))
    except ValueError as error:
        return f"its noise cannot be estimated ({error}): give --sigma"
