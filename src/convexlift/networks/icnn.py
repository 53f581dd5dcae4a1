"""Input-convex neural networks, paper section 2.1 and eq. (EQ-G).

    a_i = V_{i-1} x + sum_{j<i} W_{i-1,j} z_j + b_{i-1}
    z_i = h_i(a_i)                        (plus z_{i-1} in a residual layer)
    R(x) = <W_L, z_L>

R is convex in x if every W is nonnegative, every h_i is convex, and h_2, ..., h_L are nondecreasing
(Assumption 1); where a layer reads the image alone, h_i need not be. As in the paper, layers are
counted from 1 and their maps and biases from 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from convexlift.descriptions import Described, Description, filters
from convexlift.networks.activations import Activation
from convexlift.networks.bound_network import IMAGE, BoundLayer, BoundNetwork
from convexlift.networks.huber_mixture import Mixture
from convexlift.networks.maps import LinearMap
from convexlift.operators.linear import LinearOperator
from convexlift.tensors import Requirement, Shape, named_numbers, require_numbers


class ConvexLayer(nn.Module):
    """z_i = h(V x + W z_{i-1} + sum_j W_j z_j + b), plus z_{i-1} if residual.

    Args:
        activation: h.
        skip: V, a linear map from the image.
        previous: W, a nonnegative linear map from the previous layer.
        links: further nonnegative maps from earlier layers, by their number (from 1).
        channels: length of the bias, the channels or features of the preactivation; h gives
            ``outputs`` channels, fewer if it takes them in groups.
        bias: whether there is a bias b (one number per channel or feature).
        residual: whether z_{i-1} is added after the activation.

    Attributes:
        shares: (channels, J), trainable, of a ``HuberMixture`` or ``QuadraticSpline``; else None.
    """

    links: Mapping[str, LinearMap]

    def __init__(
        self,
        activation: Activation,
        *,
        channels: int,
        skip: LinearMap | None = None,
        previous: LinearMap | None = None,
        links: Mapping[int, LinearMap] | None = None,
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if skip is None and previous is None and not links:
            raise ValueError("a layer needs a map: skip=..., previous=... or links={...}")
        if channels < 1:
            raise ValueError(f"a layer needs channels of at least 1, got {channels}")
        if channels % activation.group:
            raise ValueError(
                f"{activation} takes {activation.group} channels at a time, which does not divide "
                f"channels={channels}"
            )
        self.activation = activation
        self.skip = skip
        self.previous = previous
        # A ModuleDict, as its maps are trained too; its keys must be strings.
        self.links = nn.ModuleDict({str(j): each for j, each in (links or {}).items()})  # type: ignore[assignment]
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.shares = None
        if isinstance(activation, Mixture):
            count = activation.parts
            self.shares = nn.Parameter(torch.full((channels, count), 1 / count))
        self.channels = channels
        self.outputs = channels // activation.group
        self.residual = residual

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for files."""
        names = ("activation", "channels", "skip", "previous", "residual")
        links = {int(source): link for source, link in self.links.items()}
        own = {name: getattr(self, name) for name in names}
        return {**own, "links": links, "bias": self.bias is not None}

    def sources(self, number: int) -> dict[int, LinearMap]:
        """The layer's maps by their source, for the layer with this number."""
        maps: dict[int, LinearMap] = {}
        if self.skip is not None:
            maps[IMAGE] = self.skip
        if self.previous is not None:
            maps[number - 1] = self.previous
        return maps | {int(source): link for source, link in self.links.items()}

    def bind(self, number: int, shapes: Sequence[Shape]) -> BoundLayer:
        """The layer with this number, for x, z_1, ..., z_{number-1} of these shapes."""
        operators: dict[int, LinearOperator] = {}
        outputs: dict[int, Shape] = {}
        for source, linear_map in self.sources(number).items():
            try:
                operators[source] = linear_map.operator(shapes[source])
            except ValueError as error:
                raise ValueError(f"layer {number}, map from {_name(source)}: {error}") from None
            outputs[source] = operators[source].output_shape(shapes[source])
        first, shape = next(iter(outputs.items()))
        for source, other in outputs.items():
            if other != shape:
                raise ValueError(
                    f"layer {number}: the map from {_name(source)} gives {other}, "
                    f"the one from {_name(first)} gives {shape}"
                )
        if self.channels != shape[0]:
            raise ValueError(
                f"layer {number} has channels={self.channels}, but its maps give {shape}"
            )
        made = self.activation.output_shape(shape)
        if self.residual and shapes[-1] != made:
            raise ValueError(
                f"layer {number} is residual, but its shape {made} differs from the shape of "
                f"the previous layer, {shapes[-1]}"
            )
        bias = None if self.bias is None else _per_channel(self.bias, shape)[None]
        h = self.activation
        if isinstance(h, Mixture) and self.shares is not None:
            h = h.with_shares(self.shares)
        return BoundLayer(h, operators, bias, self.residual, made)

    @torch.no_grad()
    def project_(self) -> None:
        """Set negative shares to zero, and their sum to one; equal ones where none is left."""
        if self.shares is not None:
            shares = self.shares.clamp_(min=0)
            shares.add_((shares.sum(1, keepdim=True) == 0).to(shares))
            shares.div_(shares.sum(1, keepdim=True))


class InputConvexNetwork(Described, nn.Module):
    """A convex function of an image: (B, C, H, W) -> (B,).

    Assumption 1 is checked when the network is built, when a state dict is loaded, and before
    it is used in a problem; a violation is an error that names the layer and the value.
    Training keeps it by calling ``project_`` after each optimiser step.

    Args:
        layers: the layers, first to last.
        in_channels: channels of the image.
        image_size: (height, width) if the network fits one size only, None for any.

    Attributes:
        output: W_L, the nonnegative weights of the last layer's channels or features.
        card: the ``ModelCard`` of a network that was loaded with one, else None.
    """

    layers: Sequence[ConvexLayer]
    card: Any = None
    reads_data: ClassVar[bool] = False
    """Whether problems must condition it on their data, and state their noise."""
    premise: ClassVar[str] = ""
    """The condition under which "no image has an objective below the bound", as proofs claim."""

    def __init__(
        self,
        layers: Sequence[ConvexLayer],
        *,
        in_channels: int = 1,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a network needs at least one layer")
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]
        self.in_channels = in_channels
        self.image_size = image_size
        outputs = layers[-1].outputs
        self.output = nn.Parameter(torch.full((outputs,), 1.0 / outputs))
        self._check_structure()
        self.check_convexity()
        self._bound_layers((in_channels, *(image_size or self._probe_size())))
        self.register_load_state_dict_post_hook(_check_after_loading)  # type: ignore[no-untyped-call]

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor of a plain network, for files."""
        sizes = {"in_channels": self.in_channels, "image_size": self.image_size}
        return {"layers": list(self.layers), **sizes}

    def forward(self, x: Tensor) -> Tensor:
        """R(x), one number for each image."""
        if x.ndim != 4:
            raise ValueError(f"images have shape (batch, channels, H, W), got {tuple(x.shape)}")
        bound = self.bind(tuple(x.shape[1:]), detach=False)
        z = bound.forward(x).z[-1]
        return (bound.output * z).flatten(1).sum(1)

    @property
    def outline(self) -> str:
        """One line: its name or class, layers, weights, and the images it takes."""
        name = type(self).__name__ if self.card is None else self.card.name
        count = len(self.layers)
        layers = f"{count} layer{'s' * (count > 1)}"
        weights = sum(each.numel() for each in self.parameters() if each.requires_grad)
        trained = f"{weights:,} weights" if weights else "nothing to train"
        kind = {1: "grey images", 3: "colour images"}.get(
            self.in_channels, f"images of {self.in_channels} channels"
        )
        size = "any size" if self.image_size is None else "{} x {}".format(*self.image_size)
        return f"{name}: {layers}, {trained}, {kind} of {size}"

    def _description(self, *, figures: bool) -> Description:
        facts = {}
        for number, layer in self._numbered():
            sources = (f"{_words(each)} of {_name(i)}" for i, each in layer.sources(number).items())
            facts[f"layer {number}"] = (
                f"{layer.activation} of {layer.channels} channels: {', '.join(sources)}"
            )
        shown = []
        if (card := self.card) is not None:
            facts |= {"for": f"{card.task}, weight {card.weight:g}", "licence": card.license}
        kernels = getattr(self.layers[0].skip, "weight", None)
        if figures and isinstance(kernels, Tensor) and kernels.ndim == 4 and kernels.shape[-1] > 1:
            shown.append(filters(kernels, f"its {len(kernels)} filters on the image"))
        return Description(self.outline, {k: v for k, v in facts.items() if v}, shown)

    @property
    def smooth(self) -> bool:
        """Whether no activation has a kink."""
        return all(layer.activation.smooth for layer in self.layers)

    @property
    def radius(self) -> int | None:
        """How far a filter response is from the pixels it depends on, for networks of one layer.

        None for other networks, and for maps that do not treat all pixels alike.
        """
        first, *others = self.layers
        return None if others or first.skip is None else first.skip.radius

    def push_to_hub(self, repository: str, card: Any = None, *, private: bool = False) -> str:
        """``convexlift.push_to_hub(self, ...)``, under the name that others on the Hub have."""
        library = sys.modules[__name__.partition(".")[0]]  # models are made of networks
        return str(library.push_to_hub(self, repository, card, private=private))

    @torch.no_grad()
    def project_(self) -> None:
        """Set negative entries of every W to zero: call it after every optimiser step.

        Negative shares of mixed activations too.
        """
        for _, linear_map in self._nonnegative_maps():
            linear_map.project_()
        for layer in self.layers:
            layer.project_()
        self.output.clamp_(min=0)

    def check_convexity(self) -> None:
        """Raise ValueError where Assumption 1 fails or a number is not finite, naming the place.

        On the meta device, where weights have no values, only activations are checked.
        """
        for number, layer in self._numbered():
            reads_layers = any(source != IMAGE for source in layer.sources(number))
            if reads_layers and not layer.activation.nondecreasing:
                raise ValueError(
                    f"layer {number}: {layer.activation} decreases (its slopes start at "
                    f"{layer.activation.slopes[0]:g}); only layers that read the image alone may, "
                    "such as the first layer"
                )
        if not self.output.is_meta:
            require_numbers(named_numbers(self, "regularizer"), self.requirements())

    def requirements(self) -> Iterator[Requirement]:
        """Numbers that must be nonnegative."""
        must = "must be nonnegative for the network to be convex;"
        project = "call network.project_() after each optimiser step"
        for name, linear_map in self._nonnegative_maps():
            fault = (
                f"{name} has the weight {{:g}}, but {must} construct it with nonnegative=True, or"
            )
            yield linear_map.smallest_weight(), f"{fault} {project}"
        for number, layer in self._numbered():
            if (shares := layer.shares) is not None:
                total = shares.detach().sum(1)
                fine = (shares >= 0).all() & ((total > 0) & (total < math.inf)).all()
                fault = f"the shares of layer {number} {must} their sums must be positive, finite;"
                yield 2.0 * fine - 1, f"{fault} {project}"
        yield self.output.detach().min(), f"the output weights contain {{:g}}, but {must} {project}"

    def bind(self, image_shape: Shape, *, detach: bool = True) -> BoundNetwork:
        """The network as operators on images of one shape; ``detach`` cuts the autograd graph."""
        layers = self._bound_layers(image_shape)
        bound = BoundNetwork(layers, self._output_weights(layers[-1].shape))
        return bound.detach() if detach else bound

    def require_fit(self, image_shape: Shape) -> None:
        """Raise ValueError if the network does not take images of this shape (C, H, W)."""
        self._bound_layers(image_shape)

    def select(self, images: Tensor) -> InputConvexNetwork:
        """The network for some images of a batch: itself, unless its weights belong to images."""
        return self

    @property
    def weight_map(self) -> Tensor | None:
        """How strongly R smooths at each pixel; None unless weights were read off the data."""
        return None

    def _output_weights(self, shape: Shape) -> Tensor:
        """W_L, in a shape that broadcasts to batches of z_L."""
        return _per_channel(self.output, shape)[None]

    def _bound_layers(self, image_shape: Shape) -> tuple[BoundLayer, ...]:
        self._check_image_shape(image_shape)
        shapes: list[Shape] = [image_shape]
        layers: list[BoundLayer] = []
        for number, layer in self._numbered():
            layers.append(layer.bind(number, shapes))
            shapes.append(layers[-1].shape)
        return tuple(layers)

    def _check_structure(self) -> None:
        first = self.layers[0]
        if first.previous is not None or first.residual:
            raise ValueError("layer 1 has no previous layer: use skip=..., and residual=False")
        for number, layer in self._numbered():
            for source in map(int, layer.links):
                if not 1 <= source < number:
                    raise ValueError(
                        f"layer {number} has a link from layer {source}, which is not an earlier "
                        f"layer (1 to {number - 1})"
                    )
                if source == number - 1 and layer.previous is not None:
                    raise ValueError(
                        f"layer {number} has both previous=... and a link from layer {source}"
                    )

    def _probe_size(self) -> tuple[int, int]:
        """A small image size that poolings divide, still as large as any kernel after them."""
        maps = [module for module in self.modules() if isinstance(module, LinearMap)]
        size = max(each.reach for each in maps) * math.prod(each.reduction for each in maps)
        return (size, size)

    def _check_image_shape(self, image_shape: Shape) -> None:
        size, image_shape = self.image_size, tuple(image_shape)
        fits = image_shape[0] == self.in_channels and len(image_shape) == 3
        if not fits or (size and image_shape[1:] != size):
            expected = f"({self.in_channels}, {f'{size[0]}, {size[1]}' if size else 'H, W'})"
            raise ValueError(f"the network takes images of shape {expected}, got {image_shape}")

    def _numbered(self) -> Iterator[tuple[int, ConvexLayer]]:
        return enumerate(self.layers, start=1)

    def _nonnegative_maps(self) -> Iterator[tuple[str, LinearMap]]:
        for number, layer in self._numbered():
            for source, linear_map in layer.sources(number).items():
                if source != IMAGE:
                    yield f"layer {number}, map from {_name(source)},", linear_map


def _check_after_loading(module: nn.Module, _: Any) -> None:
    assert isinstance(module, InputConvexNetwork)
    module.check_convexity()


def _words(linear_map: nn.Module) -> str:
    """The name of a map, with the size of its filters; a chain as its maps in turn."""
    parts = getattr(linear_map, "maps", (linear_map,))
    sizes = [tuple(getattr(part, "weight", torch.empty(0)).shape) for part in parts]
    return ", then ".join(
        f"{type(part).__name__} {shape[-2]} x {shape[-1]}" if len(shape) == 4 else
        type(part).__name__ for part, shape in zip(parts, sizes, strict=True)
    )  # fmt: skip


def _name(source: int) -> str:
    return "the image" if source == IMAGE else f"layer {source}"


def _per_channel(values: Tensor, shape: Shape) -> Tensor:
    return values.reshape(-1, *([1] * (len(shape) - 1)))
