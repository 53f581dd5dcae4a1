"""The variational problem  min_x  D(A x, y) + weight R(x)  over a box."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from convexlift.checks import adjoint_error, examine_activation, examine_fidelity, examine_operator
from convexlift.descriptions import SHOWN, Described, Description, is_picture, picture
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.networks.activations import Activation
from convexlift.networks.adaptive import UNSTATED_NOISE, AdaptiveNetwork, ConditionedNetwork
from convexlift.networks.bound_network import BoundNetwork, ForwardPass
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.precision import full_precision, has_double
from convexlift.problems.evaluation import Evaluation
from convexlift.problems.guesses import images_from_data, picture_for_guide
from convexlift.problems.one_pass import regularizer_at
from convexlift.problems.upward import upward
from convexlift.problems.weights import checked_weight
from convexlift.tensors import (
    LARGEST_NUMBER,
    Scalar,
    Shape,
    TensorRecord,
    expand_per_image,
    first_non_finite,
    named_numbers,
    require_eager,
    require_numbers,
)

ADJOINT_TOLERANCE = 1e-4
"""Rounding makes errors of 1e-6; back projections that are not adjoints make errors of 1e-2."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class VariationalProblem(Described, TensorRecord):
    """min_x  D(A x, y) + weight R(x)   subject to  lower <= x <= upper.

    A batch of B data sets states B independent problems that are solved together.

    Args:
        fidelity: D with its data y, for example ``cl.SquaredL2(y)``.
        regularizer: R, an input-convex network.
        weight: gamma > 0, a number; or a tensor that requires gradients, to learn it.
        operator: A; the identity (denoising) unless given.
        box: (lower, upper), each a number or None; ``(0, None)`` is x >= 0; None for no bounds.
        noise: the standard deviation of the noise, for a regularizer that reads the data
            (``AdaptiveNetwork``); one number, or one for each image.

    An adaptive regularizer is conditioned on the data when the problem is stated. Its certificates
    say: given the weights that the guide read, no image has an objective below the bound.
    """

    fidelity: Fidelity
    regularizer: InputConvexNetwork
    weight: Scalar
    operator: LinearOperator = field(default_factory=Identity)
    box: Box | tuple[float | None, float | None] | None = None
    noise: float | Tensor | None = None
    _replacement: ClassVar[BoundNetwork | None] = None

    def __post_init__(self) -> None:
        if isinstance(self.fidelity, Tensor):
            raise TypeError(
                "fidelity must say how to fit the data, for example fidelity=cl.SquaredL2(y) for "
                "Gaussian noise; got the data themselves"
            )
        if not isinstance(self.fidelity, Fidelity):
            raise TypeError(
                "fidelity must be cl.L1(y), cl.SquaredL2(y), cl.WeightedL2(y, weights), "
                "cl.KullbackLeibler(y, background) or another Fidelity, "
                f"got {type(self.fidelity).__name__}"
            )
        if not isinstance(self.operator, LinearOperator):
            raise TypeError(
                f"operator must be a LinearOperator, got {type(self.operator).__name__}; "
                "make one of a function and its adjoint, or of a matrix, by cl.Operator"
            )
        if not isinstance(self.regularizer, InputConvexNetwork):
            raise TypeError(
                "regularizer must be an InputConvexNetwork, for example cl.networks.baseline("
                f"image_size=256), got {type(self.regularizer).__name__}"
            )
        object.__setattr__(self, "weight", checked_weight(self.weight))
        object.__setattr__(self, "box", Box.of(self.box))
        self.bounds.rounded_inward(self.fidelity.y.dtype)  # raises if the box is empty
        require_eager(self.tensors())
        self._check_same_place()
        self.require_sound_numbers()
        self._check_parts()
        self._check_shapes()
        if isinstance(self.regularizer, AdaptiveNetwork):
            self._condition(self.regularizer)
        elif self.noise is not None and not isinstance(self.regularizer, ConditionedNetwork):
            raise ValueError(
                "noise=... is for regularizers that read the data, and this one does not; "
                "leave it out"
            )
        self._check_network_shape()
        self.fidelity.require_explicable(self.bounds.lower, self._unseen)
        self.require_sound_operator()

    @property
    def bounds(self) -> Box:
        """The box, as a ``Box``."""
        assert isinstance(self.box, Box)
        return self.box

    @property
    def image_shape(self) -> Shape:
        """(C, H, W) of the images sought."""
        return self.operator.input_shape or tuple(self.fidelity.y.shape[1:])

    @property
    def batch_size(self) -> int:
        """The number of problems."""
        return self.fidelity.y.shape[0]

    @cached_property
    def network(self) -> BoundNetwork:
        """The regularizer bound to this problem's image shape, or its replacement."""
        return self.trainable_network.detach()

    @property
    def trainable_network(self) -> BoundNetwork:
        """``network`` with the autograd graph of the regularizer's parameters."""
        if self._replacement is not None:
            return self._replacement
        return self.regularizer.bind(self.image_shape, detach=False)

    def with_network(self, network: BoundNetwork) -> VariationalProblem:
        """The same problem with another R, which need not come from a ``regularizer``."""
        return self._changed(_replacement=network)

    def with_data(
        self, fidelity: Fidelity, operator: LinearOperator | None = None
    ) -> VariationalProblem:
        """A problem with the same R and other data, behind another operator if given; unchecked."""
        return self._changed(fidelity=fidelity, operator=operator or self.operator)

    def detach(self) -> VariationalProblem:
        """Data, operator and weight without autograd graphs; self if there are none."""
        data, operator, weight = self.fidelity.detach(), self.operator.detach(), self.weight
        if data is self.fidelity and operator is self.operator and not isinstance(weight, Tensor):
            return self
        number = weight.item() if isinstance(weight, Tensor) else weight
        return self._changed(fidelity=data, operator=operator, weight=number)

    def with_double(self) -> VariationalProblem:
        """This problem, with its graph, in double precision: on its device, or on a CPU."""
        if has_double(self.fidelity.y.device.type):
            return self
        return self.with_network(self.trainable_network).to(device="cpu")

    @cached_property
    def upward(self) -> tuple[Tensor, Tensor]:
        """d and A* d > 0, where there is such a d (``problems.upward``)."""
        y = self.fidelity.y
        with torch.no_grad():
            measured = self.fidelity.measured.to(y).expand_as(y)
            return upward(self.operator, measured, self.image_shape)

    def select(self, images: Tensor) -> VariationalProblem | None:
        """The problems of some images of the batch, by index; None if they cannot be separated.

        An operator of your own may treat every image of a batch differently.
        """
        operator = self.operator.select(images)
        several = self._replacement is not None and self.regularizer.select(images[:1])
        if operator is None or (several and several is not self.regularizer):
            return None  # a network in place of R has the weights of all images
        return self._changed(
            fidelity=self.fidelity.select(images),
            operator=operator,
            regularizer=self.regularizer.select(images),
            noise=self.noise[images] if isinstance(self.noise, Tensor) else self.noise,
        )

    @property
    def smooth(self) -> bool:
        """Whether the objective has no kinks inside the box."""
        layers = self.network.layers
        return self.fidelity.smooth and all(layer.activation.smooth for layer in layers)

    def evaluate(self, x: Tensor) -> Evaluation:
        """The objective and its parts at a batch of images."""
        _check_shape(self, x, "x")
        layers = self.network.forward(x)
        return self.evaluation(x, self.network.value(layers.z[-1]), layers=layers)

    def evaluation(
        self,
        x: Tensor,
        regularizer: Tensor,
        *,
        layers: ForwardPass | None = None,
        last: Tensor | None = None,
    ) -> Evaluation:
        """The evaluation of images with a known R(x), with the layers that are known."""
        prediction = self.operator(x)
        data_term = self.fidelity.value(prediction)
        objective = data_term + self.weight * regularizer
        objective = torch.where(self.bounds.contains(x) | x.flatten(1).isnan().any(1), objective,
                                math.inf)  # fmt: skip
        return Evaluation(
            x, prediction, data_term, regularizer, objective, self.network, layers, last
        )

    def objective(self, x: Tensor) -> Tensor:
        """D(A x, y) + weight R(x) for each image, +inf outside the box."""
        if (here := self.with_double()) is not self:
            return here.objective(x.cpu())
        _check_shape(self, x, "x")
        with torch.no_grad(), full_precision():
            return self.evaluation(x, regularizer_at(self.network, x)[0]).objective

    def subgradient(self, evaluation: Evaluation, *, data_term: bool = True) -> Tensor:
        """A subgradient of the objective (without the box) at the evaluated images.

        Without ``data_term``, a subgradient of weight R alone.
        """
        c = self.network.tangent(self.weight, evaluation.x, evaluation.layers.a).c
        if not data_term:
            return c
        return c + self.operator.adjoint(self.fidelity.gradient(evaluation.prediction))

    def initial_image(self) -> Tensor:
        """The initial image: the guess from the data with the lowest objective.

        For a diagonal A: the data, with unseen pixels filled from seen ones around them, and for a
        fidelity made for outliers also its medians. Otherwise A* y / A* A 1, which turns constant
        data into a constant image, and the approximate inverse of A, if there is one. Data that
        were not measured are left out where possible. Zero if no guess is admissible.
        """
        x, *others = map(self.bounds.project, images_from_data(self.fidelity, self.operator))
        # With a single guess, only the finiteness of its objective matters.
        objective = self.objective(x) if others else self.fidelity.value(self.operator(x))
        for guess in others:
            another = self.objective(guess)
            lower = another < objective
            x = torch.where(expand_per_image(lower, x), guess, x)
            objective = torch.where(lower, another, objective)
        zero = self.bounds.project(torch.zeros_like(x))
        return torch.where(expand_per_image(torch.isfinite(objective), x), x, zero)

    def _condition(self, regularizer: AdaptiveNetwork) -> None:
        """Let the guide read the data, which makes the regularizer a convex network."""
        if self.noise is None and self.fidelity.likelihood == "gaussian":
            raise ValueError(
                "this regularizer reads the data, and its weights are in proportion to the noise: "
                "give noise=..., the standard deviation of the data, such as noise=25/255"
            )
        if isinstance(self.noise, Tensor) and self.noise.requires_grad:
            raise ValueError("noise=... cannot receive gradients; write noise.detach()")
        with full_precision():
            picture, seen = picture_for_guide(self.fidelity, self.operator)
            noise = UNSTATED_NOISE if self.noise is None else self.noise
            conditioned = regularizer.condition(picture, noise, seen)
        object.__setattr__(self, "regularizer", conditioned)

    def require_sound_numbers(self) -> None:
        """Raise ValueError for numbers in a part for which no bound would hold, naming the part.

        Tensors may have been edited in place, so ``solve`` and ``certify`` ask again.
        """
        names = "fidelity", "operator", "regularizer", "weight", "box"
        named = [each for name in names for each in named_numbers(getattr(self, name), name)]
        required = [*self.fidelity.requirements(), *self.regularizer.requirements()]
        largest = min(LARGEST_NUMBER, torch.finfo(self.fidelity.y.dtype).max)
        require_numbers(named, required, largest)

    def require_sound_operator(self) -> None:
        """Examine the operator, unless that was done and none of its tensors was edited since."""
        if (edits := self.operator.edits()) != self.__dict__.get("_edits"):
            self.__dict__.pop("upward", None)
            self._check_operator()
            self.__dict__["_edits"] = edits

    def _check_same_place(self) -> None:
        y = self.fidelity.y
        parts: dict[str, list[Tensor]] = {
            "operator": list(self.operator.tensors()),
            "regularizer": list(self.regularizer.parameters()),
        }
        for name, tensors in parts.items():
            for tensor in filter(Tensor.is_floating_point, tensors):
                if (tensor.dtype, tensor.device) != (y.dtype, y.device):
                    raise ValueError(
                        f"the data are {y.dtype} on {y.device}, but the {name} is "
                        f"{tensor.dtype} on {tensor.device}; convert one of them with "
                        f".to(device=..., dtype=...)"
                    )

    def _check_shapes(self) -> None:
        y, shape = self.fidelity.y, self.image_shape
        if len(shape) != 3:
            raise ValueError(
                "images have shape (batch, channels, H, W); these data make images of "
                f"{shape} after the batch"
            )
        try:
            with torch.no_grad():
                predicted = self.operator(y.new_zeros((self.batch_size, *shape))).shape
        except RuntimeError as error:
            diagonal = self.operator.diagonal
            reason = error if diagonal is None else f"it is for {tuple(diagonal.shape)[-3:]}"
            raise ValueError(f"the operator does not fit images of {shape}: {reason}") from None
        if predicted != y.shape:
            raise ValueError(
                f"the operator maps images of {(self.batch_size, *shape)} to data of "
                f"{tuple(predicted)}, but the data have {tuple(y.shape)}"
            )

    def _check_network_shape(self) -> None:
        shape = self.image_shape
        try:
            weights = self.regularizer.bind(shape).output
        except ValueError as error:
            text = f"the regularizer does not fit images of shape {shape}: {error}"
            raise ValueError(text) from None
        if len(weights) not in (1, self.batch_size):
            raise ValueError(
                f"the regularizer has the weights of {len(weights)} images, and these are data of "
                f"{self.batch_size}; condition the network on these data"
            )

    def _check_parts(self) -> None:
        """Examine activations and fidelities of users before any bound relies on them."""
        for layer in self.regularizer.modules():
            activation = getattr(layer, "activation", None)
            if isinstance(activation, Activation):
                examine_activation(activation)
        examine_fidelity(self.fidelity)

    def _check_operator(self) -> None:
        """Check that A* is the adjoint of A, on which lower bounds rely."""
        like = self.fidelity.y.new_empty((self.batch_size, *self.image_shape))
        examine_operator(self.operator, like)
        if self.operator.diagonal is not None:
            return
        error = adjoint_error(self.operator, like)
        if not error <= ADJOINT_TOLERANCE:
            raise ValueError(
                f"<A x, y> and <x, A* y> differ by {error:.1e}, relatively, for the operator "
                f"{type(self.operator).__name__}: its adjoint is not the adjoint of its forward, "
                "and no certificate would hold. Examine it with cl.check_operator"
            )

    def _unseen(self) -> Tensor:
        """A mask of the data that are zero for every image, A x = 0."""
        unseen = torch.ones_like(self.fidelity.y, dtype=torch.bool)
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):  # a nonzero row may cancel on one random image, not on two
            probe = 0.5 + torch.rand((self.batch_size, *self.image_shape), generator=generator)
            with torch.no_grad():
                unseen &= self.operator(probe.to(self.fidelity.y)) == 0
        return unseen

    def _description(self, *, figures: bool) -> Description:
        y, box = self.fidelity.y, f"{self.bounds.lower:g} to {self.bounds.upper:g}"
        data = f"{self.fidelity!r}, {str(y.dtype).removeprefix('torch.')} on {y.device}"
        facts = {"data": data, "operator": repr(self.operator)}
        facts |= {"regularizer": self.regularizer.outline, "box": box}
        pictures = enumerate(y[: SHOWN * (figures and is_picture(y))])
        title = f"min D(A x, y) + {self.weight:g} R(x) for x of {self.image_shape}"
        return Description(title, facts, [picture(each, f"y[{i}]") for i, each in pictures])

    def _changed(self, **parts: Any) -> VariationalProblem:
        """A copy with other parts that are known to fit; nothing is checked again."""
        other = copy.copy(self)
        for name in self._cached_names():
            other.__dict__.pop(name, None)
        other.__dict__.update(parts)
        return other


def require_problem(problem: object) -> None:
    """Raise TypeError for anything but a problem."""
    if not isinstance(problem, VariationalProblem):
        raise TypeError(
            "state a problem first: cl.VariationalProblem(fidelity=cl.SquaredL2(y), "
            f"regularizer=..., weight=...); got a {type(problem).__name__}"
        )


def checked_image(problem: VariationalProblem, x: object, name: str) -> Tensor:
    """Images of the problem's shape with finite real numbers; raises for anything else."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got a {type(x).__name__}; write torch.as_tensor(...)"
        )
    if not x.is_floating_point():
        raise TypeError(f"{name} must have floating-point numbers, got {x.dtype}; write x.float()")
    if x.device != problem.fidelity.y.device:
        raise ValueError(
            f"{name} is on {x.device} and the data on {problem.fidelity.y.device}; write "
            f"x.to({str(problem.fidelity.y.device)!r})"
        )
    _check_shape(problem, x, name)
    if (place := first_non_finite(x)) is not None:
        raise ValueError(f"{name} is {float(x[place])} at index {place}, and no image")
    return x


def _check_shape(problem: VariationalProblem, x: Tensor, name: str) -> None:
    if tuple(x.shape) != (shape := (problem.batch_size, *problem.image_shape)):
        raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
