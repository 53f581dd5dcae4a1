"""``convexlift demo``: three tasks, a shipped regularizer, and a proof with every image.

Each task degrades a picture that the regularizer was not trained on, states the problem, and solves
it by ``cl.solve`` with default options. The regularizer is ``photo-any-size``, with one weight for
each task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.data_terms import KullbackLeibler
from convexlift.images import load_example, poisson_counts, psnr
from convexlift.models.cards import ModelCard
from convexlift.models.store import load
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Blur
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.solution import Progress, Solution, Status, StopWhen
from convexlift.solvers.solve import solve
from convexlift.tasks import Inpainting, Measurement, SaltAndPepper

TEST_IMAGE = "astronaut"
REGULARIZER = "photo-any-size"
DEBLURRING_WEIGHT = 40.0
"""Chosen once for the best PSNR on another picture (camera); the card has the other two."""

NEXT = (
    ("reconstruct denoise PHOTO.png -o CLEAN.png", "a picture of your own"),
    ("models photo-any-size", "purpose and licence of this regularizer"),
    ("reproduce denoising --quick", "an experiment of the paper, in minutes"),
)
"""Commands to try after the demo, and their purpose."""


@dataclass(frozen=True)
class DemoOptions:
    """Size of the pictures and accuracy of the solver."""

    size: int = 256
    gap: float = 1e-3
    max_iterations: int = 1000


QUICK = DemoOptions(size=64, gap=1e-2, max_iterations=300)


@dataclass(frozen=True, eq=False)
class DemoTask:
    """A degraded picture and the problem whose solution restores it."""

    name: str
    title: str
    clean: Tensor
    degraded: Tensor  # shown as a picture
    problem: VariationalProblem


@dataclass(frozen=True, eq=False)
class DemoResult:
    """A task and its solution."""

    task: DemoTask
    solution: Solution

    @property
    def psnr_before(self) -> float:
        """PSNR of the degraded picture."""
        return float(psnr(self.task.degraded, self.task.clean))

    @property
    def psnr_after(self) -> float:
        """PSNR of the reconstruction."""
        return float(psnr(self.solution.x, self.task.clean))


@dataclass(frozen=True, eq=False)
class Demo:
    """The results, with the options and the regularizer's card."""

    results: tuple[DemoResult, ...]
    options: DemoOptions
    card: ModelCard


def run_demo(
    options: DemoOptions,
    device: torch.device,
    report: Callable[[str, float], object] = lambda text, fraction: None,
) -> Demo:
    """Load the regularizer and solve the three tasks.

    Args:
        options: sizes and limits.
        device: for the solver.
        report: called with the progress as text and as the fraction done.
    """
    network = load(REGULARIZER, device=device)
    results = []
    for task in make_tasks(network, options.size, device):

        def watch(progress: Progress, title: str = task.title) -> None:
            # The gap falls roughly geometrically, so its logarithm measures the fraction done.
            gap = float(progress.gap.max())
            done = math.log(max(gap, options.gap)) / math.log(options.gap) if gap < 1 else 0.0
            report(f"{title}: gap {gap:.1e} after {progress.iteration} iterations", done)

        stop = StopWhen(gap=options.gap, max_iterations=options.max_iterations)
        solution = solve(task.problem, stop=stop, callback=watch)
        if solution.status == (Status.INTERRUPTED,):
            raise KeyboardInterrupt  # no report on only some of the tasks
        results.append(DemoResult(task, solution))
    return Demo(tuple(results), options, network.card)


def make_tasks(
    network: InputConvexNetwork, size: int, device: torch.device
) -> tuple[DemoTask, ...]:
    """Salt-and-pepper noise with L1, missing pixels with L2, blurred counts with KL."""
    generator = torch.Generator().manual_seed(0)
    x = load_example(TEST_IMAGE).to(device)
    edge = (x.shape[-1] - size) // 2
    x = x[..., edge : edge + size, edge : edge + size]

    noisy = SaltAndPepper(0.25).measure(x, [generator])
    partial = Inpainting(missing=0.3, noise=0.03, fill="zero").measure(x, [generator])
    exposure, background = 200.0, 2.0
    camera = exposure * Blur.gaussian(1.2).to(device=device, dtype=x.dtype)
    counts = poisson_counts(camera(x) + background, generator)
    picture = (counts - background) / exposure
    blurred = Measurement(KullbackLeibler(counts, background), camera, (0.0, 1.0), picture)

    weights = network.card.weights
    tasks = (
        ("denoising", "Salt & pepper, 25 % of the pixels (L1)", noisy, weights["salt-and-pepper"]),
        ("inpainting", "30 % missing, 3 % noise (squared L2)", partial, weights["inpainting"]),
        ("deblurring", "Blur and Poisson noise (Kullback-Leibler)", blurred, DEBLURRING_WEIGHT),
    )
    return tuple(
        DemoTask(name, title, x, data.picture, data.problem(network, weight))
        for name, title, data, weight in tasks
    )
