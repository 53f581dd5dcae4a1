"""``ct``: slices from sinograms, measured or simulated: counts, transmissions, line integrals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from convexlift import scans
from convexlift.functionals.data_terms import KullbackLeibler, WeightedL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.operators.linear import LinearOperator
from convexlift.operators.tomography.beams import PAPER_BACKGROUND, paper_scanner
from convexlift.operators.tomography.filtered_backprojection import fbp
from convexlift.reconstruction.contents import (
    DICOM,
    ImageLike,
    InputError,
    is_path,
    squeezed,
)
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.options import ScanOptions
from convexlift.reconstruction.readings import (
    estimated_photons,
    integrals_of,
    read_field,
    require_described,
    require_fitting,
    require_possible,
)
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.slices import (
    read_slices,
    require_ending,
    unusual_values,
    write_numbers,
    write_slices,
)
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import SINOGRAMS, Source
from convexlift.reconstruction.weight import Weight, WeightChoice
from convexlift.scans.files import files_in
from convexlift.scans.sinogram_formats import DataExchange
from convexlift.scans.sinograms import Quantity
from convexlift.solvers.solution import StopWhen
from convexlift.tasks import Measurement, SparseViewCT
from convexlift.transmission import line_integrals

OF_SCANS = ("quantity", "geometry", "flat", "dark", "photons", "sigma", "size", "extent",
            "beam", "angle_unit", "rows", "truth")  # fmt: skip
"""Options for measured scans only."""
EVEN = ("arc", "bin_width", "source_distance", "detector_distance")
"""Options for evenly spaced views, beside their beam."""
BRIGHT = 0.995
"""The quantile of the filtered back projection that becomes 1 if lengths are unknown."""

Readings = tuple[Quantity, Tensor | None, Tensor | None]
"""The meaning of the numbers, the flat and the dark field."""
ScanLike = ImageLike | scans.Sinogram | scans.Volume


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanReconstructor(ScanOptions, Reconstructor):
    """Reconstruction of slices from scans."""

    positive = (*Reconstructor.positive, "photons", "background", "sigma", "size", "extent",
                "water", "views", "bins", "bin_width", "source_distance",
                "detector_distance")  # fmt: skip
    search: ClassVar[StopWhen] = StopWhen(gap=1e-2, max_iterations=100)
    quiet = (*Reconstructor.quiet, "geometry")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = isinstance(self.window, scans.Window) or self.window in scans.WINDOWS
        self.require("window", known, f"one of {', '.join(scans.WINDOWS)}, or LEVEL,WIDTH in HU")
        if self.rows is not None:
            is_pair = isinstance(self.rows, tuple) and len(self.rows) == 2 and min(self.rows) >= 0
            self.require("rows", is_pair, "FIRST:END, such as 500:510")
            if not self.rows[0] < self.rows[1]:
                raise InputError("--rows needs FIRST < END, got {}:{}".format(*self.rows))
        for name in ("flat", "dark"):
            self._field(name)
        self._views()
        if self.photons is not None and self.sigma is not None:
            raise InputError(
                "--photons and --sigma are two models of one noise; give --sigma if all rays have "
                "the same, else --photons"
            )
        unused = [name for name in OF_SCANS if getattr(self, name) is not None]
        if self.simulate and unused:
            raise InputError(
                f"--simulate makes a scan of its own, so --{unused[0].replace('_', '-')} does not "
                "apply; leave one of them out"
            )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings of sinograms, or of slices for simulated scans."""
        return (*DICOM, ".tif", ".tiff", ".png", ".npy") if self.simulate else SINOGRAMS

    @property
    def ending(self) -> str | None:
        """The ending of results: TIFF for slices of sinograms."""
        return None if self.simulate else ".tif"

    @property
    def rule(self) -> WeightChoice:
        """``auto`` unless given; ``card``, made for the simulated scan, with ``simulate``."""
        return self.weight or ("card" if self.simulate else "auto")

    def settings(self) -> dict[str, Any]:
        """The settings, with the window as two numbers."""
        window = scans.Window.named(self.window)
        return super().settings() | {"window": [window.level, window.width]}

    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """The files of fields and truths."""
        given = [p for p in (self.flat, self.dark, self.truth) if is_path(p)]
        files = [Path(place) for place in given if Path(place).is_file()]
        folder = is_path(self.truth) and Path(self.truth).is_dir()
        return files + (files_in(Path(str(self.truth))) if folder else [])

    def check(self, sources: Sequence[Source]) -> None:
        """Check the ending of a single result; with several files, each fails on its own."""
        if len(sources) == 1:
            require_ending(sources[0].target)

    def prepare(
        self, image: ScanLike, solver: PiecewiseSolver | None = None, target: Path | None = None
    ) -> PreparedImage:
        """Read the scan, state its problem, and choose a weight."""
        solver = self.solver() if solver is None else solver
        if target is not None:
            require_ending(target)
        if self.simulate:
            return self._simulated(image, solver)
        return self._measured(image, solver, target)

    # Simulated scans -----------------------------------------------------------------------------

    def _simulated(self, image: ScanLike, solver: PiecewiseSolver) -> PreparedImage:
        name, volume, images, shape = read_slices(image)
        truth = images.clamp_min(0)
        background = PAPER_BACKGROUND if self.background is None else self.background
        task = SparseViewCT(
            scanner=_scanner(tuple(truth.shape[-2:]), self.views, self.bins), background=background,
            box=self.box or SparseViewCT.box,
        )  # fmt: skip
        generators = [torch.Generator().manual_seed(self.seed + i) for i in range(len(truth))]
        data = task.measure(truth, generators)
        weight = self.choose_weight(data, task.name, None, solver)
        return PreparedImage(
            name=name, data=data, weight=weight, noise=None,
            restored=lambda x: x.reshape(shape) if shape else squeezed(scans.unit_to_hounsfield(x)),
            write=lambda x, place: write_slices(
                volume.with_values(scans.unit_to_hounsfield(x)), place, "convexlift ct", self.window
            ),
            given=data.picture, truth=truth,
            about={
                "simulated": True, "views": self.views, "bins": self.bins,
                "background": background, "seed": self.seed, "data": "counts",
            },
            notes=(weight.note,) if weight.note else (),
        )  # fmt: skip

    # Measured scans ------------------------------------------------------------------------------

    def _measured(
        self, image: ScanLike, solver: PiecewiseSolver, target: Path | None
    ) -> PreparedImage:
        name, scan = self.read_scan(image)
        in_mm = scan.geometry.unit == "mm"
        if self.truth is not None and not in_mm:
            raise InputError(
                f"{name} does not say how large its pixels are, so there are no HU to "
                "compare with --truth; leave it out, or give the unit in the file's geometry"
            )
        if target is not None and target.suffix.lower() == ".dcm" and not in_mm:
            raise InputError(
                f"{name} does not say how large its pixels are, so there are no HU for "
                "DICOM; write .tif or .npy"
            )
        rows, angles, bins = scan.projections.shape
        size, extent = self.grid(scan)
        taken = self.checked(scan)  # before the rays are computed, which takes long
        rays = scan.operator(size, extent)
        data, unit, noise, photons = self._stated(scan, taken, rays, in_mm)
        weight = self.choose_weight(data, SparseViewCT.name, None, solver)
        pixel = extent / size
        truth = None if self.truth is None else self._truth(len(data), size, unit)

        def values(x: Tensor) -> Tensor:
            return scans.attenuation_to_hounsfield(unit * x, self.water) if in_mm else unit * x

        def write(x: Tensor, place: Path) -> None:
            if in_mm:
                volume = scans.Volume.stacked(values(x)[:, 0], (pixel, pixel))
                write_slices(volume, place, "convexlift ct", self.window)
            else:
                write_numbers(values(x), place)

        return PreparedImage(
            name=name, data=data, weight=weight, noise=noise,
            restored=lambda x: squeezed(values(x)), write=write, truth=truth,
            about={
                "data": self.quantity or scan.quantity,
                "rows": rows, "angles": angles, "bins": bins, "pixel": pixel,
                "unit": "HU" if in_mm else "per pixel of the detector",
                **({"photons": photons} if photons else {}),
            },
            notes=(
                *self._notes(photons, weight),
                *(self._unusual(rays, data.fidelity, target) if in_mm else ()),
            ),
        )  # fmt: skip

    def grid(self, scan: scans.Sinogram) -> tuple[int, float]:
        """Pixels of a side of a slice, and its length."""
        bins = scan.projections.shape[2]
        return self.size or bins, self.extent or scan.geometry.field_of_view(bins)

    def _notes(self, photons: float | None, weight: Weight) -> Iterator[str]:
        if photons is not None:
            how = "given" if self.photons else "estimated"
            yield f"{photons:.3g} photons in a free ray ({how})"
        if weight.note:
            yield weight.note

    def _unusual(
        self, rays: LinearOperator, fidelity: Fidelity, target: Path | None
    ) -> Iterator[str]:
        """Notes on values of the first slice that no tissue has, or that the window hides."""
        if rays.invertible and isinstance(fidelity, WeightedL2):  # line integrals
            found = fbp(rays, fidelity.y[:1], "hann")
            hounsfield = scans.attenuation_to_hounsfield(found, self.water)
            yield from unusual_values(hounsfield, target, self.window)

    def read_scan(self, image: ScanLike) -> tuple[str, scans.Sinogram]:
        """The name of a scan for messages, and the scan."""
        if isinstance(image, scans.Sinogram):
            return "the scan", image
        if is_path(image):
            level = self.background if self.flat is None else self.flat
            require_described(
                Path(image),
                views=self._views(),
                quantity=self.quantity,
                has_level=level is not None,
            )
            unit = self.angle_unit if Path(image).suffix.lower() in DataExchange.suffixes else None
            scan = scans.read_sinogram(
                image, rows=None if self.rows is None else slice(*self.rows), angle_unit=unit,
                views=self._views(), quantity=self.quantity,
            )  # fmt: skip
            return str(image), scan
        geometry, views = self.geometry, self._views()
        array = None if isinstance(image, scans.Volume) else torch.as_tensor(image)
        if views is not None and array is not None and array.ndim > 1:
            geometry = views.geometry(array.shape[-2])
        if geometry is None or self.quantity is None or array is None:
            raise InputError(
                "an array of projections needs --geometry (cl.scans.ParallelGeometry or "
                "FanGeometry) or --beam, --quantity, and --flat for counts; or give a "
                "cl.scans.Sinogram"
            )
        if array.ndim not in (2, 3):
            raise InputError(
                f"projections are (angles, bins) or (rows, angles, bins), got {tuple(array.shape)}"
            )
        frames = array.detach().cpu().float().reshape(-1, *array.shape[-2:])
        return "the scan", scans.Sinogram(frames, geometry, self.quantity)

    def _views(self) -> scans.EvenViews | None:
        """Evenly spaced views, if the options define them."""
        given = {name: getattr(self, name) for name in EVEN}
        if self.beam is None:
            if stated := next((name for name in EVEN if given[name] is not None), None):
                raise InputError(
                    f"--{stated.replace('_', '-')} is for evenly spaced views; add --beam parallel "
                    "or --beam fan"
                )
            return None
        for name in ("geometry", "angle-unit"):
            if getattr(self, name.replace("-", "_")) is not None:
                raise InputError(f"--{name} and --beam both give the rays; leave one of them out")
        try:
            return scans.EvenViews(beam=self.beam, **given)
        except ValueError as error:
            text = str(error)
            for name in ("beam", *EVEN):
                text = re.sub(rf"\b{name}\b", f"--{name.replace('_', '-')}", text)
            raise InputError(text) from None

    def _truth(self, slices: int, size: int, unit: float) -> Tensor:
        """Attenuation in units of the images, from HU."""
        if is_path(self.truth):
            hu = scans.read_volume(self.truth).images
        else:
            hu = torch.as_tensor(self.truth)
            hu = hu.reshape(-1, 1, *hu.shape[-2:]).double()
        if self.rows is not None and len(hu) > slices:  # one for each row of the detector
            hu = hu[slice(*self.rows)]
        if tuple(hu.shape) != (slices, 1, size, size):
            called = self.truth if is_path(self.truth) else "given"
            raise InputError(
                f"the truth {called} has {tuple(hu.shape)}, but {slices} slice(s) of "
                f"{size} x {size} are reconstructed; see --size"
            )
        return (scans.hounsfield_to_attenuation(hu, self.water) / unit).float()

    def _stated(
        self, scan: scans.Sinogram, taken: Readings, rays: LinearOperator, in_mm: bool
    ) -> tuple[Measurement, float, Noise | None, float | None]:
        """The data, the attenuation of an image of 1, the noise, and photons in a free ray."""
        quantity, flat, dark = taken
        y = scan.data.float()
        unit, box = scans.unit_attenuation(self.water), self.box or (0.0, None)
        if quantity == "counts" and flat is None:
            assert self.background is not None
            unit = unit if in_mm else 1.0
            counts = KullbackLeibler(y.round(), self.background)
            return Measurement(counts, unit * rays, box, counts.y), unit, None, None
        noise, photons = None, None
        if quantity == "counts":
            assert flat is not None
            integrals = line_integrals(y, flat, 0.0 if dark is None else dark)
            values, omega = integrals.values, integrals.weights
        else:
            values = integrals_of(y, quantity)
            if self.sigma is not None:
                noise = Noise("gaussian", self.sigma, estimated=False)
                omega = torch.full_like(values, self.sigma**-2)
            else:
                photons = self.photons or estimated_photons(values)
                omega = photons * torch.exp(-values.clamp_min(0))  # photons that arrive
        unit = unit if in_mm else _scale(rays, values)
        fidelity = WeightedL2(values, omega)
        return Measurement(fidelity, unit * rays, box, fidelity.y), unit, noise, photons

    def checked(self, scan: scans.Sinogram) -> Readings:
        """The quantity of the numbers, flat and dark; raises for options that do not fit them."""
        quantity = self.quantity or scan.quantity
        flat, dark = (
            stored if (given := self._field(name)) is None else given
            for name, stored in (("flat", scan.flat), ("dark", scan.dark))
        )
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
        if counts and flat is None and self.background is None:
            raise InputError(
                "counts need readings without object (--flat), or --background if they are "
                "emission counts y ~ Poisson(A x + background)"
            )
        for name, field in (("flat", flat), ("dark", dark)):
            require_fitting(name, field, scan.data)
        if self.sigma is None:  # else any numbers may be integrals, without a logarithm
            require_possible(quantity, scan.data)
        return quantity, flat, dark

    def _field(self, name: str) -> Tensor | None:
        return read_field(name, getattr(self, name))


_scanner = lru_cache(maxsize=2)(paper_scanner)
"""The last two scanners are cached, for they are slow to build."""


def _scale(rays: LinearOperator, values: Tensor) -> float:
    if not rays.invertible:
        return 1.0
    pixels = fbp(rays, values, "hann").flatten()
    bright = float(torch.quantile(pixels[:: 1 + pixels.numel() // 10**6], BRIGHT))
    return bright if bright > 0 else 1.0
