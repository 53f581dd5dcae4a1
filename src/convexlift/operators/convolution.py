"""Convolutions of images that continue past their edges, and filters in Fourier space."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.operators.linear import NORM_MARGIN, LinearOperator, lanczos_norm
from convexlift.tensors import Shape

Boundary = Literal["zero", "circular", "reflect", "replicate"]
BOUNDARIES: tuple[Boundary, ...] = ("zero", "circular", "reflect", "replicate")
"""How an image continues past its edge; ``reflect`` does not repeat the edge pixel."""
KNOWN_NORMS = 256
"""The number of convolutions whose norms are remembered."""
_NORMS: dict[bytes, float] = {}
LARGEST_KERNEL = 11
"""The largest kernel with a symbol: symbols ignore boundaries, which reach as far as kernels do."""
FLOOR = 5e-2
"""Where an operator sees nothing, its symbol is this fraction of the largest value."""
PATCHES = 2**19
"""Numbers in the patches that a convolution in double precision copies at once (4 MB)."""
SHARES = 2**20
"""Shares of taps that an adjoint computes at once (4 MB), but of ``FEW_ROWS`` at least."""
MANY_SUMS = 9
"""Columns of taps times channels from which a convolution is the faster way to sum (measured)."""
FEW_ROWS = 16
"""Rows that an adjoint computes at once at least, since those of two parts overlap."""
FOLDED = 2**27
"""Shares of taps that an adjoint on a GPU computes at once, in double precision (1 GB)."""
FEW_CHANNELS = 3
"""Adjoints onto at most this many channels avoid conv_transpose2d where it is slow: on CPUs, and
in double precision."""


class Padding(LinearOperator):
    """x continued past its edges by ``margin`` = (rows, columns)."""

    def __init__(self, input_shape: Shape, margin: tuple[int, int], boundary: Boundary) -> None:
        sides = input_shape[-2:]
        less = {"circular": 0, "reflect": 1}.get(boundary)
        if less is not None and any(m > n - less for m, n in zip(margin, sides, strict=True)):
            size = " x ".join(str(n) for n in sides)
            raise ValueError(f"a {boundary} margin of {margin} does not fit an image of {size}")
        self.input_shape = input_shape
        self.margin = margin
        self.boundary: Boundary = boundary

    def forward(self, x: Tensor) -> Tensor:
        """The larger image."""
        mode = "constant" if self.boundary == "zero" else self.boundary
        return F.pad(x, [m for m in reversed(self.margin) for _ in range(2)], mode=mode)

    def adjoint(self, y: Tensor) -> Tensor:
        """Every copy of a pixel added back to it."""
        for axis, margin in enumerate(reversed(self.margin), start=1):
            y = _fold(y, -axis, margin, self.boundary)
        return y

    def output_shape(self, input_shape: Shape) -> Shape:
        """Larger by twice the margin."""
        (*channels, height, width), (rows, columns) = input_shape, self.margin
        return (*channels, height + 2 * rows, width + 2 * columns)


def most_copies(margin: tuple[int, int], boundary: Boundary) -> int:
    """The most copies of a pixel in the padded image, the product over all axes."""
    if boundary == "zero":
        return 1
    # Wrapped or mirrored, a pixel has one copy on each side; repeated, it has all of a margin.
    return math.prod(min(3, 2 * m + 1) if boundary != "replicate" else 2 * m + 1 for m in margin)


def _fold(y: Tensor, axis: int, margin: int, boundary: Boundary) -> Tensor:
    """Add the two margins of one axis to the pixels that they are copies of."""
    size = y.shape[axis] - 2 * margin
    core = y.narrow(axis, margin, size)
    if margin == 0 or boundary == "zero":
        return core
    core = core.clone()
    before, after = y.narrow(axis, 0, margin), y.narrow(axis, margin + size, margin)
    if boundary == "circular":
        core.narrow(axis, size - margin, margin).add_(before)
        core.narrow(axis, 0, margin).add_(after)
    elif boundary == "reflect":
        core.narrow(axis, 1, margin).add_(before.flip(axis))
        core.narrow(axis, size - 1 - margin, margin).add_(after.flip(axis))
    else:
        core.narrow(axis, 0, 1).add_(before.sum(axis, keepdim=True))
        core.narrow(axis, size - 1, 1).add_(after.sum(axis, keepdim=True))
    return core


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
        self.margin = height // 2, width // 2
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

    def some_channels(self, channels: slice) -> ConvolutionOperator:
        """Some channels of V x."""
        assert self.input_shape is not None
        return ConvolutionOperator(
            self.weight[channels], self.input_shape, self.stride, self.boundary
        )

    def forward(self, x: Tensor) -> Tensor:
        """V x."""
        patches = x.numel() * math.prod(self.weight.shape[-2:])
        copied = x.dtype == torch.float64 and x.device.type == "cpu"
        if copied and self.stride == 1 and patches > PATCHES:
            return self._in_strips(self.padding(x))
        x = x if self.boundary == "zero" else self.padding(x)
        return F.conv2d(x, self.weight, stride=self.stride, padding=self._zeros)

    def _in_strips(self, padded: Tensor) -> Tensor:
        """V x, a few rows at a time.

        In double precision torch copies all patches of an image first: more than the result.
        """
        taps = math.prod(self.weight.shape[1:])
        rows = max(1, PATCHES // (taps * padded.shape[-1] * len(padded)))
        size = self.output_shape(self._resolve(None))
        result = padded.new_empty((len(padded), *size))
        for strip, halo in self.strips(rows):
            result[:, :, strip] = F.conv2d(padded[:, :, halo], self.weight)
        return result

    def on_padded(self, padded: Tensor, bias: Tensor | None) -> Tensor:
        """V x + bias from x already continued past its edges by ``padding``; for stride 1.

        The bias has one number for each channel, or the shape of V x.
        """
        if bias is None or bias.numel() == self._out_channels:
            return F.conv2d(padded, self.weight, None if bias is None else bias.flatten())
        return F.conv2d(padded, self.weight).add_(bias)

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
        sizes = self.input_shape[1:]
        # Rows and columns at the far edge that the stride skips and the transpose must restore.
        rest = [
            (n + 2 * m - k) % self.stride
            for n, m, k in zip(sizes, self.margin, self.weight.shape[2:], strict=True)
        ]
        x = F.conv_transpose2d(
            y, self.weight, stride=self.stride, padding=self._zeros, output_padding=rest
        )
        return x if self.boundary == "zero" else self.padding.adjoint(x)

    def adjoint_on_padded(self, y: Tensor) -> Tensor:
        """The adjoint of the convolution alone, onto the padded input; for stride 1.

        On CPUs a few rows at a time, as fit a cache: the shares of all taps are added up along the
        columns, then along the rows. That is several times faster than conv_transpose2d.
        """
        if y.device.type != "cpu":
            double = y.dtype == torch.float64
            return self._adjoint_by_taps(y) if double else F.conv_transpose2d(y, self.weight)
        _, channels, rows, columns = self.weight.shape
        batch, _, height, width = y.shape
        total = y.new_zeros((batch, channels, height + rows - 1, width + columns - 1))
        convolve = columns * channels >= MANY_SUMS and y.dtype == torch.float32
        shares = columns * channels * (1 if convolve else rows)
        step = max(FEW_ROWS, SHARES // (batch * shares * width))
        for top in range(0, height, step):
            sums = self._sums_along_columns(y[:, :, top : top + step], convolve=convolve)
            below = total[:, :, top : top + sums.shape[2]]
            for j in range(columns):
                below[..., j : j + width] += sums[:, j * channels : (j + 1) * channels]
        return total

    def _sums_along_columns(self, y: Tensor, *, convolve: bool) -> Tensor:
        """Shares of taps, summed along each column: (B, columns * in, H + rows - 1, W).

        By a convolution, or by a matrix product for the shares and shifted sums of these.
        """
        rows = self.weight.shape[2]
        kernels = self.weight.permute(2, 3, 1, 0).flatten(1, 2)  # row; column and in; out
        if convolve:
            turned = kernels.permute(1, 2, 0).flip(2)[..., None]
            return F.conv2d(y, turned, padding=(rows - 1, 0))
        batch, _, height, width = y.shape
        shares = (kernels.flatten(0, 1) @ y.flatten(2)).reshape(batch, rows, -1, height, width)
        sums = y.new_zeros((batch, kernels.shape[1], height + rows - 1, width))
        for i, share in enumerate(shares.unbind(1)):
            sums[:, :, i : i + height] += share
        return sums

    def _adjoint_by_taps(self, y: Tensor) -> Tensor:
        """A matrix product for each row of taps, then shifts: much faster in double precision."""
        out_channels, in_channels, rows, columns = self.weight.shape
        height, width = y.shape[-2:]
        size = height + rows - 1, width + columns - 1
        if y.is_cuda and y[:, :1].numel() * self.weight[0].numel() <= FOLDED:  # two launches
            return F.fold(self.weight.flatten(1).T @ y.flatten(2), size, (rows, columns))
        total = y.new_zeros((len(y), in_channels, *size))
        step = max(1, FOLDED // 4 // (len(y) * in_channels * columns * width))
        for top, i in itertools.product(range(0, height, step), range(rows)):
            kernels = self.weight[:, :, i].reshape(out_channels, -1).T  # in columns, out
            some = y[:, :, top : top + step]
            parts = (kernels @ some.flatten(2)).reshape(len(y), -1, columns, *some.shape[2:])
            for j in range(columns):
                total[..., top + i : top + i + len(some[0, 0]), j : j + width] += parts[:, :, j]
            del parts  # large: before the next ones are computed
        return total

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, ceil(H / stride), ceil(W / stride))."""
        return (self._out_channels, *(-(-n // self.stride) for n in input_shape[1:]))

    def magnitude(self, bound: Tensor, input_shape: Shape, *, adjoint: bool = False) -> Tensor:
        """The sums of |w_{oi}| over the taps, as a matrix from channel to channel."""
        matrix = self.weight.abs().flatten(2).sum(2)
        matrix = matrix.T * self._copies if adjoint else matrix
        found = bound.flatten(1) @ matrix.T
        return found[..., None, None]

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
        """A bound that needs no iteration, where one is known; else Lanczos' method.

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
            return float(torch.linalg.matrix_norm(kernel.flatten(2).sum(2), ord=2))
        if self.weight.shape[1] <= FEW_CHANNELS and self.stride == 1:
            pad = 0 if self.boundary == "circular" else 2
            torus = [n + pad * m for n, m in zip(shape[1:], self.margin, strict=True)]
            if all(k <= n for k, n in zip(kernel.shape[2:], torus, strict=True)):
                inside = _norm_on_torus(kernel, torus)
                if not folded:
                    return inside
                small = self._cropped(self.weight.detach(), shape, 4 * max(kernel.shape[2:]))
                at_edges = lanczos_norm(small, small._resolve(None))
                return max(inside, NORM_MARGIN * at_edges)
        return super()._norm(shape)

    def _nonnegative_norm(self, kernel: Tensor, shape: Shape) -> float:
        """||V||^2 <= max (V* V q) / q for every q > 0 (Collatz and Wielandt), with stride 1.

        From a q that is constant in each channel, a few products V* V change it near the edge
        only, by twice the margin each: the bound for a small image holds for every larger one.
        """
        products = 4
        small = self._cropped(kernel, shape, 4 * products * max(self.margin) + 1)
        _, _, right = torch.linalg.svd(kernel.flatten(2).sum(2))
        u = right[0].abs() + 1e-3 * right[0].abs().max()
        q = u.reshape(1, -1, 1, 1).expand(1, *small._resolve(None))
        bound = math.inf
        for _ in range(products):
            product = small.adjoint(small(q))
            bound = min(bound, float((product / q).max()))
            # The bound needs q > 0: kernels with zeros may leave pixels without any product.
            q = (product / product.max()).clamp_min(1e-3) if bound > 0 else q
        return math.sqrt(bound)

    def _cropped(self, weight: Tensor, shape: Shape, size: int) -> ConvolutionOperator:
        """The convolution with stride 1, on an image of at most ``size`` x ``size``."""
        smaller = (shape[0], *(min(n, size) for n in shape[1:]))
        return ConvolutionOperator(weight, smaller, 1, self.boundary)


def _norm_on_torus(kernel: Tensor, torus: Sequence[int]) -> float:
    """The largest spectral norm among the matrices sum_k (F k)* (F k), one for each frequency."""
    # Filter by filter: all spectra together would be larger than V x.
    spectra = (torch.fft.rfft2(one, s=torus) for one in kernel)
    if kernel.shape[1] == 1:
        return math.sqrt(
            float(functools.reduce(Tensor.add_, (f.abs().square() for f in spectra)).max())
        )
    grams = (torch.einsum("c...,d...->...cd", f.conj(), f) for f in spectra)
    return math.sqrt(float(torch.linalg.eigvalsh(functools.reduce(Tensor.add_, grams)).max()))
