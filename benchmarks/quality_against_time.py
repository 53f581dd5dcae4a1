"""Quality against time: adaptive regularizers of several sizes after the same short training.

    python benchmarks/quality_against_time.py train FOLDER --output DIR [--steps 4000]  # a GPU
    python benchmarks/quality_against_time.py time FOLDER --output DIR                  # a CPU
    python benchmarks/quality_against_time.py plot --output DIR

FOLDER holds grey photographs; every 13th is held out. Trainings are those of ``train_adaptive``
with Gaussian noise of all levels, from cosine filters, and equally many steps for all sizes. DIR
gets the models and ``quality.json``, with a row for each size: PSNR at sigma 15, 25 and 50 of 255
on the held-out photographs, and milliseconds per photograph of 481 x 321 at sigma 25, everything
included, on the GPU. ``time`` adds processor seconds on one thread, where other programs matter
less; sizes take turns with BM3D, if its package is installed. ``plot`` draws ``quality.svg``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from time_to_error import chosen_clock
from torch import Tensor

import convexlift as cl
from convexlift import networks
from convexlift.images import psnr
from convexlift.training.initialization import start_from_filters_

SIGMAS = (15, 25, 50)
TIMED = 3
"""Photographs whose solves are timed on a CPU."""


class Size(NamedTuple):
    """Filters of a regularizer, and the widths and blocks of its guide."""

    filters: int
    kernel: int
    widths: tuple[int, ...]
    blocks: int = 2
    biases: bool = False

    @property
    def name(self) -> str:
        """For files and tables."""
        guide = "-".join(map(str, self.widths))
        return f"{self.filters}x{self.kernel}x{self.kernel}_{guide}_{self.blocks}" + (
            "_biases" if self.biases else ""
        )

    def network(self) -> networks.AdaptiveNetwork:
        """An untrained regularizer of this size."""
        reads = ["output", "biases"] if self.biases else ["output"]
        made = networks.adaptive(
            channels=self.filters, kernel=self.kernel, widths=self.widths, blocks=self.blocks,
            reads=reads,
        )  # fmt: skip
        start_from_filters_(made, 0.7)
        return made


SIZES = (
    Size(24, 5, (48, 64, 80)),  # photo-open
    Size(12, 5, (48, 64, 80)),
    Size(24, 5, (24, 32, 40), blocks=1),
    Size(24, 5, (64, 96, 128), blocks=3, biases=True),  # photo
    Size(48, 7, (48, 64, 80)),
    Size(8, 3, (24, 32, 40), blocks=1),
    Size(24, 5, (64, 96, 128), blocks=3),
)
"""The most informative first, should time run out."""


def train(given: argparse.Namespace) -> None:
    """Train and score every size; the file of rows is complete after each."""
    from train_adaptive import Training, captured  # needs Triton
    from training_crops import read_both

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    (pictures, held_out), others = read_both(given.folder, None, colour=False)
    clean = held_out.float() / 255
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        torch.manual_seed(0)
        network = size.network().cuda()
        network.guide.to(memory_format=torch.channels_last)
        training = Training(network, pictures, others[0])
        graph = captured(training, "G")
        begin = time.perf_counter()
        for step in range(given.steps):
            if step % 8 == 0:
                training.schedule(step / given.steps, step)
            graph.replay()
        torch.cuda.synchronize()
        spent = time.perf_counter() - begin
        cl.save(network, given.output / size.name)
        row = {
            "size": size.name, "weights": sum(p.numel() for p in network.parameters()),
            "steps": given.steps, "training s": round(spent, 1), **scored(network, clean),
        }  # fmt: skip
        rows.append(row)
        print(row, flush=True)
        (given.output / "quality.json").write_text(json.dumps(rows, indent=1))


def noisy(clean: Tensor, sigma: float) -> Tensor:
    """With the same noise in every run."""
    generator = torch.Generator().manual_seed(0)
    return clean + sigma * torch.randn(clean.shape, generator=generator).to(clean)


def stated(network: cl.InputConvexNetwork, y: Tensor, sigma: float) -> cl.VariationalProblem:
    """Denoising at the stated noise."""
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0, noise=sigma
    )


def scored(network: cl.InputConvexNetwork, clean: Tensor) -> dict[str, Any]:
    """PSNR at all noise levels; iterations, gap and milliseconds at 25 of 255."""
    found: dict[str, Any] = {}
    for sigma in SIGMAS:
        y = noisy(clean, sigma / 255)
        solution = cl.solve(stated(network, y, sigma / 255))
        found[f"dB at {sigma}"] = round(float(psnr(solution.x.clamp(0, 1), clean).mean()), 3)
        found["largest gap"] = max(found.get("largest gap", 0.0), float(solution.gap.max()))
        if sigma == 25:
            found["iterations"] = float(solution.iterations.double().mean())
            times = [seconds(network, y, sigma / 255) for _ in range(4)]
            found["GPU ms"] = round(1e3 * statistics.median(times[1:]) / len(clean), 2)
    return found


def seconds(network: cl.InputConvexNetwork, y: Tensor, sigma: float) -> float:
    """From the noisy pictures to the certified result."""
    clock = chosen_clock()
    begin = clock()
    cl.solve(stated(network, y, sigma))
    return clock() - begin


def time_on_cpu(given: argparse.Namespace) -> None:
    """Add the fastest of some rounds."""
    from training_crops import read

    torch.set_num_threads(1)
    clean = read([given.folder], colour=False)[1][:TIMED].float() / 255
    y, sigma = noisy(clean, 25 / 255), 25 / 255
    rows = json.loads((given.output / "quality.json").read_text())
    loaded = {row["size"]: cl.load(given.output / row["size"]) for row in rows}
    calls = {name: lambda one, net=net: seconds(net, one, sigma) for name, net in loaded.items()}
    calls |= rival(sigma)
    fastest = {name: [float("inf")] * TIMED for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            for i in range(TIMED):
                fastest[name][i] = min(fastest[name][i], call(y[i : i + 1]))
    means = {name: round(statistics.mean(times), 2) for name, times in fastest.items()}
    for row in rows:
        row["CPU s"] = means.pop(row["size"])
    print(json.dumps(rows, indent=1), means)
    (given.output / "quality.json").write_text(json.dumps(rows, indent=1))


def rival(sigma: float) -> dict[str, Any]:
    """BM3D, where its package is installed."""
    try:
        from bm3d import bm3d
    except ImportError:
        return {}

    def call(one: Tensor) -> float:
        clock = chosen_clock()
        begin = clock()
        bm3d(one[0, 0].numpy(), sigma)
        return clock() - begin

    return {"BM3D": call}


def plot(given: argparse.Namespace) -> None:
    """PSNR at sigma 25 against milliseconds on the GPU and seconds on the CPU."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    rows = json.loads((given.output / "quality.json").read_text())
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, column, label in (
        (axes[0], "GPU ms", "milliseconds for each of 33 on a GPU"),
        (axes[1], "CPU s", "processor seconds"),
    ):
        for row in rows:
            axis.plot(row[column], row["dB at 25"], "o", color="C0")
            words = row["size"].replace("_", ", ")
            axis.annotate(words, (row[column], row["dB at 25"]), (4, -9),
                          textcoords="offset points", fontsize=6)  # fmt: skip
        axis.set(xlabel=label, xlim=(0, 1.35 * max(row[column] for row in rows)))
        axis.margins(y=0.12)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("PSNR at sigma 25, dB")
    figure.savefig(given.output / "quality.svg")


def main() -> None:
    """Train, time or plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    actions = {"train": train, "time": time_on_cpu, "plot": plot}
    parser.add_argument("action", choices=actions)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    if given.folder is None and given.action != "plot":
        parser.error(f"{given.action} needs a folder of photographs")
    actions[given.action](given)


if __name__ == "__main__":
    main()
