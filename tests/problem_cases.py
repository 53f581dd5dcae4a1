"""Small problems of every kind, which every path must solve as the plain one does.

Their tags say what fast paths take: "convolution" for one convolution of the image and data of
single pixels; "kernels" for one that has a single channel and a slope that is a ramp, besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import zoo
from torch import Tensor

import convexlift as cl
from convexlift.functionals.fidelity import Anchored
from convexlift.networks import Convolution
from convexlift.operators.imaging import Diagonal

UNCAPTURED = ("uncaptured",)
"""Problems with parts of which graphs have no copies: of users, of rays, and others."""
BOTH = ("convolution", "kernels")
SIZE = (19, 37)
"""Neither a multiple of the rows of a strip, nor of the sides of a tile."""


def images(*shape: int, seed: int = 0) -> Tensor:
    """Noisy blobs; the second image has little contrast, and the third one is very dark."""
    draw = torch.Generator().manual_seed(seed)
    batch, channels, *size = shape
    coarse = torch.rand(batch, channels, *(-(-n // 5) for n in size), generator=draw)
    clean = torch.nn.functional.interpolate(coarse, size=size, mode="nearest")
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=draw)
    return noisy.clamp(0, 1) * torch.tensor([1.0, 0.5, 0.1])[:batch, None, None, None]


def seen(*size: int) -> cl.Mask:
    return cl.Mask((torch.rand(size, generator=torch.Generator().manual_seed(1)) > 0.3).double())


def posed(
    network: cl.InputConvexNetwork,
    fidelity: Callable[[Tensor], cl.Fidelity] = cl.SquaredL2,
    operator: cl.LinearOperator | None = None,
    *,
    size: tuple[int, ...] = SIZE,
    batch: int = 2,
    weight: float = 0.3,
    box: Any = (0, 1),
    **options: Any,
) -> cl.VariationalProblem:
    A = seen(*size) if operator is None else operator
    y = A(images(batch, network.in_channels, *size))
    return cl.VariationalProblem(
        fidelity=fidelity(y), operator=A, regularizer=network, weight=weight, box=box, **options
    )


def ridge(h: str = "huber", padding: str = "reflect", kernel: int = 5, channels: int = 3):
    """One layer with biases, and a channel that does not count; ``h`` is a name of the zoo."""
    torch.manual_seed(3)
    width = channels * zoo.NAMED[h].group
    skip = Convolution(1, width, kernel, padding=padding)
    layer = cl.ConvexLayer(zoo.NAMED[h], channels=width, skip=skip)
    torch.nn.init.normal_(layer.bias, std=0.2)
    network = cl.InputConvexNetwork([layer])
    torch.nn.init.uniform_(network.output, 0.1, 1.0)
    network.output.data[1] = 0.0
    return network


def smooth(**options: Any) -> cl.InputConvexNetwork:
    torch.manual_seed(4)
    return cl.networks.ridge(**{"channels": 4, "kernel": 3, "smoothing": 0.05, **options})


def adaptive(*reads: str) -> cl.InputConvexNetwork:
    """Weights, and perhaps biases, of every pixel and image."""
    torch.manual_seed(5)
    network = cl.networks.adaptive(channels=3, kernel=5, widths=(4,), blocks=1, reads=reads)
    for parameter in network.guide.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return network


def levels() -> cl.InputConvexNetwork:
    """Weights that depend on the noise level of the image."""
    torch.manual_seed(6)
    network = cl.networks.ridge(channels=3, kernel=5, smoothing=0.0, levels=[0.05, 0.2])
    torch.nn.init.normal_(network.guide.numbers)
    return network


def pooled(smoothing: float, shift: float = 0.0) -> cl.InputConvexNetwork:
    """A convolution, means over blocks of 4 x 4, and a dense layer; a large shift turns it on."""
    torch.manual_seed(7)
    network = cl.networks.baseline(
        image_size=(24, 40), channels=3, kernel=5, pool=4, hidden=6, smoothing=smoothing
    )
    for parameter in network.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    network.layers[-1].bias.data += shift
    network.output.data *= 1e2
    network.project_()
    return network


def colours() -> cl.InputConvexNetwork:
    torch.manual_seed(8)
    skip = Convolution(3, 5, 3)
    layer = cl.ConvexLayer(zoo.NAMED["leaky"], channels=5, skip=skip)
    network = cl.InputConvexNetwork([layer], in_channels=3)
    torch.nn.init.uniform_(network.output, 0.1, 1.0)
    return network


def uneven() -> cl.InputConvexNetwork:
    """Channels whose weights differ by four decades."""
    network = smooth(channels=8)
    network.output.data *= 10 ** -torch.linspace(0, 4, 8)
    return network


def anchored(y: Tensor) -> cl.Fidelity:
    return Anchored(cl.SquaredL2(y), y.flip(-1), 0.3)


def weighted(y: Tensor) -> cl.Fidelity:
    return cl.WeightedL2(y, (0.2 + y) * (y > 0.1))


def counts(y: Tensor) -> cl.Fidelity:
    return cl.KullbackLeibler((20 * y).round(), 0.5)


def scan(network: cl.InputConvexNetwork, box: Any, *, uneven: bool = False) -> Any:
    """Rays; perhaps of very different weights, of which some were not measured."""
    A = cl.ParallelBeam(20, 12, 30, 20.0).to(dtype=torch.float64)
    x = images(2, 1, 20, 20)
    y = A(x) + 0.05 * torch.randn(A(x).shape, generator=torch.Generator().manual_seed(2))
    omega = 1e3 * torch.exp(-0.5 * y) * (torch.arange(30) % 7 > 0)
    data = cl.WeightedL2(y, omega) if uneven else cl.SquaredL2(y)
    weight = 10.0 if uneven else 0.3
    return cl.VariationalProblem(
        fidelity=data, operator=A, regularizer=network, weight=weight, box=box
    )


class Half(cl.LinearOperator):
    """A user's operator: half of the image."""

    def forward(self, x):
        return 0.5 * x

    adjoint = forward


@dataclass(frozen=True)
class Case:
    """A problem in double precision, how it may be taken, and what is claimed about it."""

    make: Callable[[], cl.VariationalProblem]
    tags: tuple[str, ...] = ()
    gap: float = 1e-3


BLUR = cl.Blur(torch.full((3, 3), 1 / 9, dtype=torch.float64), "circular")
RAMPS = [name for name, h in zoo.NAMED.items() if h.ramp is not None and h.group == 1]
CASES = {
    # One convolution of the image
    **{h: Case(lambda h=h: posed(ridge(h)), BOTH) for h in RAMPS if h != "relu"},
    "relu": Case(lambda: posed(ridge("relu"), weight=0.05), BOTH, gap=2e-2),
    **{p: Case(lambda p=p: posed(ridge("huber", p)), BOTH)
       for p in ("zero", "circular", "replicate")},
    "7 x 7": Case(lambda: posed(ridge(kernel=7), batch=1), BOTH),
    "3 x 3": Case(lambda: posed(ridge("abs", kernel=3), cl.L1), BOTH),
    "L1 and huber": Case(lambda: posed(ridge(), lambda y: cl.L1(y, 0.7)), BOTH),
    "counts": Case(lambda: posed(smooth(), counts, cl.Identity(), box=(0, None)), BOTH),
    "anchored": Case(lambda: posed(ridge("leaky"), anchored), BOTH),
    "weighted": Case(lambda: posed(smooth(), weighted, cl.Identity()), ("convolution",)),
    "no box": Case(lambda: posed(ridge("abs"), operator=cl.Identity(), box=None), BOTH),
    "x >= 0.2": Case(lambda: posed(smooth(), box=(0.2, None), operator=cl.Identity()), BOTH),
    "x <= 0.5": Case(lambda: posed(smooth(), box=(None, 0.5), operator=cl.Identity()), BOTH),
    "negative diagonal": Case(
        lambda: posed(smooth(), operator=Diagonal(torch.linspace(-2, 1, 703).reshape(SIZE)),
                      batch=3), BOTH),
    "weights of pixels": Case(lambda: posed(adaptive("output"), noise=0.1, weight=1.0), BOTH),
    "biases of pixels": Case(
        lambda: posed(adaptive("output", "biases"), noise=0.1, weight=1.0, batch=3), BOTH),
    "weights of images": Case(
        lambda: posed(levels(), noise=torch.tensor([0.05, 0.2]), weight=1.0), BOTH),
    "splines": Case(lambda: posed(ridge("spline")), ("convolution", "uncaptured")),
    "groups": Case(lambda: posed(ridge("group huber")), ("convolution",)),
    "squares": Case(lambda: posed(ridge("square")), ("convolution",)),
    "colours": Case(lambda: posed(colours()), ("convolution",)),
    "uneven channels": Case(lambda: posed(uneven(), batch=3)),
    "many channels": Case(lambda: posed(smooth(channels=32), size=(40, 24), batch=1), BOTH),
    # Images of few pixels
    "one pixel": Case(lambda: posed(smooth(padding="zero"), operator=cl.Identity(), size=(1, 1)),
                      BOTH),
    "two rows": Case(lambda: posed(smooth(padding="circular"), size=(2, 5), batch=3), BOTH),
    "one column": Case(lambda: posed(smooth(padding="replicate"), size=(40, 1)), BOTH),
    # Layers that follow one another
    "pooled, smooth": Case(lambda: posed(pooled(0.02), size=(24, 40))),
    "pooled, kinks": Case(lambda: posed(pooled(0.0), cl.L1, size=(24, 40))),
    "saturated": Case(lambda: posed(pooled(0.0, 9.0), size=(24, 40), batch=3), BOTH),
    "off": Case(lambda: posed(pooled(0.02, -0.3), size=(24, 40))),
    **{a: Case(lambda a=a: zoo.problem(a, zoo.MONOTONE["leaky"], "masked L2", "box", batch=2))
       for a in (*zoo.ARCHITECTURES, "residual last")},
    "deep and smooth": Case(
        lambda: zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2", "x >= 0", batch=3)),
    "deep counts": Case(lambda: zoo.problem("skips", zoo.MONOTONE["leaky"], "KL", "x >= 0")),
    # Differences, and operators that mix pixels
    "total variation": Case(lambda: posed(cl.TotalVariation(), batch=3)),
    "squares of differences": Case(lambda: posed(cl.TotalVariation(False), box=(0, None))),
    "total variation and L1": Case(
        lambda: posed(cl.TotalVariation(), cl.L1, cl.Identity(), box=(0, None), weight=0.4)),
    "blur": Case(lambda: posed(smooth(), operator=BLUR, size=(24, 25))),
    "blur and L1": Case(lambda: posed(cl.TotalVariation(), cl.L1, BLUR, size=(24, 25))),
    "few blurred pixels": Case(
        lambda: posed(cl.TotalVariation(False), operator=BLUR, size=(7, 7), batch=3)),
    "rays": Case(lambda: scan(cl.TotalVariation(), (0, None)), UNCAPTURED),
    "rays and filters": Case(lambda: scan(smooth(), (0, 0.5)), UNCAPTURED),
    "uneven rays": Case(lambda: scan(cl.TotalVariation(), (0, 2), uneven=True), UNCAPTURED),
    # Parts of users
    "a user's operator": Case(lambda: posed(smooth(), operator=Half(), batch=1), UNCAPTURED),
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float64, device: str = "cpu", *, alone=False):
    """The problem of this name, or that of its first image."""
    problem = CASES[name].make()
    if alone and problem.batch_size > 1:
        problem = problem.select(torch.tensor([0]))
    return problem.to(dtype=dtype, device=device)


def with_other_data(problem: cl.VariationalProblem, shift: float) -> cl.VariationalProblem:
    """A problem of the same kind, with the same network."""
    y = (problem.fidelity.y + shift * problem.fidelity.y.flip(-1)).contiguous()
    return replace(problem, fidelity=cl.SquaredL2(y))
