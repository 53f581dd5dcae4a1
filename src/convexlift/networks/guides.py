"""Guides: ordinary networks that read an image made from the data, and its noise level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convexlift.parts import ProblemPart, require_at_least, require_increasing

MEAN, SPREAD, LEVEL = 0.45, 0.25, 0.1
"""Typical brightness and contrast of photographs in [0, 1], and a typical noise level."""
MARGIN = 16
"""Mirrored pixels around a picture that a U-net reads."""


class Guide(nn.Module, ProblemPart, ABC):
    """(picture, noise, seen) -> a number for each channel and pixel.

    A subclass with ``name="..."`` can be saved with its network (``ProblemPart``).

    Attributes:
        in_channels: channels of the picture.
        outputs: numbers for each pixel.
        reads_picture: whether numbers depend on the picture, or on the noise level only.
    """

    in_channels: int
    outputs: int
    reads_picture: ClassVar[bool] = True

    @abstractmethod
    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """Numbers (B, outputs, H, W), or (B, outputs, 1, 1) without reading the picture.

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

    def __init__(self, in_channels: int, outputs: int, *, levels: Sequence[float]) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, outputs=outputs)
        require_increasing(self, levels=levels)
        self.in_channels, self.outputs, self.levels = in_channels, outputs, list(levels)
        # Half of the largest weight; not zeros, to which learning rates may not be relative.
        self.numbers = nn.Parameter(torch.ones(len(levels), outputs))

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """(B, outputs, 1, 1)."""
        log_c, logs = noise.reshape(-1, 1).log(), noise.new_tensor(self.levels).log()
        ways = ((log_c - logs[:-1]) / logs.diff()).clamp(0, 1)  # past each interval: 1
        one = torch.ones_like(log_c)
        shares = torch.cat([one, ways], 1) - torch.cat([ways, 0 * one], 1)
        return (shares @ self.numbers)[..., None, None]


class UNetGuide(Guide, name="UNetGuide"):
    """A small U-net.

    It works at half the resolution: four pixels become channels, which is four times cheaper.
    Pictures are read with a mirrored margin, so that next to their edges it sees what it saw in
    training, not zeros.

    Args:
        in_channels: channels of the picture.
        outputs: numbers for each pixel.
        widths: channels at each scale, the finest first.
        blocks: residual blocks at each scale, before and after the coarser ones.
    """

    def __init__(
        self,
        in_channels: int,
        outputs: int,
        *,
        widths: Sequence[int] = (48, 64, 80),
        blocks: int = 2,
    ) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, outputs=outputs, blocks=blocks)
        if not widths or min(widths) < 1:
            raise ValueError(f"a guide needs widths of at least 1, one for each scale: {widths}")
        self.in_channels, self.outputs = in_channels, outputs
        self.widths, self.blocks = list(widths), blocks
        # Sides are read in multiples of this.
        self.multiple = 2 ** len(widths)
        self.margin = -(-MARGIN // self.multiple) * self.multiple
        finer, coarser = self.widths[:-1], self.widths[1:]
        self.first = nn.Conv2d(4 * (in_channels + 1) + 1, widths[0], 3, padding=1)
        stages = [_residual_blocks(width, blocks) for width in (*widths, *finer)]
        self.encoders = nn.ModuleList(stages[: len(widths)])
        self.decoders = nn.ModuleList(stages[len(widths) :])
        pairs = list(zip(finer, coarser, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
        self.last = nn.Conv2d(widths[0], 4 * outputs, 3, padding=1)
        # Start near the middle of the range of weights, the same for all pixels.
        for parameter, factor in ((self.last.weight, 0.1), (self.last.bias, 0.0)):
            assert parameter is not None
            parameter.data.mul_(factor)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        names = ("in_channels", "outputs", "widths", "blocks")
        return {name: getattr(self, name) for name in names}

    def forward(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """One pass over the picture and its margin."""
        sides = list(zip((2, 3), picture.shape[2:], strict=True))
        for axis, n in sides:
            after = self.margin + -n % self.multiple
            places = _mirrored(n, self.margin, after, picture.device)
            picture, seen = picture.index_select(axis, places), seen.index_select(axis, places)
        whole = self.read(picture, noise, seen)
        for axis, n in sides:
            whole = whole.narrow(axis, self.margin, n)
        return whole

    def read(self, picture: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
        """One pass down to the coarsest scale and up again, without a margin.

        Sides must be multiples of ``multiple``.
        """
        z = F.pixel_unshuffle(torch.cat([(picture - MEAN) / SPREAD, 1 - seen], 1), 2)
        level = (noise / LEVEL).log().expand(-1, 1, *z.shape[2:])
        z = self.first(torch.cat([z, level], 1))
        kept = []
        for encoder, down in zip(self.encoders, self.down, strict=False):
            kept.append(encoder(z))
            z = down(kept[-1])
        z = self.encoders[-1](z)
        for decoder, up, finer in reversed(list(zip(self.decoders, self.up, kept, strict=True))):
            z = decoder(up(z) + finer)
        return F.pixel_shuffle(self.last(F.relu(z)), 2)


class ResidualBlock(nn.Module):
    """z -> z + B relu(A relu(z)), the identity at the start of training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)
        for parameter in self.b.parameters():
            nn.init.zeros_(parameter)

    def forward(self, z: Tensor) -> Tensor:
        """The block's output."""
        changed: Tensor = z + self.b(F.relu(self.a(F.relu(z))))
        return changed


def _residual_blocks(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualBlock(width) for _ in range(count)))


def _mirrored(n: int, before: int, after: int, device: torch.device) -> Tensor:
    """The pixels 0 ... n - 1 with mirrored ones around them, as often as it takes; n >= 1."""
    period = max(2 * n - 2, 1)
    places = torch.arange(-before, n + after, device=device).remainder(period)
    return torch.minimum(places, period - places)
