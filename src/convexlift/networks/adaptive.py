"""Regularizers that read the data: R(x; y) is convex in x for every y.

    R(x; y) = c^2 <W(y), z_L(x / c)>,    W(y) = W_L (floor + (1 - floor) sigmoid(guide(y, c))^2)

with the noise level c: a partially input-convex network (Amos, Xu and Kolter 2017). An ordinary
network, the *guide*, reads an image made from the data y and its noise level, and gives the output
weights of a convex network, one for each channel and pixel: small where there is detail, large
where the image is flat. A simpler one, ``NoiseGuide``, reads the noise level only. The guide never
sees x. Once the data are given, every weight is a number, and R is convex as before: lift, methods
and certificates are the same.

Weights are bounded, from above by W_L and from below by ``floor`` times that. Without bounds,
training drives some of them to where the problem can no longer be solved. Activations are scaled
to the noise, c h(a / c): problems of different noise levels are the same problem in other units.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.parts import ProblemPart, require_at_least, require_increasing
from convexlift.tensors import Shape, first_non_finite

MEAN, SPREAD, LEVEL = 0.45, 0.25, 0.1
"""Typical brightness and contrast of photographs in [0, 1], and a typical noise level."""


class Guide(nn.Module, ProblemPart, ABC):
    """(picture, noise) -> a number for each channel and pixel.

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
    def forward(self, picture: Tensor, noise: Tensor) -> Tensor:
        """Numbers (B, outputs, H, W) for a picture (B, C, H, W) and noise levels (B, 1, 1, 1).

        Without reading the picture, (B, outputs, 1, 1).
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

    def forward(self, picture: Tensor, noise: Tensor) -> Tensor:
        """(B, outputs, 1, 1)."""
        log_c, logs = noise.reshape(-1, 1).log(), noise.new_tensor(self.levels).log()
        ways = ((log_c - logs[:-1]) / logs.diff()).clamp(0, 1)  # past each interval: 1
        one = torch.ones_like(log_c)
        shares = torch.cat([one, ways], 1) - torch.cat([ways, 0 * one], 1)
        return (shares @ self.numbers)[..., None, None]


class UNetGuide(Guide, name="UNetGuide"):
    """A small U-net.

    It works at half the resolution: four pixels become four channels, which is four times cheaper.

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
        finer, coarser = self.widths[:-1], self.widths[1:]
        self.first = nn.Conv2d(4 * in_channels + 1, widths[0], 3, padding=1)
        self.encoders = nn.ModuleList(_residual_blocks(width, blocks) for width in self.widths)
        self.decoders = nn.ModuleList(_residual_blocks(width, blocks) for width in finer)
        pairs = list(zip(finer, coarser, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
        self.last = nn.Conv2d(widths[0], 4 * outputs, 3, padding=1)
        # Start near the middle of the range of weights, the same for all pixels.
        for parameter, factor in ((self.last.weight, 0.1), (self.last.bias, 0.0)):
            assert parameter is not None
            parameter.data.mul_(factor)

    def forward(self, picture: Tensor, noise: Tensor) -> Tensor:
        """One pass down to the coarsest scale and up again."""
        height, width = picture.shape[2:]
        multiple = 2 ** len(self.widths)
        padding = (0, -width % multiple, 0, -height % multiple)
        # Replicated, not reflected: that works for every size.
        pixels = F.pad((picture - MEAN) / SPREAD, padding, mode="replicate")
        z = F.pixel_unshuffle(pixels, 2)
        level = (noise / LEVEL).log().expand(-1, 1, *z.shape[2:])
        z = self.first(torch.cat([z, level], 1))
        kept = []
        for encoder, down in zip(self.encoders, self.down, strict=False):
            kept.append(encoder(z))
            z = down(kept[-1])
        z = self.encoders[-1](z)
        for decoder, up, finer in reversed(list(zip(self.decoders, self.up, kept, strict=True))):
            z = decoder(up(z) + finer)
        return F.pixel_shuffle(self.last(F.relu(z)), 2)[..., :height, :width]


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


class ConditionedNetwork(InputConvexNetwork):
    """A convex network whose output weights belong to certain data: one for each image and pixel.

    Made by ``AdaptiveNetwork.condition``. It shares its layers with the adaptive network.

    Attributes:
        output: (B, C, H, W), nonnegative; (B or 1, C, 1, 1) from a guide that reads the noise only.
    """

    output: Tensor  # type: ignore[assignment]

    def __init__(
        self, layers: Sequence[ConvexLayer], output: Tensor, *, in_channels: int = 1
    ) -> None:
        super().__init__(layers, in_channels=in_channels)
        del self.output  # a parameter of networks in general; here a result, perhaps with a graph
        self.register_buffer("output", output)
        self.check_convexity()

    def select(self, images: Tensor) -> Self:
        """The network for some images of the batch."""
        output = self.output[images] if len(self.output) > 1 else self.output
        return type(self)(list(self.layers), output, in_channels=self.in_channels)

    def _output_weights(self, shape: Shape) -> Tensor:
        if tuple(self.output.shape[1:]) not in (tuple(shape), (shape[0], 1, 1)):
            raise ValueError(
                f"the weights were read off data for layers of {tuple(self.output.shape[1:])}, and "
                f"these images make layers of {tuple(shape)}; condition the network on their data"
            )
        return self.output

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Copies are for other devices and precisions, where the graph of a guide has no use.
        layers = copy.deepcopy(list(self.layers), memo)
        output = self.output.detach().clone()
        return type(self)(layers, output, in_channels=self.in_channels)


class AdaptiveNetwork(InputConvexNetwork):
    """R(x; y), whose output weights a guide reads off the data.

    ``condition(picture, noise)`` gives a convex network for these data, and a problem does that by
    itself. Without data, an adaptive network has no values: there is nothing to evaluate.

    Args:
        layers: the layers of the convex network, first to last.
        guide: gives one number for each channel and pixel of the last layer.
        in_channels: channels of the image.
        floor: the smallest weight, relative to the largest.

    Attributes:
        output: W_L, the largest weight of each channel for noise of level 1.
    """

    reads_data = True

    def __init__(
        self,
        layers: Sequence[ConvexLayer],
        guide: Guide,
        *,
        in_channels: int = 1,
        floor: float = 0.003,
    ) -> None:
        super().__init__(layers, in_channels=in_channels)
        if any(layer.bias is not None for layer in layers):
            raise ValueError("an adaptive network has no biases; write bias=False")
        if not 0 < floor <= 1:
            raise ValueError(f"floor must be in (0, 1], got {floor}")
        if guide.outputs != layers[-1].outputs or guide.in_channels != in_channels:
            raise ValueError(
                f"the guide takes {guide.in_channels} channels and gives {guide.outputs} numbers "
                f"for each pixel, but the network has in_channels={in_channels} and "
                f"{layers[-1].outputs} outputs"
            )
        self.guide, self.floor = guide, floor

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        return {
            "layers": list(self.layers),
            "guide": self.guide,
            "in_channels": self.in_channels,
            "floor": self.floor,
        }

    def weights(self, picture: Tensor, noise: float | Tensor = 1.0) -> Tensor:
        """c W(y), (B, C, H, W), differentiable in the guide and in W_L.

        (B, C, 1, 1) if the guide reads the noise only, (1, C, 1, 1) for one noise level.

        Args:
            picture: an image made from the data, (B, C, H, W): the noisy image, an image with
                missing pixels filled in, a filtered back projection.
            noise: the standard deviation of the noise, one number or one for each image.
        """
        if picture.ndim != 4 or picture.shape[1] != self.in_channels:
            raise ValueError(
                f"the guide reads pictures of shape (batch, {self.in_channels}, H, W), got "
                f"{tuple(picture.shape)}"
            )
        if (place := first_non_finite(picture)) is not None:
            raise ValueError(f"the picture for the guide is {float(picture[place])} at {place}")
        level = _levels(noise, picture).reshape(-1, 1, 1, 1)
        if not self.guide.reads_picture and bool((level == level[0]).all()):
            level = level[:1]
        share = torch.sigmoid(self.guide(picture, level)).square()
        if not bool(torch.isfinite(share).all()):
            raise ValueError("the guide gave weights that are not finite; load the network again")
        largest = level * self.output.reshape(1, -1, 1, 1)
        return largest * (self.floor + (1 - self.floor) * share)

    def condition(self, picture: Tensor, noise: float | Tensor = 1.0) -> ConditionedNetwork:
        """The convex network for data with this picture and noise; see ``weights``."""
        output = self.weights(picture, noise)
        levels = set(_levels(noise, picture).tolist())
        layers = [_scaled(layer, levels) for layer in self.layers]
        made = ConditionedNetwork(layers, output, in_channels=self.in_channels)
        made.card = self.card
        return made

    def _output_weights(self, shape: Shape) -> Tensor:
        raise ValueError(
            "this network reads its weights off the data: call network.condition(picture, noise), "
            "or give the problem noise=..., and it will"
        )


def _levels(noise: float | Tensor, picture: Tensor) -> Tensor:
    """The noise level of each image, (B,)."""
    if not isinstance(noise, int | float | Tensor):
        raise TypeError(f"noise must be a number or a tensor, got {noise!r}")
    level = torch.as_tensor(noise, dtype=picture.dtype, device=picture.device).reshape(-1)
    positive = bool(((level > 0) & (level < math.inf)).all())
    if not positive or len(level) not in (1, len(picture)):
        raise ValueError(
            "noise must be a positive number, or one for each image of the batch of "
            f"{len(picture)}, got {noise}"
        )
    return level.expand(len(picture))


def _scaled(layer: ConvexLayer, levels: set[float]) -> ConvexLayer:
    """The layer with c h(a / c) in place of h, for the noise level c; it shares its maps."""
    h = layer.activation
    if h.scaled(2.0) == h:  # homogeneous
        return layer
    if len(levels) > 1:
        raise ValueError(
            f"{h} depends on the noise level, and a batch has one activation: state one problem "
            f"for each noise level, got {sorted(levels)}"
        )
    (level,) = levels
    scaled = h.scaled(level)
    if scaled is None:
        raise ValueError(
            f"{h} cannot be scaled by the noise level; use Abs(), Huber(delta) or "
            "HuberMixture(widths)"
        )
    other = copy.copy(layer)
    other.activation = scaled
    return other
