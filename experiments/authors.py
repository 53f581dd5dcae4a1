"""The authors' published files, where a user has them, and the data that their scripts make.

The repository of the paper's authors is github.com/hsw43/icnn_primal_dual (MIT; facts about it are
of commit 873d50b). It holds the slice of the CT figure with its counts and filtered back
projection, and the weights of the bilevel network for inpainting:

    data/phantom.npy, data/sino.npy, data/fbp.npy
    weights/reg_smoothed_icnn_ip_BL-PD.pt

The slice is Mayo Clinic data: it is read where it is, and never part of this project. A folder
with the same files side by side, such as ``paper-ct`` in a data folder, does as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import convexlift as cl
from convexlift.tasks import Measurement, SaltAndPepper, SparseViewCT, Task
from experiments.images import Images, load_faces

ARRAYS = {"phantom": (512, 512), "sino": (200, 400), "fbp": (512, 512)}
"""Names and shapes of the arrays of the slice."""
WEIGHTS = "reg_smoothed_icnn_ip_BL-PD.pt"
GAMMA = 0.1
"""The weight of that network: ``lmbd`` in the authors' scripts, which train with it too."""
REPOSITORY = "github.com/hsw43/icnn_primal_dual"
BESIDE = "paper-ct"
"""The folder of the slice in a data folder."""


def find_authors(given: Path | None, data: Path | None) -> Path | None:
    """The folder of the authors' files, or None if there is none and none was asked for.

    Raises ValueError for a folder without them, or with damaged ones.
    """
    if given is None:
        given = None if data is None else data / BESIDE
        if given is None or not given.is_dir():
            return None
    if not given.is_dir():
        raise ValueError(
            f"--authors {given} is not a folder; name your copy of {REPOSITORY}, or leave it out"
        )
    if _find(given, "sino.npy") is None and _find(given, WEIGHTS) is None:
        raise ValueError(
            f"{given} holds neither data/sino.npy nor weights/{WEIGHTS}; name the top "
            f"folder of your copy of {REPOSITORY}"
        )
    ReleasedSlice.of(given)
    return given


def find_weights(folder: Path | None) -> Path | None:
    """The authors' weights for inpainting, if they are there."""
    return None if folder is None else _find(folder, WEIGHTS)


def _find(folder: Path, name: str) -> Path | None:
    places = (folder / name, folder / "data" / name, folder / "weights" / name)
    return next((place for place in places if place.is_file()), None)


@dataclass(frozen=True, eq=False)
class ReleasedSlice:
    """The slice of the paper's CT figure, on the CPU in float32."""

    phantom: Tensor  # (1, 1, 512, 512), like fbp
    counts: Tensor  # (1, 1, 200, 400)
    fbp: Tensor  # the authors' filtered back projection

    @classmethod
    def of(cls, folder: Path | None) -> ReleasedSlice | None:
        """From the authors' folder, or None if it has no slice; ValueError for a damaged one."""
        if folder is None or _find(folder, "sino.npy") is None:
            return None
        return cls(*(_array(folder, name)[None, None] for name in ARRAYS))

    @property
    def images(self) -> Images:
        """The clean slice."""
        return Images(("phantom.npy",), self.phantom, "slice of the paper's figure", faithful=True)


def _array(folder: Path, name: str) -> Tensor:
    """One array: the authors' files are saved by torch, despite their ending; copies by NumPy."""
    path = _find(folder, f"{name}.npy")
    if path is None:
        raise ValueError(f"{folder} holds sino.npy, but not {name}.npy; copy all three files")
    advice = f"copy it from {REPOSITORY} again"
    try:
        if path.read_bytes()[:6] == b"\x93NUMPY":
            array = torch.from_numpy(np.load(path, allow_pickle=False))
        else:
            array = torch.load(path, map_location="cpu", weights_only=True)
        array = array.squeeze().to(torch.float32)
    except Exception as error:  # whatever the readers raise for a file that is not theirs
        reason = type(error).__name__
        raise ValueError(f"{path} is not a readable array ({reason}); {advice}") from None
    if tuple(array.shape) != ARRAYS[name] or not bool(array.isfinite().all()):
        raise ValueError(f"{path} is not {ARRAYS[name]} finite numbers, as the authors'; {advice}")
    return array


@dataclass(frozen=True, eq=False)
class ReleasedCounts(Task):
    """The data of the released slice, which are measured already."""

    name: ClassVar[str] = "ct"
    counts: Tensor
    picture: Tensor  # the start of the methods, and the data as an image
    task: SparseViewCT  # scanner, background and box

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The counts, whatever the generators."""
        scanner = self.task.scanner.to(dtype=self.counts.dtype)
        fidelity = cl.KullbackLeibler(self.counts, self.task.background)
        return Measurement(fidelity, scanner, self.task.box, self.picture)


@dataclass(frozen=True)
class AuthorsSaltAndPepper(SaltAndPepper):
    """The noise of ``example_denoise.py``: one uniform number for each pixel, from the seed 0."""

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The same noise for every image."""
        drawn = torch.rand(clean.shape[1:], generator=torch.Generator().manual_seed(0))
        noisy = torch.where(drawn < self.fraction / 2, 0.0, clean)
        noisy = torch.where(drawn > 1 - self.fraction / 2, 1.0, noisy)
        return Measurement(cl.L1(noisy, self.scale), cl.Identity(), self.box, noisy)


@dataclass(frozen=True, eq=False)
class SeedZero(Task):
    """A task whose noise begins with ``torch.manual_seed(0)``, as in the authors' scripts."""

    name: ClassVar[str] = "seed zero"
    task: Task

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The same noise for every image."""
        return self.task.measure(clean, [torch.Generator().manual_seed(0) for _ in generators])


def one_face(data: Path | None, number: int, size: int) -> Images:
    """One of the paper's test faces, or the first photograph of the package in its place."""
    found = load_faces(data, number + 1, size)
    if len(found.names) <= number or not found.faithful:
        return Images(found.names[:1], found.clean[:1], found.source, False, found.mask)
    return Images(found.names[number:], found.clean[number:], found.source, True, found.mask)
