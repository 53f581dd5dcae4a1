"""The figure of docs/architecture.md: how data flows.

python docs/figures/architecture.py [--output docs/images]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only, no window

import matplotlib.pyplot as plt

INK, EDGE = "#222222", "#0072b2"
WIDTH, HEIGHT = 1.75, 0.62
BOXES = {  # name: centre, first line, second line
    "operators": ((1.0, 3.0), "operators", "A, V, W"),
    "networks": ((1.0, 1.0), "networks", "R"),
    "functionals": ((1.0, 2.0), "functionals", "D, box"),
    "problem": ((3.5, 2.0), "VariationalProblem", "min D + weight R"),
    "saddle": ((6.0, 3.0), "SaddlePointProblem", "K, f, g"),
    "methods": ((8.5, 2.0), "methods", "PDHG, L-BFGS, …"),
    "certificate": ((6.0, 1.0), "Certificate", "lower bound, map"),
    "solution": ((8.5, 0.0), "Solution", "x, gap, status"),
    "models": ((1.0, 0.0), "models", "weights and cards"),
    "demo": ((6.0, 0.0), "command line", "files, reports"),
}
ARROWS = [  # from, to, what is done
    ("operators", "problem", ""),
    ("networks", "problem", ""),
    ("functionals", "problem", ""),
    ("problem", "saddle", "lift"),
    ("saddle", "methods", ""),
    ("problem", "methods", ""),
    ("problem", "certificate", "certify"),
    ("methods", "solution", "solve"),
    ("certificate", "solution", ""),
    ("solution", "demo", ""),
]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "images")
    folder = parser.parse_args().output
    plt.rcParams["svg.hashsalt"] = "convexlift"  # the same file every time
    figure, axis = plt.subplots(figsize=(9.0, 3.6))
    axis.set(xlim=(0.0, 9.5), ylim=(-0.45, 3.45))
    axis.set_axis_off()
    for (x, y), first, second in BOXES.values():
        shape = plt.Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, facecolor="#e8f1f8",
                              edgecolor=EDGE, linewidth=1.2)  # fmt: skip
        axis.add_patch(shape)
        axis.text(x, y + 0.12, first, ha="center", va="center", fontsize=9.5, color=INK)
        axis.text(x, y - 0.15, second, ha="center", va="center", fontsize=8, color="#555555")
    for start, end, label in ARROWS:
        _arrow(axis, start, end, label)
    both = {"arrowstyle": "<->", "color": "#666666", "linewidth": 1.2}
    axis.annotate("", (1.0, HEIGHT / 2), (1.0, 1.0 - HEIGHT / 2), arrowprops=both)
    axis.text(1.1, 0.5, "save, load", fontsize=8.5, color="#555555", va="center")
    figure.tight_layout(pad=0.2)
    path = folder / "data-flow.svg"
    figure.savefig(path, metadata={"Date": None})
    print(path.name, path.stat().st_size, "bytes")


def _arrow(axis: plt.Axes, start: str, end: str, label: str) -> None:
    (x1, y1), (x2, y2) = BOXES[start][0], BOXES[end][0]
    vertical = x1 == x2
    right = WIDTH / 2 if x2 > x1 else -WIDTH / 2
    tail = (x1, y1 - HEIGHT / 2) if vertical else (x1 + right, y1)
    head = (x2, y2 + HEIGHT / 2) if vertical else (x2 - right, y2)
    arrow = {"arrowstyle": "->", "color": "#666666", "linewidth": 1.2}
    axis.annotate("", head, tail, arrowprops=arrow)
    x, y = (tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2
    place = {"x": x + 0.1, "ha": "left"} if vertical else {"x": x - 0.15, "ha": "right"}
    axis.text(y=y, s=label, fontsize=8.5, color="#555555", va="center", **place)


if __name__ == "__main__":
    main()
