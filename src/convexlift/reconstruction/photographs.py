"""One file, ready to be solved; and the photographs among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import Picture, PictureFormat, Range, read_picture, regrid
from convexlift.reconstruction.engine import Engine
from convexlift.reconstruction.input_files import (
    PICTURES,
    Contents,
    InputError,
    RangeChoice,
    Source,
    companion,
    companions,
    glance,
    read_contents,
    require_size,
)
from convexlift.reconstruction.masks import MaskChoice, seen_pixels
from convexlift.reconstruction.noise import (
    Kind,
    Noise,
    TooFewPixels,
    estimate_noise,
    is_line_art,
    spread,
)
from convexlift.reconstruction.noise_models import Gaussian, Impulses, Statement
from convexlift.reconstruction.weight_selection import Weight

PictureTask = Literal["denoise", "inpaint"]

FEWEST_PIXELS = 8
"""Of each side: the filters of regularizers are 7 x 7, and reflect at the edges."""

NOTHING_MISSING = "no pixel of {} is missing; give --mask or --mask-colour, or NaN in a float file"


@dataclass(frozen=True, eq=False)
class Case:
    """A file, its statement, and what happens to the result.

    Attributes:
        source: the file.
        task: that weights of cards are for.
        statement: of all its planes.
        weight: chosen for it.
        noise: assumed, if there is a level to name.
        write: writes the images to the source's target.
        truth: (planes, 1, H, W), if it is known.
        picture: the data as images, to compare with.
        about: further facts for the record.
        notes: what the user should know.
        joinable: whether it may be solved with others of the same kind.
    """

    source: Source
    task: str
    statement: Statement
    weight: Weight
    noise: Noise | None
    write: Callable[[Tensor], None]
    truth: Tensor | None = None
    picture: Tensor | None = None
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    joinable: bool = True

    def fits_with(self, other: Case) -> bool:
        """Whether both can be parts of one problem."""
        mine, theirs = self.statement, other.statement
        return (
            self.joinable
            and other.joinable
            and type(mine) is type(theirs)
            and mine.y.shape[1:] == theirs.y.shape[1:]
            and mine.box == theirs.box
            and self.weight.value == other.weight.value
            and (getattr(mine, "mask", None) is None) == (getattr(theirs, "mask", None) is None)
        )


@dataclass(frozen=True)
class Photographs:
    """How files become statements: ``denoise`` or ``inpaint``.

    Args:
        task: which of the two.
        kind: of the noise; decided for each file unless given.
        level: sigma, or the fraction of hit pixels; estimated for each file unless given.
        mask: of missing pixels.
        numbers: that become 0 and 1.
        truth: a file, or a folder with files of the inputs' names.
        max_megapixels: replaces the limits on the size that the header of a file may declare.
    """

    task: PictureTask
    kind: Kind | None = None
    level: float | None = None
    mask: MaskChoice = field(default_factory=MaskChoice)
    numbers: RangeChoice = "auto"
    truth: Path | None = None
    max_megapixels: float | None = None

    def __post_init__(self) -> None:
        if self.max_megapixels is not None and not 0 < self.max_megapixels < math.inf:
            raise InputError(f"--max-megapixels is a number > 0, got {self.max_megapixels:g}")
        if self.level is not None and not 0 < self.level <= 1:
            raise InputError(
                f"noise levels are for images in 0 ... 1, where 25 of 255 is 0.098; got "
                f"{self.level:g}"
            )
        if self.truth is not None and not self.truth.exists():
            raise InputError(f"there is no truth {self.truth}; check the name")

    def reads(self, sources: Sequence[Source]) -> list[Path]:
        """Masks and truths."""
        return companions(self.mask.file, sources) + companions(self.truth, sources)

    def check(self, sources: Sequence[Source]) -> None:
        """Endings and masks; and all that must fit a picture, if there is one only."""
        for source in sources:
            if source.target.suffix.lower() not in PICTURES:
                raise InputError(
                    f"{source.target} is no name for a picture; let it end in one of "
                    f"{', '.join(PICTURES)}"
                )
        unmasked = self.task == "inpaint" and self.mask.file is None and self.mask.colour is None
        formats = [PictureFormat.of(source.path) for source in sources]
        if unmasked and not any(kind is not None and kind.holds_nan for kind in formats):
            raise InputError(NOTHING_MISSING.format(sources[0].path))
        if len(sources) == 1 and glance(sources[0].path) is None:
            self._check_fit(sources[0])

    def _check_fit(self, source: Source) -> None:
        try:
            contents = self._contents(source)
        except InputError:
            raise
        except Exception:  # decoders raise nearly everything; the run says it again
            return
        self._seen(source, contents)
        self._truth(source, contents)

    def case(self, source: Source, engine: Engine) -> Case:
        """Read the file, look at its noise, and choose a weight."""
        contents = self._contents(source)
        seen = self._seen(source, contents)
        truth = self._truth(source, contents)
        noise = self._noise(contents, seen, engine.device)
        y = contents.images if seen is None else contents.images * seen
        statement: Statement
        if noise.kind == "gaussian":
            statement = Gaussian(y=y, box=contents.box, sigma=noise.level, mask=seen)
        else:
            statement = Impulses(y=y, box=contents.box, fraction=noise.level, mask=seen)
        task = self._card_task(noise, seen)
        weight = engine.choose_weight(statement, task, noise)
        return Case(
            source, task, statement, weight, noise,
            write=lambda x: contents.write(x, source.target, f"convexlift {self.task}"),
            truth=truth,
            picture=y,
            about=self._about(contents, seen),
            notes=(
                *contents.notes, *self._filled(contents), *self._turned(contents),
                *filter(None, [weight.note]),
            ),
        )  # fmt: skip

    def _contents(self, source: Source) -> Contents:
        contents = read_contents(
            source.path, source.target, self.numbers, max_megapixels=self.max_megapixels
        )
        height, width = contents.images.shape[-2:]
        if min(height, width) < FEWEST_PIXELS:
            raise InputError(
                f"{source.path} is {height} x {width}; "
                f"images have at least {FEWEST_PIXELS} x {FEWEST_PIXELS} pixels"
            )
        return contents

    def _seen(self, source: Source, contents: Contents) -> Tensor | None:
        seen = seen_pixels(contents, source.path, self.mask)
        if seen is None and self.task == "inpaint":
            raise InputError(NOTHING_MISSING.format(source.path))
        return seen

    def _filled(self, contents: Contents) -> tuple[str, ...]:
        """That there are pixels without a number, where nobody asked to fill some in."""
        if self.task == "inpaint" or contents.missing is None:
            return ()
        share = 100 * float(contents.missing.double().mean())
        return (f"{share:.2g} % of its numbers are NaN or infinite, and were filled in",)

    def _turned(self, contents: Contents) -> tuple[str, ...]:
        """What happens to masks and truths of a picture that lies otherwise than it is seen."""
        beside = [n for n, f in (("mask", self.mask.file), ("truth", self.truth)) if f is not None]
        if contents.orientation == 1 or not beside:
            return ()
        which = " and ".join(beside) + (" was" if len(beside) == 1 else " were")
        how = f"orientation {contents.orientation}"
        return (f"its {which} laid on it as it is displayed ({how})",)

    def _noise(self, contents: Contents, seen: Tensor | None, device: torch.device) -> Noise:
        if self.level is not None:
            return Noise(self.kind or "gaussian", self.level, estimated=False)
        # Impulses beside missing pixels are rare, and so are they in CT, whose padding is 0.
        unlikely = self.task == "inpaint" or not isinstance(contents.original, Picture)
        kind = "gaussian" if self.kind is None and unlikely else self.kind
        some = spread(contents.images)
        images = contents.images[some].to(device)
        mask = None if seen is None else seen.expand_as(contents.images)[some].to(device)
        if kind is None and is_line_art(images, mask):
            raise InputError(
                "most pixels are black or white, as in text, and its noise cannot be estimated; "
                "give --noise and --sigma"
            )
        try:
            return estimate_noise(images, mask, kind)
        except TooFewPixels as error:
            raise InputError(f"{error}; give --sigma") from None

    def _card_task(self, noise: Noise, seen: Tensor | None) -> str:
        if noise.kind == "salt-and-pepper":
            return "salt-and-pepper"
        return "gaussian-denoising" if seen is None else "inpainting"

    def _truth(self, source: Source, contents: Contents) -> Tensor | None:
        if self.truth is None:
            return None
        place = self.truth
        if place.is_dir():
            is_picture = isinstance(contents.original, Picture)
            suffixes = PictureFormat.known_suffixes() if is_picture else PICTURES
            place = companion(place, source.path, "truth", suffixes)
        if not isinstance(contents.original, Picture):
            images = read_contents(place, source.target, max_megapixels=self.max_megapixels).images
        else:
            picture = read_picture(place, max_megapixels=self.max_megapixels)
            numbers = self._truth_numbers(picture, contents, contents.original)
            require_size("truth", place, picture, contents, source.path)
            values = regrid(picture.values(numbers), picture.orientation, contents.orientation)
            images = torch.from_numpy(values)[:, None]
        if images.shape != contents.images.shape:
            raise InputError(
                f"the truth {place} has {_size(images)}, but {source.path} has "
                f"{_size(contents.images)}"
            )
        return images

    def _truth_numbers(self, truth: Picture, contents: Contents, data: Picture) -> Range:
        """Those of the data, unless both files use the whole range of different types."""
        kinds = truth.stored.dtype, data.stored.dtype
        beyond = kinds[0].kind == "f" and bool((np.nan_to_num(truth.stored) > 1.5).any())
        mapped = self.numbers != "auto" or contents.numbers != data.full_range
        alike = kinds[0] == kinds[1] or (kinds[0].kind, kinds[1].kind) == ("f", "f")
        return contents.numbers if mapped or alike or beyond else truth.full_range

    def _about(self, contents: Contents, seen: Tensor | None) -> dict[str, Any]:
        about: dict[str, Any] = {"range": list(contents.numbers)}
        if isinstance(contents.original, Picture):
            about |= {
                "dtype": str(contents.original.stored.dtype),
                "channels": contents.original.channels,
                "alpha": contents.original.alpha is not None,
            }
        if seen is not None:
            about["missing"] = float((seen == 0).double().mean())
        return about


def _size(images: Tensor) -> str:
    return f"{len(images)} plane(s) of {images.shape[-2]} x {images.shape[-1]}"
