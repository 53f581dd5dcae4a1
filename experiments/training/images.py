"""Faces to train on, or else tiles of the photographs inside the package."""

from __future__ import annotations

from pathlib import Path

from convexlift.images import load_example
from convexlift.training import ImageSet
from experiments.images import EXAMPLES, TUNING_EXAMPLE, resized, squares

TILED = (*EXAMPLES[2:], TUNING_EXAMPLE)
"""Not the first two, which are tested on where there are no faces."""
ACROSS = 4
"""Tiles in a row of a photograph."""


def training_images(data: Path | None, count: int | None, size: int) -> ImageSet:
    """The first training faces, brought to a size; tiles of photographs without data."""
    folder = None if data is None else data / "faces" / "train"
    if folder is None or not folder.is_dir():
        return tiles(size)
    found = ImageSet.from_folder(folder, limit=count)
    if found.size(0) == (size, size):
        return found
    return ImageSet.from_tensors(list(squares(found, size)[:, 0]), found.names)


def tiles(size: int) -> ImageSet:
    """Squares of photographs, 16 of each."""
    planes, names = [], []
    for name in TILED:
        photograph = resized(load_example(name)[0], ACROSS * size)[0]
        for i in range(ACROSS):
            for j in range(ACROSS):
                rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
                planes.append(photograph[rows, columns])
                names.append(f"{name} {i} {j}")
    return ImageSet.from_tensors(planes, names)
