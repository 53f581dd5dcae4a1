"""Magnetic resonance imaging: samples of the Fourier transform, seen by several coils."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape, first_non_finite


class MRI(LinearOperator, name="MRI"):
    """(A x)_k = m F (s_k x): a mask m, the Fourier transform F, and sensitivities s_k of coils.

    F is orthonormal, with the frequency zero in the middle of its output and the origin in the
    middle of the image, as in fastMRI. Complex numbers are two channels, real and imaginary part:
    images have the shape (2, H, W) and data (2 coils, H, W), coil after coil. Data that were not
    sampled are 0.

    Args:
        mask: m, 1 or True where the Fourier transform was sampled; (H, W), or (B, 1, H, W) with
            one for each image.
        maps: s_k, complex, (coils, H, W), or (B, coils, H, W) with some for each image; one coil
            with s = 1 by default. Real maps have 2 coils channels, as data have.
        channels: 2 for complex images, 1 for real ones.
    """

    def __init__(self, mask: Tensor, maps: Tensor | None = None, channels: int = 2) -> None:
        if mask.ndim not in (2, 4) or (mask.ndim == 4 and mask.shape[1] != 1):
            raise ValueError(
                f"the mask of MRI has the shape (H, W) or (B, 1, H, W), got {tuple(mask.shape)}"
            )
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("the mask of MRI holds only 1 (sampled) and 0; write mask > 0")
        if channels not in (1, 2):
            raise ValueError(f"channels is 2 for complex images, 1 for real ones, got {channels}")
        precision = mask.dtype if mask.is_floating_point() else torch.get_default_dtype()
        size = tuple(mask.shape[-2:])
        if maps is None:
            maps = torch.ones(size, dtype=precision, device=mask.device).to(precision.to_complex())
            maps = maps[None]
        if maps.is_complex():
            maps = pairs(maps if maps.ndim == 4 else maps[None] if maps.ndim == 3 else maps)
            precision = maps.dtype
        if maps.ndim != 4 or maps.shape[1] % 2 or tuple(maps.shape[-2:]) != size:
            raise ValueError(
                f"the maps of MRI are complex, (coils, {size[0]}, {size[1]}) or (B, coils, "
                f"{size[0]}, {size[1]}), got {tuple(maps.shape)}"
            )
        if (place := first_non_finite(maps)) is not None:
            raise ValueError(f"the maps of MRI are {float(maps[place])} at {place}")
        self.mask = mask.to(precision).reshape(-1, 1, *size)
        self.maps, self.channels = maps, channels
        self.input_shape = (channels, *size)

    def forward(self, x: Tensor) -> Tensor:
        """m F (s_k x)."""
        image = torch.complex(x[:, :1], x[:, 1:]) if self.channels == 2 else x
        return self.mask * pairs(centred_fft(self._sensitivities * image))

    def adjoint(self, y: Tensor) -> Tensor:
        """sum_k conj(s_k) F* (m y_k); its real part for real images."""
        coils = centred_fft(joined(self.mask * y), inverse=True)
        image = (self._sensitivities.conj() * coils).sum(1, keepdim=True)
        return pairs(image)[:, : self.channels]

    def output_shape(self, input_shape: Shape) -> Shape:
        """(2 coils, H, W)."""
        return (self.maps.shape[1], *input_shape[1:])

    def norm(self, input_shape: Shape | None = None) -> float:
        """The largest sqrt(sum_k |s_k|^2), for masks and F have norm 1."""
        return math.sqrt(float(self._energy.max())) * float(self.mask.max())

    def approximate_inverse(self, y: Tensor, window: str = "hann") -> Tensor:
        """A* y over sum_k |s_k|^2: the image if all frequencies were sampled (zero-filled)."""
        least = 1e-3 * float(self._energy.max())
        return self.adjoint(y) / self._energy.clamp_min(max(least, 1e-30))

    def select(self, images: Tensor) -> MRI:
        """With the masks and maps of these images, where each has its own."""
        mask, maps = (
            part if len(part) == 1 else part[images.to(part.device)]
            for part in (self.mask, self.maps)
        )
        return MRI(mask, maps, self.channels)

    @property
    def _sensitivities(self) -> Tensor:
        return joined(self.maps)

    @property
    def _energy(self) -> Tensor:
        """sum_k |s_k|^2."""
        return self.maps.square().sum(1, keepdim=True)


def pairs(values: Tensor) -> Tensor:
    """Complex (B, K, H, W) as real (B, 2 K, H, W): real and imaginary parts by turns."""
    return torch.stack((values.real, values.imag), dim=2).flatten(1, 2)


def joined(values: Tensor) -> Tensor:
    """The inverse of ``pairs``."""
    return torch.complex(values[:, 0::2].contiguous(), values[:, 1::2].contiguous())


def centred_fft(values: Tensor, *, inverse: bool = False) -> Tensor:
    """The orthonormal Fourier transform of the last two dimensions, zero in the middle of both."""
    transform = torch.fft.ifft2 if inverse else torch.fft.fft2
    moved = torch.fft.ifftshift(values, dim=(-2, -1))
    shifted: Tensor = torch.fft.fftshift(transform(moved, norm="ortho"), dim=(-2, -1))
    return shifted
