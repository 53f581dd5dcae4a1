"""Sinograms as statements: counts, transmissions or line integrals; or a scan that is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convexlift.files.formats import read_npy
from convexlift.files.pictures import Picture, read_picture, write_picture
from convexlift.images import atomic_path
from convexlift.operators.linear import LinearOperator
from convexlift.operators.tomography.beams import PAPER_BACKGROUND, PAPER_UNIT, ParallelBeam
from convexlift.operators.tomography.filtered_backprojection import fbp
from convexlift.reconstruction.engine import Engine
from convexlift.reconstruction.input_files import DICOM, InputError, Source, write_slices
from convexlift.reconstruction.noise import Noise, photons_of
from convexlift.reconstruction.noise_models import Integrals, Photons, Statement
from convexlift.reconstruction.photographs import Case
from convexlift.scans.data_exchange import DataExchange
from convexlift.scans.files import read_sinogram, read_volume
from convexlift.scans.formats import AngleUnit, ScanFileError, files_in, reading
from convexlift.scans.hounsfield import (
    WATER,
    WINDOWS,
    Window,
    attenuation_to_hounsfield,
    hounsfield_to_attenuation,
    hounsfield_to_unit,
    unit_attenuation,
    unit_to_hounsfield,
)
from convexlift.scans.sinograms import FanGeometry, Quantity, Sinogram
from convexlift.scans.stacks import write_png, write_tiff
from convexlift.scans.volumes import Volume
from convexlift.tasks import SparseViewCT
from convexlift.transmission import line_integrals

RESULTS = (".tif", ".tiff", ".npy", ".png", ".dcm")
PAPER_EXTENT = 256.0
OF_FILES = ("quantity", "flat", "dark", "photons", "sigma", "size", "extent", "angle_unit", "rows",
            "truth")  # fmt: skip
"""Options that describe measured scans."""
BRIGHT = 0.995
"""Where lengths are unknown, this quantile of the filtered back projection becomes 1."""


@dataclass(frozen=True)
class Scans:
    """How sinograms become statements.

    Args:
        quantity: what the numbers are, in place of what the file says.
        flat: readings without object: a number, or an NPY file; else those of the file.
        dark: readings without beam, likewise.
        photons: in a ray that meets nothing, for transmissions and line integrals without counts;
            estimated unless given.
        background: r of emission counts y ~ Poisson(A x + r).
        sigma: of line integrals, if all have the same noise, whatever they meet.
        size: of the image in pixels; as many as there are bins unless given.
        extent: of the image in the file's unit; the field of view unless given.
        water: attenuation of water in 1/mm, for HU.
        angle_unit: of HDF5 files that do not say it.
        rows: of the detector, (first, beyond the last).
        window: of PNG files.
        simulate: inputs are slices, and a scan of them is simulated.
        views: of that scan; ``bins`` likewise.
        seed: of its noise.
        truth: slices in HU to compare with, of the size of the result.
        max_megapixels: replaces the limits on the size that the header of a file may declare.
        read_seconds: for reading an HDF5 file; by default it depends on the file's length.
    """

    quantity: Quantity | None = None
    flat: str | None = None
    dark: str | None = None
    photons: float | None = None
    background: float | None = None
    sigma: float | None = None
    size: int | None = None
    extent: float | None = None
    water: float = WATER
    angle_unit: AngleUnit | None = None
    rows: tuple[int, int] | None = None
    window: Window | None = None
    simulate: bool = False
    views: int = 200
    bins: int = 400
    seed: int = 0
    truth: Path | None = None
    max_megapixels: float | None = None
    read_seconds: float | None = None

    def __post_init__(self) -> None:
        positive = ("photons", "sigma", "size", "extent", "water", "views", "bins",
                    "max_megapixels", "read_seconds")  # fmt: skip
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise InputError(f"--{option} is a number > 0, got {value:g}")
        if self.background is not None and not 0 < self.background < math.inf:
            raise InputError(f"--background is a number > 0, got {self.background:g}")
        for name in ("flat", "dark"):
            self._field(name)
        if self.truth is not None and not self.truth.exists():
            raise InputError(f"there is no truth {self.truth}; check the name")
        if self.photons is not None and self.sigma is not None:
            raise InputError(
                "--photons and --sigma are two models of one noise; give --sigma if all rays have "
                "the same, else --photons"
            )
        unused = [name for name in OF_FILES if getattr(self, name) is not None]
        if self.simulate and unused:
            raise InputError(
                f"--simulate makes a scan of its own, to which --{unused[0].replace('_', '-')} "
                "says nothing; leave one of them out"
            )

    def reads(self, sources: Sequence[Source]) -> list[Path]:
        """Fields and truths."""
        fields = [Path(text) for text in (self.flat, self.dark) if text and Path(text).is_file()]
        if self.truth is None or not self.truth.is_dir():
            return fields if self.truth is None else [*fields, self.truth]
        return fields + files_in(self.truth)

    def check(self, sources: Sequence[Source]) -> None:
        """The ending of a single result; of several, one does not stop the others."""
        if len(sources) == 1:
            _require_ending(sources[0].target)

    def case(self, source: Source, engine: Engine) -> Case:
        """Read the file, state its problem, and choose a weight."""
        _require_ending(source.target)
        return self._simulated(source, engine) if self.simulate else self._measured(source, engine)

    # Simulated scans -----------------------------------------------------------------------------

    def _simulated(self, source: Source, engine: Engine) -> Case:
        volume, truth = _slice(source.path, self.max_megapixels)
        height, width = truth.shape[-2:]
        across = PAPER_EXTENT / max(height, width)
        beam = ParallelBeam(
            (height, width), self.views, self.bins, (across * height, across * width)
        )
        background = PAPER_BACKGROUND if self.background is None else self.background
        task = SparseViewCT(scanner=beam * (1 / PAPER_UNIT), background=background)
        generators = [torch.Generator().manual_seed(self.seed + i) for i in range(len(truth))]
        data = task.measure(truth, generators)
        statement = Photons(
            y=data.fidelity.y, operator=data.operator, background=background, box=task.box
        )
        weight = engine.choose_weight(statement, "ct", None)
        about = {
            "simulated": True, "views": self.views, "bins": self.bins, "background": background,
            "seed": self.seed, "data": "counts",
        }  # fmt: skip
        return Case(
            source, "ct", statement, weight, None,
            write=lambda x: self._write(source, volume.with_values(unit_to_hounsfield(x))),
            truth=truth, picture=data.picture, about=about, joinable=False,
            notes=(weight.note,) if weight.note else (),
        )  # fmt: skip

    # Measured scans ------------------------------------------------------------------------------

    def _measured(self, source: Source, engine: Engine) -> Case:
        scan = self._read(source.path)
        in_mm = scan.geometry.unit == "mm"
        if self.truth is not None and not in_mm:
            raise InputError(
                f"{source.path} does not say how large its pixels are, so there are no HU to "
                "compare with --truth; leave it out, or give the unit in the file's geometry"
            )
        if source.target.suffix.lower() in (".dcm",) and not in_mm:
            raise InputError(
                f"{source.path} does not say how large its pixels are, so there are no HU for "
                "DICOM; write .tif or .npy"
            )
        bins = scan.projections.shape[2]
        size = self.size or bins
        extent = self.extent or _field_of_view(scan)
        rays = scan.operator(size, extent)
        statement, unit, noise, note = self._statement(scan, rays, in_mm)
        weight = engine.choose_weight(statement, "ct", None)
        pixel = extent / size
        truth = None if self.truth is None else self._truth(len(statement.y), size, unit)

        def write(x: Tensor) -> None:
            if not in_mm:
                self._write_plain(source, unit * x)
                return
            hu = attenuation_to_hounsfield(unit * x, self.water)
            self._write(source, Volume.stacked(hu[:, 0], (pixel, pixel)))

        about = {
            "data": self.quantity or scan.quantity,
            "rows": scan.projections.shape[0],
            "angles": scan.projections.shape[1],
            "bins": bins,
            "pixel": pixel,
            "unit": "HU" if in_mm else "per pixel of the detector",
        }
        return Case(
            source, "ct", statement, weight, noise,
            write=write, truth=truth, about=about, joinable=False,
            notes=tuple(each for each in (note, weight.note) if each),
        )  # fmt: skip

    def _truth(self, slices: int, size: int, unit: float) -> Tensor:
        """Attenuation in units of the images."""
        assert self.truth is not None
        hu = read_volume(self.truth, max_megapixels=self.max_megapixels).images
        if tuple(hu.shape) != (slices, 1, size, size):
            raise InputError(
                f"the truth {self.truth} has {tuple(hu.shape)}, but {slices} slice(s) of "
                f"{size} x {size} are reconstructed; see --size"
            )
        return (hounsfield_to_attenuation(hu, self.water) / unit).float()

    def _read(self, path: Path) -> Sinogram:
        rows = None if self.rows is None else slice(*self.rows)
        unit = self.angle_unit if path.suffix.lower() in DataExchange.suffixes else None
        return read_sinogram(
            path, rows=rows, angle_unit=unit,
            max_megapixels=self.max_megapixels, read_seconds=self.read_seconds,
        )  # fmt: skip

    def _statement(
        self, scan: Sinogram, rays: LinearOperator, in_mm: bool
    ) -> tuple[Statement, float, Noise | None, str]:
        """The statement, what 1 of its images attenuates, and what is assumed of the noise."""
        quantity = self.quantity or scan.quantity
        data = scan.data.float()
        flat, dark = (
            field if field is not None else stored
            for field, stored in (
                (self._field("flat"), scan.flat),
                (self._field("dark"), scan.dark),
            )
        )
        noise, note = None, ""
        self._require_use(quantity, flat)
        if quantity == "counts" and flat is None:
            if self.background is None:
                raise InputError(
                    "counts need readings without object (--flat), or --background if they are "
                    "emission counts y ~ Poisson(A x + background)"
                )
            unit = 1.0 if not in_mm else unit_attenuation(self.water)
            emission = Photons(y=data.round(), operator=unit * rays, background=self.background)
            return emission, unit, None, ""
        if quantity == "counts":
            assert flat is not None
            taken = line_integrals(data, flat, 0.0 if dark is None else dark)
            values, omega = taken.values, taken.weights
        else:
            values = data if quantity == "line integrals" else -torch.log(data.clamp_min(1e-6))
            if self.sigma is not None:
                noise = Noise("gaussian", self.sigma, estimated=False)
                omega = torch.full_like(values, self.sigma**-2)
            else:
                photons = self.photons or photons_of(values)
                if photons is None:
                    raise InputError(
                        "the noise of these data cannot be estimated; give --photons or --sigma"
                    )
                omega = photons * torch.exp(-values.clamp_min(0))  # those that arrive
                how = "given" if self.photons else "estimated"
                note = f"{photons:.3g} photons in a free ray ({how})"
        unit = unit_attenuation(self.water) if in_mm else _scale(rays, values)
        return Integrals(y=values, operator=unit * rays, omega=omega), unit, noise, note

    def _require_use(self, quantity: Quantity, flat: Tensor | None) -> None:
        """Raise for options that say nothing about these data."""
        counts = quantity == "counts"
        for name in ("photons", "sigma") if counts else ("flat", "dark"):
            if getattr(self, name) is not None:
                others = "transmissions and line integrals" if counts else "counts"
                raise InputError(
                    f"--{name} is for {others}, and these are {quantity}; "
                    "leave it out, or say with --quantity what they are"
                )
        if self.background is not None and (not counts or flat is not None):
            raise InputError(
                "--background is for emission counts, which have no flat field; leave it out"
            )

    def _field(self, name: str) -> Tensor | None:
        text: str | None = getattr(self, name)
        if text is None:
            return None
        try:
            return torch.tensor(float(text))
        except ValueError:
            pass
        if not Path(text).is_file():
            raise InputError(f"--{name} is a number or an NPY file, and there is no file {text}")
        with reading(Path(text), "NPY"):
            array = read_npy(Path(text), self.max_megapixels)
            if array.dtype.kind not in "biuf":
                raise InputError(f"--{name} needs real numbers, and {text} holds {array.dtype}")
            return torch.from_numpy(array.astype(np.float32))

    # Results -------------------------------------------------------------------------------------

    def _write(self, source: Source, volume: Volume) -> None:
        target = source.target
        kind = target.suffix.lower()
        if kind == ".dcm":
            write_slices(volume, target, "convexlift ct")
        elif kind == ".png":
            _require_one(source, len(volume.values))
            write_png(volume, target, window=self.window or WINDOWS["abdomen"])
        elif kind == ".npy":
            self._write_plain(source, volume.images)
        else:
            write_tiff(volume, target)

    def _write_plain(self, source: Source, images: Tensor) -> None:
        """The numbers as they are; PNG from the smallest to the largest."""
        values = images[:, 0].detach().cpu().numpy()
        kind = source.target.suffix.lower()
        if kind == ".png":
            _require_one(source, len(values))
            low, high = float(values.min()), float(values.max())
            values = np.rint(255 * (values - low) / max(high - low, 1e-30)).astype(np.uint8)
        shape = values.shape[1:] if len(values) == 1 else values.shape
        with atomic_path(source.target) as part:
            write_picture(Picture(values, layout=shape), part, kind)


def _slice(path: Path, max_megapixels: float | None) -> tuple[Volume, Tensor]:
    """A slice in HU, and on the scale of regularizers, on which pictures without HU are taken."""
    if path.suffix.lower() in DICOM:
        volume = read_volume(path, max_megapixels=max_megapixels)
        return volume, hounsfield_to_unit(volume.images).float().clamp_min(0)
    try:
        volume = read_volume(path, max_megapixels=max_megapixels)
    except (ScanFileError, ImportError):
        picture = read_picture(path, max_megapixels=max_megapixels)
        if picture.channels > 1:
            raise InputError(f"{path} has colours; save the slice as grey") from None
        unit = torch.from_numpy(picture.values(picture.full_range))
        volume = Volume.stacked(unit_to_hounsfield(unit), (1.0, 1.0))
    return volume, hounsfield_to_unit(volume.images).float().clamp_min(0)


def _field_of_view(scan: Sinogram) -> float:
    """What all rays of the detector see: its width, made smaller by the fan's magnification."""
    width = scan.projections.shape[2] * scan.geometry.bin_width
    if isinstance(scan.geometry, FanGeometry):
        near, far = scan.geometry.source_distance, scan.geometry.detector_distance
        width *= near / (near + far)
    return width


def _scale(rays: LinearOperator, values: Tensor) -> float:
    if not rays.invertible:
        return 1.0
    pixels = fbp(rays, values, "hann").flatten()
    bright = float(torch.quantile(pixels[:: 1 + pixels.numel() // 10**6], BRIGHT))
    return bright if bright > 0 else 1.0


def _require_ending(target: Path) -> None:
    if target.suffix.lower() not in RESULTS:
        raise InputError(f"{target} is no name for a slice; let it end in {', '.join(RESULTS)}")


def _require_one(source: Source, count: int) -> None:
    if count > 1:
        raise InputError(f"{source.target} holds one slice, and there are {count}; write .tif")


def facts(scans: Scans) -> dict[str, Any]:
    """The options that were given and matter to results, for records."""
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(scans).items()
        if value is not None and name not in ("window", "max_megapixels", "read_seconds")
    }
    if scans.window is not None:
        given["window"] = [scans.window.level, scans.window.width]
    return given
