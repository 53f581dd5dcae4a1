"""Input files and the paths of their results, found and checked before any work begins."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convexlift.files.atomic import remove_dead_folders, remove_leftovers
from convexlift.files.formats import EXPORTS
from convexlift.files.pictures import PictureFormat
from convexlift.reconstruction.contents import PICTURES, ImageLike, InputError, is_path
from convexlift.scans.files import SinogramFormat, files_in
from convexlift.scans.sinogram_formats import files_beside

SINOGRAMS = SinogramFormat.known_suffixes()


@dataclass(frozen=True)
class Source:
    """A file, and the path of its result.

    Attributes:
        path: the input.
        target: the result.
    """

    path: Path
    target: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def record(self) -> Path:
        """The JSON file beside the result."""
        return self.target.with_suffix(".json")

    @property
    def gap_maps(self) -> list[Path]:
        """The files of the gap map: NPY and a picture."""
        return self._maps("gap")

    @property
    def weight_maps(self) -> list[Path]:
        """The files of the weight map: NPY and a picture."""
        return self._maps("weights")

    def _maps(self, of: str) -> list[Path]:
        return [self.target.with_suffix(f".{of}{ending}") for ending in (".npy", ".png")]

    @property
    def proof(self) -> Path:
        """The proof file."""
        return self.target.with_suffix(".proof")

    def results(
        self, *, gap_map: bool = True, weight_map: bool = True, proof: bool = True
    ) -> list[Path]:
        """All files that may be written: the result, its record, maps, the proof."""
        maps = [*(self.gap_maps if gap_map else ()), *(self.weight_maps if weight_map else ())]
        return [self.target, self.record, *maps, *([self.proof] if proof else [])]


def find_sources(
    inputs: Sequence[str], output: Path, suffixes: Sequence[str], ending: str | None = None
) -> list[Source]:
    """The files given, in folders, or matched by globs, each with its target.

    ``output`` is a file for a single input file, unless it is an existing folder or has no ending;
    otherwise a folder, in which results have the names of their inputs (with ``ending``, if given).
    Files in folders with an ending other than ``suffixes`` are skipped; a named file must have one
    of them. Broken links count as files, which fail when they are read.
    """
    endings = ", ".join(suffixes)
    if not inputs:
        raise InputError("there is no input; name files, folders or globs")
    found: list[Path] = []
    several = False
    for each in inputs:
        place = Path(each)
        if not place.is_dir() and (place.exists() or place.is_symlink()):
            found.append(place)
            continue
        several = True
        if place.is_dir():
            inside = files_in(place) + sorted(filter(_leads_nowhere, place.iterdir()))
        elif not (inside := sorted(Path(match) for match in glob.glob(each, recursive=True))):
            raise InputError(f"there is no file or folder {each}; check the name")
        wanted = _wanted([p for p in inside if not p.is_dir()], suffixes)
        if place.is_dir() and not wanted:
            if other := next((p for p in inside if p.suffix.lower() in EXPORTS), None):
                raise InputError(f"{other} is {EXPORTS[other.suffix.lower()]}")
            raise InputError(f"the folder {place} has no file with one of the endings {endings}")
        found += wanted
    # Each file once; a link with another name is another input, with its own result.
    found = list({(resolved(path), path.name): path for path in found}.values())
    if not found:
        raise InputError(f"no input has one of the endings {endings}")
    for path in found:
        if path.suffix.lower() not in suffixes and path.suffix.lower() in EXPORTS:
            raise InputError(f"{path} is {EXPORTS[path.suffix.lower()]}")
        if path.suffix.lower() not in suffixes:
            raise InputError(f"{path} has none of the endings {endings}; convert it first")
    if len(found) == 1 and not several and output.suffix and not output.is_dir():
        return [Source(found[0], output)]
    if output.is_file():
        raise InputError(
            f"{len(found)} results need a folder, and {output} is a file; name another"
        )
    targets = [(output / path.name).with_suffix(ending or path.suffix) for path in found]
    sources = [Source(path, target) for path, target in zip(found, targets, strict=True)]
    seen: dict[Path, Path] = {}
    for source in sources:
        for place in (source.target, source.record):
            other = seen.setdefault(place, source.path)
            if other != source.path:
                raise InputError(
                    f"{other} and {source.path} would both be written to {place}; "
                    "reconstruct them into different folders"
                )
    return sources


def _leads_nowhere(path: Path) -> bool:
    """Whether the path is a broken link, and not hidden."""
    return path.is_symlink() and not path.exists() and path.name[0] != "."


def resolved(path: Path) -> Path:
    """The file behind a link; unlike ``Path.resolve``, accepts circular links."""
    return Path(os.path.realpath(path))


def _wanted(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """The inputs among the files of a folder, without flat and dark fields of sinograms."""
    wanted = [path for path in paths if path.suffix.lower() in suffixes]
    if tuple(suffixes) != SINOGRAMS:
        return wanted
    named = {side for path in wanted for side in sides(path)}
    ends = (".flat", ".dark")
    return [path for path in wanted if path not in named and Path(path.stem).suffix not in ends]


def sides(path: Path) -> list[Path]:
    """The geometry and the fields of a sinogram."""
    return files_beside(path) if path.suffix.lower() in SINOGRAMS else []


def companions(place: ImageLike | None, paths: Sequence[Path]) -> list[Path]:
    """The file, or the pictures in a folder that have the name of one of these images."""
    if not is_path(place):
        return []
    if not Path(place).is_dir():
        return [Path(place)]
    stems = {path.stem for path in paths}
    return [p for p in files_in(Path(place)) if p.stem in stems and p.suffix.lower() in PICTURES]


def companion(
    place: ImageLike,
    image: ImageLike,
    what: str,
    suffixes: Sequence[str] = PictureFormat.known_suffixes(),
) -> ImageLike:
    """The mask or truth of an image: the file of its name in a folder, else ``place`` itself.

    If several files have the name, the one with the same ending is used.
    """
    if not is_path(place) or not Path(place).is_dir():
        return place
    if not is_path(image):
        raise InputError(f"--{what} is a folder; give a file, or an array like the image")
    path = Path(image)
    named = [p for p in companions(place, [path]) if p.suffix.lower() in suffixes]
    if not named:
        raise InputError(f"the folder {place} has no {what} for {path.name}")
    alike = [p for p in named if p.suffix.lower() == path.suffix.lower()] or named
    alike = [p for p in alike if p.name == path.name] or alike
    if len(alike) > 1:
        names = " and ".join(p.name for p in alike)
        raise InputError(f"the folder {place} has {names} for {path.name}; keep one {what} there")
    return alike[0]


def glance(path: Path) -> str | None:
    """The first fault visible in the first bytes of a file, or None."""
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
        return f"not a {kind.name} file, despite its name"
    return None


def check_targets(
    sources: Sequence[Source],
    *,
    replace: bool,
    gap_map: bool = False,
    weight_map: bool = False,
    proof: bool = False,
    also_read: Sequence[Path] = (),
    overviews: Sequence[Path] = (),
) -> None:
    """Create the folders, and refuse to overwrite inputs, or other files without ``replace``.

    Temporary files and folders that killed runs left beside these results are removed.

    Args:
        sources: files and targets.
        replace: whether files that exist may be replaced.
        gap_map: whether maps of the gap are written.
        weight_map: whether maps of the weights are written.
        proof: whether proof files are written.
        also_read: further inputs: masks, truths, a saved regularizer.
        overviews: tables and summaries of all results.
    """
    inputs = {resolved(place) for place in also_read}
    for source in sources:
        inputs |= {resolved(place) for place in (source.path, *sides(source.path))}
    written: set[Path] = set()
    for source in sources:
        places = source.results(gap_map=gap_map, weight_map=weight_map, proof=proof)
        for place in places:
            _require_free(place, inputs, replace)
        written |= {resolved(place) for place in places}
    for place in overviews:
        _require_free(place, inputs, replace)
        if resolved(place) in written:
            raise InputError(f"{place} is the name of a result; name another file for all")
    results = [*(place for source in sources for place in source.results()), *overviews]
    for folder in {place.parent for place in results}:
        _require_writable(folder)
        remove_dead_folders(folder)
    remove_leftovers(results)


def _require_writable(folder: Path) -> None:
    """Create the folder, and try to write to it."""
    problem = "cannot be a folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "cannot be written to"
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder} {problem} ({error.strerror}); name another folder") from None


def _require_free(place: Path, inputs: set[Path], replace: bool) -> None:
    if resolved(place) in inputs:
        raise InputError(f"{place} is an input; write the results to another folder")
    if place.is_dir():
        raise InputError(f"{place} is a folder; name another output")
    if place.exists() and not place.is_file():  # a result would replace the device by a file
        raise InputError(f"{place} is a device or a pipe; name a file (--json - writes to a pipe)")
    if place.exists() and not replace:
        raise InputError(
            f"{place} exists; name another output, or add --force (or --resume, which keeps "
            "finished results)"
        )
