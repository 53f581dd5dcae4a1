"""``convexlift demo``: three tasks, a network trained on the spot, and a proof with every image.

Each task degrades a picture the network has never seen, states the problem, and solves it with
``cl.solve`` and nothing to tune. The network is a toy: 24 convex filters, trained for less than a
minute on four other pictures, to show the machinery with a regularizer that does something.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from convexlift.functionals.fidelity import L1, KullbackLeibler, SquaredL2
from convexlift.images import (
    gaussian_noise,
    load_example,
    poisson_counts,
    psnr,
    random_mask,
    salt_and_pepper,
)
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.networks.maps import Convolution
from convexlift.networks.smooth_activations import Huber
from convexlift.operators.imaging import Blur, Mask
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.solution import Progress, Solution, Status
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen

TEST_IMAGE = "astronaut"
TRAINING_IMAGES = ("brick", "chelsea", "coffee", "rocket")
WEIGHTS = {"denoising": 7.0, "inpainting": 0.2, "deblurring": 50.0}
"""Regularization weights, chosen once for the best PSNR on a picture kept for that (camera)."""
NOISE = 0.1  # standard deviation of the noise that the network learns to remove


@dataclass(frozen=True)
class DemoOptions:
    """How long and how large: the demo itself, or a quick version of it."""

    size: int = 256
    training_steps: int = 90
    batch: int = 16
    gap: float = 1e-3
    max_iterations: int = 1000


QUICK = DemoOptions(size=64, training_steps=5, batch=4, gap=1e-2, max_iterations=300)


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
    training_seconds: float
    options: DemoOptions


Report = Callable[[str, float], None]
"""Called with what is being done and the fraction of it that is done."""


def run_demo(
    options: DemoOptions, device: torch.device, report: Report = lambda text, fraction: None
) -> Demo:
    """Train, then solve the three tasks.

    Args:
        options: sizes and limits.
        device: where to do it.
        report: told about the progress.
    """
    before = time.perf_counter()
    network = train_network(options, device, report)
    training_seconds = time.perf_counter() - before
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
    return Demo(tuple(results), training_seconds, options)


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

    def problem(**parts: object) -> VariationalProblem:
        return VariationalProblem(regularizer=network, box=(0, 1), **parts)  # type: ignore[arg-type]

    return (
        Task(
            "denoising",
            "Salt & pepper, 25 % of the pixels (L1)",
            x,
            noisy,
            problem(fidelity=L1(noisy), weight=WEIGHTS["denoising"]),
        ),
        Task(
            "inpainting",
            "30 % missing, 3 % noise (squared L2)",
            x,
            partial,
            problem(fidelity=SquaredL2(partial), operator=Mask(mask), weight=WEIGHTS["inpainting"]),
        ),
        Task(
            "deblurring",
            "Blur and Poisson noise (Kullback-Leibler)",
            x,
            (counts - background) / exposure,
            problem(
                fidelity=KullbackLeibler(counts, background),
                operator=camera,
                weight=WEIGHTS["deblurring"],
            ),
        ),
    )


def train_network(
    options: DemoOptions, device: torch.device, report: Report = lambda text, fraction: None
) -> InputConvexNetwork:
    """R(x) = sum_c w_c sum_pixels huber((k_c * x)), k_c of mean zero, learned by denoising.

    Six gradient steps on 1/2 ||x - y||^2 + R(x), from y = clean + noise, should end at the clean
    crop; the filters start as the cosines of the 5 x 5 DCT.
    """
    generator = torch.Generator().manual_seed(0)
    network = filter_network().to(device)
    pictures = [load_example(name) for name in TRAINING_IMAGES]
    optimiser = torch.optim.Adam(
        [
            {"params": [network.output], "lr": 6e-4},
            {"params": list(network.layers.parameters()), "lr": 3e-3},
        ]
    )
    for step in range(options.training_steps):
        clean = random_crops(pictures, options.batch, 40, generator).to(device)
        noisy = gaussian_noise(clean, NOISE, generator)
        x = noisy.requires_grad_()
        for _ in range(6):
            (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
            x = x - 0.3 * (x - noisy + slope)
        loss = ((x - clean)[..., 4:-4, 4:-4] ** 2).mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        network.project_()
        subtract_means_(network)
        decibel = -10 * math.log10(float(loss.detach()))
        report(f"Training: {decibel:.2f} dB", (step + 1) / options.training_steps)
    return network


def filter_network(size: int = 5, delta: float = 0.02) -> InputConvexNetwork:
    """One layer of Huber functions on cosine filters, without the constant one."""
    places = torch.arange(size) + 0.5
    waves = torch.stack([torch.cos(math.pi * places * k / size) for k in range(size)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    filters = torch.einsum("ai,bj->abij", waves, waves).reshape(-1, 1, size, size)[1:]
    convolution = Convolution(1, len(filters), size)
    convolution.weight.data.copy_(filters)
    layer = ConvexLayer(Huber(delta), channels=len(filters), skip=convolution, bias=False)
    network = InputConvexNetwork([layer])
    network.output.data.fill_(0.03)
    return network.to(torch.float32)


@torch.no_grad()
def subtract_means_(network: InputConvexNetwork) -> None:
    """Filters of mean zero: brightness is not penalised."""
    for module in network.modules():
        if isinstance(module, Convolution):
            module.weight.sub_(module.weight.mean((1, 2, 3), keepdim=True))


def random_crops(
    pictures: list[Tensor], count: int, size: int, generator: torch.Generator
) -> Tensor:
    """(count, 1, size, size) from random places of random pictures."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    crops = []
    for _ in range(count):
        picture = pictures[below(len(pictures))]
        top, left = below(picture.shape[-2] - size + 1), below(picture.shape[-1] - size + 1)
        crops.append(picture[..., top : top + size, left : left + size])
    return torch.cat(crops)
