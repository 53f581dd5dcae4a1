"""Problems of large images, stated window by window, and one proof assembled from all windows.

For R of one layer, sum_k <w_k, h(V_k x + b_k)> with filters of radius r, and a data term that acts
pixel by pixel, both sides of a certificate are sums over the cores C of a partition of the image:

    J(x)   =  sum_C  D_C(x)  +  <w, h(V x + b)>_C,
    bound  =  sum_C  inf_x [D_C(x) + <c, x>_C]  +  <p, b>_C - <w, h*(p / w)>_C,      c = V* p.

V x on C needs pixels within r of C, and c on C needs dual variables within r of it. In a window
that is larger than C by 2 r, both are the same as in the whole image: the edges of the window,
where it pads, come no nearer than r. Any p proves a bound. So p may come from anywhere, for example
from solves of tiles, and no assumption is needed about how tiles fit together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.networks.adaptive import ConditionedNetwork
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.problems.claims import data_term_above, in_double
from convexlift.problems.network_duals import dual_names
from convexlift.problems.rigorous_bounds import infimum_below
from convexlift.problems.rigorous_regularizer import minorant_below, regularizer_above
from convexlift.problems.rounding import Rounded
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Blocks

(DUAL,) = dual_names(1, 1)
"""The name of p, the dual variables of the only layer."""


@dataclass(frozen=True)
class Window:
    """The pixels with top <= row < bottom and left <= column < right."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.bottom - self.top, self.right - self.left

    def grown(self, margin: int, size: tuple[int, int]) -> Window:
        """The window enlarged by a margin on each side, clipped to an image of this size."""
        height, width = size
        return Window(
            max(0, self.top - margin), min(height, self.bottom + margin),
            max(0, self.left - margin), min(width, self.right + margin),
        )  # fmt: skip

    def within(self, outer: Window) -> Window:
        """The same pixels, relative to the corner of another window."""
        return Window(self.top - outer.top, self.bottom - outer.top,
                      self.left - outer.left, self.right - outer.left)  # fmt: skip

    def meet(self, other: Window) -> Window | None:
        """The pixels in both windows, if there are any."""
        both = Window(max(self.top, other.top), min(self.bottom, other.bottom),
                      max(self.left, other.left), min(self.right, other.right))  # fmt: skip
        return both if min(both.shape) > 0 else None

    def of(self, values: Tensor) -> Tensor:
        """The part of an image; dimensions of size 1, shared by all pixels, stay."""
        rows = slice(None) if values.shape[-2] == 1 else slice(self.top, self.bottom)
        columns = slice(None) if values.shape[-1] == 1 else slice(self.left, self.right)
        return values[..., rows, columns]


@dataclass(frozen=True, eq=False, kw_only=True)
class LargeProblem:
    """min_x D(A x, y) + weight R(x) over a box, for an image too large to be solved at once.

    The arguments are those of ``VariationalProblem``, for one image. An adaptive regularizer is
    conditioned window by window, so that its weights are never held for the whole image.
    """

    fidelity: Fidelity
    regularizer: InputConvexNetwork
    weight: float
    operator: LinearOperator = field(default_factory=Identity)
    box: Box | tuple[float | None, float | None] | None = None
    noise: float | Tensor | None = None

    def __post_init__(self) -> None:
        reason = self.obstacle(self.regularizer, self.operator, len(self.fidelity.y))
        if reason is not None:
            raise ValueError(f"tiles need {reason}")

    @staticmethod
    def of(problem: VariationalProblem) -> LargeProblem:
        """From a problem that is already stated."""
        return LargeProblem(
            fidelity=problem.fidelity, operator=problem.operator, box=problem.box,
            regularizer=problem.regularizer, weight=float(problem.weight),
        )  # fmt: skip

    @staticmethod
    def obstacle(
        regularizer: InputConvexNetwork, operator: LinearOperator, images: int
    ) -> str | None:
        """The first unmet condition for solving in windows; None if all are met."""
        if images != 1:
            return "a single image; solve the images of a batch one after the other"
        if operator.diagonal is None:
            return "data that belong to single pixels, and A is not diagonal"
        if len(regularizer.layers) != 1 or regularizer.radius is None:
            return (
                "a regularizer of one layer, with filters of stride 1 that treat all pixels alike, "
                "such as total variation, photo or photo-any-size"
            )
        return None

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the image."""
        height, width = self.fidelity.y.shape[-2:]
        return height, width

    @property
    def radius(self) -> int:
        """The radius of the filters."""
        assert self.regularizer.radius is not None
        return self.regularizer.radius

    @property
    def bounds(self) -> Box:
        """The box, as a ``Box``."""
        return Box.of(self.box)

    @property
    def device(self) -> torch.device:
        """The device that solves windows: the regularizer's, wherever the data are."""
        numbers = (*self.regularizer.parameters(), *self.regularizer.buffers())
        return next(iter(numbers), self.fidelity.y).device

    def window(
        self, window: Window, regularizer: InputConvexNetwork | None = None
    ) -> VariationalProblem:
        """The problem of one window, as if it were an image.

        A guide reads the window, unless the ``regularizer`` for it is known.
        """
        fidelity, operator = self.data(window)
        if regularizer is None:
            regularizer = self.regularizer
            if isinstance(regularizer, ConditionedNetwork):
                regularizer = regularizer.with_readings(lambda _, read: window.of(read))
        return VariationalProblem(
            fidelity=fidelity, operator=operator, regularizer=regularizer, weight=self.weight,
            box=self.box, noise=self.noise if regularizer.reads_data else None,
        )  # fmt: skip

    def data(self, window: Window) -> tuple[Fidelity, LinearOperator]:
        """D and A for the pixels of a window."""

        def part(values: Tensor) -> Tensor:
            return (window.of(values) if values.ndim >= 2 else values).to(self.device)

        return self.fidelity.mapped(part), self.operator.mapped(part)


@dataclass(frozen=True, eq=False)
class CoreSums:
    """The shares of a core in the objective and the bound, in double precision.

    Attributes:
        data_term: D_C(x), rounded up.
        regularizer: weight <w, h(V x + b)>_C, rounded up.
        bound: rounded down; -inf where a pixel is bounded by neither data nor box.
    """

    data_term: float
    regularizer: float
    bound: float


def core_sums(large: LargeProblem, problem: VariationalProblem, core: Window, outer: Window,
              x: Tensor, p: Tensor) -> CoreSums:  # fmt: skip
    """The shares of a core, from a window around it.

    Args:
        large: the whole problem.
        problem: the problem of the window ``outer``, which is larger than the core by twice the
            radius of the filters wherever the image continues.
        core: the core.
        outer: the window.
        x: the image there.
        p: the dual variables there, feasible or not.
    """
    double, x, duals = in_double(problem), x.double(), Blocks({DUAL: p.double()})
    inside = core.within(outer)
    here = x.new_zeros((1, 1, *outer.shape))
    inside.of(here).fill_(1)
    c = minorant_below(double, duals).c
    of_core = double.with_network(replace(double.network, output=double.network.output * here))
    error = inside.of(c.error.expand_as(c.value))
    fidelity, operator = large.data(core)
    fidelity, operator = fidelity.to(dtype=torch.float64), operator.to(dtype=torch.float64)
    infimum = infimum_below(fidelity, operator, double.bounds, Rounded(inside.of(c.value), error))
    return CoreSums(
        float(data_term_above(fidelity, operator, inside.of(x))),
        float(regularizer_above(of_core, x)),
        float(infimum + minorant_below(of_core, duals, height_only=True).beta),
    )
