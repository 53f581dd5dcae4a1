"""Time and memory of large images, solved in tiles to one certified gap.

    python benchmarks/large_images.py --size 4000 6000 --colour --file photo.jpg
    python benchmarks/large_images.py --size 10000 10000 --regularizer tv
    python benchmarks/large_images.py --size 16384 16384 --tiles 2048 --device cuda
    python benchmarks/large_images.py --growth 256 512 1024 2048 4096 8192 --regularizer tv \
        --threads 1 --plot docs/images/growth.svg

The picture is made here: edges, ramps and textures of all scales, with Gaussian noise. With
``--file`` it is written in the format of the name, read again and restored into a file beside it,
as ``convexlift reconstruct`` does; without, it is an array in memory, and neither Pillow nor any
other package but torch, numpy and safetensors is needed. Every size runs in a process of its own. A
line of JSON has the seconds from reading to writing, the processor time, the peak of the resident
set (with that after the imports) and the gap.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BLOCK = 500
"""Side of the squares of which pictures are a mosaic, each with noise of its own."""
SCENES = 12
"""Different squares."""
SIGMA = 0.05


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs=2, default=(1000, 1500), metavar="N")
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--regularizer", default="photo-open")
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--tiles", type=int, default=512)
    parser.add_argument("--threads", type=int, help="of torch; by default all cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--file", type=Path, help="write, read and restore a file of this name")
    parser.add_argument("--growth", type=int, nargs="+", metavar="SIDE", help="square pictures")
    parser.add_argument("--plot", type=Path, help="with --growth: an SVG or PNG file")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options)), flush=True)
        return
    sizes = [(side, side) for side in options.growth] if options.growth else [options.size]
    if options.file is not None:
        write(options.file, picture(*sizes[0], options.colour))
    rows = [in_a_process_of_its_own(options, size) for size in sizes]
    if options.plot is not None:
        plot(rows, options)


def in_a_process_of_its_own(options: argparse.Namespace, size: tuple[int, int]) -> dict[str, float]:
    """``measure``, with a high-water mark that nobody else has raised."""
    command = [sys.executable, __file__, "--alone", "--size", *map(str, size)]
    for name in ("regularizer", "tolerance", "tiles", "threads", "file", "device"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    environment = dict(os.environ)
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    done = subprocess.run(
        [*command, *(["--colour"] if options.colour else [])],
        check=True, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    print(done.stdout.strip(), flush=True)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Restore one picture, and say what it took."""
    import torch

    import convexlift as cl

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    cl.reconstruct(np.zeros((16, 16), np.uint8), regularizer=options.regularizer, sigma=SIGMA)
    imported = high_water()
    height, width = options.size
    image = options.file if options.file is not None else picture(height, width, options.colour)
    begun, spent = time.perf_counter(), time.process_time()

    def say(now: cl.Progress) -> None:
        passed = time.perf_counter() - begun
        left = passed * (now.tiles - now.iteration) / now.iteration if now.tiles else 0.0
        tiles = f"tile {now.iteration} of {now.tiles}"
        text = f"{tiles}, {passed:.0f} s, {max(0.0, left):.0f} s left, {high_water():.2f} GB"
        print(text, file=sys.stderr, flush=True)

    result = cl.reconstruct(
        image, regularizer=options.regularizer, sigma=SIGMA, tolerance=options.tolerance,
        tiles=options.tiles, progress=say, device=options.device,
    )  # fmt: skip
    if options.file is not None:
        result.save(options.file.with_stem(options.file.stem + "-restored"))
    on_device = {}
    if options.device != "cpu":
        on_device = {"device_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)}
    return {
        "height": height, "width": width, "channels": 3 if options.colour else 1,
        "regularizer": options.regularizer, "tolerance": options.tolerance,
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - begun, 1),
        "processor_seconds": round(time.process_time() - spent, 1),
        "peak_gb": round(high_water(), 3), "imported_gb": round(imported, 3),
        "gap": result.record["gap"], "status": result.record["status"],
        "iterations": result.record["iterations"], "torch": torch.__version__, **on_device,
    }  # fmt: skip


def high_water() -> float:
    """Of the resident set, in GB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def picture(height: int, width: int, colour: bool) -> np.ndarray:
    """A noisy picture in 8 bits, (H, W) or (3, H, W), made block by block."""
    channels = 3 if colour else 1
    whole = np.empty((channels, height, width), np.uint8)
    scenes = [_scene(np.random.default_rng(seed), channels) for seed in range(SCENES)]
    corners = [(top, left) for top in range(0, height, BLOCK) for left in range(0, width, BLOCK)]
    for top, left in corners:
        block = whole[:, top : top + BLOCK, left : left + BLOCK]
        generator = np.random.default_rng([top, left])
        clean = scenes[generator.integers(SCENES)][:, : block.shape[1], : block.shape[2]]
        noisy = clean + SIGMA * generator.standard_normal(block.shape, np.float32)
        block[...] = np.rint(255 * noisy.clip(0, 1))
    return whole if colour else whole[0]


def _scene(generator: np.random.Generator, channels: int) -> np.ndarray:
    """Discs of all sizes before each other, some flat, some shaded, some striped."""
    y, x = np.mgrid[:BLOCK, :BLOCK].astype(np.float32)
    scene = np.full((channels, BLOCK, BLOCK), 0.5, np.float32)
    for radius in np.geomspace(BLOCK, 4, 60):
        row, column = generator.uniform(0, BLOCK, 2)
        inside = (y - row) ** 2 + (x - column) ** 2 < radius**2
        tone = generator.uniform(0.15, 0.85, (channels, 1))
        angle, pitch = generator.uniform(0, np.pi), generator.uniform(3, 40)
        way = np.cos(angle) * y[inside] + np.sin(angle) * x[inside]
        kind = generator.integers(3)
        shade = 0.1 * (np.sin(way / pitch) if kind == 1 else (way - way.mean()) / radius)
        scene[:, inside] = tone + (shade if kind else 0.0)
    return scene


def write(path: Path, pixels: np.ndarray) -> None:
    """NPY by numpy, all other formats by Pillow; JPEG with quality 95."""
    if path.suffix == ".npy":
        np.save(path, pixels)
        return
    from PIL import Image

    shown = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels
    Image.fromarray(shown).save(path, **({"quality": 95} if path.suffix == ".jpg" else {}))


def plot(rows: list[dict[str, float]], options: argparse.Namespace) -> None:
    """Seconds and memory over the number of pixels, with lines of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "growth"
    pixels = np.array([row["height"] * row["width"] / 1e6 for row in rows])
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    spent = np.array([row["processor_seconds"] for row in rows])
    memory = np.array([row["peak_gb"] - row["imported_gb"] for row in rows])
    for ax, values, title in zip(
        axes, (spent, memory), ("processor time, s", "memory, GB"), strict=True
    ):
        ax.loglog(pixels, values, "o-", color="#1f6f8b")
        ax.loglog(pixels, values[-1] * pixels / pixels[-1], ":", color="0.5", label="linear")
        ax.set(xlabel="megapixels", title=title)
        ax.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(options.plot, metadata={"Date": None} if options.plot.suffix == ".svg" else {})


if __name__ == "__main__":
    main()
