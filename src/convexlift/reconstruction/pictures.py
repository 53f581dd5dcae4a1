"""``denoise`` and ``inpaint``: photographs and single slices, from files or from memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from convexlift.files.pictures import PictureFormat
from convexlift.functionals.data_terms import L1, SquaredL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.images import random_mask
from convexlift.operators.imaging import Mask
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.option_values import NoiseKind
from convexlift.reconstruction.contents import (
    PICTURES,
    Contents,
    ImageLike,
    InputError,
    is_path,
    merge_equal_channels,
    open_contents,
    open_picture,
)
from convexlift.reconstruction.jpeg_noise import before_compression
from convexlift.reconstruction.masks import Colour, parse_colour, seen_pixels
from convexlift.reconstruction.noise import (
    LEAST_SIGMA,
    Noise,
    TooFewPixels,
    estimate_noise,
    gaussian_level,
    is_line_art,
    sampled,
)
from convexlift.reconstruction.options import DenoiseOptions, InpaintOptions
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Source, companion, companions, glance
from convexlift.solvers.tile_tasks import Tiles
from convexlift.tasks import GaussianDenoising, Inpainting, Measurement, SaltAndPepper

SHARED, VISIBLE = 0.8, 0.02
"""Noise of the mean of the colours over their own, and the least noise that warrants a note."""
FEWEST_PIXELS = 8
"""The margin on each side: filters of regularizers are 7 x 7 and reflect at the edges."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Denoiser(DenoiseOptions, Reconstructor):
    """Denoising of pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = (None, *get_args(NoiseKind))
        self.require("noise", self.noise in kinds, "gaussian or salt-and-pepper")
        is_pair = isinstance(self.range, tuple) and len(self.range) == 2
        known = self.range in ("auto", "data") or is_pair
        self.require("range", known, "auto, data or LOW,HIGH, such as 0,4095")
        low, high = self.range if isinstance(self.range, tuple) else (0.0, 1.0)
        if not -math.inf < low < high < math.inf:
            raise InputError(f"--range needs LOW < HIGH, got {low:g},{high:g}")
        whole = isinstance(self.tiles, int) and self.tiles >= 128 and self.tiles % 16 == 0
        fine = self.tiles in ("auto", "off") or whole
        self.require("tiles", fine, "auto, off, or a multiple of 16 from 128 on")
        if self.slices is not None:
            self.require(
                "slices", _is_range(self.slices), "FIRST:END with FIRST < END, such as 10:20"
            )
        if self.simulate and (self.sigma is None or self.truth is not None):
            wrong = "needs --sigma" if self.sigma is None else "knows the truth; leave --truth out"
            raise InputError(f"--simulate {wrong}")
        self.require("jpeg", self.jpeg is None or len(self.jpeg) == 64, "a table of 64 numbers")
        clean = self.simulate and self.sigma == 0
        if self.sigma is not None and not clean and not 0 < self.sigma <= 1:
            raise InputError(
                "noise levels are for images in 0 ... 1, where 25 of 255 is 0.098; got "
                f"{self.sigma:g}"
            )

    @property
    def division(self) -> Tiles | Literal["auto"] | None:
        """The option ``tiles``."""
        if self.tiles == "auto":
            return "auto"
        return None if self.tiles == "off" else Tiles(size=self.tiles)

    def settings(self) -> dict[str, Any]:
        """The settings, with the range as text."""
        text = "{:g},{:g}".format(*self.range) if isinstance(self.range, tuple) else self.range
        return super().settings() | {"range": text}

    def prepare(
        self, image: ImageLike, solver: PiecewiseSolver | None = None, target: Path | None = None
    ) -> PreparedImage:
        """Read the picture, estimate its noise, and choose a weight."""
        solver = self.solver() if solver is None else solver
        contents = self._contents(image, target)
        seen, truth = self._seen(contents, image), self._truth(contents, image)
        if self.network.in_channels == 1:
            contents, seen = merge_equal_channels(contents, seen)
        images = contents.images
        if self.simulate:
            assert self.sigma is not None
            truth, images = contents.unmerged(images), self._damaged(images, self.sigma)
            noise = Noise(self.noise or "gaussian", max(self.sigma, LEAST_SIGMA), estimated=False)
        else:
            noise = self._noise(contents, seen, solver.device)
        y = images if seen is None else images * seen
        grouped = self._grouping(contents)
        fidelity: Fidelity = (SquaredL2 if noise.kind == "gaussian" else L1)(grouped(y))
        operator: LinearOperator = Identity() if seen is None else Mask(grouped(seen))
        reads_noise = solver.network.reads_data and noise.kind == "gaussian"
        level = max(noise.level, LEAST_SIGMA) if reads_noise else None
        data = Measurement(fidelity, operator, self.box or contents.box, grouped(y), level)
        tiles = solver.tiles_for(data)  # raises if the memory is too small
        divided = "" if self.tiles != "auto" or tiles is None else (
            "it is too large for the free memory, so it is solved in tiles of "
            f"{tiles.size} x {tiles.size} pixels, with one certificate for the whole"
        )  # fmt: skip
        task = GaussianDenoising.name if seen is None else Inpainting.name
        task = SaltAndPepper.name if noise.kind == "salt-and-pepper" else task
        weight = self.choose_weight(data, task, noise, solver)
        missing = {} if seen is None else {"missing": float((seen == 0).double().mean())}
        description, series = f"convexlift {self.task}", json.dumps(self.settings())
        return PreparedImage(
            name=contents.name, data=data, weight=weight, noise=noise,
            restored=lambda x: contents.restored(_as_planes(x)),
            write=lambda x, place: contents.write(_as_planes(x), place, description, series),
            compared=contents.unmerged, given=contents.unmerged(y),
            truth=truth,
            about=contents.about() | missing | self._used(contents),
            notes=(
                *contents.scale.notes, *self._notes(contents, task, noise),
                *filter(None, [weight.note, self._shared(contents, images, noise), divided]),
            ),
        )  # fmt: skip

    def _grouping(self, contents: Contents) -> Callable[[Tensor], Tensor]:
        """Planes as they are; red, green and blue as one image for a regularizer of colours."""
        if self.colour is not None and contents.channels == 3:
            return lambda planes: planes.reshape(-1, 3, *planes.shape[2:])
        if self.network.in_channels == 3:
            called = self.settings()["regularizer"]
            grey = called.removesuffix("-colour")
            grey = DenoiseOptions.regularizer if grey == called else grey
            raise InputError(
                f"{called} is for pictures in colour, and {contents.name} is grey; use "
                f"--regularizer {grey}"
            )
        return lambda planes: planes

    def _used(self, contents: Contents) -> dict[str, str]:
        """The regularizer for colours, if it replaces the one that was named."""
        in_colour = self._twin is not None and contents.channels == 3
        return {"regularizer": str(self._twin)} if in_colour else {}

    def _shared(self, contents: Contents, images: Tensor, noise: Noise) -> str | None:
        """A note if the channels have noise in common, which does not fall to 58 % in their mean.

        JPEG files store colours at half the resolution, so their noise is smoothed and shared. The
        tables of a file tell the level; this note is for pictures without them.
        """
        visible = noise.kind == "gaussian" and noise.level > VISIBLE and self.task == "denoise"
        known = noise.before_jpeg or noise.jpeg_channels
        if self.simulate or contents.channels != 3 or not visible or known:
            return None
        try:
            some = sampled(images.reshape(-1, 3, *images.shape[2:]))
            level = gaussian_level(some.mean(1, keepdim=True))
        except TooFewPixels:
            return None
        if level < SHARED * noise.level:
            return None
        return (
            "the colours share their noise, as after JPEG compression or scaling; the regularizers "
            "expect noise that differs from pixel to pixel, and may keep blobs of it: try "
            f"--sigma {1.5 * noise.level:.2g}, or make the picture half as large"
        )

    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """The files of truths."""
        return companions(self.truth, paths)

    def check(self, sources: Sequence[Source]) -> None:
        """Raise for wrong endings, and for options that do not fit a single picture."""
        for source in sources:
            if source.target.suffix.lower() not in PICTURES:
                raise InputError(
                    f"{source.target} does not name a picture; use one of the endings "
                    f"{', '.join(PICTURES)}"
                )
        if len(sources) == 1 and glance(sources[0].path) is None:
            try:
                contents = self._contents(sources[0].path, sources[0].target)
            except InputError:
                raise
            except Exception:  # decoders raise nearly every type; the run reports the error
                return
            self._require_fit(contents, sources[0].path)

    def opened(self, path: Path, target: Path) -> Contents:
        """The contents of a file, checked against its mask, its truth and the result's name."""
        contents = self._contents(path, target)
        self._require_fit(contents, path)
        return contents

    def _require_fit(self, contents: Contents, path: Path) -> None:
        self._seen(contents, path)
        self._truth(contents, path)

    def _contents(self, image: ImageLike, target: Path | None) -> Contents:
        pages = None if self.slices is None else slice(*self.slices)
        contents = open_contents(image, self.range, pages=pages)
        if pages is not None and len(contents.images) < len(range(*self.slices or ())):
            raise InputError(
                f"{contents.name} has no page {pages.stop - 1}; --slices counts them from 0 on"
            )
        if target is not None:
            contents.require_target(target)
        if not contents.scale.nominal and (self.sigma is not None or self.truth is not None):
            low, high = contents.numbers
            option = "--sigma" if self.sigma is not None else "--truth"
            raise InputError(
                f"the numbers of {contents.name}, about {low:g} to {high:g}, are none of the usual "
                f"ranges, to which {option} could refer; give --range LOW,HIGH"
            )
        height, width = contents.images.shape[-2:]
        if min(height, width) < FEWEST_PIXELS:
            raise InputError(
                f"{contents.name} is {height} x {width}; "
                f"images have at least {FEWEST_PIXELS} x {FEWEST_PIXELS} pixels"
            )
        return contents

    def _seen(self, contents: Contents, image: ImageLike) -> Tensor | None:
        seen = seen_pixels(contents)
        if seen is not None and not is_path(image):
            place = tuple(int(i) for i in (seen.reshape(contents.shape) == 0).nonzero()[0])
            raise InputError(
                f"the image is NaN or infinite at {place}; fill missing pixels in with "
                "task='inpaint'"
            )
        return seen

    def _damaged(self, images: Tensor, level: float) -> Tensor:
        kind = SaltAndPepper if self.noise == "salt-and-pepper" else GaussianDenoising
        generators = [torch.Generator().manual_seed(self.seed + i) for i in range(len(images))]
        return kind(level).measure(images, generators).picture

    def _noise(self, contents: Contents, seen: Tensor | None, device: torch.device) -> Noise:
        if self.sigma is not None:
            return Noise(self.noise or "gaussian", self.sigma, estimated=False)
        # Impulses are unlikely beside missing pixels and in DICOM, whose padding looks like pepper.
        unlikely = self.task == "inpaint" or contents.is_dicom
        kind = "gaussian" if self.noise is None and unlikely else self.noise
        images = sampled(contents.images).to(device)
        mask = None if seen is None else sampled(seen.expand_as(contents.images)).to(device)
        if kind is None and is_line_art(images, mask):
            raise InputError(
                "most pixels are black or white, as in text, and its noise cannot be estimated; "
                "give --noise and --sigma"
            )
        try:
            found = estimate_noise(images, mask, kind)
        except TooFewPixels as error:
            raise InputError(f"{error}; give --sigma") from None
        if seen is not None:
            return found
        return before_compression(found, contents, self.jpeg, together=self.colour is not None)

    def _truth(self, contents: Contents, image: ImageLike) -> Tensor | None:
        if self.truth is None:
            return None
        suffixes = PICTURES if contents.is_dicom else PictureFormat.known_suffixes()
        truth = companion(self.truth, image, "truth", suffixes)
        images = contents.truth(truth, self.range)
        if images.shape != contents.images.shape:
            called = truth if is_path(truth) else "given"
            own, other = (
                f"{len(planes)} plane(s) of {planes.shape[-2]} x {planes.shape[-1]}"
                for planes in (contents.images, images)
            )
            raise InputError(f"the truth {called} has {other}, but {contents.name} has {own}")
        return images

    def _notes(self, contents: Contents, task: str, noise: Noise) -> Iterator[str]:
        """Notes on missing numbers, masks of pictures displayed rotated, and unusual tasks."""
        card = self.network.card
        least = noise.kind == "gaussian" and noise.level <= LEAST_SIGMA
        if least and noise.estimated and self.task == "denoise":
            yield "hardly any noise was found, so it hardly changes; give --sigma if you see noise"
        if task == SaltAndPepper.name and card is not None and task not in card.weights:
            yield f"{card.name} is not made for salt and pepper; --regularizer photo-open is"
        if contents.missing is not None and self.task == "denoise":
            share = 100 * float(contents.missing.double().mean())
            yield f"{share:.2g} % of its numbers are NaN or infinite, and were filled in"
        beside = [n for n in ("mask", "truth") if is_path(getattr(self, n, None))]
        turned = contents.picture.orientation
        if turned != 1 and beside:
            which = " and ".join(beside) + (" was" if len(beside) == 1 else " were")
            yield f"its {which} laid on it as it is displayed (orientation {turned})"


def _is_range(slices: object) -> bool:
    """Whether these are FIRST and END."""
    if not isinstance(slices, tuple) or len(slices) != 2:
        return False
    return all(isinstance(number, int) for number in slices) and 0 <= slices[0] < slices[1]


def _as_planes(x: Tensor) -> Tensor:
    """(planes, 1, H, W), however planes were grouped for the solve."""
    return x.reshape(-1, 1, *x.shape[-2:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Inpainter(InpaintOptions, Denoiser):
    """Inpainting of pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_path(self.mask):
            if not Path(self.mask).exists():
                raise InputError(f"there is no mask {self.mask}; check the name")
            if Path(self.mask).is_file():  # a broken mask is an error before any work
                open_picture(self.mask, "the mask")
        if self.invert_mask and self.mask is None:
            raise InputError("--invert-mask needs --mask")
        self.require("colour_tolerance", 0 <= self.colour_tolerance <= 255, "0 to 255")
        self._colour()

    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """The files of masks and truths."""
        return companions(self.mask, paths) + super().reads(paths)

    def check(self, sources: Sequence[Source]) -> None:
        """Raise also if no pixels are marked as missing."""
        formats = filter(None, (PictureFormat.of(source.path) for source in sources))
        unmasked = self.mask is None and self.mask_colour is None
        if unmasked and not any(kind.holds_nan for kind in formats):
            raise _nothing_missing(str(sources[0].path))
        super().check(sources)

    def _seen(self, contents: Contents, image: ImageLike) -> Tensor | None:
        if self.simulate and self.mask is None and self.mask_colour is None:
            generator = torch.Generator().manual_seed(self.seed)
            images = contents.images
            return random_mask(images, self.missing, generator).expand_as(images).contiguous()
        mask = None if self.mask is None else companion(self.mask, image, "mask")
        seen = seen_pixels(
            contents, mask, inverted=self.invert_mask, colour=self._colour(),
            tolerance=self.colour_tolerance,
        )  # fmt: skip
        if seen is None:
            raise _nothing_missing(contents.name)
        return seen

    def _colour(self) -> Colour | None:
        return None if self.mask_colour is None else parse_colour(self.mask_colour)


def _nothing_missing(name: str) -> InputError:
    return InputError(
        f"no pixel of {name} is missing; give --mask or --mask-colour, or NaN in a float file"
    )
