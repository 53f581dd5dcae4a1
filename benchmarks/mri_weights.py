"""The best weights of total variation for MRI, over the noise: PSNR of magnitudes.

Two pictures of 64 x 64 with a smooth phase, four coils, random columns. The numbers behind the rule
``card`` of ``convexlift reconstruct mri``:

    python benchmarks/mri_weights.py
"""

from __future__ import annotations

import math

import torch

import convexlift as cl
from convexlift.images import load_example, psnr
from convexlift.phantoms import shepp_logan

SIZE, COILS = 64, 4


def coordinates() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns from -1 to 1."""
    along = torch.linspace(-1, 1, SIZE)
    rows, columns = torch.meshgrid(along, along, indexing="ij")
    return rows, columns


def coil_maps() -> torch.Tensor:
    """Coils around the image, whose squares add up to 1."""
    rows, columns = coordinates()
    maps = []
    for k in range(COILS):
        angle = 2 * math.pi * k / COILS
        distance = (rows - 1.2 * math.cos(angle)) ** 2 + (columns - 1.2 * math.sin(angle)) ** 2
        maps.append(torch.exp(-distance / 1.5) * torch.exp(1j * (angle + 0.5 * rows)))
    stacked = torch.stack(maps)
    return stacked / stacked.abs().square().sum(0).sqrt()


def main() -> None:
    """Print PSNR for weights that differ by factors of two."""
    camera = torch.nn.functional.avg_pool2d(load_example("camera")[..., :256, :256], 4)
    factors = [0.45 * 2.0**k for k in range(-3, 4)]
    print("picture, acceleration, sigma; PSNR for weight / sigma =", *(f"{f:.3g}" for f in factors))
    rows, columns = coordinates()
    phase = rows + 0.7 * rows * columns
    for name, picture in (("shepp_logan", shepp_logan(SIZE)), ("camera", camera)):
        x = torch.cat([picture * phase.cos(), picture * phase.sin()], 1)
        for acceleration in (2, 4):
            generator = torch.Generator().manual_seed(1)
            kept = torch.rand(SIZE, generator=generator) < 0.8 / acceleration
            kept[SIZE // 2 - 4 : SIZE // 2 + 4] = True
            A = cl.MRI(kept.expand(SIZE, SIZE).float(), coil_maps())
            for sigma in (0.005, 0.02, 0.08):
                y = A(x)
                y = y + sigma * A.mask * torch.randn(y.shape, generator=generator)
                found = []
                for factor in factors:
                    problem = cl.VariationalProblem(
                        fidelity=cl.SquaredL2(y), operator=A, weight=factor * sigma, box=(-3, 3),
                        regularizer=cl.TotalVariation(in_channels=2, joint=True),
                    )  # fmt: skip
                    stop = cl.StopWhen(gap=1e-2, max_iterations=400)
                    magnitude = cl.solve(problem, stop=stop).x.norm(dim=1, keepdim=True)
                    found.append(float(psnr(magnitude, picture)))
                print(f"{name}, {acceleration}, {sigma}:", *(f"{each:.1f}" for each in found))


if __name__ == "__main__":
    main()
