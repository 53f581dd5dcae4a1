"""Total variation, the classical regularizer, as a network of one layer."""

from __future__ import annotations

from convexlift.networks.activations import Abs
from convexlift.networks.group_activations import GroupNorm
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import ForwardDifferences


class TotalVariation(InputConvexNetwork):
    """R(x) = sum_pixels |grad x|, for images of any size.

    grad x holds the forward differences down and to the right; those across the last row and
    column are zero (Neumann boundary). |.| is the Euclidean norm of the two (isotropic) or the sum
    of their absolute values (anisotropic). Channels are added up. There is nothing to train.

    Args:
        isotropic: which of the two.
        in_channels: channels of the image.
    """

    def __init__(self, isotropic: bool = True, in_channels: int = 1) -> None:
        layer = ConvexLayer(
            GroupNorm(2) if isotropic else Abs(),
            channels=2 * in_channels,
            skip=ForwardDifferences(),
            bias=False,
        )
        super().__init__([layer], in_channels=in_channels)
        self.output.requires_grad_(False).fill_(1.0)
