"""The figures of docs/lift.md, computed by the library.

python docs/figures/lift.py [--output docs/images]     # half a minute on one core
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LogNorm

import convexlift as cl
from convexlift.images import load_example, psnr
from convexlift.tasks import Inpainting, Measurement

INK, OBJECTIVE, BOUND, GAP = "#222222", "#0072b2", "#d55e00", "#009e73"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "svg.hashsalt": "convexlift",  # the same file every time
}


def epigraphs() -> Any:
    """Points outside of two epigraphs, and where they are projected to."""
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.5), sharey=True)
    a = torch.linspace(-2.2, 2.2, 400, dtype=torch.float64)
    points = {
        "leaky ReLU, slope 0.2": (
            cl.LeakyReLU(0.2),
            [(-1.7, -1.1), (-0.75, -1.2), (0.1, -0.9), (0.6, -1.25), (1.5, -0.2), (1.9, 0.8)],
        ),
        "smoothed ReLU": (
            cl.SmoothedReLU(smoothing=1.0),
            [(-1.7, -0.9), (-0.7, -1.1), (0.2, -0.8), (0.9, -0.9), (1.6, 0.0), (1.9, 0.9)],
        ),
    }
    for axis, (title, (h, outside)) in zip(axes, points.items(), strict=True):
        axis.fill_between(a, h.value(a), 2.4, color=OBJECTIVE, alpha=0.12, linewidth=0)
        axis.plot(a, h.value(a), color=OBJECTIVE, linewidth=2)
        p, q = torch.tensor(outside, dtype=torch.float64).T
        near = torch.stack(h.project_epigraph(p, q), 1).tolist()
        for (x, z), (x2, z2) in zip(outside, near, strict=True):
            arrow = {"arrowstyle": "->", "color": BOUND, "linewidth": 1.4, "shrinkA": 3}
            axis.annotate("", (x2, z2), (x, z), arrowprops=arrow)
        axis.plot(*zip(*outside, strict=True), "o", color=BOUND, markersize=5)
        axis.plot(*zip(*near, strict=True), "o", color=INK, markersize=4)
        axis.text(-2.0, 1.75, "z ≥ h(a)", color=OBJECTIVE, fontsize=12)
        axis.text(1.72, 2.05, "z = h(a)", color=OBJECTIVE, ha="right")
        axis.set(title=title, xlabel="a", xlim=(-2.2, 2.2), ylim=(-1.5, 2.4), aspect="equal")
    axes[0].set_ylabel("z")
    figure.tight_layout()
    return figure


def small_network() -> cl.InputConvexNetwork:
    """Two layers on images of one pixel: a convex function of a number."""
    dense = cl.networks.Dense
    network = cl.InputConvexNetwork(
        [
            cl.ConvexLayer(cl.LeakyReLU(0.2), channels=4, skip=dense(1, 4)),
            cl.ConvexLayer(cl.ReLU(), channels=3, previous=dense(4, 3, nonnegative=True)),
        ],
        image_size=(1, 1),
    ).double()
    weights = {
        "layers.0.skip.weight": [[1.0], [-1.2], [0.7], [-0.5]],
        "layers.0.bias": [-0.9, -0.5, 0.6, 0.9],
        "layers.1.previous.weight": [[1.0, 0.2, 0, 0.3], [0, 1.0, 0.4, 0], [0.3, 0, 0.5, 0.8]],
        "layers.1.bias": [0.1, -0.1, -0.5],
        "output": [0.5, 0.5, 0.5],
    }
    network.load_state_dict({k: torch.tensor(v, dtype=torch.float64) for k, v in weights.items()})
    return network


def bounds() -> Any:
    """Objective, the affine minorant of R at two points, and the bounds they give."""
    network, y = small_network(), torch.full((1, 1, 1, 1), 1.7, dtype=torch.float64)
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0)
    grid = torch.linspace(-1.0, 2.6, 400, dtype=torch.float64)
    images = grid[:, None, None, None]
    with torch.no_grad():
        R = network(images)
    D = (grid - 1.7) ** 2 / 2
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True)
    titles = ("at a first guess, x = -0.5", "nearer the optimum, x = 0.6")
    for axis, x0, title in zip(axes, (-0.5, 0.6), titles, strict=True):
        x = torch.full((1, 1, 1, 1), x0, dtype=torch.float64, requires_grad=True)
        value = network(x)
        (slope,) = torch.autograd.grad(value.sum(), x)
        minorant = float(value.detach()) + float(slope) * (grid - x0)
        proof = cl.certify(problem, x.detach())
        top, low = float(proof.objective), float(proof.lower_bound)
        axis.plot(grid, R, color="#888888", linewidth=1.5, label="R(x)")
        axis.plot(grid, minorant, color="#888888", linewidth=1.2, linestyle=":",
                  label="its minorant ⟨c, x⟩ + β")  # fmt: skip
        axis.plot(grid, D + R, color=OBJECTIVE, linewidth=2, label="objective D + R")
        axis.plot(grid, D + minorant, color=BOUND, linewidth=2, linestyle="--",
                  label="D + minorant")  # fmt: skip
        axis.axhline(low, color=BOUND, linewidth=0.9)
        axis.plot([x0], [top], "o", color=OBJECTIVE, markersize=6)
        arrow = {"arrowstyle": "<->", "color": GAP, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (x0, low), (x0, top), arrowprops=arrow)
        side = {"x": x0 + 0.07, "ha": "left"} if x0 < 0 else {"x": x0 - 0.07, "ha": "right"}
        axis.text(y=(top + low) / 2, s=f"gap {top - low:.2f}", color=GAP, va="center", **side)
        axis.text(-0.95, low - 0.08, f"lower bound {low:.2f}", color=BOUND, va="top")
        axis.set(title=title, xlabel="x", xlim=(-1.0, 2.6), ylim=(-1.3, 3.6))
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    figure.tight_layout()
    return figure


def measured() -> tuple[torch.Tensor, Measurement, cl.VariationalProblem]:
    """The middle of a picture with 30 % of its pixels missing and 3 % noise."""
    truth = load_example("camera")[..., 64:192, 64:192]
    data = Inpainting().measure(truth, [torch.Generator().manual_seed(0)])
    network = cl.load("photo-any-size")
    return truth, data, data.problem(network, weight=network.card.weights["inpainting"])


def closing_in() -> tuple[Any, Any]:
    """Objective and lower bound of an inpainting, and where its gap is on the way."""
    truth, data, problem = measured()
    stop = cl.StopWhen(gap=1e-4, max_iterations=200, check_every=1)
    solution = cl.solve(problem, stop=stop)
    history, best = solution.history, float(solution.lower_bound)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.3))
    iterations = history["iteration"]
    objective, bound = history["objective"][:, 0], history["lower_bound"][:, 0]
    left.fill_between(iterations, bound, objective, color="#888888", alpha=0.15, linewidth=0)
    left.plot(iterations, objective, color=OBJECTIVE, linewidth=2, label="objective")
    left.plot(iterations, bound, color=BOUND, linewidth=2, label="certified lower bound")
    left.set(xlabel="iterations", xlim=(0, 40), ylim=(0.6 * best, 1.25 * best))
    left.legend(frameon=False)
    right.semilogy(iterations, history["gap"][:, 0], color=GAP, linewidth=2, label="certified gap")
    error = (objective - best) / best
    right.semilogy(iterations[1:], error[1:], color=OBJECTIVE, linewidth=1.2, linestyle="--",
                   label="objective above the last bound")  # fmt: skip
    right.axhline(1e-3, color="#666666", linewidth=0.8)
    right.text(iterations[-1], 1.1e-3, "where solve stops", ha="right", fontsize=9, color="#555555")
    right.set(xlabel="iterations", ylim=(3e-5, 3))
    right.legend(frameon=False)
    figure.tight_layout()
    for count in (10, 30):
        early = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=count))
        print(
            f"{count} iterations: gap {float(early.gap):.1e}, {float(psnr(early.x, truth)):.2f} dB"
        )
    print(solution, f"{float(psnr(solution.x, truth)):.2f} dB", sep="\n")
    return figure, gap_maps(data, problem)


def gap_maps(data: Measurement, problem: cl.VariationalProblem) -> Any:
    """The data; images after 2 and 30 iterations, each with its map on one scale."""
    figure, axes = plt.subplots(1, 5, figsize=(8.6, 1.98))
    panels: list[tuple[str, torch.Tensor, bool]] = [("data", data.fidelity.y, False)]
    for count in (2, 30):
        solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=count))
        proof = cl.certify(problem, solution.x, solution.duals)
        title = f"{count} iterations"
        panels += [
            (title, solution.x, False),
            (f"its gap, {float(proof.gap):.0e}", proof.map, True),
        ]
    for axis, (title, picture, is_map) in zip(axes, panels, strict=True):
        if is_map:
            axis.imshow(picture[0, 0].clamp_min(1e-8), cmap="magma", norm=LogNorm(1e-7, 1e-1))
        else:
            axis.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1)
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.01, top=0.86, wspace=0.04)
    return figure


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[1] / "images"
    parser.add_argument("--output", type=Path, default=default)
    folder = parser.parse_args().output
    torch.set_num_threads(1)
    with plt.rc_context(STYLE):
        save(folder / "lift-epigraphs.svg", epigraphs)
        save(folder / "lift-bounds.svg", bounds)
        curves, maps = closing_in()
        save(folder / "lift-closing-in.svg", lambda: curves)
        save(folder / "lift-maps.png", lambda: maps)


def save(path: Path, draw: Callable[[], Any]) -> None:
    """Write a figure, without the date."""
    figure = draw()
    known = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=100, metadata=known)
    plt.close(figure)
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
