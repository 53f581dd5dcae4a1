"""Images in memory, and random choices as pure functions of integers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convexlift.files.pictures import (
    PictureFormat,
    Plane,
    as_plane,
    read_colours,
    read_plane,
    to_float,
)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with names, in memory; 8-bit and 16-bit images are stored as such.

    Created by ``from_folder``, ``from_folders`` or ``from_tensors``. Grey images are planes (H, W),
    colour images are (3, H, W); a set has one kind.
    """

    names: tuple[str, ...]
    planes: tuple[Plane, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.planes:
            raise ValueError("an ImageSet needs at least one image")
        if len(self.names) != len(self.planes):
            raise ValueError(f"{len(self.planes)} images need as many names, got {len(self.names)}")
        for name, plane in zip(self.names, self.planes, strict=True):
            if plane.ndim != self.planes[0].ndim:
                raise ValueError(
                    f"{name} and {self.names[0]} are not both grey, nor both in colour"
                )
            plane.setflags(write=False)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        limit: int | None = None,
        colour: bool = False,
    ) -> ImageSet:
        """The pictures of a folder, sorted by name; hidden and other files are ignored.

        Args:
            folder: searched without its subfolders.
            limit: maximum number of pictures to read, or None for all.
            colour: whether to read red, green and blue, instead of a grey plane.
        """
        paths = _picture_paths(Path(folder), limit)
        read = read_colours if colour else read_plane
        planes = tuple(read(path) for path in paths)
        return cls(tuple(path.name for path in paths), planes)

    @classmethod
    def from_folders(
        cls,
        folders: Sequence[Path],
        *,
        limit: int | None = None,
        colour: bool = False,
    ) -> ImageSet:
        """The pictures of several folders, one folder after the other; named "folder/file".

        Args:
            folders: distinct folders.
            limit: maximum number of pictures to read from each folder, or None for all.
            colour: whether to read red, green and blue, instead of a grey plane.
        """
        places = [Path(folder).resolve() for folder in folders]
        if not places:
            raise ValueError("no folder was given; give at least one folder with pictures")
        for i, place in enumerate(places):
            if place in places[:i]:
                raise ValueError(f"{folders[i]} is given twice; name each folder once")
        sets = [cls.from_folder(Path(folder), limit=limit, colour=colour) for folder in folders]
        named = zip(places, sets, strict=True)
        return cls(
            tuple(f"{place.name}/{name}" for place, images in named for name in images.names),
            tuple(plane for images in sets for plane in images.planes),
        )

    @classmethod
    def from_tensors(cls, images: Sequence[Tensor], names: Sequence[str] | None = None) -> ImageSet:
        """Copies of tensors (H, W), (1, H, W) or (3, H, W); integers are scaled as in files."""
        if names is None:
            names = [f"image {i}" for i in range(len(images))]
        if len(names) != len(images):
            raise ValueError(f"{len(images)} images need as many names, got {len(names)}")
        planes = []
        for image, name in zip(images, names, strict=True):
            values = image.detach().cpu()
            array = (values.float() if values.is_floating_point() else values).numpy()
            colours = array.ndim == 3 and len(array) == 3
            planes.append(
                np.stack([as_plane(a, name) for a in array]) if colours else as_plane(array, name)
            )
        return cls(tuple(names), tuple(planes))

    def __len__(self) -> int:
        return len(self.planes)

    def __getitem__(self, i: int) -> Tensor:
        """Image i, (C, H, W) in float32; a new tensor."""
        return torch.from_numpy(to_float(self.planes[i])).reshape(self.channels, *self.size(i))

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for images in colour."""
        return 1 if self.planes[0].ndim == 2 else 3

    def size(self, i: int) -> tuple[int, int]:
        """(H, W) of image i."""
        height, width = self.planes[i].shape[-2:]
        return height, width

    def select(self, wanted: Callable[[str], bool]) -> ImageSet:
        """The images whose names satisfy ``wanted``, in their order."""
        places = [i for i, name in enumerate(self.names) if wanted(name)]
        if not places:
            raise ValueError(f"select keeps none of {len(self)} images, such as {self.names[0]}")
        return self._subset(places)

    def split(self, held_out: int | float, seed: int) -> tuple[ImageSet, ImageSet]:
        """Training and validation images: disjoint, together the whole set, each in the same order.

        Args:
            held_out: number of images for validation (an int), or their fraction (a float).
            seed: determines which images are held out.
        """
        if len(self) < 2:
            raise ValueError(f"there is only {self.names[0]}; a split needs at least two images")
        count = held_out
        if isinstance(held_out, float):
            if not 0 < held_out < 1:
                raise ValueError(f"a held-out fraction must lie between 0 and 1, got {held_out}")
            count = round(held_out * len(self))
        if not 0 < count < len(self):
            part = "validation" if count <= 0 else "training"
            raise ValueError(
                f"holding out {held_out} of {len(self)} images leaves none for {part}; "
                f"hold out 1 to {len(self) - 1} of them"
            )
        order = permutation(len(self), mix("split", seed)).tolist()
        held = set(order[: int(count)])
        training = [i for i in range(len(self)) if i not in held]
        return self._subset(training), self._subset(sorted(held))

    def first(self, count: int) -> ImageSet:
        """The first ``count`` images."""
        if not 1 <= count <= len(self):
            raise ValueError(f"there are {len(self)} images, and {count} were asked for")
        return self._subset(range(count))

    def require_size(self, size: tuple[int, int]) -> None:
        """Raise ValueError unless every image is (H, W)."""
        for i, name in enumerate(self.names):
            if self.size(i) != tuple(size):
                raise ValueError(
                    f"{name} is {size_text(self.size(i))}, not {size_text(size)}; "
                    "use images of one size, or take crops"
                )

    def require_at_least(self, size: tuple[int, int]) -> None:
        """Raise ValueError unless (H, W) fits into every image."""
        for i, name in enumerate(self.names):
            if any(there < wanted for there, wanted in zip(self.size(i), size, strict=True)):
                raise ValueError(
                    f"{name} is {size_text(self.size(i))}, smaller than {size_text(size)}; "
                    "leave it out, or take smaller crops"
                )

    def fingerprint(self) -> str:
        """SHA-256 of names, types, sizes and pixels."""
        digest = hashlib.sha256()
        for name, plane in zip(self.names, self.planes, strict=True):
            digest.update(repr((name, str(plane.dtype), plane.shape)).encode())
            digest.update(np.ascontiguousarray(plane).data)
        return digest.hexdigest()

    def _subset(self, chosen: Sequence[int]) -> Self:
        names = tuple(self.names[i] for i in chosen)
        return type(self)(names, tuple(self.planes[i] for i in chosen))


def mix(purpose: str, *numbers: int) -> int:
    """A 63-bit seed from a purpose and integers, by BLAKE2b: similar inputs, unrelated seeds."""
    text = ":".join([purpose, *(str(int(number)) for number in numbers)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@lru_cache(maxsize=8)
def permutation(count: int, seed: int) -> NDArray[np.int64]:
    """A permutation: the order of ``count`` raw random numbers, equal in all NumPy versions."""
    order = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
    order.setflags(write=False)  # callers share the cached array
    return order


def _picture_paths(folder: Path, limit: int | None) -> list[Path]:
    suffixes = PictureFormat.known_suffixes()
    looked_for = ", ".join(suffixes)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or None for all pictures; got {limit}")
    if not folder.exists():
        raise ValueError(f"{folder} does not exist; give a folder with pictures ({looked_for})")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder that holds the pictures")
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file()
    )
    if not paths:
        raise ValueError(f"{folder} has no pictures; their names must end in one of {looked_for}")
    return paths[:limit]


def size_text(size: tuple[int, int]) -> str:
    """A size in words, such as "64 x 48"."""
    return " x ".join(str(n) for n in size)
