"""The linear maps inside networks, as operators: convolution, differences, pooling, dense."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import NORM_MARGIN, LinearOperator, power_iteration
from convexlift.operators.padding import Boundary, Padding, most_copies
from convexlift.operators.spectral import FLOOR
from convexlift.tensors import Shape

KNOWN_NORMS = 256
"""The number of convolutions whose norms are remembered."""
_NORMS: dict[bytes, float] = {}
LARGEST_KERNEL = 11
"""The largest kernel with a symbol: symbols ignore boundaries, which reach as far as kernels do."""
FEW_CHANNELS = 3
"""Adjoints onto at most this many channels avoid conv_transpose2d where it is slow: on CPUs, and
in double precision."""


class ConvolutionOperator(LinearOperator):
    """(V x)_o = sum_i w_{oi} * x_i, the convolution of neural networks (a correlation).

    The kernel size is odd, the margin (kernel - 1)/2: with stride 1, images keep their size.
    """

    def __init__(
        self,
        weight: Tensor,
        input_shape: Shape,
        stride: int = 1,
        padding: Boundary = "zero",
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
        self.boundary: Boundary = padding
        self.padding = Padding(input_shape, self.margin, padding)
        # F.conv2d pads with zeros by itself.
        self._zeros = self.margin if padding == "zero" else (0, 0)
        self._out_channels = out_channels

    @property
    def convolution(self) -> ConvolutionOperator | None:  # type: ignore[override]
        """V itself, for stride 1."""
        return self if self.stride == 1 else None

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor | None:
        """sum |F k|^2 over all kernels k, nowhere near zero; for small kernels and stride 1."""
        small = max(self.weight.shape[-2:]) <= min(LARGEST_KERNEL, *self._resolve(None)[-2:])
        if self.stride != 1 or not small or not self.weight.any():
            return None
        spectra: Tensor = torch.fft.rfft2(self.weight, s=(height, width))
        squares = spectra.abs().square().sum((0, 1))
        return squares + FLOOR * squares.max()

    def patch(self, size: int) -> ConvolutionOperator:
        """The same convolution of a smaller image."""
        channels, *sides = self._resolve(None)
        smaller = (channels, *(min(size, side) for side in sides))
        return ConvolutionOperator(self.weight, smaller, self.stride, self.boundary)

    def forward(self, x: Tensor) -> Tensor:
        """V x."""
        x = x if self.boundary == "zero" else self.padding(x)
        return F.conv2d(x, self.weight, stride=self.stride, padding=self._zeros)

    def on_padded(self, padded: Tensor, bias: Tensor | None) -> Tensor:
        """V x + bias from x already continued past its edges by ``padding``; for stride 1."""
        return F.conv2d(padded, self.weight, None if bias is None else bias.flatten())

    def strips(self, rows: int) -> Iterator[tuple[slice, slice]]:
        """A few rows of V x at a time, and the rows of the padded image they depend on."""
        height = self._resolve(None)[-2]
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            yield slice(top, bottom), slice(top, bottom + 2 * self.margin[0])

    def adjoint(self, y: Tensor) -> Tensor:
        """V* y, the transposed convolution, on exactly the input's size."""
        assert self.input_shape is not None
        slow = y.device.type == "cpu" or y.dtype == torch.float64
        if self.stride == 1 and slow and self.weight.shape[1] <= FEW_CHANNELS:
            return self.padding.adjoint(self.adjoint_on_padded(y))
        sizes = self.input_shape[-2:]
        # Rows and columns at the far edge that the stride skips and the transpose must restore.
        rest = [
            (n + 2 * m - k) % self.stride
            for n, m, k in zip(sizes, self.margin, self.weight.shape[-2:], strict=True)
        ]
        x = F.conv_transpose2d(
            y, self.weight, stride=self.stride, padding=self._zeros, output_padding=rest
        )
        return x if self.boundary == "zero" else self.padding.adjoint(x)

    def adjoint_on_padded(self, y: Tensor) -> Tensor:
        """The adjoint of the convolution alone, onto the padded input; for stride 1.

        Convolutions along the columns, one for each column of the kernel, whose results are
        added up side by side: on CPUs several times faster than conv_transpose2d.
        """
        if y.dtype == torch.float64:
            return self._adjoint_by_taps(y)
        if y.device.type != "cpu":
            return F.conv_transpose2d(y, self.weight)
        out_channels, in_channels, rows, columns = self.weight.shape
        flipped = self.weight.flip(2).permute(3, 1, 0, 2)  # column, in, out, row
        kernels = flipped.reshape(columns * in_channels, out_channels, rows, 1)
        parts = F.conv2d(y, kernels, padding=(rows - 1, 0))
        width = y.shape[-1]
        total = y.new_zeros((y.shape[0], in_channels, parts.shape[-2], width + columns - 1))
        for j in range(columns):
            total[..., j : j + width] += parts[:, j * in_channels : (j + 1) * in_channels]
        return total

    def _adjoint_by_taps(self, y: Tensor) -> Tensor:
        """A matrix product for each row of taps, then shifts: several times faster in double
        precision, on CPUs and GPUs.
        """
        out_channels, in_channels, rows, columns = self.weight.shape
        height, width = y.shape[-2:]
        total = y.new_zeros((len(y), in_channels, height + rows - 1, width + columns - 1))
        for i in range(rows):
            kernels = self.weight[:, :, i].reshape(out_channels, -1).T  # in columns, out
            parts = (kernels @ y.flatten(2)).reshape(len(y), in_channels, columns, height, width)
            for j in range(columns):
                total[..., i : i + height, j : j + width] += parts[:, :, j]
        return total

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, ceil(H / stride), ceil(W / stride))."""
        return (self._out_channels, *(-(-n // self.stride) for n in input_shape[-2:]))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """The sums of |w_{oi}| over the taps, as a matrix from channel to channel."""
        matrix = self.weight.abs().sum((2, 3))
        matrix = matrix.T * self._copies if adjoint else matrix
        return (bound.flatten(1) @ matrix.T)[:, :, None, None]

    def roundings(self, input_shape: Shape, *, adjoint: bool = False) -> int:
        """Taps times channels; then copies of a pixel are added up."""
        out_channels, in_channels, height, width = self.weight.shape
        return height * width * (out_channels if adjoint else in_channels) + self._copies

    @property
    def _copies(self) -> int:
        return most_copies(self.margin, self.boundary)

    def _norm(self, shape: Shape) -> float:
        """Computed on a CPU, once for equal convolutions: on a GPU, launches would dominate."""
        weight = self.weight.detach().cpu().contiguous()
        described = repr((weight.dtype, weight.shape, self.stride, self.boundary, shape))
        numbers = weight.to(torch.float64).numpy().tobytes()  # NumPy lacks bfloat16
        digest = hashlib.blake2b(numbers + described.encode()).digest()
        norm = _NORMS.get(digest)
        if norm is None:
            alike = ConvolutionOperator(weight, shape, self.stride, self.boundary)
            norm = _NORMS[digest] = alike._bound(shape)
            if len(_NORMS) > KNOWN_NORMS:
                _NORMS.pop(next(iter(_NORMS)), None)
        return norm

    def _bound(self, shape: Shape) -> float:
        """A bound that needs no iteration, where one is known; else power iteration.

        A zero-padded convolution is a piece of the circular one on a torus larger by the
        margin, and skipping outputs (stride) only shrinks it: the largest spectral norm over
        the torus' frequencies bounds it. For nonnegative kernels that is at frequency 0.

        Where the image is mirrored or repeated, pixels near the edge count more than once, and
        the norm can be larger. That is local: a small image has edges and corners like any.
        """
        kernel = self.weight.detach().to(torch.float64)
        folded = self.boundary in ("reflect", "replicate")
        if bool((kernel >= 0).all()):
            if folded:
                return self._nonnegative_norm(kernel, shape)
            return float(torch.linalg.matrix_norm(kernel.sum((-2, -1)), ord=2))
        if self.weight.shape[1] == 1 and self.stride == 1:
            pad = (0, 0) if self.boundary == "circular" else self.margin
            torus = [n + 2 * m for n, m in zip(shape[-2:], pad, strict=True)]
            if all(k <= n for k, n in zip(kernel.shape[-2:], torus, strict=True)):
                # Filter by filter: all spectra together would be larger than V x.
                spectra = (torch.fft.rfft2(one, s=torus).abs().square() for one in kernel)
                inside = math.sqrt(float(functools.reduce(Tensor.add_, spectra).max()))
                if not folded:
                    return inside
                small = self._cropped(self.weight.detach(), shape, 8 * max(kernel.shape[-2:]))
                at_edges = power_iteration(small, small._resolve(None))
                return max(inside, NORM_MARGIN * at_edges)
        return super()._norm(shape)

    def _nonnegative_norm(self, kernel: Tensor, shape: Shape) -> float:
        """||V||^2 <= max (V* V q) / q for every q > 0 (Collatz and Wielandt), with stride 1.

        From a q that is constant in each channel, a few products V* V change it near the edge
        only, by twice the margin each: the bound for a small image holds for every larger one.
        """
        products = 4
        small = self._cropped(kernel, shape, 4 * products * max(self.margin) + 1)
        _, _, right = torch.linalg.svd(kernel.sum((-2, -1)))
        u = right[0].abs() + 1e-3 * right[0].abs().max()
        q = u[None, :, None, None].expand(1, *small._resolve(None))
        bound = math.inf
        for _ in range(products):
            product = small.adjoint(small(q))
            bound = min(bound, float((product / q).max()))
            q = (product / product.max()).clamp_min(1e-3) if bound > 0 else q
        return math.sqrt(bound)

    def _cropped(self, weight: Tensor, shape: Shape, size: int) -> ConvolutionOperator:
        """The convolution with stride 1, on an image of at most ``size`` x ``size``."""
        smaller = (shape[0], *(min(n, size) for n in shape[-2:]))
        return ConvolutionOperator(weight, smaller, 1, self.boundary)


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

    def symbol(self, height: int, width: int, like: Tensor) -> Tensor:
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
            return 2 * (bound[:, 0::2] + bound[:, 1::2])
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
