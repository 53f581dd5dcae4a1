"""Weakly convex ridge regularizers: convex up to a quadratic part that a data term can make up for.

    R(x) = sum_c w_c sum_pixels phi_c((V x)_c) - 1/2 sum_c rho_c |(V x)_c|^2,

with convex phi_c, w_c >= 0 and rho_c >= 0. Potentials psi_c with psi_c'' >= -rho_c / w_c have this
form, with phi_c(t) = psi_c(t) + rho_c / (2 w_c) t^2 (Goujon, Neumayer, Unser 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from convexlift.networks.bound_network import BoundNetwork
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.tensors import Requirement, Shape


class WeaklyConvexNetwork(InputConvexNetwork):
    """One layer of convex potentials of V x, minus a quadratic part of the same responses.

    It is not convex, so that it cannot be part of a ``VariationalProblem``.

    Args:
        layers: one layer that reads the image, without bias, one channel at a time.
        in_channels: channels of the image.
        image_size: (height, width) if the network fits one size only, None for any.
        concave: the kind of the concave part; there is one.

    Attributes:
        concavity: rho_c >= 0, (channels,).
    """

    def __init__(
        self,
        layers: Sequence[ConvexLayer],
        *,
        in_channels: int = 1,
        image_size: tuple[int, int] | None = None,
        concave: str = "quadratic",
    ) -> None:
        if concave != "quadratic":
            raise ValueError(f"concave must be 'quadratic', got {concave!r}")
        if len(layers) != 1 or layers[0].bias is not None or layers[0].activation.group != 1:
            raise ValueError(
                "a weakly convex network has one layer, without bias, whose activation takes one "
                "channel at a time"
            )
        self._complete = False  # the constructor of the convex part checks it before the rest is
        super().__init__(layers, in_channels=in_channels, image_size=image_size)
        if self.dimensions != 2:
            raise ValueError("weakly convex networks are for images, not for volumes")
        self.concavity = nn.Parameter(torch.zeros(layers[0].channels))
        self._complete = True

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        return {**super().arguments(), "concave": "quadratic"}

    def convex_part(self) -> InputConvexNetwork:
        """sum_c w_c sum_pixels phi_c((V x)_c), with the same weights."""
        size = {"in_channels": self.in_channels, "image_size": self.image_size}
        part = InputConvexNetwork(list(self.layers), **size)  # type: ignore[arg-type]
        part.output = self.output
        return part

    def forward(self, x: Tensor) -> Tensor:
        """R(x), one number for each image."""
        skip = self.layers[0].skip
        assert skip is not None
        responses: Tensor = skip(x).square().flatten(2).sum(2)
        return self.convex_part().forward(x) - 0.5 * (self.concavity * responses).sum(1)

    def requirements(self) -> Iterator[Requirement]:
        """And those of the concave part."""
        yield from super().requirements()
        if self._complete:
            smallest = self.concavity.detach().min()
            yield smallest, "the concavity contains {:g}, but must be nonnegative"

    def bind(self, image_shape: Shape, *, detach: bool = True) -> BoundNetwork:
        """Refused: what is bound is taken for convex."""
        raise ValueError(
            "this regularizer is weakly convex, and no part of a VariationalProblem; state a "
            "cl.WeaklyConvexProblem, or take its convex_part()"
        )

    @torch.no_grad()
    def project_(self) -> None:
        """Set negative weights and negative rho_c to zero."""
        super().project_()
        self.concavity.clamp_(min=0)
