"""``convexlift demo``: three tasks, one regularizer, a proof with every image, and a report.

Each task degrades a picture that no regularizer was trained on, states the problem, and solves it
by ``cl.solve`` with default options. The regularizer is ``photo-open``. The report is a folder of
pictures, proofs, plots, tables and a self-contained page.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

import convexlift
from convexlift.files.atomic import atomic_path
from convexlift.functionals.data_terms import KullbackLeibler
from convexlift.images import (
    WEIGHT_CAPTION,
    load_example,
    poisson_counts,
    psnr,
    save_image,
    weight_picture,
)
from convexlift.models.files import ModelCard
from convexlift.models.store import load
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Blur
from convexlift.problems.claims import in_words
from convexlift.solvers.solution import Progress, Solution, Status, StopWhen
from convexlift.solvers.solve import solve
from convexlift.tasks import Inpainting, Measurement, SaltAndPepper

TEST_IMAGE = "astronaut"
REGULARIZER = "photo-open"
DEBLURRING_WEIGHT = 30.0
"""Chosen once for the best PSNR on another picture (camera); other weights are on the card."""

NEXT = (
    ("reconstruct denoise PHOTO.png -o CLEAN.png", "a picture of your own"),
    (f"models {REGULARIZER}", "purpose and licence of this regularizer"),
)
"""Commands to try after the demo, and their purpose."""


OBJECTIVE, BOUND, GAP = "#0072b2", "#d55e00", "#009e73"  # the same in every plot
COLUMNS = (
    *("Task", "Given dB", "Result dB", "Objective", "Lower bound", "Gap", "Holds"),
    *("Iterations", "Time", "Status"),
)
"""Columns of the table: PSNR before and after; "Holds" is the scope of the bound."""


@dataclass(frozen=True)
class DemoOptions:
    """Size of the pictures and accuracy of the solver."""

    size: int = 256
    gap: float = 1e-3
    max_iterations: int = 1000


QUICK = DemoOptions(size=64, gap=1e-2, max_iterations=300)


@dataclass(frozen=True, eq=False)
class DemoTask:
    """A degraded picture, and all parts of the problem that restores it."""

    name: str
    title: str
    data: Measurement
    network: InputConvexNetwork
    weight: float

    @property
    def card(self) -> ModelCard:
        """The card of the regularizer."""
        card: ModelCard = self.network.card  # shipped networks have one
        return card


@dataclass(frozen=True, eq=False)
class DemoResult:
    """A task, its true picture, and its solution."""

    task: DemoTask
    clean: Tensor
    solution: Solution

    @property
    def pictures(self) -> dict[str, Tensor]:
        """The pictures of the report; also weights that the regularizer read off the data."""
        weights = self.solution.weight_map
        return {
            "degraded": self.task.data.picture,
            "reconstructed": self.solution.x,
            "clean": self.clean,
        } | ({} if weights is None else {"weights": weight_picture(weights)})

    @property
    def psnr_before(self) -> float:
        """PSNR of the degraded picture."""
        return float(psnr(self.task.data.picture, self.clean))

    @property
    def psnr_after(self) -> float:
        """PSNR of the reconstruction."""
        return float(psnr(self.solution.x, self.clean))

    @property
    def record(self) -> dict[str, Any]:
        """The numbers as plain data."""
        solution = self.solution
        return {
            "task": self.task.name,
            "title": self.task.title,
            "regularizer": self.task.card.name,
            "weight": self.task.weight,
            "psnr_before": self.psnr_before,
            "psnr_after": self.psnr_after,
            "objective": float(solution.objective),
            "lower_bound": float(solution.lower_bound),
            "gap": float(solution.gap),
            "guarantee": solution.guarantee[0].name,
            "status": solution.status[0].name,
            "iterations": int(solution.iterations),
            "seconds": solution.seconds,
        }


@dataclass(frozen=True, eq=False)
class Demo:
    """The results, with the options."""

    results: tuple[DemoResult, ...]
    options: DemoOptions

    @property
    def card(self) -> ModelCard:
        """The card of the regularizer of all tasks."""
        return self.results[0].task.card


def run_demo(
    options: DemoOptions,
    device: torch.device,
    report: Callable[[str, float], object] = lambda text, fraction: None,
) -> Demo:
    """Load the regularizer and solve the three tasks.

    Args:
        options: sizes and limits.
        device: the device of the solver.
        report: called with the progress as text and as the fraction done.
    """
    clean = load_example(TEST_IMAGE).to(device)
    edge = (clean.shape[-1] - options.size) // 2
    clean = clean[..., edge : edge + options.size, edge : edge + options.size]
    results = []
    for task in make_tasks(clean):

        def watch(progress: Progress, title: str = task.title) -> None:
            # The gap falls roughly geometrically, so its logarithm measures the fraction done.
            gap = float(progress.gap.max())
            done = math.log(max(gap, options.gap)) / math.log(options.gap) if gap < 1 else 0.0
            report(f"{title}: gap {gap:.1e} after {progress.iteration} iterations", done)

        stop = StopWhen(gap=options.gap, max_iterations=options.max_iterations)
        solution = solve(task.data.problem(task.network, task.weight), stop=stop, callback=watch)
        if solution.status == (Status.INTERRUPTED,):
            raise KeyboardInterrupt  # no report on only some of the tasks
        results.append(DemoResult(task, clean, solution))
    return Demo(tuple(results), options)


def make_tasks(x: Tensor) -> tuple[DemoTask, ...]:
    """Salt-and-pepper noise with L1, missing pixels with L2, blurred counts with KL."""
    generator = torch.Generator().manual_seed(0)
    noisy = SaltAndPepper(0.25).measure(x, [generator])
    partial = Inpainting(missing=0.3, noise=0.03, fill="zero").measure(x, [generator])
    exposure, background = 200.0, 2.0
    camera = exposure * Blur.gaussian(1.2).to(device=x.device, dtype=x.dtype)
    counts = poisson_counts(camera(x) + background, generator)
    picture = (counts - background) / exposure
    blurred = Measurement(KullbackLeibler(counts, background), camera, (0.0, 1.0), picture)
    network = load(REGULARIZER, device=x.device)
    weights = network.card.weights
    return (
        DemoTask(
            "denoising", "Salt & pepper, 25 % of the pixels (L1)", noisy, network,
            weights[SaltAndPepper.name],
        ),
        DemoTask(
            "inpainting", "30 % missing, 3 % noise (squared L2)", partial, network,
            weights[Inpainting.name],
        ),
        DemoTask(
            "deblurring", "Blur and Poisson noise (Kullback-Leibler)", blurred, network,
            DEBLURRING_WEIGHT,
        ),
    )  # fmt: skip


def write_report(demo: Demo, folder: Path) -> list[Path]:
    """Write everything into a folder; returns the files, with the page last."""
    files = []
    for result in demo.results:
        for kind, picture in result.pictures.items():
            files.append(_picture_file(folder, result, kind))
            save_image(files[-1], picture)
        files.append(result.solution.proof.save(folder / f"{result.task.name}.proof"))
    contents = {
        "overview.png": _png(plot_overview(demo), dpi=110),
        "convergence.png": _png(plot_convergence(demo.results, demo.options.gap), dpi=110),
        "table.md": markdown_table(demo).encode(),
        "results.json": json.dumps(as_json(demo), indent=2).encode() + b"\n",
        "report.html": page(demo, folder).encode(),
    }
    for name, content in contents.items():
        files.append(folder / name)
        with atomic_path(files[-1]) as part:
            part.write_bytes(content)
    return files


def rows(demo: Demo) -> list[tuple[str, ...]]:
    """The table's cells, in the order of ``COLUMNS``."""
    return [
        (
            record["task"],
            f"{record['psnr_before']:.2f}",
            f"{record['psnr_after']:.2f}",
            f"{record['objective']:.6g}",
            f"{record['lower_bound']:.6g}",
            f"{record['gap']:.1e}",
            record["guarantee"].lower().replace("_", " "),
            f"{record['iterations']}",
            f"{record['seconds']:.1f} s",
            record["status"].lower().replace("_", " "),
        )
        for record in (result.record for result in demo.results)
    ]


def regularizer_note(demo: Demo) -> str:
    """The name and the licence of the regularizer."""
    name, licence = demo.card.name, demo.card.license
    return (
        f"Regularizer: {name}, shipped with the package. Licence: {licence}. "
        f"See `convexlift models {name}`."
    )


def as_json(demo: Demo) -> dict[str, Any]:
    """The results as plain data."""
    return {
        "version": convexlift.__version__,
        "tolerance": demo.options.gap,
        "tasks": [result.record for result in demo.results],
    }


def markdown_table(demo: Demo) -> str:
    """The table and the note, in Markdown."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in rows(demo)),
    ]
    return "\n".join([*lines, "", regularizer_note(demo), ""])


def plot_overview(demo: Demo) -> Any:
    """A row for each task: clean, degraded, reconstructed."""
    count = len(demo.results)
    figure, axes = plt.subplots(count, 3, figsize=(8.4, 2.95 * count), squeeze=False)
    for line, result in zip(axes, demo.results, strict=True):
        solution = result.solution
        titles = (
            "clean",
            f"{result.task.title}\n{result.psnr_before:.2f} dB",
            f"{result.task.card.name}, {result.psnr_after:.2f} dB\n"
            f"{in_words(float(solution.gap), solution.guarantee[0])[0].lower()}",
        )
        pictures = (result.clean, result.task.data.picture, solution.x)
        for axis, title, picture in zip(line, titles, pictures, strict=True):
            plane = picture[0, 0].cpu().numpy()
            axis.imshow(plane, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(title, fontsize=8.5)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def plot_convergence(results: Sequence[DemoResult], tolerance: float) -> Any:
    """Above: objective and lower bound as they approach each other; below: the certified gap."""
    count = len(results)
    figure, axes = plt.subplots(2, count, figsize=(3.9 * count, 5.6), sharex="col", squeeze=False)
    for column, result in enumerate(results):
        history, best = result.solution.history, float(result.solution.objective)
        iterations = history["iteration"]
        above, below = axes[0][column], axes[1][column]
        objective, bound = history["objective"][:, 0], history["lower_bound"][:, 0]
        above.plot(iterations, objective, color=OBJECTIVE, label="objective")
        above.plot(iterations, bound, color=BOUND, label="certified lower bound")
        above.fill_between(iterations, bound, objective, color="0.5", alpha=0.15, linewidth=0)
        # From the second check on: the first values would flatten the rest.
        later = slice(1, None) if len(history) > 2 else slice(None)
        seen = torch.cat([objective[later], bound[later]])
        seen = seen[torch.isfinite(seen)]
        low, high = float(seen.min()), float(seen.max())
        margin = 0.08 * (high - low) + 1e-6 * abs(best)
        above.set_ylim(low - margin, high + margin)
        above.set_title(result.task.title, fontsize=9)
        above.grid(alpha=0.25)
        below.semilogy(iterations, history["gap"][:, 0], color=GAP, marker=".", label="gap")
        below.axhline(tolerance, color="0.4", linewidth=0.8, linestyle="--")
        below.set_xlabel("iterations")
        below.grid(alpha=0.25, which="both")
    axes[0][0].set_ylabel("objective and lower bound")
    axes[1][0].set_ylabel("certified relative gap")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def page(demo: Demo, folder: Path) -> str:
    """A self-contained HTML file with the pictures of the folder."""
    environment = Environment(
        loader=PackageLoader("convexlift"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("demo.html").render(
        demo=demo,
        version=convexlift.__version__,
        columns=COLUMNS,
        rows=rows(demo),
        next=NEXT,
        accent=BOUND,
        weight_caption=WEIGHT_CAPTION,
        picture=lambda result, kind: _embedded(_picture_file(folder, result, kind).read_bytes()),
        plot=lambda result: _embedded(_png(plot_convergence([result], demo.options.gap), dpi=180)),
    )


def _embedded(png: bytes) -> str:
    """A picture as a data URL, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _picture_file(folder: Path, result: DemoResult, kind: str) -> Path:
    return folder / f"{result.task.name}-{kind}.png"


def _png(figure: Any, dpi: int) -> bytes:
    """The PNG file of a figure, which is then closed."""
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    plt.close(figure)
    return file.getvalue()
