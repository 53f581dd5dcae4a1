"""Regularizers that read the data: R(x; y) is convex in x for every y.

    R(x; y) = c^2 <W(y), z_L(x / c)>,    W(y) = W_L (floor + (1 - floor) sigmoid(guide(y, c))^2)

with the noise level c: a partially input-convex network (Amos, Xu and Kolter 2017). An ordinary
network, the *guide*, reads an image made from the data y and its noise level, and gives the output
weights of a convex network, one for each channel and pixel: small where there is detail, large
where the image is flat. A simpler one, ``NoiseGuide``, reads the noise level only. The guide never
sees x. Once the data are given, every weight is a number, and R is convex as before: lift, methods
and certificates are the same.

Weights are bounded, from above by W_L <= ``ceiling`` and from below by ``floor`` W_L. Without
bounds, training drives some of them to where the problem can no longer be solved. Activations are
scaled to the noise, c h(a / c): problems of different noise levels are the same problem in other
units.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from convexlift.networks.guides import Guide
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.parts import (
    require_positive,
)
from convexlift.tensors import Shape, first_non_finite

PREMISE = "given the weights that the guide read from these data, "
"""What certificates take for granted; nothing is said about the guide's choice."""
UNSTATED_NOISE = 0.05
"""The level c for data whose noise has no standard deviation: impulses, counts behind a scanner."""


class ConditionedNetwork(InputConvexNetwork):
    """A convex network whose output weights belong to certain data: one for each image and pixel.

    Made by ``AdaptiveNetwork.condition``. It shares its layers with the adaptive network.

    Attributes:
        output: (B, C, H, W), nonnegative; (B or 1, C, 1, 1) from a guide that reads the noise only.
        largest: (B, C, 1, 1), the largest weights that the guide could have given.
    """

    output: Tensor  # type: ignore[assignment]
    largest: Tensor

    def __init__(
        self, layers: Sequence[ConvexLayer], output: Tensor, largest: Tensor, *,
        in_channels: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(layers, in_channels=in_channels)
        del self.output  # a parameter of networks in general; here a result, perhaps with a graph
        self.register_buffer("output", output)
        self.register_buffer("largest", largest, persistent=False)  # no part of R, nor of proofs
        self.check_convexity()

    @property
    def premise(self) -> str:  # type: ignore[override]
        """Nothing for weights that depend on the noise level only."""
        return PREMISE if self.output[0, 0].numel() > 1 else ""

    @property
    def weight_map(self) -> Tensor | None:
        """sum_c W_c(y) over sum_c of the largest weights, (B, 1, H, W) in [floor, 1].

        How strongly R smooths at each pixel: small where the guide saw detail.
        """
        if not self.premise:
            return None
        largest = self.largest.sum(1, keepdim=True).clamp_min(torch.finfo(self.output.dtype).tiny)
        return self.output.detach().sum(1, keepdim=True) / largest

    def select(self, images: Tensor) -> Self:
        """The network for some images of the batch."""
        parts = (w[images] if len(w) > 1 else w for w in (self.output, self.largest))
        return type(self)(list(self.layers), *parts, in_channels=self.in_channels)

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
        parts = self.output.detach().clone(), self.largest.clone()
        return type(self)(layers, *parts, in_channels=self.in_channels)


class AdaptiveNetwork(InputConvexNetwork):
    """R(x; y), whose output weights a guide reads off the data.

    ``condition(picture, noise)`` gives a convex network for these data, and a problem does that by
    itself. Without data, an adaptive network has no values: there is nothing to evaluate.

    Args:
        layers: the layers of the convex network, first to last.
        guide: gives one number for each channel and pixel of the last layer.
        in_channels: channels of the image.
        floor: the smallest weight, relative to W_L.
        ceiling: the upper bound of W_L in training.

    Attributes:
        output: W_L, the largest weight of each channel for noise of level 1.
    """

    reads_data = True

    @property
    def premise(self) -> str:  # type: ignore[override]
        """Nothing for a guide that does not read the picture."""
        return PREMISE if self.guide.reads_picture else ""

    def __init__(
        self,
        layers: Sequence[ConvexLayer],
        guide: Guide,
        *,
        in_channels: int = 1,
        floor: float = 0.003,
        ceiling: float = 3.0,
    ) -> None:
        super().__init__(layers, in_channels=in_channels)
        require_positive(self, ceiling=ceiling)
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
        size = self._probe_size()
        made = self._bound_layers((in_channels, *size))[-1].shape
        if len(made) < 3 or (guide.reads_picture and made[1:] != size):
            raise ValueError(
                "a guide weighs the pixels of the last layer, which must be as large as the image, "
                f"without strides, pooling or dense maps; images of {size} make a layer of {made}"
            )
        self.guide, self.floor, self.ceiling = guide, floor, ceiling

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        return {
            "layers": list(self.layers),
            "guide": self.guide,
            "in_channels": self.in_channels,
            "floor": self.floor,
            "ceiling": self.ceiling,
        }

    @torch.no_grad()
    def project_(self) -> None:
        """As for every network; and W_L stays below ``ceiling``."""
        super().project_()
        self.output.clamp_(max=self.ceiling)

    def weights(
        self,
        picture: Tensor,
        noise: float | Tensor = UNSTATED_NOISE,
        seen: Tensor | None = None,
    ) -> Tensor:
        """c W(y), (B, C, H, W), differentiable in the guide and in W_L.

        (B, C, 1, 1) if the guide reads the noise only, (1, C, 1, 1) for one noise level.

        Args:
            picture: an image made from the data, (B, C, H, W): the noisy image, an image with
                missing pixels filled in, a filtered back projection.
            noise: the standard deviation of the noise, one number or one for each image.
            seen: 1 where the picture holds data, 0 where it was filled in, (B, 1, H, W); 1
                everywhere unless given.
        """
        if picture.ndim != 4 or picture.shape[1] != self.in_channels:
            raise ValueError(
                f"the guide reads pictures of shape (batch, {self.in_channels}, H, W), got "
                f"{tuple(picture.shape)}"
            )
        if (place := first_non_finite(picture)) is not None:
            raise ValueError(f"the picture for the guide is {float(picture[place])} at {place}")
        level = _levels(noise, picture).reshape(-1, 1, 1, 1)
        here = torch.ones_like(picture[:, :1]) if seen is None else seen
        if here.shape != picture[:, :1].shape:
            raise ValueError(f"seen must be (B, 1, H, W) like the picture, got {tuple(here.shape)}")
        if not self.guide.reads_picture and bool((level == level[0]).all()):
            level = level[:1]
        share = torch.sigmoid(self.guide(picture, level, here.to(picture))).square()
        if not bool(torch.isfinite(share).all()):
            raise ValueError("the guide gave weights that are not finite; load the network again")
        return self._largest(level) * (self.floor + (1 - self.floor) * share)

    def condition(
        self,
        picture: Tensor,
        noise: float | Tensor = UNSTATED_NOISE,
        seen: Tensor | None = None,
    ) -> ConditionedNetwork:
        """The convex network for data with this picture and noise; see ``weights``."""
        output = self.weights(picture, noise, seen)
        levels = _levels(noise, picture)
        layers = [_scaled(layer, set(levels.tolist())) for layer in self.layers]
        largest = self._largest(levels.reshape(-1, 1, 1, 1)).detach()
        made = ConditionedNetwork(layers, output, largest, in_channels=self.in_channels)
        made.card = self.card
        return made

    def _largest(self, level: Tensor) -> Tensor:
        """c W_L, (B, C, 1, 1), for noise levels (B, 1, 1, 1)."""
        return level * self.output.reshape(1, -1, 1, 1)

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
    numbers = torch.finfo(picture.dtype)
    low, high = math.sqrt(numbers.tiny), math.sqrt(numbers.max)  # R has the factor c^2
    if not bool(((low < level) & (level < high)).all()) or len(level) not in (1, len(picture)):
        raise ValueError(
            f"noise must be a positive number, from {low:.0e} to {high:.0e} in {picture.dtype}, or "
            f"one for each image of the batch of {len(picture)}, got {noise}"
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
