"""Train an adaptive regularizer on Gaussian noise of all levels; every step is one CUDA graph.

    python benchmarks/train_adaptive.py FOLDER MODEL [--colour] [--seconds 540] [--start MODEL]

The bilevel problem of ``convexlift train bilevel --preset photo`` without its other tasks, about
ten times as fast on a GPU: nothing waits for the CPU. In units of the noise, the lower level is

    min_x 1/2 ||x - y||^2 + <w, h(V x)>  =  max_{|p| <= w} 1/2 ||y||^2 - 1/2 ||y - V* p||^2
                                                            - <delta / (2 w), p^2>,    x = y - V* p

with h the Huber function of width delta. A fixed number of accelerated projected gradient steps on
the dual solves it; the hypergradient takes a fixed number of steps of conjugate gradients. Crops
have no boundary: V is the convolution of their interior. Every 13th picture is held out; PSNR and
the largest gap on them are printed.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import convexlift as cl
from convexlift import networks
from convexlift.networks import AdaptiveNetwork
from convexlift.training import ImageSet
from convexlift.training.initialization import start_from_filters_, subtract_means_

LOWEST, HIGHEST = 2 / 255, 75 / 255
BATCH, CROP, EDGE = 16, 72, 6
DUAL_STEPS, LINEAR_STEPS, RESTART = 60, 24, 40
RATES = {"filters": 3e-3, "output": 1e-2, "guide": 1e-3}
WARM_UP, CLIP = 200, 20.0


class Training:
    """One step as a function without arguments, for a CUDA graph."""

    def __init__(self, network: AdaptiveNetwork, pictures: Tensor) -> None:
        self.network, self.pictures = network, pictures
        layer = network.layers[0]
        assert layer.skip is not None
        self.filters: Tensor = layer.skip.weight  # type: ignore[assignment]
        self.delta: float = layer.activation.delta  # type: ignore[attr-defined]
        groups = {"filters": [self.filters], "output": [network.output]}
        groups["guide"] = list(network.guide.parameters())
        self.optimiser = torch.optim.Adam(
            [{"params": tensors, "lr": torch.tensor(1e-6).to(pictures.device), "base": RATES[name]}
             for name, tensors in groups.items()],
            betas=(0.9, 0.99), capturable=pictures.is_cuda,
        )  # fmt: skip
        self.decibels = torch.zeros((), device=pictures.device)

    def step(self) -> None:
        """Draw crops, reconstruct them, and move the weights."""
        x, y, noise = self.draw()
        weights = self.weights(y, noise)
        x, y = x / noise, y / noise
        with torch.no_grad():
            found = self.solve(y, weights, DUAL_STEPS)
            seen = torch.zeros_like(x)
            seen[..., EDGE:-EDGE, EDGE:-EDGE] = 1
            error = (seen * (found - x).square()).sum((1, 2, 3), keepdim=True) / seen[0].sum()
            slope = seen * (found - x) / error.clamp_min(1e-4)  # of the logarithm of the error
            q = self.linear_solve(found, weights, slope)
        gradient = found - y + self.adjoint(weights * (self.apply(found) / self.delta).clamp(-1, 1))
        self.optimiser.zero_grad(set_to_none=False)
        (-(q * gradient).sum() / len(x)).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        self.optimiser.step()
        self.network.project_()
        subtract_means_(self.network)
        self.decibels.lerp_(-10 * error.log10().mean(), 0.005)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Clean crops, turned and mirrored, noisy ones, and noise levels (B, 1, 1, 1)."""
        count, channels, height, width = self.pictures.shape
        device = self.pictures.device
        place = {"size": (BATCH, 1, 1, 1), "device": device}
        side = torch.arange(CROP, device=device)  # made there: a graph cannot copy from the host
        rows = torch.randint(height - CROP + 1, **place) + side[:, None]
        columns = torch.randint(width - CROP + 1, **place) + side
        every = torch.arange(channels, device=device)[:, None, None]
        x = self.pictures[torch.randint(count, **place), every, rows, columns].float() / 255
        for turned in (x.flip(-1), x.flip(-2), x.transpose(-1, -2)):
            x = torch.where(torch.rand(**place) < 0.5, turned, x)
        noise = LOWEST + (HIGHEST - LOWEST) * torch.rand(**place)
        return x, x + noise * torch.randn_like(x), noise

    def weights(self, y: Tensor, noise: Tensor) -> Tensor:
        """W(y) at the interior, in units of the noise."""
        margin = self.filters.shape[-1] // 2
        numbers = self.network.guide(y, noise, torch.ones_like(y[:, :1]))
        share = torch.sigmoid(numbers[..., margin:-margin, margin:-margin]).square()
        floor = self.network.floor
        return self.network.output.reshape(1, -1, 1, 1) * (floor + (1 - floor) * share)

    def apply(self, x: Tensor) -> Tensor:
        """V x."""
        return F.conv2d(x, self.filters)

    def adjoint(self, p: Tensor) -> Tensor:
        """V* p."""
        return F.conv_transpose2d(p, self.filters)

    def solve(self, y: Tensor, weights: Tensor, steps: int) -> Tensor:
        """x of the lower level, by restarted accelerated steps on the dual."""
        return y - self.adjoint(self.dual(y, weights, steps))

    def dual(self, y: Tensor, weights: Tensor, steps: int) -> Tensor:
        """p of the lower level."""
        tau = 1 / self.squared_norm()
        p = ahead = torch.zeros_like(weights)
        t = 1.0
        for k in range(steps):
            t = 1.0 if k % RESTART == RESTART - 1 else t
            after = (1 + math.sqrt(1 + 4 * t * t)) / 2
            up = (ahead + tau * self.apply(y - self.adjoint(ahead))) / (
                1 + tau * self.delta / weights
            )
            new = torch.maximum(torch.minimum(up, weights), -weights)
            p, ahead, t = new, new + (t - 1) / after * (new - p), after
        return p

    def squared_norm(self) -> Tensor:
        """A bound on ||V||^2: row sums of the matrices sum_k (F k)* (F k)."""
        spectra = torch.fft.rfft2(self.filters, s=(32, 32))
        return torch.einsum("kcij,kdij->cdij", spectra.conj(), spectra).abs().sum(0).amax()

    def linear_solve(self, x: Tensor, weights: Tensor, right: Tensor) -> Tensor:
        """q with H q = right, H the Hessian at x, by conjugate gradients."""
        curved = weights / self.delta * (self.apply(x).abs() < self.delta)
        q, residual, direction = torch.zeros_like(right), right, right
        squared = _dot(residual, residual)
        for _ in range(LINEAR_STEPS):
            image = direction + self.adjoint(curved * self.apply(direction))
            length = squared / _dot(direction, image).clamp_min(1e-30)
            q, residual = q + length * direction, residual - length * image
            before, squared = squared, _dot(residual, residual)
            direction = residual + squared / before.clamp_min(1e-30) * direction
        return q

    def schedule(self, fraction: float, step: int) -> None:
        """Warm-up, then a cosine down to zero."""
        factor = min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * fraction)) / 2
        for group in self.optimiser.param_groups:
            group["lr"].fill_(factor * group["base"])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2, 3), keepdim=True)


def read(folder: Path, colour: bool) -> tuple[Tensor, Tensor]:
    """Training and held-out pictures, 8-bit; larger ones are cut into pieces of one size."""
    images = ImageSet.from_folder(folder, colour=colour)
    height, width = (min(f(images.size(i)) for i in range(len(images))) for f in (min, max))
    pieces: dict[bool, list[Tensor]] = {False: [], True: []}
    for i in range(len(images)):
        picture = (255 * images[i]).round().to(torch.uint8)
        picture = picture if picture.shape[1] <= picture.shape[2] else picture.mT
        for top in range(0, picture.shape[1] - height + 1, height):
            for left in range(0, picture.shape[2] - width + 1, width):
                piece = picture[:, top : top + height, left : left + width]
                pieces[i % 13 == 6].append(piece)
    return torch.stack(pieces[False]), torch.stack(pieces[True])


def validate(network: AdaptiveNetwork, pictures: Tensor, sigma: float) -> tuple[float, float, int]:
    """Mean PSNR, the largest gap and the most iterations on noisy pictures."""
    clean = pictures.float() / 255
    generator = torch.Generator(clean.device).manual_seed(1)
    noise = torch.randn(clean.shape, generator=generator, device=clean.device)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(clean + sigma * noise), regularizer=network, weight=1.0, noise=sigma
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=400))
    error = (solution.x.clamp(0, 1) - clean).square().flatten(1).mean(1)
    return (
        float(-10 * error.log10().mean()),
        float(solution.gap.max()),
        int(solution.iterations.max()),
    )


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
    parser.add_argument("--from-fraction", type=float, default=0.0, help="of the schedule")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    pictures, held_out = (part.cuda() for part in read(given.folder, given.colour))
    if given.start:
        network = cl.load(given.start)
    else:
        channels = {"in_channels": 3, "channels": 48} if given.colour else {}
        network = networks.adaptive(widths=given.widths, **channels)
        start_from_filters_(network, 0.7)
    assert isinstance(network, AdaptiveNetwork)
    network.cuda()
    training = Training(network, pictures)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    begin, step, shown = time.monotonic(), 0, 0.0
    while (spent := time.monotonic() - begin) < given.seconds:
        start = given.from_fraction
        training.schedule(start + (1 - start) * spent / given.seconds, step)
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        step += 20
        if spent - shown > 60:
            shown = spent
            psnr, gap, iterations = validate(network, held_out[:8], 25 / 255)
            line = f"{psnr:.3f} dB, gap {gap:.1e}, {iterations} iterations"
            print(f"{spent:4.0f} s, step {step}: {line}", flush=True)
            cl.save(network, given.model)
    cl.save(network, given.model)
    for sigma in (15, 25, 50):
        psnr, gap, iterations = validate(network, held_out, sigma / 255)
        print(f"sigma {sigma}: {psnr:.3f} dB, gap {gap:.1e}, {iterations} iterations", flush=True)


if __name__ == "__main__":
    main()
