"""CT slices for training, validation and test, and the paper's scanner for their size.

With a data folder they are the slices in ct/train and ct/test; without one they are random ellipses
that resemble them: a body with lungs, bones and organs, in the same units, (HU + 1024) / 2524.
Neither are the paper's, which come from the Mayo Clinic. Its authors published the one in its
figure, with counts and filtered back projection: ``authors.ReleasedSlice``, which nothing is chosen
by.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import convexlift as cl
from convexlift.images import load_image
from convexlift.phantoms import Ellipse, ellipse_image
from convexlift.training import ImageSet, mix
from experiments.images import Images

FULL_SIZE = 512
TEST_PATIENT = "TCGA-17-Z011"
SHOWN = f"{TEST_PATIENT}_011.png"
"""The test slice of all curves and pictures, if it is there."""
VALIDATION_PATIENT = "NLST-101287"
"""No slice of this patient is trained on; the test patient is another one again."""
WATER = 0.406


@dataclass(frozen=True)
class SliceCounts:
    """Numbers of slices; None for all of a folder, and for 64 phantoms without one."""

    training: int | None
    validation: int
    test: int


@dataclass(frozen=True, eq=False)
class Slices:
    """Of different patients."""

    training: ImageSet  # to learn from
    validation: ImageSet  # to choose a weight on
    test: ImageSet  # used at the end only, the shown one first
    source: str  # what they are, in a few words

    @property
    def shown(self) -> Images:
        """The slice of curves and pictures, which is not the one in the paper's figure."""
        return Images(self.test.names[:1], self.test[0][None], self.source, faithful=False)


def load_slices(data: Path | None, size: int, counts: SliceCounts) -> Slices:
    """Slices averaged down to a size, or phantoms."""
    folder = None if data is None else data / "ct"
    if folder is None or not all((folder / part).is_dir() for part in ("train", "test")):
        return phantom_slices(size, counts)
    every = sorted((folder / "train").glob("*.png"))
    own = [path for path in every if path.name.startswith(VALIDATION_PATIENT)]
    others = [path for path in every if path not in own]
    test = sorted((folder / "test").glob("*.png"), key=lambda path: (path.name != SHOWN, path.name))
    known = all(path.name.startswith(TEST_PATIENT) for path in test) and own and others
    return Slices(
        _read(_spread(others, counts.training), size),
        _read(_spread(own, counts.validation), size),
        _read([test[0], *_spread(test[1:], counts.test - 1)], size),
        "CT slices of chest and abdomen (TCIA)" if known else f"images in {folder}",
    )


def phantom_slices(size: int, counts: SliceCounts) -> Slices:
    """Random ellipses, other ones for each purpose."""

    def draw(purpose: str, count: int) -> ImageSet:
        names = [f"{purpose} phantom {i + 1}" for i in range(count)]
        images = [ellipse_image(random_body(mix(name)), size, samples=2) for name in names]
        return ImageSet.from_tensors([image[0, 0].float().clamp(0, 1) for image in images], names)

    return Slices(
        draw("training", counts.training or 64),
        draw("validation", counts.validation),
        draw("test", counts.test),
        "random phantoms of ellipses",
    )


def random_body(seed: int) -> tuple[Ellipse, ...]:
    """A body of water with two lungs, a spine, ribs and organs of low contrast."""
    draw = random.Random(seed).uniform
    wide, high = draw(0.7, 0.88), draw(0.5, 0.68)
    ellipses = [Ellipse(WATER, wide, high, 0.0, draw(-0.05, 0.05), draw(-5, 5))]
    lung = -draw(0.2, 0.32)
    for side in (-1, 1):
        a, b = draw(0.2, 0.3) * wide, draw(0.45, 0.6) * high
        ellipses.append(Ellipse(lung, a, b, side * draw(0.4, 0.5) * wide, 0.1, side * draw(0, 20)))
    ellipses.append(Ellipse(draw(0.15, 0.3), 0.1, 0.09, draw(-0.02, 0.02), -0.68 * high))
    for _ in range(6):
        place, above = draw(-0.75, 0.75) * wide, draw(-0.55, 0.55) * high
        size, value = draw(0.015, 0.04), draw(0.1, 0.3)
        ellipses.append(Ellipse(value, size, 1.5 * size, place, above, draw(0, 180)))
    for _ in range(8):
        place, above = draw(-0.6, 0.6) * wide, draw(-0.6, 0.6) * high
        a, b = draw(0.03, 0.16), draw(0.03, 0.16)
        ellipses.append(Ellipse(draw(-0.05, 0.05), a, b, place, above, draw(0, 180)))
    return tuple(ellipses)


def scanner(size: int) -> cl.LinearOperator:
    """The paper's: 200 views and 400 bins for 512 pixels, in proportion for fewer (section 5.2).

    The field of view stays the same, and with it the counts in a bin.
    """
    views, bins = round(200 * size / FULL_SIZE), round(400 * size / FULL_SIZE)
    return cl.paper_scanner(size, views, bins)


def _spread(paths: Sequence[Path], count: int | None) -> Sequence[Path]:
    """Some of them, evenly spread."""
    if count is None or count >= len(paths):
        return paths
    return [paths[i * len(paths) // count] for i in range(count)]


def _read(paths: Sequence[Path], size: int) -> ImageSet:
    planes = [
        F.interpolate(load_image(path).to(torch.float32), size, mode="area") for path in paths
    ]
    return ImageSet.from_tensors([plane[0, 0] for plane in planes], [path.name for path in paths])
