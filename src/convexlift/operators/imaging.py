"""Operators besides convolutions: weights of pixels, masks, blurs, differences, pooling, dense."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.convolution import BOUNDARIES, FLOOR, Boundary, Padding, most_copies
from convexlift.operators.linear import LinearOperator
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
        self.values = values.reshape((1,) * (4 - values.ndim) + tuple(values.shape))

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
        return self.values.abs().amax(tuple(range(2, self.values.ndim)), keepdim=True) * bound

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
        self.margin = kernel.shape[0] // 2, kernel.shape[1] // 2

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]
        """Whether the kernel is."""
        return bool((self.kernel >= 0).all())

    def forward(self, x: Tensor) -> Tensor:
        """k * x."""
        weight, planes = self._prepared(x)
        if self.boundary == "zero":
            return F.conv2d(planes, weight, padding=self.margin).reshape(x.shape)
        return F.conv2d(self._padding(planes)(planes), weight).reshape(x.shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """The correlation with k, folded back at the edges."""
        weight, planes = self._prepared(y)
        if self.boundary == "zero":
            return F.conv_transpose2d(planes, weight, padding=self.margin).reshape(y.shape)
        spread = F.conv_transpose2d(planes, weight)
        return self._padding(planes).adjoint(spread).reshape(y.shape)

    def _prepared(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel and the channels one by one, as torch takes them."""
        if x.ndim != 4:
            raise ValueError(f"a blur takes images (B, C, H, W), got {tuple(x.shape)}")
        return self.kernel.flip(0, 1)[None, None], x.reshape(-1, 1, *x.shape[2:])

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


class DifferenceOperator(LinearOperator):
    """grad x: (C, H, W) -> (2C, H, W), each channel's differences down and to the right.

    The last difference of each axis is zero (Neumann boundary). Both differences of a channel
    are consecutive channels.
    """

    single_operation = symbol_bounds = True

    def __init__(self, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(
                f"differences take images of shape (channels, H, W), got {input_shape}"
            )
        self.input_shape = input_shape

    def forward(self, x: Tensor) -> Tensor:
        """grad x."""
        along = [x.diff(dim=axis, append=x.narrow(axis, -1, 1)) for axis in (-2, -1)]
        return torch.stack(along, dim=2).flatten(1, 2)

    def adjoint(self, y: Tensor) -> Tensor:
        """-div y."""
        down, right = y[:, 0::2, :-1], y[:, 1::2, :, :-1]
        return (
            F.pad(down, (0, 0, 1, 0)) - F.pad(down, (0, 0, 0, 1))
            + (F.pad(right, (1, 0)) - F.pad(right, (0, 1)))
        )  # fmt: skip

    def output_shape(self, input_shape: Shape) -> Shape:
        """Twice the channels."""
        return (2 * input_shape[0], *input_shape[1:])

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor | None:
        """The sum of 2 - 2 cos(2 pi w) over both axes, nowhere near zero.

        It belongs to differences on a torus, which has more of them.
        """

        def along(size: int) -> Tensor:
            w = torch.fft.fftfreq(size, dtype=like.dtype, device=like.device)
            return 2 - 2 * torch.cos(2 * torch.pi * w)

        return along(height)[:, None] + along(width)[: width // 2 + 1] + FLOOR * 8

    def norm(self, input_shape: Shape | None = None) -> float:
        """sqrt(8), since (u - v)^2 <= 2 u^2 + 2 v^2; large images come close to it."""
        return math.sqrt(8.0)

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """Two neighbours for each difference, two differences of each direction for a pixel."""
        if adjoint:
            return 2 * bound.reshape(len(bound), -1, 2, *bound.shape[2:]).sum(2)
        return 2 * bound.repeat_interleave(2, dim=1)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The number of terms."""
        return 4 if adjoint else 2


class PoolingOperator(LinearOperator):
    """The mean over each block of size x size pixels; size must divide the image."""

    def __init__(self, size: int, input_shape: Shape) -> None:
        if len(input_shape) != 3 or any(n % size for n in input_shape[-2:]):
            raise ValueError(
                f"average pooling by {size} does not divide an input of shape {input_shape}"
            )
        self.size = size
        self.input_shape = input_shape

    @property
    def pool_size(self) -> int:  # type: ignore[override]
        """The size of the blocks."""
        return self.size

    def forward(self, x: Tensor) -> Tensor:
        """Block means."""
        return F.avg_pool2d(x, self.size)

    def adjoint(self, y: Tensor) -> Tensor:
        """Each value spread evenly over its block."""
        *others, rows, columns = y.shape
        blocks = (y / self.size**2)[..., None, :, None]
        spread = blocks.expand(*others, rows, self.size, columns, self.size)
        return spread.reshape(*others, rows * self.size, columns * self.size)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Smaller by ``size``."""
        return (input_shape[0], *(n // self.size for n in input_shape[-2:]))

    def norm(self, input_shape: Shape | None = None) -> float:
        """1/size, exactly, since P P* = I / size^2."""
        return 1.0 / self.size

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """A mean is no larger than its terms; each term counts 1/size^2."""
        return bound / self.size**2 if adjoint else bound

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The pixels of a block and the division."""
        return 1 if adjoint else self.size**2 + 1


class PixelSumOperator(LinearOperator):
    """The sum, or the mean, over all pixels of each channel: (C, H, W) -> (C,)."""

    nonnegative = True

    def __init__(self, mean: bool, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(f"sums over pixels take shapes (channels, H, W), got {input_shape}")
        self.mean = mean
        self.input_shape = input_shape
        self.pixels = math.prod(input_shape[1:])

    @property
    def factor(self) -> float:
        """Of each pixel."""
        return 1 / self.pixels if self.mean else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """The sum of each channel, times the factor."""
        return self.factor * x.flatten(2).sum(2)

    def adjoint(self, y: Tensor) -> Tensor:
        """Each number at all pixels, times the factor."""
        assert self.input_shape is not None
        return (self.factor * y)[..., None, None].expand(-1, *self.input_shape)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(C,)."""
        return input_shape[:1]

    def norm(self, input_shape: Shape | None = None) -> float:
        """The factor times the length of a vector of ones."""
        return self.factor * math.sqrt(self.pixels)

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """All pixels as large as the bound."""
        if adjoint:
            return self.factor * bound[..., None, None]
        return (self.factor * self.pixels) * bound.flatten(1)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The pixels, the factor and its product."""
        return 2 if adjoint else self.pixels + 2


class DenseOperator(LinearOperator):
    """W x on the flattened input: (B, C, H, W) or (B, n) to (B, m)."""

    def __init__(self, weight: Tensor, input_shape: Shape) -> None:
        features = torch.Size(input_shape).numel()
        if weight.shape[1] != features:
            raise ValueError(
                f"a dense map from {weight.shape[1]} features "
                f"does not fit an input of shape {input_shape} ({features} features)"
            )
        self.weight = weight
        self.input_shape = input_shape

    def forward(self, x: Tensor) -> Tensor:
        """W x."""
        return x.flatten(1) @ self.weight.T

    def adjoint(self, y: Tensor) -> Tensor:
        """W^T y."""
        assert self.input_shape is not None
        return (y @ self.weight).reshape(-1, *self.input_shape)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(m,)."""
        return (self.weight.shape[0],)

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """|W| times the bound; the largest of each channel, where the input has channels."""
        if not adjoint:
            return bound.expand(-1, *input_shape).flatten(1) @ self.weight.abs().T
        spread = (bound @ self.weight.abs()).reshape(-1, *input_shape)
        return spread if spread.ndim == 2 else spread.amax((2, 3), keepdim=True)

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """The features that are summed."""
        return self.weight.shape[0 if adjoint else 1]

    def _norm(self, shape: Shape) -> float:
        return float(torch.linalg.matrix_norm(self.weight.detach().to(torch.float64), ord=2))
