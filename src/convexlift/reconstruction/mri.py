"""``mri``: slices from k-space, measured by one or several coils."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convexlift.functionals.data_terms import WeightedL2
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.reconstruction.contents import InputError, is_path, squeezed
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.options import MRIOptions
from convexlift.reconstruction.reconstructor import PreparedImage, Reconstructor
from convexlift.reconstruction.slices import write_numbers
from convexlift.reconstruction.solution import PiecewiseSolver
from convexlift.reconstruction.sources import Source
from convexlift.scans.kspace import SUFFIXES as K_SPACES
from convexlift.scans.kspace import KSpace, read_kspace
from convexlift.tasks import Measurement

BRIGHT = 0.995
"""This quantile of the magnitudes of the zero-filled image becomes 1."""
BOUND = 3.0
"""Bound on real and imaginary parts, relative to the largest zero-filled magnitude."""
CENTRE = 0.08
"""Share of central columns that a simulated scan keeps, as fastMRI does for 4-fold."""
LEAST_CENTRE = 8
"""The least number of central columns, from which coil sensitivities are estimated."""
RESULTS = (".tif", ".tiff", ".npy", ".png")


@dataclass(frozen=True, kw_only=True, eq=False)
class MRIReconstructor(MRIOptions, Reconstructor):
    """Reconstruction of slices from k-space."""

    positive = (*Reconstructor.positive, "sigma", "size", "calibration", "acceleration",
                "read_seconds")  # fmt: skip
    quiet = (*Reconstructor.quiet, "read_seconds")
    suffixes = K_SPACES
    ending = ".tif"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slices is not None:
            pair = isinstance(self.slices, tuple) and len(self.slices) == 2
            fine = pair and 0 <= self.slices[0] < self.slices[1]
            self.require("slices", fine, "FIRST:END with FIRST < END, such as 10:20")
        self.require("acceleration", self.acceleration > 1, "a number > 1")
        if self.truth is not None:
            raise InputError("--truth is the file's own, or the whole data with --simulate")

    @cached_property
    def network(self) -> InputConvexNetwork:
        """The regularizer of complex images, on the CPU."""
        if self.regularizer == "tv":
            return TotalVariation(in_channels=2, joint=True).to(torch.float32)
        network = Reconstructor.network.func(self)  # type: ignore[attr-defined]
        if network.in_channels != 2 or network.reads_data:
            raise InputError(
                "complex images have two channels, and this regularizer takes "
                f"{network.in_channels}, or reads the data; use --regularizer tv"
            )
        assert isinstance(network, InputConvexNetwork)
        return network

    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """None except the scans themselves."""
        return []

    def check(self, sources: Sequence[Source]) -> None:
        """Check the ending of a single result; with several files, each fails on its own."""
        if len(sources) == 1:
            _require_ending(sources[0].target)

    def prepare(
        self, image: Any, solver: PiecewiseSolver | None = None, target: Path | None = None
    ) -> PreparedImage:
        """Read k-space, estimate coils and noise, and choose a weight."""
        solver = self.solver() if solver is None else solver
        if target is not None:
            _require_ending(target)
        name, scan = self.read_scan(image)
        sigma = scan.noise if self.sigma is None else float(self.sigma)
        truth, cut = scan.truth, None
        if self.simulate:
            whole, cut = scan, self._columns(scan)
            truth = _magnitude(whole.operator(self.calibration).approximate_inverse(whole.values))
            truth = truth[:, 0]
            scan = KSpace(scan.data * cut, scan.mask & cut)
        operator = scan.operator(self.calibration)
        zero_filled = operator.approximate_inverse(scan.values)
        magnitudes = _magnitude(zero_filled)
        unit = float(torch.quantile(magnitudes.flatten()[:: max(1, magnitudes.numel() // 10**6)],
                                    BRIGHT)) or 1.0  # fmt: skip
        bound = BOUND * max(1.0, float(magnitudes.max()) / unit)
        data = Measurement(
            WeightedL2(scan.values / unit, operator.mask), operator, self.box or (-bound, bound),
            zero_filled / unit,
        )  # fmt: skip
        noise = Noise("gaussian", sigma / unit, estimated=self.sigma is None)
        weight = self.choose_weight(data, self.task, noise, solver)
        size = tuple(truth.shape[1:]) if truth is not None and self.size is None else self.size

        def shown(x: Tensor) -> Tensor:
            return _cropped(_magnitude(x), size)

        sampled = float(scan.mask.float().mean())
        return PreparedImage(
            name=name, data=data, weight=weight, noise=noise,
            restored=lambda x: squeezed(unit * shown(x)),
            write=lambda x, place: write_numbers(unit * shown(x), place),
            compared=shown, given=shown(data.picture),
            truth=None if truth is None else _cropped(truth[:, None] / unit, size),
            about={
                "data": "k-space", "slices": len(scan.data), "coils": scan.data.shape[1],
                "sampled": round(sampled, 4), "unit": unit, "simulated": self.simulate,
            },
            notes=tuple(filter(None, (self._note(sampled), weight.note))),
        )  # fmt: skip

    def read_scan(self, image: Any) -> tuple[str, KSpace]:
        """The name of a scan for messages, and the scan."""
        if isinstance(image, KSpace):
            return "the scan", image
        if not is_path(image):
            raise InputError("MRI needs a file, or a cl.scans.KSpace with k-space and its mask")
        scan = read_kspace(
            image, slices=slice(*(self.slices or (None,))), max_megapixels=self.max_megapixels,
            read_seconds=self.read_seconds,
        )  # fmt: skip
        return str(image), scan

    def _columns(self, scan: KSpace) -> Tensor:
        """Random columns and the central ones, 1/acceleration of all."""
        width = scan.mask.shape[1]
        middle = min(width, max(LEAST_CENTRE, round(CENTRE * width)))
        low = (width - middle + 1) // 2
        rest = max(0.0, (width / self.acceleration - middle) / max(1, width - middle))
        drawn = torch.rand(width, generator=torch.Generator().manual_seed(self.seed)) < rest
        drawn[low : low + middle] = True
        return drawn.expand(tuple(scan.mask.shape))

    def _note(self, sampled: float) -> str:
        return "all of k-space was sampled" if sampled == 1 else ""


def _magnitude(x: Tensor) -> Tensor:
    """|x|, (B, 1, H, W), of complex images."""
    magnitude: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return magnitude


def _cropped(x: Tensor, size: int | tuple[int, ...] | None) -> Tensor:
    """The centre of images; sides that are shorter stay."""
    if size is None:
        return x
    sides = (size, size) if isinstance(size, int) else size
    for axis, side in zip((-2, -1), sides, strict=True):
        whole = x.shape[axis]
        x = x.narrow(axis, max(0, (whole - side) // 2), min(side, whole))
    return x


def _require_ending(target: Path) -> None:
    if target.suffix.lower() not in RESULTS:
        raise InputError(
            f"{target} does not name an image of magnitudes; use one of {', '.join(RESULTS)}"
        )
