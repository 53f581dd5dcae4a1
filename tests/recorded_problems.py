"""Whole problems and files whose solutions are recorded, so that a rebuilding cannot move them.

    python tests/recorded_problems.py    solves all of them anew and writes recorded_problems.json

Each problem was solved in double precision to a gap of 1e-5: the recorded interval contains the
optimum. Whatever solves it later must prove an interval that overlaps.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import load_example, save_image

RECORDS = Path(__file__).with_suffix(".json")
Statement = Callable[[torch.dtype], cl.VariationalProblem]
FINE = cl.StopWhen(gap=1e-5, max_iterations=6000, seconds=150)


def crop(name: str, size: int = 96, at: int = 80) -> Tensor:
    return load_example(name)[..., at : at + size, at : at + size]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=generator(seed))


def salted(x: Tensor, seed: int) -> Tensor:
    """A quarter of the pixels black or white."""
    r = torch.rand(x.shape, generator=generator(seed))
    return torch.where(r < 0.125, 0.0, torch.where(r > 0.875, 1.0, x))


def filled(network: cl.InputConvexNetwork, scale: float) -> cl.InputConvexNetwork:
    """Weights that depend on their shapes alone, and not on a random number generator."""
    with torch.no_grad():
        for name, p in network.named_parameters():
            wave = torch.sin(1 + 2.3 * torch.arange(p.numel()).double()).reshape(p.shape).to(p)
            size = scale / max(1, p[0].numel() if p.ndim > 1 else 1) ** 0.5
            p.copy_(0.02 * wave if name.endswith("bias") else size * wave)
    network.project_()
    return network


def general() -> cl.InputConvexNetwork:
    """Three layers, three activations, skips."""
    convolution = cl.networks.Convolution

    def layer(h: cl.Activation, channels: int, before: int = 0) -> cl.ConvexLayer:
        previous = convolution(before, channels, 3, nonnegative=True) if before else None
        skip = convolution(1, channels, 3)
        return cl.ConvexLayer(h, channels=channels, skip=skip, previous=previous)

    smoothed = cl.SmoothedReLU(smoothing=0.05)
    layers = [layer(cl.LeakyReLU(0.2), 3), layer(cl.ReLU(), 2, 3), layer(smoothed, 2, 2)]
    return filled(cl.InputConvexNetwork(layers), 0.5)


def problems() -> dict[str, tuple[Tensor, Statement]]:
    """The true images, and the problem in a precision."""
    x = torch.cat([crop("camera"), crop("astronaut")])
    whole, small = load_example("camera"), crop("camera", 48)
    seen = (torch.rand(1, 1, 96, 96, generator=generator(5)) > 0.3).float()
    A = cl.ParallelBeam(image_size=48, angles=45, bins=69)
    sinogram = A(small)
    counts = torch.poisson(20 * sinogram + 50, generator=generator(12))
    fixed, tv = cl.load("photo-any-size"), cl.TotalVariation()
    faces, deep = cl.load("faces-denoising"), filled(cl.networks.deep(image_size=48), 0.2)

    def adaptive(dtype: torch.dtype) -> cl.VariationalProblem:
        y = cl.SquaredL2((x + 0.1 * noise(x, 4)).to(dtype))
        with torch.no_grad():
            net = cl.load("photo-open").to(dtype)
            return cl.VariationalProblem(fidelity=y, regularizer=net, weight=1.0, noise=0.1)

    def stated(
        fidelity: Callable[..., cl.Fidelity], y: Tensor, net: cl.InputConvexNetwork,
        weight: float, operator: cl.LinearOperator | None = None, box: Any = (0, 1),
    ) -> Statement:  # fmt: skip
        return lambda dtype: cl.VariationalProblem(
            fidelity=fidelity(y.to(dtype)), regularizer=net.to(dtype), weight=weight, box=box,
            operator=cl.Identity() if operator is None else operator.to(dtype=dtype),
        )  # fmt: skip

    def poisson(y: Tensor) -> cl.KullbackLeibler:
        return cl.KullbackLeibler(y, background=2.5)

    L1, L2, blur = cl.L1, cl.SquaredL2, cl.Blur.gaussian(1.5)
    noisy, scan = x + 0.1 * noise(x, 1), sinogram + 0.3 * noise(sinogram, 11)
    blurred = blur(small) + 0.01 * noise(small, 8)
    return {
        "fixed network, noise": (x, stated(L2, noisy, fixed, 1.0, box=None)),
        "fixed network, missing pixels": (
            x,
            stated(L2, seen * noisy, fixed, 0.18, cl.Mask(seen)),
        ),
        "fixed network, impulses": (x, stated(L1, salted(x, 3), fixed, 7.3)),
        "adaptive network, noise": (x, adaptive),
        "pooled head, impulses": (whole, stated(L1, salted(whole, 7), faces, 50.0)),
        "total variation, blur": (small, stated(L2, blurred, tv, 0.005, blur)),
        "total variation, scan": (small, stated(L2, scan, tv, 0.5, A)),
        "total variation, x >= 0": (small, stated(L2, scan, tv, 0.5, A, (0, None))),
        "fixed network, counts": (small, stated(poisson, counts / 20, fixed, 1.0, A)),
        "deep network": (small, stated(L2, small + 0.05 * noise(small, 13), deep, 30.0)),
        "general network": (small, stated(L2, small + 0.05 * noise(small, 14), general(), 0.3)),
    }


def files(folder: Path) -> dict[str, tuple[Tensor, Callable[[], cl.Reconstruction]]]:
    """The true images, and a call on a file."""
    x = load_example("camera")
    noisy, impulses = folder / "noisy.png", folder / "impulses.png"
    save_image(noisy, x + 0.1 * noise(x, 21))
    save_image(impulses, salted(x, 22))
    return {
        "file, noise": (x, lambda: cl.reconstruct(noisy, task="denoise")),
        "file, tiles": (x, lambda: cl.reconstruct(noisy, task="denoise", sigma=0.1, tiles=128)),
        "file, impulses": (
            x, lambda: cl.reconstruct(impulses, task="denoise", noise="salt-and-pepper")
        ),
    }  # fmt: skip


def quality(x: Tensor, clean: Tensor) -> float:
    return float(cl.psnr(x.double().reshape(clean.shape), clean.double()).mean())


def solved(clean: Tensor, state: Statement) -> dict[str, Any]:
    """What is compared of a solution in single precision with default options."""
    s = cl.solve(state(torch.float32))
    endings = zip(s.status, s.guarantee, strict=True)
    return {
        "iterations": int(s.iterations.max()), "psnr": quality(s.x, clean),
        "endings": sorted({f"{status.name} {scope.name}" for status, scope in endings}),
        "interval": [s.lower_bound.tolist(), s.objective.tolist()],
    }  # fmt: skip


def reconstructed(clean: Tensor, call: Callable[[], cl.Reconstruction]) -> dict[str, Any]:
    """What is compared of a file."""
    result = call()
    level = result.record.get("noise", {}).get("level")
    return {"psnr": quality(result.x / 255, clean), "noise": level}


def main() -> int:
    """Record everything anew."""
    records: dict[str, Any] = {}
    for name, (clean, state) in problems().items():
        exact = cl.solve(state(torch.float64), stop=FINE)
        records[name] = solved(clean, state) | {
            "interval": [exact.lower_bound.tolist(), exact.objective.tolist()]
        }
        print(name, records[name])
    with tempfile.TemporaryDirectory() as folder:
        for name, case in files(Path(folder)).items():
            records[name] = reconstructed(*case)
            print(name, records[name])
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
