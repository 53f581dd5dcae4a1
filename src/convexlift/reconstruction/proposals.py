"""What a file is, and which task suits it: a look at its kind, size, noise and missing pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from convexlift.files.formats import EXPORTS, reason_of
from convexlift.reconstruction.contents import DICOM, PICTURES, Contents, open_contents
from convexlift.reconstruction.noise import estimate_noise, is_line_art, spread
from convexlift.reconstruction.sources import SINOGRAMS, glance, sides
from convexlift.scans.kspace import SUFFIXES as K_SPACES

PAINTS = ("#ff00ff", "#00ff00", "#00ffff", "#ff0000")
"""Colours that people mark missing parts with; photographs have hardly any pixel of them."""
RESULTS = {"denoise": "denoised", "inpaint": "filled", "ct": "slice", "mri": "image"}
"""Endings of the names of results, by task."""
PAINTED = 1e-3
"""The least share of such pixels."""


@dataclass(frozen=True)
class Proposal:
    """What to do with a file.

    Attributes:
        path: the file.
        about: its content in words, or the reason why nothing can be done.
        task: denoise, inpaint or ct; None if nothing can be done.
        options: of the command line, besides the names of files.
        ending: of the result's name.
    """

    path: Path
    about: str
    task: str | None = None
    options: tuple[str, ...] = ()
    ending: str = ""

    @property
    def target(self) -> Path:
        """A name for the result, beside the file."""
        done = {"denoise": "denoised", "inpaint": "filled", "ct": "slice", "mri": "image"}.get(
            self.task or "", ""
        )
        return self.path.with_name(f"{self.path.stem}-{done}{self.ending or self.path.suffix}")


def propose(path: Path, max_megapixels: float | None = None) -> Proposal:
    """Look at a file; files that cannot be read are described, not raised."""
    ending = path.suffix.lower()
    if (advice := EXPORTS.get(ending)) is not None:
        return Proposal(path, advice)
    if (wrong := glance(path)) is not None:
        return Proposal(path, wrong)
    if ending in SINOGRAMS and (ending not in PICTURES or sides(path)):
        hint = ", unless it is k-space, for reconstruct mri" if ending in K_SPACES else ""
        return Proposal(path, f"a sinogram{hint}", "ct", ending=".tif")
    if ending not in PICTURES:
        known = ", ".join(sorted({*PICTURES, *SINOGRAMS}))
        return Proposal(path, f"not a kind of file that is read ({known})")
    try:
        contents = open_contents(path, max_megapixels=max_megapixels)
    except Exception as error:  # decoders raise nearly every type
        return Proposal(path, f"it cannot be read: {reason_of(error)}")
    about = [_kind(contents)]
    if contents.missing is not None:
        share = 100 * float(contents.missing.double().mean())
        about.append(f"{share:.2g} % of its numbers are NaN")
        return Proposal(path, ", ".join(about), "inpaint")
    if (colour := painted(contents)) is not None:
        about.append(f"painted with {colour}")
        tolerance = ("--colour-tolerance", "20") if ending in (".jpg", ".jpeg") else ()
        return Proposal(path, ", ".join(about), "inpaint", ("--mask-colour", colour, *tolerance))
    about.append(_noise(contents))
    if ending == ".npy":
        about.append(f"or a sinogram without {path.with_suffix('.json').name}, for reconstruct ct")
    return Proposal(path, ", ".join(about), "denoise")


def painted(contents: Contents) -> str | None:
    """The colour that marks missing parts, if there are pixels of exactly one."""
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
    colour = "in colour" if picture.channels == 3 else "grey"
    size = f"{height} x {width}" + (f", {pages} pages" if pages > 1 else "")
    if contents.volume is not None:
        return f"a CT slice in HU, {size}"
    kind = picture.stored.dtype
    depth = "floats" if kind.kind == "f" else f"{8 * kind.itemsize} bits"
    name = "a DICOM image" if Path(contents.name).suffix.lower() in DICOM else "a picture"
    return f"{name}, {size}, {colour}, {depth}"


def _noise(contents: Contents) -> str:
    images = contents.images[spread(contents.images)]
    if is_line_art(images, None):
        return "mostly black and white: give --noise and --sigma"
    try:
        with torch.no_grad():
            return str(estimate_noise(images, None, "gaussian" if contents.is_dicom else None))
    except ValueError as error:
        return f"its noise cannot be estimated ({error}): give --sigma"
