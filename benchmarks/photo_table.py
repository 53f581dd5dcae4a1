"""PSNR of denoised photographs: regularizers, total variation and BM3D side by side.

    python benchmarks/photo_table.py FOLDER [--colour] [--sigmas 15 25 50] [--device cuda]

FOLDER holds clean pictures. Noise is not clipped; picture i has the seed i. Every result of ours is
certified to a gap of 1e-3, with the weight of ``cl.reconstruct`` at the stated noise. BM3D needs
the package ``bm3d``, and is left out without it. Total variation gets the weight that is best on
the pictures themselves, out of five.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import convexlift as cl
from convexlift.images import psnr
from convexlift.training import ImageSet

STOP = cl.StopWhen(gap=1e-3, max_iterations=2000)
GREY = ["photo", "photo-open", "photo-any-size"]
COLOUR = ["photo-colour", "photo-open-colour", "photo-any-size"]
TV_WEIGHTS = (0.4, 0.5, 0.6, 0.7, 0.8)
"""In units of sigma."""


def denoisers(names: list[str], device: str) -> dict[str, Callable[[Tensor, float], Tensor]]:
    """Functions of a noisy picture and its noise level, by name."""
    found: dict[str, Callable[[Tensor, float], Tensor]] = {}
    for name in names:

        def ours(y: Tensor, sigma: float, name: str = name) -> Tensor:
            result = cl.reconstruct(
                y, task="denoise", regularizer=name, sigma=sigma, range=(0.0, 1.0), device=device
            )
            if result.record["status"] != "CONVERGED":
                print(f"  not converged: gap {result.record['gap']:.1e}", flush=True)
            return result.x.reshape(y.shape)

        found[name] = ours
    for factor in TV_WEIGHTS:

        def tv(y: Tensor, sigma: float, factor: float = factor) -> Tensor:
            network = cl.TotalVariation().to(device=y.device, dtype=y.dtype)
            planes = y.reshape(-1, 1, *y.shape[2:])
            problem = cl.VariationalProblem(
                fidelity=cl.SquaredL2(planes), regularizer=network, weight=factor * sigma
            )
            return cl.solve(problem, stop=STOP).x.reshape(y.shape)

        found[f"tv {factor}"] = tv
    try:
        import bm3d
    except ImportError:
        return found

    def other(y: Tensor, sigma: float) -> Tensor:
        image = y[0].permute(1, 2, 0).cpu().numpy()
        restored = bm3d.bm3d_rgb(image, sigma) if image.shape[2] == 3 else bm3d.bm3d(image, sigma)
        return torch.from_numpy(restored).reshape(*image.shape).permute(2, 0, 1)[None].to(y)

    return found | {"bm3d": other}


def main() -> None:
    """Print the table, and write it as JSON beside the command's folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[15, 25, 50])
    parser.add_argument(
        "--names", nargs="+", help="only these: models or files of models, 'tv 0.6', bm3d"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers of all pictures")
    given = parser.parse_args()
    images = ImageSet.from_folder(given.folder, colour=given.colour)
    shipped = COLOUR if given.colour else GREY
    files = [name for name in given.names or () if Path(f"{name}.json").exists()]
    methods = denoisers([*shipped, *files], given.device)
    methods = {name: f for name, f in methods.items() if not given.names or name in given.names}
    numbers: dict[str, dict[str, list[float]]] = {}
    for sigma in given.sigmas:
        for name, denoise in methods.items():
            row, begin = [], time.perf_counter()
            for i in range(len(images)):
                clean = images[i][None].to(given.device)
                generator = torch.Generator().manual_seed(i)
                noise = torch.randn(clean.shape, generator=generator).to(clean)
                restored = denoise(clean + sigma / 255 * noise, sigma / 255)
                row.append(float(psnr(restored.clamp(0, 1), clean)))
            seconds = (time.perf_counter() - begin) / len(images)
            numbers.setdefault(name, {})[f"{sigma:g}"] = row
            print(
                f"sigma {sigma:g}  {name:20} {sum(row) / len(row):.3f} dB  {seconds:.2f} s",
                flush=True,
            )
            if given.output is not None:
                given.output.write_text(json.dumps(numbers))


if __name__ == "__main__":
    main()
