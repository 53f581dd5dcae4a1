"""The linear maps inside networks, as operators: convolution, differences, pooling, dense."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Shape

Boundary = Literal["zero", "circular", "reflect", "replicate"]
BOUNDARIES: tuple[Boundary, ...] = ("zero", "circular", "reflect", "replicate")
"""How an image continues past its edge; ``reflect`` does not repeat the edge pixel."""


def boundary_indices(size: int, margin: int, boundary: Boundary) -> Tensor:
    """Which pixel of 0..size-1 stands at each place of the padded axis."""
    places = torch.arange(-margin, size + margin)
    if boundary == "circular":
        return places % size
    if boundary == "replicate":
        return places.clamp(0, size - 1)
    if boundary == "reflect":
        return (size - 1) - ((size - 1) - places.abs()).abs()
    raise ValueError(f"no index map for boundary {boundary!r}")


class Padding(LinearOperator):
    """x continued past its edges by ``margin`` = (rows, columns); the adjoint folds back."""

    def __init__(self, input_shape: Shape, margin: tuple[int, int], boundary: Boundary) -> None:
        height, width = input_shape[-2:]
        limits = {"circular": (height, width), "reflect": (height - 1, width - 1)}
        if any(m > n for m, n in zip(margin, limits.get(boundary, margin), strict=True)):
            raise ValueError(
                f"a {boundary} margin of {margin} does not fit an image of {height} x {width}"
            )
        self.input_shape = input_shape
        self.margin = margin
        self.rows = boundary_indices(height, margin[0], boundary)
        self.columns = boundary_indices(width, margin[1], boundary)

    def forward(self, x: Tensor) -> Tensor:
        """The larger image."""
        rows, columns = self.rows.to(x.device), self.columns.to(x.device)
        return x.index_select(-2, rows).index_select(-1, columns)

    def adjoint(self, y: Tensor) -> Tensor:
        """Every copy of a pixel added back to it."""
        height, width = (n - 2 * m for n, m in zip(y.shape[-2:], self.margin, strict=True))
        rows, columns = self.rows.to(y.device), self.columns.to(y.device)
        folded = y.new_zeros((*y.shape[:-1], width)).index_add(-1, columns, y)
        return y.new_zeros((*y.shape[:-2], height, width)).index_add(-2, rows, folded)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Larger by twice the margin."""
        height, width = input_shape[-2:]
        return (*input_shape[:-2], height + 2 * self.margin[0], width + 2 * self.margin[1])


class ConvolutionOperator(LinearOperator):
    """(V x)_o = sum_i w_{oi} * x_i, the convolution of neural networks (a correlation).

    The kernel size is odd, the margin (kernel - 1)/2: with stride 1 the size stays.
    """

    def __init__(
        self,
        weight: Tensor,
        input_shape: Shape,
        stride: int = 1,
        padding: Literal["zero", "circular"] = "zero",
    ) -> None:
        out_channels, in_channels, height, width = weight.shape
        if len(input_shape) != 3 or input_shape[0] != in_channels:
            raise ValueError(
                f"a convolution with {in_channels} input channels "
                f"does not fit an input of shape {input_shape}"
            )
        self.weight = weight
        self.input_shape = input_shape
        self.stride = stride
        self.margin = (height // 2, width // 2)
        self.circular = (
            Padding(input_shape, self.margin, "circular") if padding == "circular" else None
        )
        self._out_channels = out_channels

    def forward(self, x: Tensor) -> Tensor:
        """V x."""
        if self.circular is None:
            return F.conv2d(x, self.weight, stride=self.stride, padding=self.margin)
        return F.conv2d(self.circular(x), self.weight, stride=self.stride)

    def adjoint(self, y: Tensor) -> Tensor:
        """V* y, the transposed convolution, on exactly the input's size."""
        assert self.input_shape is not None
        sizes = self.input_shape[-2:]
        # What the stride cut off at the far edge and the transpose must put back.
        rest = [
            (n + 2 * m - k) % self.stride
            for n, m, k in zip(sizes, self.margin, self.weight.shape[-2:], strict=True)
        ]
        margin = self.margin if self.circular is None else (0, 0)
        x = F.conv_transpose2d(
            y, self.weight, stride=self.stride, padding=margin, output_padding=rest
        )
        return x if self.circular is None else self.circular.adjoint(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, ceil(H / stride), ceil(W / stride))."""
        return (self._out_channels, *(-(-n // self.stride) for n in input_shape[-2:]))

    def _norm(self, shape: Shape) -> float:
        """A bound that needs no iteration, where one is known; else power iteration.

        A zero-padded convolution is a piece of the circular one on a torus larger by the
        margin, and skipping outputs (stride) only shrinks it: the largest spectral norm over
        the torus' frequencies bounds it. For nonnegative kernels that is at frequency 0.
        """
        kernel = self.weight.detach().to(torch.float64)
        if bool((kernel >= 0).all()):
            return float(torch.linalg.matrix_norm(kernel.sum((-2, -1)), ord=2))
        if self.weight.shape[1] == 1 and self.stride == 1:
            pad = (0, 0) if self.circular is not None else self.margin
            torus = [n + 2 * m for n, m in zip(shape[-2:], pad, strict=True)]
            if all(k <= n for k, n in zip(kernel.shape[-2:], torus, strict=True)):
                spectrum = torch.fft.rfft2(kernel, s=torus)
                return float(spectrum.abs().square().sum(0).max().sqrt())
        return super()._norm(shape)


class DifferenceOperator(LinearOperator):
    """grad x: (C, H, W) -> (2C, H, W), each channel's differences down and to the right.

    The last difference of each axis is zero (Neumann boundary). Both differences of a channel
    are consecutive channels.
    """

    def __init__(self, input_shape: Shape) -> None:
        if len(input_shape) != 3:
            raise ValueError(
                f"differences take images of shape (channels, H, W), got {input_shape}"
            )
        self.input_shape = input_shape

    def forward(self, x: Tensor) -> Tensor:
        """grad x."""
        down = x.diff(dim=-2, append=x[..., -1:, :])
        right = x.diff(dim=-1, append=x[..., -1:])
        return torch.stack((down, right), dim=2).flatten(1, 2)

    def adjoint(self, y: Tensor) -> Tensor:
        """-div y."""
        down, right = y[:, 0::2, :-1], y[:, 1::2, :, :-1]
        vertical = F.pad(down, (0, 0, 1, 0)) - F.pad(down, (0, 0, 0, 1))
        return vertical + F.pad(right, (1, 0)) - F.pad(right, (0, 1))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Twice the channels."""
        return (2 * input_shape[0], *input_shape[1:])

    def norm(self, input_shape: Shape | None = None) -> float:
        """sqrt(8), since (u - v)^2 <= 2 u^2 + 2 v^2; large images come close to it."""
        return math.sqrt(8.0)


class PoolingOperator(LinearOperator):
    """The mean over each block of size x size pixels; size must divide the image."""

    def __init__(self, size: int, input_shape: Shape) -> None:
        if len(input_shape) != 3 or any(n % size for n in input_shape[-2:]):
            raise ValueError(
                f"average pooling by {size} does not divide an input of shape {input_shape}"
            )
        self.size = size
        self.input_shape = input_shape

    def forward(self, x: Tensor) -> Tensor:
        """Block means."""
        return F.avg_pool2d(x, self.size)

    def adjoint(self, y: Tensor) -> Tensor:
        """Each value spread evenly over its block."""
        spread = y / self.size**2
        return spread.repeat_interleave(self.size, -1).repeat_interleave(self.size, -2)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Smaller by ``size``."""
        return (input_shape[0], *(n // self.size for n in input_shape[-2:]))

    def norm(self, input_shape: Shape | None = None) -> float:
        """1/size, exactly, since P P* = I / size^2."""
        return 1.0 / self.size


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

    def _norm(self, shape: Shape) -> float:
        return float(torch.linalg.matrix_norm(self.weight.detach().to(torch.float64), ord=2))
