"""Operators of imaging: weights for each pixel, masks and blurs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.operators.padding import BOUNDARIES, Boundary, Padding, most_copies
from convexlift.tensors import Shape, first_non_finite, fits

LARGEST_RADIUS = 1000
"""Kernels of a Gaussian blur have at most 2001 x 2001 taps (32 MB)."""


class Diagonal(LinearOperator, name="Diagonal"):
    """(A x)_p = d_p x_p: a weight for each pixel.

    Args:
        values: d, of shape (H, W), (C, H, W), or one for each image, (B, C, H, W).
    """

    single_operation = True

    def __init__(self, values: Tensor) -> None:
        name = type(self).__name__
        if values.ndim not in (2, 3, 4):
            raise ValueError(
                f"{name} takes the shape (H, W), (C, H, W) or (B, C, H, W), "
                f"got {tuple(values.shape)}"
            )
        if (place := first_non_finite(values)) is not None:
            raise ValueError(f"{name} got {float(values[place])} at {place}")
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        self.values = values.reshape((1,) * (4 - values.ndim) + values.shape)

    def forward(self, x: Tensor) -> Tensor:
        """d x."""
        return self.values * x

    def adjoint(self, y: Tensor) -> Tensor:
        """d y, for the operator is symmetric."""
        return self.values * y

    @property
    def diagonal(self) -> Tensor:
        """d."""
        return self.values

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether d is."""
        return bool((self.values >= 0).all())

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's, if the values fit it."""
        if not fits(self.values.shape[1:], input_shape):
            raise ValueError(
                f"{type(self).__name__} of shape {tuple(self.values.shape)} "
                f"does not fit images of {input_shape}"
            )
        return input_shape

    def norm(self, input_shape: Shape | None = None) -> float:
        """max |d|."""
        return float(self.values.abs().max())

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Times the largest |d| of each channel."""
        return self.values.abs().amax((-2, -1), keepdim=True) * bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """One product."""
        return 1

    def select(self, images: Tensor) -> Diagonal:
        """With the values of these images, where each has its own."""
        return self if len(self.values) == 1 else Diagonal(self.values[images])


class Mask(Diagonal):
    """(A x)_p = m_p x_p with m_p in {0, 1}: the pixels that were seen (inpainting).

    Args:
        mask: 1 or True where a pixel is seen; (H, W), (C, H, W), or one for each image,
            (B, C, H, W). A floating-point mask sets the precision, a boolean one becomes
            torch's default.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask)
        wrong = (mask != 0) & (mask != 1)
        if wrong.any():
            place = tuple(int(i) for i in wrong.nonzero()[0])
            raise ValueError(
                f"a mask holds only 0 (missing) and 1 (seen), found {float(mask[place]):g} "
                f"at {place}; compare with a threshold first, as in `mask > 0.5`"
            )

    @property
    def mask(self) -> Tensor:
        """m."""
        return self.values


class Blur(LinearOperator, name="Blur"):
    """A x = k * x, every channel convolved with one kernel of odd size.

    Args:
        kernel: (height, width); its centre is the origin. It is not normalised.
        boundary: how the image continues past its edge: ``zero``, ``circular``, ``reflect`` or
            ``replicate``.
    """

    def __init__(self, kernel: Tensor, boundary: Boundary = "reflect") -> None:
        if kernel.ndim != 2 or any(n % 2 == 0 for n in kernel.shape):
            raise ValueError(
                f"a blur kernel has two dimensions of odd size, got {tuple(kernel.shape)}"
            )
        if (place := first_non_finite(kernel)) is not None:
            raise ValueError(f"the blur kernel has {float(kernel[place])} at {place}")
        if boundary not in BOUNDARIES:
            raise ValueError(f"boundary must be one of {BOUNDARIES}, got {boundary!r}")
        self.kernel = kernel
        self.boundary: Boundary = boundary
        self.margin = (kernel.shape[0] // 2, kernel.shape[1] // 2)

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether the kernel is."""
        return bool((self.kernel >= 0).all())

    def forward(self, x: Tensor) -> Tensor:
        """k * x."""
        weight = self.kernel.flip(0, 1)[None, None]
        planes = x.reshape(-1, 1, *x.shape[-2:])
        if self.boundary == "zero":
            return F.conv2d(planes, weight, padding=self.margin).reshape(x.shape)
        return F.conv2d(self._padding(planes)(planes), weight).reshape(x.shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """The correlation with k, folded back at the edges."""
        weight = self.kernel.flip(0, 1)[None, None]
        planes = y.reshape(-1, 1, *y.shape[-2:])
        if self.boundary == "zero":
            return F.conv_transpose2d(planes, weight, padding=self.margin).reshape(y.shape)
        padded = F.conv_transpose2d(planes, weight)
        return self._padding(planes).adjoint(padded).reshape(y.shape)

    def transfer(self, input_shape: Shape) -> Tensor | None:
        """The Fourier transform of the kernel, if the boundary is circular."""
        if self.boundary != "circular":
            return None
        impulse = self.kernel.new_zeros((1, 1, *input_shape[-2:]), dtype=torch.float64)
        impulse[..., 0, 0] = 1
        spectrum: Tensor = torch.fft.rfft2(self.to(dtype=torch.float64)(impulse))
        return spectrum[0, 0]

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Times the sum of |k|, as often as the padding repeats a pixel."""
        return self.kernel.abs().sum() * (self._copies if adjoint else 1) * bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The taps of the kernel; then copies of a pixel are added up."""
        return self.kernel.numel() + self._copies

    @property
    def _copies(self) -> int:
        return most_copies(self.margin, self.boundary)

    def _padding(self, planes: Tensor) -> Padding:
        return Padding(tuple(planes.shape[1:]), self.margin, self.boundary)

    @staticmethod
    def gaussian(sigma: float, boundary: Boundary = "reflect", radius: int | None = None) -> Blur:
        """A Gaussian of standard deviation ``sigma`` pixels, cut at 3 sigma by default."""
        if not 0 < sigma < math.inf:
            raise ValueError(f"a Gaussian blur needs sigma > 0, got {sigma}")
        reach = max(1, round(3 * sigma)) if radius is None else radius
        if reach != int(reach) or not 0 <= reach <= LARGEST_RADIUS:
            raise ValueError(
                f"a Gaussian blur reaches a whole number of pixels from 0 to {LARGEST_RADIUS}, got "
                f"radius={reach}; for a wider one, scale the image down first"
            )
        reach = int(reach)
        places = torch.arange(-reach, reach + 1, dtype=torch.get_default_dtype())
        profile = torch.exp(-0.5 * (places / sigma) ** 2)
        profile = profile / profile.sum()
        return Blur(torch.outer(profile, profile), boundary)
