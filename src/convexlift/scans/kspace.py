"""Raw data of MRI scanners: samples of the Fourier transform of slices, from several coils."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.files.formats import load_extra
from convexlift.operators.mri import MRI, centred_fft, pairs
from convexlift.scans.files import existing, read_isolated, reading
from convexlift.tensors import first_non_finite

SUFFIXES = (".h5", ".hdf5")
OUTER, FEWEST = 0.05, 64
"""The share of samples at high frequencies, mostly noise, and their least number."""
NORMAL_MEDIAN = 0.6745


@dataclass(frozen=True, eq=False)
class KSpace:
    """The Fourier transforms of slices, as ``cl.MRI`` defines them, where they were sampled.

    Attributes:
        data: complex, (slices, coils, H, W), zero where nothing was sampled.
        mask: (H, W), nonzero where it was sampled, the same in all slices.
        truth: images of a whole scan, (slices, h, w), if the file has them: magnitudes of the
            middle of the slices.
    """

    data: Tensor
    mask: Tensor
    truth: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.data.is_complex() or self.data.ndim != 4:
            raise ValueError(
                "k-space is complex and (slices, coils, H, W), got "
                f"{self.data.dtype} {tuple(self.data.shape)}"
            )
        if tuple(self.mask.shape) != tuple(self.data.shape[2:]):
            raise ValueError(
                f"the mask has the shape {tuple(self.mask.shape)}, and a slice "
                f"{tuple(self.data.shape[2:])}"
            )
        if (place := first_non_finite(torch.view_as_real(self.data))) is not None:
            raise ValueError(f"k-space is not finite at {place[:4]}")
        if not bool(self.mask.any()):
            raise ValueError("nothing was sampled: k-space is 0 everywhere")

    @property
    def noise(self) -> float:
        """The standard deviation of real and imaginary parts, from the highest frequencies.

        The median of absolute values is divided by that of a standard normal number, as for images.
        Only frequencies with two high components count, since edges along rows and columns extend
        far along the axes. Other sharp edges make the estimate too large.
        """
        rows, columns = ((torch.arange(n) - n // 2).abs() for n in self.mask.shape)
        height = (torch.outer(rows, columns) + 1) * self.mask
        count = int(self.mask.sum())
        kept = min(count, max(FEWEST, round(OUTER * count)))
        values = torch.view_as_real(self.data.flatten(2)[..., height.flatten().topk(kept).indices])
        values = values.abs()
        return float(values[values > 0].median()) / NORMAL_MEDIAN if values.any() else 0.0

    def coil_maps(self, calibration: int = 24) -> Tensor:
        """s_k = c_k / sqrt(sum |c_k|^2), c_k the images of the lowest frequencies.

        Sensitivities are smooth, so that images of low resolution suffice (McKenzie et al. 2002,
        "Self-calibrating parallel imaging with automatic coil sensitivity extraction", Magnetic
        Resonance in Medicine 47). Their squares add up to 1 at every pixel.

        Args:
            calibration: side of the square of frequencies that is used, under a Hann window;
                smaller if fewer were sampled without gaps.
        """
        if self.data.shape[1] == 1:
            return torch.ones_like(self.data[:1])
        middle = [n // 2 for n in self.mask.shape]
        lines = self.mask[:, middle[1]], self.mask[middle[0]]
        sides = [
            _hann(len(line), min(calibration, _run(line))).to(self.data.real) for line in lines
        ]
        low = centred_fft(self.data * torch.outer(*sides), inverse=True)
        total = low.abs().square().sum(1, keepdim=True).sqrt()
        return low / total.clamp_min(1e-6 * float(total.max()) + 1e-30)

    def operator(self, calibration: int = 24) -> MRI:
        """The map from complex images, as two channels, to ``values``."""
        return MRI(self.mask.to(self.data.real), self.coil_maps(calibration))

    @property
    def values(self) -> Tensor:
        """The data in the layout of ``cl.MRI``, (slices, 2 coils, H, W)."""
        return pairs(self.data)


def _run(line: Tensor) -> int:
    """The length of the symmetric run around the middle sampled without gaps; >= 2."""
    middle = len(line) // 2
    after, before = line[middle:].tolist(), line[: middle + 1].flip(0).tolist()
    reach = min((each.index(False) if False in each else len(each)) for each in (after, before))
    return max(2, 2 * reach - 1)


def _hann(size: int, width: int) -> Tensor:
    """A window of this width around the middle."""
    places = torch.arange(size, dtype=torch.float64) - size // 2
    window = 0.5 + 0.5 * torch.cos(2 * math.pi * places / width)
    return torch.where(places.abs() < width / 2, window, 0.0)


def read_kspace(
    path: str | os.PathLike[str],
    *,
    slices: slice = slice(None),
    max_megapixels: float | None = None,
    read_seconds: float | None = None,
) -> KSpace:
    """Read an HDF5 file in the layout of fastMRI or ISMRMRD, in a process with limits.

    Without a mask in the file, k-space was sampled where it is not 0.

    Args:
        path: the file.
        slices: the slices to read.
        max_megapixels: largest number of real numbers to read, in millions.
        read_seconds: time limit; by default 20, and 1 for every 10 MB.
    """
    load_extra("h5py", "HDF5 files")
    place = existing(path)
    with reading(place, "HDF5 in the layout of fastMRI or ISMRMRD"):
        arrays, _ = read_isolated(place, "read_kspace", max_megapixels, read_seconds, slices=slices)
        data = torch.from_numpy(arrays["kspace"]).to(torch.complex64)
        if "mask" in arrays:
            columns = torch.from_numpy(arrays["mask"]) > 0
            if columns.numel() != data.shape[-1]:
                raise ValueError(
                    f"its mask has {columns.numel()} columns, and k-space {data.shape[-1]}"
                )
            mask = columns.expand(tuple(data.shape[-2:])).clone()
        else:
            mask = (data != 0).any(dim=1).any(dim=0)
        truth = torch.from_numpy(arrays["truth"]).float() if "truth" in arrays else None
        return KSpace(data * mask, mask, truth)
