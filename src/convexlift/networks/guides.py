"""Guides: ordinary networks that read an image made from the data, and its noise level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convexlift.networks.maps import require_dimensions
from convexlift.parts import ProblemPart, require_at_least, require_increasing

MEAN, SPREAD, LEVEL = 0.45, 0.25, 0.1
"""Typical brightness and contrast of photographs in [0, 1], and a typical noise level."""
MARGINS = {2: 16, 3: 0}
"""Mirrored pixels around a picture that a U-net reads; volumes would become several times as large.
"""


class Guide(nn.Module, ProblemPart, ABC):
    """(picture, noise, seen) -> a number for each channel and pixel.

    A subclass with ``name="..."`` can be saved with its network (``ProblemPart``).

    Attributes:
        in_channels: channels of the picture.
        outputs: numbers for each pixel.
        dimensions: 2 for pictures, 3 for volumes (B, C, D, H, W); None for both.
        reads_picture: whether numbers depend on the picture, or on the noise level only.
    """

    in_channels: int
    outputs: int
    dimensions: int | None = 2
    reads_picture: ClassVar[bool] = True

    @abstractmethod
    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """Numbers (B, outputs, H, W), or (B, outputs, 1, 1) without reading the picture.

        Volumes have a third size, D, everywhere.

        Args:
            picture: an image made from the data, (B, C, H, W).
            noise: its level, (B, 1, 1, 1).
            seen: 1 where the picture holds data, 0 where it was filled in, (B, 1, H, W).
        """


class NoiseGuide(Guide, name="NoiseGuide"):
    """Numbers for each channel that depend on the noise level c only, the same for all pixels.

    They are learned at some levels, interpolated linearly in log c, and constant beyond. With one
    level, they do not depend on c, and R_c(x) = c^2 R_1(x / c).

    Args:
        in_channels: channels of the picture.
        outputs: numbers for each level.
        levels: noise levels, in increasing order.
    """

    reads_picture = False
    dimensions = None

    def __init__(self, in_channels: int, outputs: int, *, levels: Sequence[float]) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, outputs=outputs)
        require_increasing(self, levels=levels)
        self.in_channels, self.outputs, self.levels = in_channels, outputs, list(levels)
        # Half of the largest weight; not zeros, to which learning rates may not be relative.
        self.numbers = nn.Parameter(torch.ones(len(levels), outputs))

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """(B, outputs, 1, 1), with a third 1 for volumes."""
        log_c, logs = noise.reshape(-1, 1).log(), noise.new_tensor(self.levels).log()
        ways = ((log_c - logs[:-1]) / logs.diff()).clamp(0, 1)  # past each interval: 1
        one = torch.ones_like(log_c)
        shares = torch.cat([one, ways], 1) - torch.cat([ways, 0 * one], 1)
        return (shares @ self.numbers).reshape(len(shares), -1, *(1,) * (picture.ndim - 2))


class UNetGuide(Guide, name="UNetGuide"):
    """A small U-net.

    It works at half the resolution: four pixels, of volumes eight, become channels, which is four
    times cheaper, or eight. Pictures are read with a mirrored margin, so that next to their edges
    it sees what it saw in training, not zeros.

    Args:
        in_channels: channels of the picture.
        outputs: numbers for each pixel.
        widths: channels at each scale, the finest first.
        blocks: residual blocks at each scale, before and after the coarser ones.
        dimensions: 2 for pictures, 3 for volumes.
    """

    def __init__(
        self,
        in_channels: int,
        outputs: int,
        *,
        widths: Sequence[int] = (48, 64, 80),
        blocks: int = 2,
        dimensions: int = 2,
    ) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, outputs=outputs, blocks=blocks)
        require_dimensions(dimensions)
        if not widths or min(widths) < 1:
            raise ValueError(f"a guide needs widths of at least 1, one for each scale: {widths}")
        self.in_channels, self.outputs = in_channels, outputs
        self.widths, self.blocks, self.dimensions = list(widths), blocks, dimensions
        # Sides are read in multiples of this.
        self.multiple = 2 ** len(widths)
        self.margin = -(-MARGINS[dimensions] // self.multiple) * self.multiple
        finer, coarser = self.widths[:-1], self.widths[1:]
        convolution = _convolution(dimensions)
        transposed = nn.ConvTranspose2d if dimensions == 2 else nn.ConvTranspose3d
        parts = 2**dimensions
        self.first = convolution(parts * (in_channels + 1) + 1, widths[0], 3, padding=1)
        stages = [_residual_blocks(width, blocks, dimensions) for width in (*widths, *finer)]
        self.encoders = nn.ModuleList(stages[: len(widths)])
        self.decoders = nn.ModuleList(stages[len(widths) :])
        pairs = list(zip(finer, coarser, strict=True))
        self.down = nn.ModuleList(convolution(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(transposed(b, a, 2, stride=2) for a, b in pairs)
        self.last = convolution(widths[0], parts * outputs, 3, padding=1)
        # Start near the middle of the range of weights, the same for all pixels.
        for parameter, factor in ((self.last.weight, 0.1), (self.last.bias, 0.0)):
            assert parameter is not None
            parameter.data.mul_(factor)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files; those of pictures name no dimensions."""
        names = ["in_channels", "outputs", "widths", "blocks"]
        names += ["dimensions"] if self.dimensions != 2 else []
        return {name: getattr(self, name) for name in names}

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """One pass over the picture and its margin."""
        axes = list(enumerate(picture.shape[2:], start=2))
        for axis, n in axes:
            after = self.margin + -n % self.multiple
            places = _mirrored(n, self.margin, after, picture.device)
            picture, seen = picture.index_select(axis, places), seen.index_select(axis, places)
        whole = self.read(picture, noise, seen)
        for axis, n in axes:
            whole = whole.narrow(axis, self.margin, n)
        return whole

    def read(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """One pass down to the coarsest scale and up again, without a margin.

        Sides must be multiples of ``multiple``.
        """
        z = _unshuffled(torch.cat([(picture - MEAN) / SPREAD, 1 - seen], 1))
        level = (noise / LEVEL).log().expand(-1, 1, *z.shape[2:])
        z = self.first(torch.cat([z, level], 1))
        kept = []
        for encoder, down in zip(self.encoders, self.down, strict=False):
            kept.append(encoder(z))
            z = down(kept[-1])
        z = self.encoders[-1](z)
        for decoder, up, finer in reversed(list(zip(self.decoders, self.up, kept, strict=True))):
            z = decoder(up(z) + finer)
        return _shuffled(self.last(F.relu(z)), self.outputs)


class ResidualBlock(nn.Module):
    """z -> z + B relu(A relu(z)), the identity at the start of training."""

    def __init__(self, width: int, dimensions: int = 2) -> None:
        super().__init__()
        convolution = _convolution(dimensions)
        self.a = convolution(width, width, 3, padding=1)
        self.b = convolution(width, width, 3, padding=1)
        for parameter in self.b.parameters():
            nn.init.zeros_(parameter)

    def forward(self, z: Tensor) -> Tensor:
        """The block's output."""
        changed: Tensor = z + self.b(F.relu(self.a(F.relu(z))))
        return changed


def _residual_blocks(width: int, count: int, dimensions: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualBlock(width, dimensions) for _ in range(count)))


def _convolution(dimensions: int) -> type[nn.Conv2d] | type[nn.Conv3d]:
    return nn.Conv2d if dimensions == 2 else nn.Conv3d


def _mirrored(n: int, before: int, after: int, device: torch.device) -> Tensor:
    """The pixels 0 ... n - 1 with mirrored ones around them, as often as it takes; n >= 1."""
    period = max(2 * n - 2, 1)
    places = torch.arange(-before, n + after, device=device).remainder(period)
    return torch.minimum(places, period - places)


def _unshuffled(x: Tensor) -> Tensor:
    """Blocks of 2 x 2 pixels, or 2 x 2 x 2, as channels: (B, 4 C, H / 2, W / 2)."""
    if x.ndim == 4:
        return F.pixel_unshuffle(x, 2)
    batch, channels, *size = x.shape
    halves = x.reshape(batch, channels, *(n for side in size for n in (side // 2, 2)))
    return halves.permute(0, 1, 3, 5, 7, 2, 4, 6).reshape(batch, -1, *(n // 2 for n in size))


def _shuffled(z: Tensor, channels: int) -> Tensor:
    """The inverse of ``_unshuffled``."""
    if z.ndim == 4:
        return F.pixel_shuffle(z, 2)
    batch, _, *size = z.shape
    blocks = z.reshape(batch, channels, 2, 2, 2, *size).permute(0, 1, 5, 2, 6, 3, 7, 4)
    return blocks.reshape(batch, channels, *(2 * n for n in size))
