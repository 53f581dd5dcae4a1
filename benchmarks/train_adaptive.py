"""Train an adaptive regularizer for three tasks; every step is one CUDA graph.

    python benchmarks/train_adaptive.py FOLDER MODEL [--colour] [--seconds 540] [--start MODEL]

The bilevel problem of ``convexlift train bilevel --preset photo``, about twenty times as fast on a
GPU: nothing waits for the CPU. Noise of all levels, missing pixels and impulses take turns.
In units of the noise, the lower levels are

    min_x 1/2 ||x - y||^2 + <w, h(V x + b)>  =  max_{|p| <= w} 1/2 ||y||^2 - 1/2 ||y - V* p||^2
                                                   + <b, p> - <delta / (2 w), p^2>,    x = y - V* p
    min_x 1/2 ||m (x - y)||^2 + <w, h(V x + b)>
    min_x ||x - y||_1 + <w, h(V x + b)>

with h the Huber function of width delta, and b = 0 without ``--biases``. A fixed number of
accelerated projected gradient steps on the dual solves the first, overrelaxed PDHG the others; the
hypergradient takes a fixed number of steps of conjugate gradients. Crops have no boundary
(``crop_kernels``), and the guide reads them without a margin. Every 13th picture is held out; PSNR
and the largest gap on them are printed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from crop_kernels import Reading, add_adjoint, dual_step, primal_step, weigh, with_margin
from torch import Tensor, nn
from training_crops import Crops, Data, read_both

import convexlift as cl
from convexlift import networks
from convexlift.networks import AdaptiveNetwork
from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.networks.guides import UNetGuide
from convexlift.precision import full_precision
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.training.initialization import start_from_filters_, subtract_means_

EDGE = 8
DUAL_STEPS, RESTART = 80, 40
PDHG_STEPS, RATIO, RELAXATION = 80, 1.0, 1.8
LINEAR_STEPS, DAMPING = 24, 1e-3
RATES = {"filters": 3e-3, "output": 1e-2, "guide": 1e-3}
WARM_UP, CLIP = 200, 20.0
TURNS = "GGGIGGGS"
"""Gaussian noise, inpainting, salt and pepper."""


class Training(Crops):
    """One step of each task as a function without arguments, for a CUDA graph."""

    def __init__(self, network: AdaptiveNetwork, pictures: Tensor, others: Tensor) -> None:
        super().__init__(pictures, others)
        self.network = network
        layer = network.layers[0]
        assert layer.skip is not None
        self.filters: Tensor = layer.skip.weight  # type: ignore[assignment]
        self.delta: float = layer.activation.delta  # type: ignore[attr-defined]
        groups = {"filters": [self.filters], "output": [network.output], "guide": self.read_by()}
        self.optimiser = torch.optim.Adam(
            [{"params": tensors, "lr": torch.tensor(1e-6).to(pictures.device), "base": RATES[name]}
             for name, tensors in groups.items()],
            betas=(0.9, 0.99), fused=True, capturable=pictures.is_cuda,
        )  # fmt: skip

    def read_by(self) -> list[nn.Parameter]:
        """The parameters behind ``read``, but for W_L."""
        return list(self.network.guide.parameters())

    def step(self, task: str) -> None:
        """Draw crops, reconstruct them, and move the weights."""
        draw = {"G": self.gaussian, "I": self.missing, "S": self.impulses}[task]
        data = draw()
        read = self.read(data)
        unit = self.unit(data)
        x, y, start = (t / unit for t in (data.x, data.y, data.picture))
        with torch.no_grad():
            held, v = read.held(), self.filters.detach()
            if task == "G":
                found = self.dual_steps(v, y, held)
                free, diagonal = torch.ones_like(x), torch.ones_like(x)
            else:
                robust = task == "S"
                seen = data.seen.expand_as(x).contiguous()
                found = self.pdhg_steps(v, y, held, seen, start, robust, self.ratio(robust))
                # Where ||x - y||_1 has its kink, x does not move with the weights.
                free = (found != y).to(x) if robust else torch.ones_like(x)
                diagonal = torch.zeros_like(x) if robust else data.seen.expand_as(x)
            scale = unit / data.noise
            slope = scale * slope_of_error(scale * (found - x), EDGE)
            q = self.linear_solve(v, found, held, free * slope, free, diagonal + DAMPING)
        self.move(found, read, q)

    def move(self, found: Tensor, read: Reading, q: Tensor) -> None:
        """One step against the hypergradient -<q, d/dtheta V* (w h'(V x + b))>."""
        response = read.add_biases(precise_conv2d(found, self.filters)) / self.delta
        gradient = F.conv_transpose2d(read.weights * response.clamp(-1, 1), self.filters)
        self.optimiser.zero_grad(set_to_none=False)
        (-(q * gradient).sum() / len(found)).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        self.optimiser.step()
        self.network.project_()
        subtract_means_(self.network)

    def unit(self, data: Data) -> Tensor | float:
        """Of images in the lower level."""
        return data.noise

    def ratio(self, robust: bool) -> float:
        """Of the steps of x and p, times ||V||."""
        return RATIO

    def read(self, data: Data) -> Reading:
        """W(y) and, if the guide gives them, b(y) at the interior, in units of the noise."""
        margin, floor = self.filters.shape[-1] // 2, self.network.floor
        guide = self.network.guide
        assert isinstance(guide, UNetGuide)
        numbers = guide.read(data.picture, data.noise, data.seen)
        numbers = numbers[..., margin:-margin, margin:-margin]
        shares, *others = numbers.split(len(self.filters), 1)
        weights = floor + (1 - floor) * torch.sigmoid(shares).square()
        weights = self.network.output.reshape(1, -1, 1, 1) * weights
        return Reading(weights, *(self.network.largest_bias * torch.tanh(b) for b in others))

    def dual_steps(self, v: Tensor, y: Tensor, read: Reading) -> Tensor:
        """x for Gaussian noise, by restarted accelerated steps on the dual."""
        sigma, t = 1 / squared_norm(v), 1.0
        p, ahead = with_margin(v, y), with_margin(v, y)
        for k in range(DUAL_STEPS):
            t = 1.0 if k % RESTART == RESTART - 1 else t
            after = (1 + math.sqrt(1 + 4 * t * t)) / 2
            x = add_adjoint(v, ahead, y, -1.0)
            dual_step(v, x, read, self.delta, sigma, ahead, p, (t - 1) / after)
            t = after
        return add_adjoint(v, p, y, -1.0)

    def pdhg_steps(
        self, v: Tensor, y: Tensor, read: Reading, seen: Tensor, start: Tensor, robust: bool,
        ratio: float = RATIO,
    ) -> Tensor:  # fmt: skip
        """x for missing pixels or impulses."""
        norm = squared_norm(v).sqrt()
        tau, sigma = ratio / norm, 1 / (ratio * norm)
        x, p = start.contiguous().clone(), with_margin(v, y)
        new, zeros = x, torch.zeros_like(x)
        for _ in range(PDHG_STEPS):
            back = add_adjoint(v, p, zeros, 1.0)
            new, beyond = primal_step(x, back, y, seen, tau, RELAXATION, robust)
            dual_step(v, beyond, read, self.delta, sigma, p, p, RELAXATION - 1)
        return new

    def linear_solve(
        self, v: Tensor, x: Tensor, read: Reading, right: Tensor, free: Tensor, diagonal: Tensor
    ) -> Tensor:
        """q with H q = right on the free pixels, H the Hessian at x, by conjugate gradients."""
        response = read.add_biases(precise_conv2d(x, v))
        curved = read.weights / self.delta * (response.abs() < self.delta)
        buffer = with_margin(v, x)
        q, residual, direction = torch.zeros_like(right), right, right
        squared = dot(residual, residual)
        for _ in range(LINEAR_STEPS):
            weigh(v, direction, curved, buffer)
            image = free * add_adjoint(v, buffer, diagonal * direction, 1.0)
            length = squared / dot(direction, image).clamp_min(1e-30)
            q, residual = q + length * direction, residual - length * image
            before, squared = squared, dot(residual, residual)
            direction = residual + squared / before.clamp_min(1e-30) * direction
        return q

    def schedule(self, fraction: float, step: int) -> None:
        """Warm-up, then a cosine down to zero."""
        factor = min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * fraction)) / 2
        for group in self.optimiser.param_groups:
            group["lr"].fill_(factor * group["base"])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """One number for each image, (B, 1, 1, 1)."""
    return (a * b).sum((1, 2, 3), keepdim=True)


def slope_of_error(error: Tensor, edge: int) -> Tensor:
    """The gradient of the logarithm of the mean square inside the edges, but for a factor."""
    inside = F.pad(torch.ones_like(error[..., edge:-edge, edge:-edge]), (edge,) * 4)
    mean = dot(inside * error, error) / inside[0].sum()
    return inside * error / mean.clamp_min(1e-4)


def precise_conv2d(x: Tensor, filters: Tensor) -> Tensor:
    """Without TF32, whose errors are as large as delta where the noise is small."""
    with full_precision():
        return F.conv2d(x, filters)


def squared_norm(filters: Tensor) -> Tensor:
    """A bound on ||V||^2: row sums of the matrices sum_k (F k)* (F k)."""
    spectra = torch.fft.rfft2(filters, s=(32, 32))
    return torch.einsum("kcij,kdij->cdij", spectra.conj(), spectra).abs().sum(0).amax()


def grown(network: AdaptiveNetwork, *, biases: bool, blocks: int | None) -> AdaptiveNetwork:
    """The same regularizer, whose guide has more blocks, or gives biases as well, of 0 at first."""
    guide = network.guide
    assert isinstance(guide, UNetGuide)
    reads = [*network.reads, *(["biases"] if biases and len(network.reads) == 1 else [])]
    outputs, blocks = len(network.output) * len(reads), blocks or guide.blocks
    larger = UNetGuide(guide.in_channels, outputs, widths=guide.widths, blocks=blocks)
    state = guide.state_dict()
    for name in ("last.weight", "last.bias"):
        old = state[name]
        state[name] = torch.cat([old, old.new_zeros(4 * outputs - len(old), *old.shape[1:])])
    larger.load_state_dict(larger.state_dict() | state)
    made = AdaptiveNetwork(
        list(network.layers), larger, in_channels=network.in_channels, floor=network.floor,
        ceiling=network.ceiling, reads=reads, largest_bias=network.largest_bias,
    )  # fmt: skip
    made.output.data.copy_(network.output.data)
    return made


TESTS: dict[str, tuple[Task, float]] = {
    f"sigma {sigma}": (GaussianDenoising(sigma / 255, box=None), 1.0) for sigma in (15, 25, 50)
} | {
    "inpainting": (Inpainting(missing=0.3, noise=0.03), 1.0),
    "salt and pepper": (SaltAndPepper(fraction=0.25), 1 / UNSTATED_NOISE),
}


def score(solution: cl.Solution, clean: Tensor) -> str:
    """Mean PSNR, the largest gap and the most iterations."""
    error = (solution.x.clamp(0, 1) - clean).square().flatten(1).mean(1)
    return (
        f"{float(-10 * error.log10().mean()):.3f} dB, gap {float(solution.gap.max()):.1e}, "
        f"{int(solution.iterations.max())} iterations"
    )


def validate(network: AdaptiveNetwork, pictures: Tensor, name: str) -> str:
    """The score on damaged pictures."""
    task, weight = TESTS[name]
    clean = pictures.float() / 255
    generators = [torch.Generator().manual_seed(i) for i in range(len(clean))]
    problem = task.measure(clean.cpu(), generators).to(device=clean.device).problem(network, weight)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=600))
    return f"{name}: {score(solution, clean)}"


def captured(training: Training, task: str) -> torch.cuda.CUDAGraph:
    """A step of the task as a graph, after some steps that let libraries choose their kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            training.step(task)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step(task)
    return graph


def train(
    training: Training, seconds: float, look: Callable[[], str], from_fraction: float = 0.0
) -> None:
    """Take steps of all tasks in turn; print what ``look`` finds after 15 s and every 90 s."""
    graphs = {task: captured(training, task) for task in "GIS"}
    print("start:", look(), flush=True)
    begin, step, shown = time.monotonic(), 0, -75.0
    while (spent := time.monotonic() - begin) < seconds:
        training.schedule(from_fraction + (1 - from_fraction) * spent / seconds, step)
        for task in TURNS:
            graphs[task].replay()
        torch.cuda.synchronize()
        step += len(TURNS)
        if spent - shown > 90:
            shown = spent
            print(f"{spent:4.0f} s, step {step}: {look()}", flush=True)


def arguments(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """What trainings for three tasks are told."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--start", help="a model to continue from")
    parser.add_argument(
        "--others", type=Path, nargs="+", help="folders for inpainting and salt and pepper"
    )
    return parser


def main() -> None:
    """Train and save."""
    parser = arguments(__doc__, seconds=540.0)
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--filters", type=int, help="24, or 48 in colour")
    parser.add_argument("--kernel", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[48, 64, 80])
    parser.add_argument("--blocks", type=int, help="residual blocks of the guide at each scale")
    parser.add_argument("--biases", action="store_true", help="which the guide reads as well")
    parser.add_argument("--from-fraction", type=float, default=0.0, help="of the schedule")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    both = read_both(given.folder, given.others, given.colour)
    (pictures, held_out), (others, held_out_others) = both
    if given.start:
        network = cl.load(given.start)
    else:
        network = networks.adaptive(
            in_channels=3 if given.colour else 1,
            channels=given.filters or (48 if given.colour else 24),
            kernel=given.kernel, widths=given.widths,
        )  # fmt: skip
        start_from_filters_(network, 0.7)
    assert isinstance(network, AdaptiveNetwork)
    network = grown(network, biases=given.biases, blocks=given.blocks).cuda()
    network.guide.to(memory_format=torch.channels_last)  # a fifth faster
    training = Training(network, pictures, others)

    def look() -> str:
        cl.save(network, given.model)
        return validate(network, held_out[:8], "sigma 25")

    train(training, given.seconds, look, given.from_fraction)
    cl.save(network, given.model)
    for name in TESTS:
        pictures = held_out if name.startswith("sigma") else held_out_others[:8]
        print(validate(network, pictures, name), flush=True)


if __name__ == "__main__":
    main()
