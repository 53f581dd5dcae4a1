"""Files to reconstruct: which ones, where their results go, and what is in them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import (
    Picture,
    PictureFormat,
    Range,
    displayed_size,
    read_picture,
    writable,
    write_picture,
)
from convexlift.images import atomic_path
from convexlift.scans.dicom_reading import DICOM_SUFFIXES, read_dicom
from convexlift.scans.dicom_writing import write_dicom
from convexlift.scans.formats import SinogramFormat, files_in
from convexlift.scans.hounsfield import hounsfield_to_unit, unit_to_hounsfield
from convexlift.scans.sinogram_arrays import FORMAT
from convexlift.scans.volumes import Volume
from convexlift.tasks import Bounds

DICOM = DICOM_SUFFIXES
PICTURES = (*PictureFormat.known_suffixes(), *DICOM)
SINOGRAMS = SinogramFormat.known_suffixes()

RangeChoice = Range | Literal["auto", "data"]


class InputError(ValueError):
    """A file or an option that cannot be used: one sentence, and what to do."""


@dataclass(frozen=True)
class Source:
    """A file and the place of its result."""

    path: Path
    target: Path

    @property
    def record(self) -> Path:
        """The JSON file beside the result."""
        return self.target.with_suffix(".json")

    @property
    def gap_map(self) -> Path:
        """The NPY file with the map of the gap."""
        return self.target.with_name(f"{self.target.stem}.gap.npy")

    @property
    def gap_picture(self) -> Path:
        """The same as a picture."""
        return self.target.with_name(f"{self.target.stem}.gap.png")

    @property
    def proof(self) -> Path:
        """The proof file."""
        return self.target.with_suffix(".proof")

    def results(self, *, gap_map: bool = True, proof: bool = True) -> list[Path]:
        """All files that may be written: the result, its record, maps of the gap, the proof."""
        maps = [self.gap_map, self.gap_picture] if gap_map else []
        return [self.target, self.record, *maps, *([self.proof] if proof else [])]


def find_sources(
    inputs: Sequence[str], output: Path, suffixes: Sequence[str], ending: str | None = None
) -> list[Source]:
    """Files, the files of folders, and those that globs match, each with its target.

    ``output`` is a file for a single input file, unless it is a folder already or has no ending;
    else a folder, in which results have the names of their inputs (with ``ending``, if given).
    Files in folders whose names end otherwise than ``suffixes`` are left alone; a file that is
    named must end so. Links that lead nowhere are files, too, which cannot be read.
    """
    found: list[tuple[Path, Path]] = []  # and the name in the output folder
    whole_folder = False
    for each in inputs:
        place = Path(each)
        if place.is_dir():
            whole_folder = True
            inside = files_in(place) + sorted(p for p in place.iterdir() if _leads_nowhere(p))
            files = [p for p in inside if _wanted(p, suffixes)]
            if not files:
                raise InputError(
                    f"the folder {place} has no file that ends in one of {', '.join(suffixes)}"
                )
            found += [(file, Path(file.name)) for file in files]
        elif place.exists() or place.is_symlink():
            found.append((place, Path(place.name)))
        elif matches := sorted(Path(m) for m in glob.glob(each, recursive=True)):
            whole_folder = True
            there = (m for m in matches if m.is_file() or _leads_nowhere(m))
            files = [m for m in there if _wanted(m, suffixes)]
            found += [(file, Path(file.name)) for file in files]
        else:
            raise InputError(f"there is no file or folder {each}; check the name")
    # Once each; a link with another name is another input, with a result of its own.
    found = list({(resolved(path), name): (path, name) for path, name in found}.values())
    if not found:
        raise InputError(f"no input ends in one of {', '.join(suffixes)}")
    for path, _ in found:
        if path.suffix.lower() not in suffixes:
            raise InputError(f"{path} ends in none of {', '.join(suffixes)}; convert it first")
    single = len(found) == 1 and not whole_folder and output.suffix and not output.is_dir()
    if single:
        return [Source(found[0][0], output)]
    if output.is_file():
        raise InputError(
            f"{len(found)} results need a folder, and {output} is a file; name another"
        )
    sources = []
    for path, name in found:
        target = output / (name if ending is None else name.with_suffix(ending))
        sources.append(Source(path, target))
    _require_distinct(sources)
    return sources


def _leads_nowhere(path: Path) -> bool:
    """Whether it is a link without a file, in sight as those of ``files_in`` are."""
    return path.is_symlink() and not path.exists() and path.name[0] != "."


def resolved(path: Path) -> Path:
    """What it leads to; of links that lead in a circle, one of them."""
    return Path(os.path.realpath(path))


def _wanted(path: Path, suffixes: Sequence[str]) -> bool:
    """Whether a file of a folder is an input, and no field of a sinogram."""
    is_field = tuple(suffixes) == SINOGRAMS and Path(path.stem).suffix in (".flat", ".dark")
    return path.suffix.lower() in suffixes and not is_field


def _require_distinct(sources: Sequence[Source]) -> None:
    seen: dict[Path, Path] = {}
    for source in sources:
        for place in (source.target, source.record):
            other = seen.setdefault(place, source.path)
            if other != source.path:
                raise InputError(
                    f"{other} and {source.path} would both be written to {place}; "
                    "reconstruct them into different folders"
                )


def sides(path: Path) -> list[Path]:
    """The geometry and the fields of a sinogram, which belong to it."""
    side = path.with_suffix(".json")
    if path.suffix.lower() not in SINOGRAMS or not side.is_file():
        return []
    if FORMAT not in side.read_text(encoding="utf-8", errors="replace"):
        return []
    return [side, path.with_suffix(".flat.npy"), path.with_suffix(".dark.npy")]


def companions(place: Path | None, sources: Sequence[Source]) -> list[Path]:
    """The file, or those of a folder that may belong to the sources: masks, truths."""
    if place is None or not place.is_dir():
        return [] if place is None else [place]
    stems = {source.path.stem for source in sources}
    return [p for p in files_in(place) if p.stem in stems and p.suffix.lower() in PICTURES]


def companion(
    folder: Path,
    path: Path,
    what: str,
    suffixes: Sequence[str] = PictureFormat.known_suffixes(),
) -> Path:
    """The picture in a folder with the name of another: with its ending too, if there are several.

    Args:
        folder: to look in.
        path: of the other picture.
        what: it is wanted for, for errors.
        suffixes: that it may have.
    """
    named = [p for p in files_in(folder) if p.stem == path.stem and p.suffix.lower() in suffixes]
    if not named:
        raise InputError(f"the folder {folder} has no {what} for {path.name}")
    alike = [p for p in named if p.suffix.lower() == path.suffix.lower()] or named
    alike = [p for p in alike if p.name == path.name] or alike
    if len(alike) > 1:
        names = " and ".join(p.name for p in alike)
        raise InputError(f"the folder {folder} has {names} for {path.name}; keep one {what} there")
    return alike[0]


def glance(path: Path) -> str | None:
    """What is wrong with a file, as far as its first bytes say; None if nothing is."""
    try:
        if _leads_nowhere(path):
            return "it is a link that leads to no file"
        if not path.is_file():
            return "there is no such file"
        if path.stat().st_size == 0:
            return "the file is empty"
        with path.open("rb") as file:
            start = file.read(132)
    except OSError as error:
        return f"it cannot be opened ({error.strerror})"
    kind = PictureFormat.of(path)
    if kind is not None and kind.misnamed(start):
        return f"this is no {kind.name} file, whatever its name says"
    return None


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file holds, as planes for the solver.

    Attributes:
        images: (planes, 1, H, W) in [0, 1], or near; finite.
        missing: where the file itself says that nothing is known (NaN), or None.
        numbers: of the file that became 0 and 1.
        box: where the images lie.
        notes: what the user should know.
    """

    original: Picture | Volume
    images: Tensor
    missing: Tensor | None
    numbers: Range
    box: Bounds = (0.0, 1.0)
    notes: tuple[str, ...] = field(default=())

    @property
    def orientation(self) -> int:
        """How the planes are turned to be displayed: see ``Picture``."""
        return self.original.orientation if isinstance(self.original, Picture) else 1

    def write(self, images: Tensor, target: Path, description: str) -> None:
        """The file again with other images; never half of it."""
        kind = target.suffix.lower()
        if isinstance(self.original, Volume):
            write_slices(self.original.with_values(unit_to_hounsfield(images)), target, description)
            return
        picture = self.original.with_values(images[:, 0].cpu().numpy(), self.numbers)
        with atomic_path(target) as part:
            write_picture(picture, part, kind)


def require_size(what: str, place: Path, picture: Picture, contents: Contents, name: Path) -> None:
    """Refuse a mask or a truth that does not lie on its picture, as both are displayed."""
    shown = displayed_size(picture.stored.shape, picture.orientation)
    wanted = displayed_size(contents.images.shape, contents.orientation)
    if shown != wanted:
        how = "" if contents.orientation == 1 else " when it is displayed"
        raise InputError(
            f"the {what} {place} is {shown[0]} x {shown[1]}, but {name} is {wanted[0]} x "
            f"{wanted[1]}{how}; give one of its size"
        )


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Errors of the disk, which know nothing of results, with the name of the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(
            f"{place} cannot be written ({reason}); make room there, or name another folder"
        ) from error


def write_slices(volume: Volume, target: Path, description: str) -> None:
    """A DICOM file, under a temporary name first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_dicom(volume.to(device=torch.device("cpu")), target, description=description)


def read_contents(
    path: Path,
    target: Path,
    choice: RangeChoice = "auto",
    *,
    max_megapixels: float | None = None,
) -> Contents:
    """The planes of a file, and the check that its target can hold them."""
    if path.suffix.lower() in DICOM:
        volume = read_dicom(path, max_megapixels=max_megapixels)
        if target.suffix.lower() not in DICOM:
            raise InputError(f"{path} is DICOM, and so must be the result; let it end in .dcm")
        images = hounsfield_to_unit(volume.images).float()
        return Contents(volume, images, None, (-1024.0, 1500.0), (0.0, 2.0))
    picture = read_picture(path, max_megapixels=max_megapixels)
    if (reason := writable(picture, target.suffix.lower())) is not None:
        raise InputError(f"{path} cannot be written to {target.name}: {reason}; try .tif or .npy")
    numbers, notes = _range(picture, choice)
    values = picture.values(numbers)
    unknown = ~np.isfinite(values)
    if unknown.all():
        raise InputError(f"{path} has no finite number in it")
    images = torch.from_numpy(np.where(unknown, np.float32(0), values))[:, None]
    missing = torch.from_numpy(unknown)[:, None] if unknown.any() else None
    return Contents(picture, images.contiguous(), missing, numbers, notes=notes)


def _range(picture: Picture, choice: RangeChoice) -> tuple[Range, tuple[str, ...]]:
    """The numbers that become 0 and 1."""
    if isinstance(choice, tuple):
        return choice, ()
    stored = picture.stored
    finite = stored[np.isfinite(stored)] if stored.dtype.kind == "f" else stored
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    data = (low, high) if high > low else (low, low + 1)
    if choice == "data":
        return data, ()
    full = picture.full_range
    if stored.dtype.kind == "f":
        if low >= -0.5 and high <= 1.5:
            return full, ()
        return data, (f"its numbers from {low:g} to {high:g} were mapped to 0 ... 1 (--range)",)
    if low < 0:
        return data, (f"its numbers from {low:g} to {high:g} were mapped to 0 ... 1 (--range)",)
    if high < full[1] / 8 and stored.dtype.itemsize > 1:
        share = 100 * high / full[1]
        return full, (f"it uses {share:.2g} % of its range only; --range data may do better",)
    return full, ()
