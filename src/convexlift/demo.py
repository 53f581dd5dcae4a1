"""``convexlift demo``: three tasks, a shipped regularizer, and a proof with every image.

Each task degrades a picture the regularizer has never seen, states the problem, and solves it with
``cl.solve`` and nothing to tune. The regularizer is ``photo-any-size``, with one weight for each
task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2
from convexlift.images import (
    gaussian_noise,
    load_example,
    poisson_counts,
    psnr,
    random_mask,
    salt_and_pepper,
)
from convexlift.models.cards import ModelCard
from convexlift.models.store import load
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Blur, Mask
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.solution import Progress, Solution, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen

TEST_IMAGE = "astronaut"
REGULARIZER = "photo-any-size"
DEBLURRING_WEIGHT = 40.0
"""Chosen once for the best PSNR on another picture (camera); the other two are on the card."""

NEXT = (
    ("reconstruct denoise PHOTO.png -o CLEAN.png", "a picture of your own"),
    ("models photo-any-size", "what this regularizer is for, and its licence"),
    ("reproduce denoising --quick", "an experiment of the paper, in minutes"),
)
"""Commands to try after the demo, and what they do."""


@dataclass(frozen=True)
class DemoOptions:
    """How large and how accurate: the demo itself, or a quick version of it."""

    size: int = 256
    gap: float = 1e-3
    max_iterations: int = 1000


QUICK = DemoOptions(size=64, gap=1e-2, max_iterations=300)


@dataclass(frozen=True, eq=False)
class Task:
    """A degraded picture and the problem whose solution restores it."""

    name: str
    title: str
    clean: Tensor
    degraded: Tensor  # as a picture
    problem: VariationalProblem


@dataclass(frozen=True, eq=False)
class Result:
    """A task and its solution."""

    task: Task
    solution: Solution

    @property
    def psnr_before(self) -> float:
        """Of the degraded picture."""
        return float(psnr(self.task.degraded, self.task.clean))

    @property
    def psnr_after(self) -> float:
        """Of the reconstruction."""
        return float(psnr(self.solution.x, self.task.clean))


@dataclass(frozen=True, eq=False)
class Demo:
    """All that a report shows."""

    results: tuple[Result, ...]
    options: DemoOptions
    card: ModelCard


Report = Callable[[str, float], None]
"""Called with what is being done and the fraction of it that is done."""


def run_demo(
    options: DemoOptions, device: torch.device, report: Report = lambda text, fraction: None
) -> Demo:
    """Load the regularizer, and solve the three tasks.

    Args:
        options: sizes and limits.
        device: where to do it.
        report: told about the progress.
    """
    network = load(REGULARIZER, device=device)
    results = []
    for task in make_tasks(network, options.size, device):

        def watch(progress: Progress, title: str = task.title) -> None:
            # The gap falls about geometrically: its logarithm is the fraction done.
            gap = float(progress.gap.max())
            done = math.log(max(gap, options.gap)) / math.log(options.gap) if gap < 1 else 0.0
            report(f"{title}: gap {gap:.1e} after {progress.iteration} iterations", done)

        stop = StopWhen(gap=options.gap, max_iterations=options.max_iterations)
        solution = solve(task.problem, stop=stop, callback=watch)
        if solution.status == (Status.INTERRUPTED,):
            raise KeyboardInterrupt  # a demo of half the tasks is none
        results.append(Result(task, solution))
    return Demo(tuple(results), options, network.card)


def make_tasks(network: InputConvexNetwork, size: int, device: torch.device) -> tuple[Task, ...]:
    """Salt-and-pepper noise with L1, missing pixels with L2, blurred counts with KL."""
    generator = torch.Generator().manual_seed(0)
    picture = load_example(TEST_IMAGE)
    edge = (picture.shape[-1] - size) // 2
    x = picture[..., edge : edge + size, edge : edge + size].to(device)

    noisy = salt_and_pepper(x, 0.25, generator)
    mask = random_mask(x, 0.3, generator)
    partial = mask * gaussian_noise(x, 0.03, generator)
    exposure, background = 200.0, 2.0
    camera = exposure * Blur.gaussian(1.2).to(device=device, dtype=x.dtype)
    counts = poisson_counts(camera(x) + background, generator)

    weights = network.card.weights

    def problem(**parts: object) -> VariationalProblem:
        return VariationalProblem(regularizer=network, box=(0, 1), **parts)  # type: ignore[arg-type]

    return (
        Task(
            "denoising",
            "Salt & pepper, 25 % of the pixels (L1)",
            x,
            noisy,
            problem(fidelity=L1(noisy), weight=weights["salt-and-pepper"]),
        ),
        Task(
            "inpainting",
            "30 % missing, 3 % noise (squared L2)",
            x,
            partial,
            problem(fidelity=SquaredL2(partial), operator=Mask(mask), weight=weights["inpainting"]),
        ),
        Task(
            "deblurring",
            "Blur and Poisson noise (Kullback-Leibler)",
            x,
            (counts - background) / exposure,
            problem(
                fidelity=KullbackLeibler(counts, background),
                operator=camera,
                weight=DEBLURRING_WEIGHT,
            ),
        ),
    )
