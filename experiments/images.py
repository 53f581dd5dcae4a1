"""Images of the experiments: the paper's faces and other CT slices, or those in the package.

A data folder has the layout

    faces/train, faces/test, faces/mask.png     256 x 256, the paper's split and its mask
    ct/train, ct/test                           512 x 512
    paper-ct                                    files of the paper's authors, see ``authors``

It is the folder of ``--data``, or of the environment variable CONVEXLIFT_DATA.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.images import load_example, load_image
from convexlift.training import ImageSet

EXAMPLES = ("astronaut", "coffee", "chelsea", "rocket", "brick")
TUNING_EXAMPLE = "camera"
"""Step sizes are chosen on this picture, which is never measured."""

VARIABLE = "CONVEXLIFT_DATA"
FACE_SIZE = 256
TEST_FACES = tuple(f"{i:05d}.png" for i in range(20))
"""The names of the paper's test faces in its split."""


@dataclass(frozen=True, eq=False)
class Images:
    """Clean test images."""

    names: tuple[str, ...]  # of the files or examples
    clean: Tensor  # (B, 1, N, N), on the CPU
    source: str  # a short description
    faithful: bool  # whether they are the paper's, in its size
    # for inpainting, (N, N), if there is one: the paper's, where they are faithful
    mask: Tensor | None = None


def find_data(given: Path | None) -> Path | None:
    """The data folder, or None if there is none and none was asked for."""
    if given is not None:
        return _require_folder(given, "--data")
    if named := os.environ.get(VARIABLE):
        return _require_folder(Path(named), VARIABLE)
    return None


def load_faces(data: Path | None, count: int, size: int = FACE_SIZE) -> Images:
    """The first test faces with their mask; photographs in the package without data."""
    folder = None if data is None else data / "faces"
    if folder is None or not (folder / "test").is_dir():
        names = EXAMPLES[:count]
        pictures = ImageSet.from_tensors([load_example(name)[0, 0] for name in names], names)
        return Images(names, squares(pictures, size), "photographs inside the package", False)
    found = ImageSet.from_folder(folder / "test", limit=count)
    mask_file = folder / "mask.png"
    mask = (load_image(mask_file)[0, 0] >= 0.5).float() if mask_file.exists() else None
    if mask is not None and tuple(mask.shape) != (size, size):
        mask = None
    known = _are_test_faces(folder / "test", found)
    source = "test faces of the paper (FFHQ)" if known else f"images in {folder / 'test'}"
    return Images(found.names, squares(found, size), source, known and size == FACE_SIZE, mask)


def training_faces(data: Path | None, size: int, count: int | None = None) -> ImageSet | None:
    """The first training faces, brought to a size; None without data."""
    folder = None if data is None else data / "faces" / "train"
    if folder is None or not folder.is_dir():
        return None
    found = ImageSet.from_folder(folder, limit=count)
    if found.size(0) == (size, size):
        return found
    return ImageSet.from_tensors(list(squares(found, size)[:, 0]), found.names)


def squares(images: ImageSet, size: int) -> Tensor:
    """The middle squares of all images, (B, 1, size, size)."""
    return torch.stack([resized(images[i], size) for i in range(len(images))])


def resized(image: Tensor, size: int) -> Tensor:
    """The middle square of an image (1, H, W), brought to size x size."""
    side = min(image.shape[-2:])
    top, left = (image.shape[-2] - side) // 2, (image.shape[-1] - side) // 2
    square = image[..., top : top + side, left : left + side]
    if side == size:
        return square
    scaled = F.interpolate(
        square[None], (size, size), mode="bicubic", antialias=True, align_corners=False
    )
    return scaled[0].clamp(0, 1)


def _are_test_faces(folder: Path, found: ImageSet) -> bool:
    """As far as names and sizes tell: all of the paper's are there, and the first were read."""
    return (
        found.names == TEST_FACES[: len(found)]
        and all((folder / name).is_file() for name in TEST_FACES)
        and all(found.size(i) == (FACE_SIZE, FACE_SIZE) for i in range(len(found)))
    )


def _require_folder(folder: Path, origin: str) -> Path:
    if not folder.is_dir():
        raise ValueError(
            f"{origin} {folder} is not a folder; name one that holds faces/test or ct/test, "
            "or leave it out for the images inside the package"
        )
    if not any((folder / part).is_dir() for part in ("faces/test", "ct/test")):
        raise ValueError(
            f"{origin} {folder} holds neither faces/test nor ct/test; name the folder above them"
        )
    return folder
