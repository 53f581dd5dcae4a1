"""The squared L2 fidelity behind a circular convolution: diagonal in Fourier space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.terms import PrimalTerm


@dataclass(frozen=True, eq=False)
class CircularFidelityTerm(PrimalTerm):
    """g(x) = 1/2 ||k * x - y||^2 on the torus, without a box.

    One pair of Fourier transforms of the image, next to nothing beside a layer of many channels.
    In double precision: the gradient k* (k x - y) is a small difference of large numbers, and
    what it lacks, the certificate finds.

    Args:
        transfer: the Fourier transform of the kernel.
        data: that of the data y.
    """

    transfer: Tensor
    data: Tensor

    def prox(self, u: Tensor, tau: Tensor) -> Tensor:
        """u + (|k|^2 + 1/tau)^-1 k* (y - k u), frequency by frequency."""
        k = self.transfer
        missing = self.data - k * torch.fft.rfft2(u.double())
        change = k.conj() * missing / (k.abs().square() + 1 / tau.double())
        moved: Tensor = u + torch.fft.irfft2(change, s=u.shape[-2:])
        return moved.to(u.dtype)
