"""Regularizers that read the data: R(x; y) is convex in x for every y.

    R(x; y) = c^2 <W(y), z_L(x / c)>,    W(y) = W_L (floor + (1 - floor) sigmoid(guide(y, c))^2)

with the noise level c: a partially input-convex network (Amos, Xu and Kolter 2017). An ordinary
network, the *guide*, reads an image made from the data y and its noise level, and gives the output
weights of a convex network, one for each channel and pixel: small where there is detail, large
where the image is flat. A simpler one, ``NoiseGuide``, reads the noise level only. The guide never
sees x. Once the data are given, every weight is a number, and R is convex as before: lift, methods
and certificates are the same.

In the general form (``reads``), a guide also gives biases b and link weights s of any layer,

    z_i = h_i(V_{i-1} x + sum_j W_{i-1,j} (s_{ij}(y) z_j) + b_{i-1}(y)),
    b(y) = c largest_bias tanh(guide(y, c)),    s(y) = floor + (1 - floor) sigmoid(guide(y, c))^2.

Biases move kinks to where the guide expects the responses of x; with factors s >= 0 all links stay
nonnegative, and R convex. They are named after their layers: ``bias_1`` is b_0, ``link_2_1`` s_21.

Weights are bounded, from above by W_L <= ``ceiling`` and from below by ``floor`` W_L; biases by
``largest_bias`` in units of the noise, factors of links by 1. Without bounds, training drives some
of them to where the problem can no longer be solved. Activations are scaled to the noise,
c h(a / c): problems of different noise levels are the same problem in other units.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from convexlift.networks.bound_network import IMAGE, BoundLayer
from convexlift.networks.guides import Guide
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.operators.imaging import Diagonal
from convexlift.operators.linear import Composition
from convexlift.parts import require_positive
from convexlift.tensors import Requirement, Shape, first_non_finite

PREMISE = "given the weights that the guide read from these data, "
"""What certificates take for granted; nothing is said about the guide's choice."""
UNSTATED_NOISE = 0.05
"""The level c for data whose noise has no standard deviation: impulses, counts behind a scanner."""


class Place(NamedTuple):
    """What a guide gives: its name, the layer whose pixels it belongs to, and its channels."""

    name: str
    layer: int
    channels: int


def places_read(layers: Sequence[ConvexLayer], reads: Sequence[str]) -> list[Place]:
    """Everything that a guide gives, in the order of its numbers.

    ``reads`` names all ``biases`` and ``links``, or single ones, such as ``bias_1``.
    """
    numbered = list(enumerate(layers, start=1))
    output = Place("output", len(layers), layers[-1].outputs)
    biases = [Place(f"bias_{i}", i, layer.channels) for i, layer in numbered]
    links = [
        Place(f"link_{i}_{j}", j, layers[j - 1].outputs)
        for i, layer in numbered for j in layer.sources(i) if j != IMAGE
    ]  # fmt: skip
    every = [output, *biases, *links]
    known = {"output": [output], "biases": biases, "links": links}
    known |= {place.name: [place] for place in every}
    if not reads or isinstance(reads, str) or not all(known.get(what) for what in reads):
        names = ", ".join(name for name, places in known.items() if places)
        raise ValueError(f"reads is a list of one or several of {names}; got {reads!r}")
    return [place for place in every if any(place in known[what] for what in reads)]


class Weakened(Composition):
    """W diag(s) with 0 <= s <= 1, which may differ from image to image.

    Its norm is bounded by that of W, so that images of a batch do not change each other's steps.
    """

    def _norm(self, shape: Shape) -> float:
        return self.factors[0].norm(shape)


class ConditionedNetwork(InputConvexNetwork):
    """A convex network whose weights belong to certain data: some for each image and pixel.

    Made by ``AdaptiveNetwork.condition``. It shares its layers with the adaptive network.

    Args:
        layers: the layers, first to last.
        readings: what the guide read, by name (``AdaptiveNetwork.readings``), and ``output``.
        largest: (B, C, 1, 1), the largest output weights that the guide could have given.
        in_channels: channels of the image.

    Attributes:
        output: (B, C, H, W), nonnegative; (B or 1, C, 1, 1) if they depend on the noise only.
    """

    output: Tensor  # type: ignore[assignment]
    largest: Tensor

    def __init__(
        self, layers: Sequence[ConvexLayer], readings: Mapping[str, Tensor], largest: Tensor, *,
        in_channels: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(layers, in_channels=in_channels)
        del self.output  # a parameter of networks in general; here a result, perhaps with a graph
        for name, read in readings.items():
            self.register_buffer(name, read)
        self.register_buffer("largest", largest, persistent=False)  # no part of R, nor of proofs
        self.check_convexity()

    @property
    def readings(self) -> dict[str, Tensor]:
        """What the guide read, and ``output``."""
        return {name: read for name, read in self.named_buffers(recurse=False) if name != "largest"}

    @property
    def premise(self) -> str:  # type: ignore[override]
        """Nothing for weights that depend on the noise level only."""
        return PREMISE if any(read[0, 0].numel() > 1 for read in self.readings.values()) else ""

    @property
    def weight_map(self) -> Tensor | None:
        """sum_c W_c(y) over sum_c of the largest weights, (B, 1, H, W) in [floor, 1].

        How strongly R smooths at each pixel: small where the guide saw detail. None if the guide
        does not give output weights for each pixel.
        """
        if self.output[0, 0].numel() == 1:
            return None
        largest = self.largest.sum(1, keepdim=True).clamp_min(torch.finfo(self.output.dtype).tiny)
        return self.output.detach().sum(1, keepdim=True) / largest

    def requirements(self) -> Iterator[Requirement]:
        """And the factors of links must be in [0, 1]."""
        yield from super().requirements()
        for name, read in self.readings.items():
            if name.startswith("link"):  # up to rounding
                inside = torch.minimum(read.min(), 1 + 1e-6 - read.max())
                yield inside, f"the factors {name} of the network must be in [0, 1]"

    def select(self, images: Tensor) -> Self:
        """The network for some images of the batch."""
        return self._with(lambda read: read[images] if len(read) > 1 else read, list(self.layers))

    def with_readings(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """The network with other readings, from the names and the present ones."""
        readings = {name: change(name, read) for name, read in self.readings.items()}
        return type(self)(list(self.layers), readings, self.largest, in_channels=self.in_channels)

    def _output_weights(self, shape: Shape) -> Tensor:
        return _fitting(self.output, shape)

    def _bound_layers(self, image_shape: Shape) -> tuple[BoundLayer, ...]:
        layers = super()._bound_layers(image_shape)
        read, bound = self.readings, []
        for i, layer in enumerate(layers, start=1):
            operators, bias = dict(layer.operators), layer.bias
            for j in operators:
                if (s := read.get(f"link_{i}_{j}")) is not None:
                    s = _fitting(s, layers[j - 1].shape)
                    operators[j] = Weakened((operators[j], Diagonal(s)))
            if (b := read.get(f"bias_{i}")) is not None:
                channels, *size = layer.shape
                bias = _fitting(b, (layer.activation.group * channels, *size))
            bound.append(replace(layer, operators=operators, bias=bias))
        return tuple(bound)

    def _with(self, change: Callable[[Tensor], Tensor], layers: list[ConvexLayer]) -> Self:
        made = copy.copy(self)  # not a new network, whose checks a GPU would wait for
        made._modules = {**self._modules, "layers": torch.nn.ModuleList(layers)}
        made._buffers = {n: None if b is None else change(b) for n, b in self._buffers.items()}
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        layers = copy.deepcopy(list(self.layers), memo)  # where the guide's graph has no use
        return self._with(lambda read: read.detach().clone(), layers)


def _fitting(read: Tensor, shape: Shape) -> Tensor:
    """Weights of every entry of a layer, or of its channels."""
    if tuple(read.shape[1:]) not in (tuple(shape), (shape[0], *(1,) * len(shape[1:]))):
        raise ValueError(
            f"the weights were read off data for layers of {tuple(read.shape[1:])}, and "
            f"these images make layers of {tuple(shape)}; condition the network on their data"
        )
    return read


class AdaptiveNetwork(InputConvexNetwork):
    """R(x; y), whose weights a guide reads off the data.

    ``condition(picture, noise)`` gives a convex network for these data, and a problem does that by
    itself. Without data, an adaptive network has no values: there is nothing to evaluate.

    Args:
        layers: the layers of the convex network, first to last.
        guide: gives one number for each pixel and each channel of what it is to give.
        in_channels: channels of the image.
        floor: the smallest weight, relative to W_L, and the smallest factor of a link.
        ceiling: the upper bound of W_L in training.
        reads: what the guide gives: ``output`` weights, ``biases`` of all layers, ``links``:
            factors of the layers that others have maps from; or single ones, ``bias_1``,
            ``link_2_1`` (from layer 1 to layer 2).
        largest_bias: the largest |bias|, in units of the noise.

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
        reads: Sequence[str] = ("output",),
        largest_bias: float = 3.0,
    ) -> None:
        super().__init__(layers, in_channels=in_channels)
        require_positive(self, ceiling=ceiling, largest_bias=largest_bias)
        if any(layer.bias is not None for layer in layers):
            raise ValueError("an adaptive network has no biases of its own; write bias=False")
        if not 0 < floor <= 1:
            raise ValueError(f"floor must be in (0, 1], got {floor}")
        self.guide, self.floor, self.ceiling = guide, floor, ceiling
        self.reads, self.largest_bias = tuple(reads), largest_bias
        self._places = places_read(layers, reads)
        wanted = sum(place.channels for place in self._places)
        if guide.outputs != wanted or guide.in_channels != in_channels:
            raise ValueError(
                f"the guide takes {guide.in_channels} channels and gives {guide.outputs} numbers "
                f"for each pixel, but the network has in_channels={in_channels} and needs {wanted} "
                f"for its {', '.join(self.reads)}"
            )
        size = self._probe_size()
        shapes = [layer.shape for layer in self._bound_layers((in_channels, *size))]
        weighed = {place.layer for place in self._places}
        for number in sorted({*weighed, len(layers)}):
            made = shapes[number - 1]
            smaller = number in weighed and guide.reads_picture and made[1:] != size
            if len(made) < 3 or smaller:
                raise ValueError(
                    f"a guide weighs the pixels of layer {number}, which must be as large as the "
                    "image, without strides, pooling or dense maps; images of "
                    f"{size} make a layer of {made}"
                )

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        names = ["guide", "in_channels", "floor", "ceiling"]
        if self.reads != ("output",):  # files of these alone are as they always were
            names += ["reads", "largest_bias"]
        return {"layers": list(self.layers), **{name: getattr(self, name) for name in names}}

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
        """The output weights c W(y), (B, C, H, W); see ``readings``."""
        return self.readings(picture, noise, seen)["output"]

    def readings(
        self,
        picture: Tensor,
        noise: float | Tensor = UNSTATED_NOISE,
        seen: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """What the guide reads, (B, C, H, W) each, differentiable in the guide and in W_L.

        ``output``, the weights c W(y); ``bias_2``, say, of layer 2; ``link_2_1``, the factors of
        layer 1 on its way to layer 2. (B, C, 1, 1) for what does not depend on the picture, and
        (1, C, 1, 1) from a guide that reads the noise only, for one noise level.

        Args:
            picture: an image made from the data, (B, C, H, W): the noisy image, an image with
                missing pixels filled in, a filtered back projection.
            noise: the standard deviation of the noise, one number or one for each image.
            seen: 1 where the picture holds data, 0 where it was filled in, (B, 1, H, W); 1
                everywhere unless given.
        """
        if picture.ndim != 4 or picture.shape[1] != self.in_channels:
            wanted = f"(batch, {self.in_channels}, H, W)"
            got = tuple(picture.shape)
            raise ValueError(f"the guide reads pictures of shape {wanted}, got {got}")
        if (place := first_non_finite(picture)) is not None:
            raise ValueError(f"the picture for the guide is {float(picture[place])} at {place}")
        level = _levels(noise, picture).reshape(-1, 1, 1, 1)
        here = torch.ones_like(picture[:, :1]) if seen is None else seen
        if here.shape != picture[:, :1].shape:
            raise ValueError(f"seen must be (B, 1, H, W) like the picture, got {tuple(here.shape)}")
        if not self.guide.reads_picture and bool((level == level[0]).all()):
            level = level[:1]
        numbers = self.guide(picture, level, here.to(picture))
        if bool(numbers.isnan().any()):
            raise ValueError("the guide gave weights that are not finite; load the network again")
        found = {"output": self._largest(level)}
        names, _, channels = zip(*self._places, strict=True)
        for name, part in zip(names, numbers.split(channels, 1), strict=True):
            if name.startswith("bias"):
                found[name] = level * self.largest_bias * torch.tanh(part)
            else:
                share = self.floor + (1 - self.floor) * torch.sigmoid(part).square()
                found[name] = found[name] * share if name == "output" else share
        return found

    def condition(
        self,
        picture: Tensor,
        noise: float | Tensor = UNSTATED_NOISE,
        seen: Tensor | None = None,
    ) -> ConditionedNetwork:
        """The convex network for data with this picture and noise; see ``readings``."""
        readings = self.readings(picture, noise, seen)
        levels = _levels(noise, picture)
        layers = [_scaled(layer, set(levels.tolist())) for layer in self.layers]
        largest = self._largest(levels.reshape(-1, 1, 1, 1)).detach()
        made = ConditionedNetwork(layers, readings, largest, in_channels=self.in_channels)
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
