"""Train an adaptive regularizer for tomography: the guide reads filtered back projections.

    python benchmarks/train_adaptive_ct.py FOLDER MODEL --start MODEL [--seconds 240]

FOLDER holds slices of 512 x 512, named PATIENT_SLICE; a patient is held out. In units of the noise
level c that guides assume for counts, the lower level is

    min_x KL(c A x + r, y) + <w, h(V x)>,   lower <= x <= upper,   w = WEIGHT c^2 W(y)

with the paper's scanner A, solved by a fixed number of overrelaxed PDHG steps, with steps for each
frequency of x (``solvers/spectral_steps.py``). The hypergradient takes a fixed number of steps of
preconditioned conjugate gradients.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from crop_kernels import Reading, add_adjoint, dual_step, weigh, with_margin
from torch import Tensor
from train_adaptive import Training, dot, precise_conv2d, score, slope_of_error
from training_crops import Data

import convexlift as cl
from convexlift.networks import AdaptiveNetwork
from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.operators.linear import LinearOperator
from convexlift.operators.spectral import filtered
from convexlift.solvers.spectral_steps import majorant
from convexlift.tasks import SparseViewCT
from convexlift.training import ImageSet

HELD_OUT = "NLST-101287"
WEIGHT = 200.0
BATCH, EDGE = 4, 4
STEPS, RELAXATION = 70, 1.8
SIGMA = {"counts": 1 / 1600, "box": 0.1, "filters": 0.1}
LINEAR_STEPS, DAMPING = 25, 1e-3


class Tomography(Training):
    """Steps with counts behind a scanner, made in advance."""

    def __init__(self, network: AdaptiveNetwork, slices: Tensor, task: SparseViewCT) -> None:
        super().__init__(network, slices, slices)
        self.task = task
        made = [task.measure(x[None], _generators(1, i)) for i, x in enumerate(slices)]
        self.counts = torch.cat([m.fidelity.y for m in made])
        self.back_projections = torch.cat([m.picture for m in made])
        self.A: LinearOperator = made[0].operator * UNSTATED_NOISE
        self.rays = majorant(self.A, *slices.shape[-2:], slices)
        lower, upper = task.box or (0.0, None)
        self.bounds = [b if b is None else b / UNSTATED_NOISE for b in (lower, upper)]

    def step(self, task: str = "T") -> None:
        """Reconstruct some slices, and move the weights."""
        some = torch.randint(len(self.pictures), (BATCH,), device=self.pictures.device)
        x, y, picture = (t[some] for t in (self.pictures, self.counts, self.back_projections))
        noise = torch.full_like(x[:, :1, :1, :1], UNSTATED_NOISE)
        data = Data(x / noise, y, picture, noise, torch.ones_like(x))
        read = self.read(data)
        with torch.no_grad():
            v, held = self.filters.detach(), read.held()
            found = self.reconstruct(v, y, held, picture / noise)
            q = self.solve_linear(v, found, y, held, slope_of_error(found - data.x, EDGE))
        self.move(found, read, q)

    def read(self, data: Data) -> Reading:
        """For a data term that is not in units of the noise."""
        weights, biases = super().read(data)
        return Reading(WEIGHT * UNSTATED_NOISE**2 * weights, biases)

    def reconstruct(self, v: Tensor, y: Tensor, read: Reading, x: Tensor) -> Tensor:
        """x of the lower level."""
        s, r = SIGMA, self.task.background
        T = 0.99 / (s["counts"] * self.rays + s["box"] + s["filters"] * self.responses(v, x))
        sigma = torch.tensor(s["filters"], device=x.device)
        v0, vx, p = torch.zeros_like(y), torch.zeros_like(x), with_margin(v, x)
        new = x
        for _ in range(STEPS):
            new = x - filtered(add_adjoint(v, p, self.A.adjoint(v0) + vx, 1.0), T)
            beyond = 2 * new - x
            x = x + RELAXATION * (new - x)
            # Moreau: v + sigma z - sigma prox of KL or the box.
            z0 = v0 + s["counts"] * self.A(beyond)
            z0r = z0 + s["counts"] * r  # of the mean counts with background
            root = ((z0r - 1).square() + 4 * s["counts"] * y).sqrt()
            v0 = v0 + RELAXATION * ((1 + z0r - root) / 2 - v0)
            zx = vx + s["box"] * beyond
            vx = vx + RELAXATION * (zx - s["box"] * (zx / s["box"]).clamp(*self.bounds) - vx)
            dual_step(v, beyond, read, self.delta, sigma, p, p, RELAXATION - 1)
        return new.clamp(*self.bounds)

    def solve_linear(self, v: Tensor, x: Tensor, y: Tensor, read: Reading, right: Tensor) -> Tensor:
        """q with H q = right inside the box, H the Hessian at x."""
        lower, upper = self.bounds
        free = (x > lower).to(x) if upper is None else ((x > lower) & (x < upper)).to(x)
        response = read.add_biases(precise_conv2d(x, v))
        curved = read.weights / self.delta * (response.abs() < self.delta)
        counted = y / (self.A(x) + self.task.background).square()
        means = (t.mean((1, 2, 3), keepdim=True) for t in (counted, curved))
        M = 1 / sum(a * b for a, b in zip(means, (self.rays, self.responses(v, x)), strict=True))
        buffer = with_margin(v, x)
        residual = free * right
        q, z = torch.zeros_like(right), free * filtered(residual, M)
        direction, product = z, dot(residual, z)
        for _ in range(LINEAR_STEPS):
            weigh(v, direction, curved, buffer)
            image = self.A.adjoint(counted * self.A(direction)) + DAMPING * direction
            image = free * add_adjoint(v, buffer, image, 1.0)
            length = product / dot(direction, image).clamp_min(1e-30)
            q, residual = q + length * direction, residual - length * image
            z = free * filtered(residual, M)
            before, product = product, dot(residual, z)
            direction = z + product / before.clamp_min(1e-30) * direction
        return q

    def responses(self, v: Tensor, x: Tensor) -> Tensor:
        """A little more than the spectrum of V* V."""
        spectrum = torch.fft.rfft2(v, s=x.shape[-2:]).abs().square().sum((0, 1))
        return spectrum + 1e-3 * spectrum.amax()


def _generators(count: int, first: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + i) for i in range(count)]


def validate(network: AdaptiveNetwork, slices: Tensor, task: SparseViewCT) -> str:
    """Mean PSNR, the largest gap and the most iterations."""
    measured = task.measure(slices, _generators(len(slices), 10_000))
    problem = measured.problem(network, WEIGHT)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=2e-3, max_iterations=300))
    return score(solution, slices)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--start", required=True, help="a model to continue from")
    parser.add_argument("--seconds", type=float, default=240.0)
    given = parser.parse_args()
    torch.manual_seed(0)
    images = ImageSet.from_folder(given.folder)
    held = [name.startswith(HELD_OUT) for name in images.names]
    slices = torch.stack([images[i] for i in range(len(images))]).cuda()
    slices, held_out = slices[[not h for h in held]], slices[held]
    slices = torch.cat([slices, slices.flip(-1), slices.flip(-2)])
    network = cl.load(given.start)
    assert isinstance(network, AdaptiveNetwork)
    network.cuda()
    task = SparseViewCT(box=(0.0, 2.0))
    training = Tomography(network, slices, task)
    print("start:", validate(network, held_out[:4], task), flush=True)
    begin, step, shown = time.monotonic(), 0, -45.0
    while (spent := time.monotonic() - begin) < given.seconds:
        training.schedule(spent / given.seconds, step)
        training.step()
        torch.cuda.synchronize()
        step += 1
        if spent - shown > 60:
            shown = spent
            line = validate(network, held_out[:4], task)
            print(f"{spent:4.0f} s, step {step}: {line}", flush=True)
            cl.save(network, given.model)
    cl.save(network, given.model)
    print("end:", validate(network, held_out[:8], task), flush=True)


if __name__ == "__main__":
    main()
