"""The trainable linear maps of a network: V_i from the image, W_i >= 0 from earlier layers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from convexlift.operators.convolution import BOUNDARIES, Boundary, ConvolutionOperator
from convexlift.operators.imaging import (
    DenseOperator,
    DifferenceOperator,
    PixelSumOperator,
    PoolingOperator,
)
from convexlift.operators.linear import Composition, LinearOperator
from convexlift.parts import ProblemPart, require_at_least
from convexlift.tensors import Shape, named_weights


class LinearMap(ProblemPart, nn.Module, ABC):
    """A linear map with trainable weights, for inputs of one shape or of any.

    ``operator(input_shape)`` is the map on inputs of that shape, with its exact adjoint, and
    shares its weights. Inside a network, maps from earlier layers must have nonnegative
    weights: construct them with ``nonnegative=True``, which affects their initial values only;
    ``InputConvexNetwork.project_`` keeps them so during training.

    Attributes:
        reach: the side of the smallest image that the map takes.
        reduction: the factor by which it divides the sides of images, which must be multiples.
        radius: how far an output is from the pixels it depends on, for maps that keep the image
            size and treat pixels alike but near the edges; None for others.
    """

    reach: int = 1
    reduction: int = 1
    radius: int | None = None

    @property
    def filters(self) -> Tensor | None:
        """Weights that slide over images, (outputs, inputs, k, k); None for other maps."""
        return None

    @abstractmethod
    def operator(self, input_shape: Shape) -> LinearOperator:
        """The map for one input shape; raises ValueError where it does not fit."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to a batch."""
        return self.operator(tuple(x.shape[1:]))(x)

    def smallest_weight(self) -> Tensor | float:
        """The most negative entry; zero for maps without weights."""
        weights = named_weights(self, buffers=False)
        return _smallest([weight.detach().min() for _, weight in weights])

    @torch.no_grad()
    def project_(self) -> None:
        """Replace negative weights by zero, in place."""
        for parameter in self.parameters():
            parameter.clamp_(min=0)

    def sum_inputs_(
        self, channels: int, variety: float = 0.0, factors: Tensor | None = None
    ) -> float:
        """Make each output the sum of a group of inputs, with every input in one group.

        Args:
            channels: channels of the input.
            variety: share of the present, random weights that is kept, so that units differ.
            factors: of the input channels; one by default.

        Returns:
            The sum of all outputs over the sum of all inputs, if the factors are one.
        """
        raise ValueError(f"start_from_filters_ cannot set a {type(self).__name__}")


def _smallest(numbers: Sequence[Tensor | float]) -> Tensor | float:
    """The least of them, or NaN; without waiting for a GPU."""
    there = [number for number in numbers if isinstance(number, Tensor)]
    here = min((number for number in numbers if not isinstance(number, Tensor)), default=0.0)
    if here < 0 or not there:
        return here
    return there[0] if len(there) == 1 else torch.stack(there).min()


class Convolution(LinearMap, name="Convolution"):
    """A convolution with kernels of odd size that keeps the image size (for stride 1).

    Args:
        in_channels: channels of the input.
        out_channels: number of filters.
        kernel_size: odd.
        stride: keep every stride-th output.
        padding: how the input continues past its edge, ``zero``, ``circular``, ``reflect`` or
            ``replicate``.
        nonnegative: start with nonnegative weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 5,
        *,
        stride: int = 1,
        padding: Boundary = "zero",
        nonnegative: bool = False,
    ) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, out_channels=out_channels, stride=stride)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"a convolution needs an odd kernel_size, got {kernel_size}")
        if padding not in BOUNDARIES:
            raise ValueError(f"padding must be one of {BOUNDARIES}, got {padding!r}")
        self.stride = self.reduction = stride
        self.reach = kernel_size
        local = stride == 1 and padding != "circular"
        self.radius = kernel_size // 2 if local else None
        self.padding: Boundary = padding
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(_initial_weights(shape, nonnegative))

    def arguments(self) -> dict[str, Any]:
        """Without ``nonnegative``, which affects the initial weights only."""
        out_channels, in_channels, kernel_size, _ = self.weight.shape
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        options = {"kernel_size": kernel_size, "stride": self.stride, "padding": self.padding}
        return sizes | options

    def operator(self, input_shape: Shape) -> ConvolutionOperator:
        """The convolution on images of one shape."""
        return ConvolutionOperator(self.weight, input_shape, self.stride, self.padding)

    @property
    def filters(self) -> Tensor:
        """The weights."""
        return self.weight

    @torch.no_grad()
    def sum_inputs_(
        self, channels: int, variety: float = 0.0, factors: Tensor | None = None
    ) -> float:
        """Output j sums the inputs j, j + outputs, j + 2 outputs, ..., times their factors."""
        weight = self.weight
        outputs, inputs, height, width = weight.shape
        factors = weight.new_ones(inputs) if factors is None else factors
        group = torch.arange(inputs, device=weight.device) % outputs
        # The random weights of an input, over all outputs and taps, sum to a share of its factor.
        weight.mul_(variety * factors[:, None, None] / weight.sum((0, 2, 3), keepdim=True)[0])
        weight[group, torch.arange(inputs), height // 2, width // 2] += factors
        return 1 + variety


class Dense(LinearMap, name="Dense"):
    """A fully connected map, (B, ...) -> (B, out_features), on the flattened input."""

    def __init__(self, in_features: int, out_features: int, *, nonnegative: bool = False) -> None:
        super().__init__()
        require_at_least(1, in_features=in_features, out_features=out_features)
        self.weight = nn.Parameter(_initial_weights((out_features, in_features), nonnegative))

    def arguments(self) -> dict[str, Any]:
        """Without ``nonnegative``, which affects the initial weights only."""
        out_features, in_features = self.weight.shape
        return {"in_features": in_features, "out_features": out_features}

    def operator(self, input_shape: Shape) -> DenseOperator:
        """The matrix on inputs of one shape."""
        return DenseOperator(self.weight, input_shape)

    @torch.no_grad()
    def sum_inputs_(
        self, channels: int, variety: float = 0.0, factors: Tensor | None = None
    ) -> float:
        """Unit j sums all channels of pixel j (modulo their number), and a little of the rest."""
        weight = self.weight
        units, features = weight.shape
        pixels = features // channels
        pixel = torch.arange(features, device=weight.device) % pixels
        unit = torch.arange(units, device=weight.device)[:, None]
        own = (pixel[None] % units == unit % pixels).to(weight)
        readers = own.sum(0)  # these differ by one if units is not a multiple of pixels
        own = own * (readers.mean() / readers)
        weight.mul_(variety / weight.mean().clamp_min(1e-12) / features).add_(own)
        return float(readers.mean()) + variety * units / features


class ForwardDifferences(LinearMap, name="ForwardDifferences"):
    """grad x, the differences to the pixels below and to the right; zero past the last ones.

    (B, C, H, W) -> (B, 2C, H, W), both differences of a channel side by side. It has no weights,
    and its signs differ: a map from the image only.
    """

    radius = 1

    def operator(self, input_shape: Shape) -> DifferenceOperator:
        """The differences of images of one shape."""
        return DifferenceOperator(input_shape)

    def smallest_weight(self) -> Tensor | float:
        """-1, so that networks refuse it as a map from an earlier layer."""
        return -1.0


class AveragePool(LinearMap, name="AveragePool"):
    """The mean over blocks of size x size; has no weights and is nonnegative."""

    def __init__(self, size: int) -> None:
        super().__init__()
        require_at_least(1, size=size)
        self.size = self.reduction = size

    def operator(self, input_shape: Shape) -> PoolingOperator:
        """The pooling of images of one shape."""
        return PoolingOperator(self.size, input_shape)


class PixelSum(LinearMap, name="PixelSum"):
    """The sum, or the mean, over all pixels of each channel, for images of any size.

    (B, C, H, W) -> (B, C). It has no weights and is nonnegative.
    """

    def __init__(self, *, mean: bool = False) -> None:
        super().__init__()
        self.mean = mean

    def operator(self, input_shape: Shape) -> PixelSumOperator:
        """The sums of images of one shape."""
        return PixelSumOperator(self.mean, input_shape)


class Chain(LinearMap, name="Chain"):
    """Maps applied one after the other: ``Chain(AveragePool(16), Dense(...))`` is W P."""

    maps: Sequence[LinearMap]

    def __init__(self, *maps: LinearMap) -> None:
        super().__init__()
        if not maps:
            raise ValueError("a chain needs at least one map")
        self.maps = nn.ModuleList(maps)  # type: ignore[assignment]

    def arguments(self) -> dict[str, Any]:
        """The maps."""
        return {"maps": list(self.maps)}

    def operator(self, input_shape: Shape) -> Composition:
        """The composition, whose rightmost factor is the first map."""
        factors: list[LinearOperator] = []
        shape = input_shape
        for linear_map in self.maps:
            factors.insert(0, linear_map.operator(shape))
            shape = factors[0].output_shape(shape)
        return Composition(tuple(factors))

    def smallest_weight(self) -> Tensor | float:
        """The most negative entry of all maps."""
        return _smallest([each.smallest_weight() for each in self.maps])

    def sum_inputs_(
        self, channels: int, variety: float = 0.0, factors: Tensor | None = None
    ) -> float:
        """The last map sums means over blocks, if the others are poolings."""
        *before, last = self.maps
        if not before or any(list(each.parameters()) for each in before):
            return super().sum_inputs_(channels, variety, factors)
        block = math.prod(each.reduction for each in before) ** 2
        return last.sum_inputs_(channels, variety, factors) / block


def _initial_weights(shape: tuple[int, ...], nonnegative: bool) -> Tensor:
    """Uniform in +-1/sqrt(fan_in); or nonnegative, with rows that sum to 1 on average.

    In place: on the device ``meta``, where models are built before they are loaded, other products
    import all of torch's compiler, which takes a second.
    """
    fan_in = math.prod(shape[1:])
    if nonnegative:
        return torch.rand(shape).mul_(2 / fan_in)
    return torch.rand(shape).mul_(2).sub_(1).div_(math.sqrt(fan_in))
