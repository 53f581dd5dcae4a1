"""Filters on the torus: operators that are diagonal in the frequencies of an image."""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator


class SpectralFilter(LinearOperator):
    """A x = F^-1 (s F x) with real s, on the torus; self-adjoint.

    ``spectrum`` is s, (H, W//2 + 1), as ``torch.fft.rfft2`` orders frequencies; it does not
    determine the ``width`` W.
    """

    def __init__(self, spectrum: Tensor, width: int) -> None:
        self.spectrum = spectrum
        self.size = (spectrum.shape[-2], width)

    def forward(self, x: Tensor) -> Tensor:
        """F^-1 (s F x)."""
        return filtered(x, self.spectrum)

    def adjoint(self, y: Tensor) -> Tensor:
        """The same."""
        return filtered(y, self.spectrum)


def filtered(x: Tensor, spectrum: Tensor) -> Tensor:
    """F^-1 (s F x) for images (B, C, H, W); s may differ from image to image, (B, 1, H, W//2+1)."""
    image: Tensor = torch.fft.irfft2(spectrum * torch.fft.rfft2(x), s=x.shape[-2:])
    return image


def energies(x: Tensor) -> Tensor:
    """e = |F x|^2, (B, C, H, W//2 + 1), with <x, A x> = <s, e> for a ``SpectralFilter`` A."""
    height, width = x.shape[-2:]
    squares: Tensor = torch.fft.rfft2(x).abs().square() / (height * width)
    # The half spectrum leaves out the mirror images of these columns.
    squares[..., 1 : (width + 1) // 2] *= 2
    return squares


def frequencies(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """|xi| in cycles per pixel, (H, W//2 + 1)."""
    rows = torch.fft.fftfreq(height, dtype=dtype, device=device)
    columns = torch.fft.rfftfreq(width, dtype=dtype, device=device)
    return torch.hypot(rows[:, None], columns)
