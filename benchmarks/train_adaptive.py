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
(``crop_kernels``). Every 13th picture is held out; PSNR and the largest gap on them are printed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from crop_kernels import Reading, add_adjoint, dual_step, primal_step, weigh, with_margin
from torch import Tensor, nn

import convexlift as cl
from convexlift import networks
from convexlift.inpaint_guess import median_of_neighbours
from convexlift.networks import AdaptiveNetwork
from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.networks.guides import UNetGuide
from convexlift.problems.guesses import IMPULSE
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper, Task
from convexlift.tf32 import full_precision
from convexlift.training import ImageSet
from convexlift.training.initialization import start_from_filters_, subtract_means_

LOWEST, HIGHEST = 2 / 255, 75 / 255
BATCH, CROP, EDGE = 16, 72, 6
DUAL_STEPS, RESTART = 60, 40
PDHG_STEPS, RATIO, RELAXATION = 80, 1.0, 1.8
LINEAR_STEPS, DAMPING = 24, 1e-3
RATES = {"filters": 3e-3, "output": 1e-2, "guide": 1e-3}
WARM_UP, CLIP = 200, 20.0
TURNS = "GGGIGGGS"
"""Gaussian noise, inpainting, salt and pepper."""


class Data(NamedTuple):
    """What a task makes of clean crops x, and what the guide sees."""

    x: Tensor
    y: Tensor
    picture: Tensor
    noise: Tensor
    seen: Tensor
    """1 where the picture holds data, (B, 1, H, W)."""


class Training:
    """One step of each task as a function without arguments, for a CUDA graph."""

    def __init__(self, network: AdaptiveNetwork, pictures: Tensor, others: Tensor) -> None:
        self.network, self.pictures, self.others = network, pictures, others
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

    def gaussian(self) -> Data:
        """Noise of all levels; one crop in 32 is no photograph."""
        x = self.crops(self.pictures)
        x[0] = torch.where(torch.rand((), device=x.device) < 0.5, self.drawing(x[0]), x[0])
        noise = LOWEST + (HIGHEST - LOWEST) * self.uniform(x)
        y = x + noise * torch.randn_like(x)
        return Data(x, y, y, noise, torch.ones_like(x[:, :1]))

    def missing(self) -> Data:
        """Single pixels are missing, or small connected holes; the others have noise."""
        x = self.crops(self.others)
        noise = 0.01 + 0.05 * self.uniform(x)
        field = torch.randn_like(x[:, :1])
        connected = 3 * F.avg_pool2d(field, 3, 1, 1)
        fraction = 0.1 + 0.4 * self.uniform(x)
        mixed = torch.where(self.uniform(x) < 0.3, connected, field)
        seen = (mixed > torch.special.ndtri(fraction)).to(x)
        y = seen * (x + noise * torch.randn_like(x))
        return Data(x, y, filled(y, seen), noise, seen)

    def impulses(self) -> Data:
        """Values become 0 or 1."""
        x = self.crops(self.others)
        hit = torch.rand_like(x) < 0.1 + 0.3 * self.uniform(x)
        y = torch.where(hit, (torch.rand_like(x) < 0.5).to(x), x)
        medians = median_of_neighbours(y)
        clean = (y - medians).abs() <= IMPULSE
        noise = torch.full_like(x[:, :1, :1, :1], UNSTATED_NOISE)
        seen = clean.to(x).amin(1, keepdim=True)
        return Data(x, y, torch.where(clean, y, medians), noise, seen)

    def crops(self, pictures: Tensor) -> Tensor:
        """Clean crops, turned and mirrored."""
        count, channels, height, width = pictures.shape
        device = pictures.device
        place = {"size": (BATCH, 1, 1, 1), "device": device}
        side = torch.arange(CROP, device=device)  # made there: a graph cannot copy from the host
        rows = torch.randint(height - CROP + 1, **place) + side[:, None]
        columns = torch.randint(width - CROP + 1, **place) + side
        every = torch.arange(channels, device=device)[:, None, None]
        x = pictures[torch.randint(count, **place), every, rows, columns].float() / 255
        for turned in (x.flip(-1), x.flip(-2), x.transpose(-1, -2)):
            x = torch.where(torch.rand(**place) < 0.5, turned, x)
        return x.contiguous()  # the last may have left columns one after another

    def drawing(self, photograph: Tensor) -> Tensor:
        """Tiles of 2 x 2 or 4 x 4 pixels, bars, outlines or a dithered photograph, in two colours.

        A regularizer that saw photographs only takes them for noise.
        """
        place = {"device": photograph.device}
        tiles = [
            (torch.rand(1, n, n, **place) < 0.5).repeat(1, CROP // n, CROP // n) for n in (2, 4)
        ]
        side, angle = torch.arange(CROP, **place), math.pi * torch.rand((), **place)
        way = angle.cos() * side[:, None] + angle.sin() * side
        bars = (way / (2 + 10 * torch.rand((), **place))).remainder(1.0)[None] < 0.5
        grey = photograph.mean(0, keepdim=True)
        every = torch.stack([*tiles, bars, grey < grey.mean(), grey < torch.rand_like(grey)])
        shape = every.index_select(0, torch.randint(5, (1,), **place))[0]
        one, other = torch.rand(2, len(photograph), 1, 1, **place)
        return torch.where(shape, one, other)

    def unit(self, data: Data) -> Tensor | float:
        """Of images in the lower level."""
        return data.noise

    def ratio(self, robust: bool) -> float:
        """Of the steps of x and p, times ||V||."""
        return RATIO

    def uniform(self, like: Tensor) -> Tensor:
        """One number for each crop."""
        return torch.rand_like(like[:, :1, :1, :1])

    def read(self, data: Data) -> Reading:
        """W(y) and, if the guide gives them, b(y) at the interior, in units of the noise."""
        margin, floor = self.filters.shape[-1] // 2, self.network.floor
        numbers = self.network.guide(data.picture, data.noise, data.seen)
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


def filled(y: Tensor, seen: Tensor) -> Tensor:
    """Missing pixels by means of their neighbours; three rounds, since a graph cannot ask."""
    for _ in range(3):
        count, total = (F.avg_pool2d(t, 5, 1, 2, divisor_override=1) for t in (seen, seen * y))
        y = torch.where(seen > 0, y, total / count.clamp_min(1))
        seen = torch.maximum(seen, (count > 0).to(seen))
    return y


def read(folders: Sequence[Path], colour: bool) -> tuple[Tensor, Tensor]:
    """Training and held-out pictures, 8-bit, cut into pieces of the size of the smallest."""
    sets = [ImageSet.from_folder(folder, colour=colour) for folder in folders]
    sizes = [images.size(i) for images in sets for i in range(len(images))]
    height, width = (min(f(size) for size in sizes) for f in (min, max))
    pieces: dict[bool, list[Tensor]] = {False: [], True: []}
    for images in sets:
        for i in range(len(images)):
            picture = (255 * images[i]).round().to(torch.uint8)
            picture = picture if picture.shape[1] <= picture.shape[2] else picture.mT
            for top in range(0, picture.shape[1] - height + 1, height):
                for left in range(0, picture.shape[2] - width + 1, width):
                    piece = picture[:, top : top + height, left : left + width]
                    pieces[i % 13 == 6].append(piece)
    return torch.stack(pieces[False]), torch.stack(pieces[True])


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


def validate(network: AdaptiveNetwork, pictures: Tensor, name: str) -> str:
    """Mean PSNR, the largest gap and the most iterations on damaged pictures."""
    task, weight = TESTS[name]
    clean = pictures.float() / 255
    generators = [torch.Generator().manual_seed(i) for i in range(len(clean))]
    problem = task.measure(clean.cpu(), generators).to(device=clean.device).problem(network, weight)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=600))
    error = (solution.x.clamp(0, 1) - clean).square().flatten(1).mean(1)
    return (
        f"{name}: {float(-10 * error.log10().mean()):.3f} dB, gap {float(solution.gap.max()):.1e}, "
        f"{int(solution.iterations.max())} iterations"
    )


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


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--start", help="a model to continue from")
    parser.add_argument("--widths", type=int, nargs="+", default=[48, 64, 80])
    parser.add_argument("--blocks", type=int, help="residual blocks of the guide at each scale")
    parser.add_argument("--biases", action="store_true", help="which the guide reads as well")
    parser.add_argument("--from-fraction", type=float, default=0.0, help="of the schedule")
    parser.add_argument(
        "--others", type=Path, nargs="+", help="folders for inpainting and salt and pepper"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    pictures, held_out = (part.cuda() for part in read([given.folder], given.colour))
    others, held_out_others = pictures, held_out
    if given.others:
        others, held_out_others = (part.cuda() for part in read(given.others, given.colour))
    if given.start:
        network = cl.load(given.start)
    else:
        channels = {"in_channels": 3, "channels": 48} if given.colour else {}
        network = networks.adaptive(widths=given.widths, **channels)
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
