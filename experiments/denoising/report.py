"""The report of section 5.1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.common_steps import average_objective
from experiments.comparing import Optimum, Run, SideBySide
from experiments.denoising.settings import DenoisingSettings
from experiments.denoising.steps import ablation_name
from experiments.figures import Figure, HeatMap, Line, Mark, Panel, heat_map_with_curves
from experiments.measuring import Curve
from experiments.paper import psnr
from experiments.report_text import (
    certificate_reveals,
    images_used,
    psnr_comparisons,
    unbounded_note,
)
from experiments.runner import Array, Document, Part, Parts, Section

FULL = DenoisingSettings()

MARKS = (  # (c_1, c_2), where the paper's Figure "Ablation study" has its five marks
    (Mark(0, 0, "s", "#b8a000"), 5e-2, 5e-6),
    (Mark(0, 0, "*", "#7b3294"), 5e-2, 1e-4),
    (Mark(0, 0, "h", "#2b5fd9"), 5e-3, 1e-4),
    (Mark(0, 0, "p", "#008837"), 5e-2, 5e-3),
    (Mark(0, 0, "D", "#c4161c"), 5.0, 1e-4),
)
"""Read off the figure's source: rows 0, 2 and 6 from the top, columns 0, 3 and 6 from the left. Its
axes are not in the text; rows are taken for c_1 and columns for c_2, from small to large."""

FIGURE = "5.1, visual comparison"
PAPER_DATA = psnr(10.90, FIGURE)
PAPER = {  # PSNR in the corners of its pictures, after 15 and after 200 iterations
    "Proposed": (psnr(28.80, FIGURE), psnr(28.87, FIGURE)),
    "SM-C": (psnr(16.00, FIGURE), psnr(28.52, FIGURE)),
    "SM-D": (psnr(28.02, FIGURE), psnr(28.75, FIGURE)),
}


def report(parts: Parts, values: DenoisingSettings) -> Document:
    """The document of finished parts."""
    data = parts["data"]
    found = SideBySide.of(parts, values.early, values.iterations)
    ours = found.runs["proposed"]
    sm_c, sm_d = found.best("sm-c", printed=True), found.best("sm-d", printed=True)
    c_1, c_2 = ours.parameters
    return Document(
        title="Salt-and-pepper denoising (section 5.1)",
        summary=[
            about(data, values),
            f"Proposed is the paper's PDHG with the best {of_the_pairs(values)} for this network, "
            f"c = {pair(c_1, c_2)}; the paper does not print which pair was its best. SM-C and "
            f"SM-D have the best {of_the_steps(values)}, {sm_c.parameters[0]:g} and "
            f"{sm_d.parameters[0]:g}. All three start from the data, as in the paper.",
            certificate_reveals(found, ours),
        ],
        comparisons=psnr_comparisons(
            found,
            data,
            PAPER_DATA,
            {"Proposed": ours, "SM-C": sm_c, "SM-D": sm_d},
            PAPER,
            (FULL.early, FULL.iterations),
        ),
        sections=[
            ablation_section(parts, values, found.optimum),
            curves_section(found, parts),
            pictures_section(found, data, ours, sm_c, sm_d),
        ],
        results=results(found, data, parts, ours),
    )


def about(data: Part, values: DenoisingSettings) -> str:
    """Problem, network and images."""
    return (
        f"The problem is `min_x {values.scale:g} ||x - y||_1 + R(x)`, where "
        f"{100 * values.fraction:g} % of the pixels of y are 0 or 1, as in the "
        "authors' released script. R is `faces-denoising`: the paper's architecture with our "
        f"weights, as the paper's are not available. {images_used(data)}"
    )


def of_the_pairs(values: DenoisingSettings) -> str:
    """The number of pairs that were tried; quick runs try some of the paper's."""
    tried, all_pairs = (len(each.c_1) * len(each.c_2) for each in (values, FULL))
    return f"of its {all_pairs} pairs" if tried == all_pairs else f"of the {tried} pairs tried"


def of_the_steps(values: DenoisingSettings) -> str:
    """The steps that were tried for the subgradient methods."""
    everything = (values.sm_c, values.sm_d) == (FULL.sm_c, FULL.sm_d)
    return "of the paper's steps" if everything else "of those of the paper's steps that were tried"


def ablation_section(parts: Parts, values: DenoisingSettings, optimum: Optimum) -> Section:
    """The heat map and the five marked curves."""
    grid = np.array(
        [
            [average_objective(parts[ablation_name(c_1, c_2)]) for c_2 in values.c_2]
            for c_1 in values.c_1
        ]
    )
    best = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    there = [each for each in MARKS if each[1] in values.c_1 and each[2] in values.c_2]
    marks = [
        replace(mark, row=values.c_1.index(c_1), column=values.c_2.index(c_2), label=pair(c_1, c_2))
        for mark, c_1, c_2 in there
    ]
    lines = []
    for _, c_1, c_2 in there:
        curve = Curve.of(parts[ablation_name(c_1, c_2)])
        lines.append(Line(curve.iteration, optimum.error(curve)[:, 0], "paper", pair(c_1, c_2)))
    heat = HeatMap(
        grid, [f"{c:g}" for c in values.c_1], [f"{c:g}" for c in values.c_2], "$c_1$", "$c_2$",
        f"average objective over {values.ablation_iterations} iterations", marks, ".1f",
    )  # fmt: skip
    panel = Panel("the five marked pairs", "relative objective error", lines)
    colours = {mark.label: mark.colour for mark in marks}
    star = grid[values.c_1.index(5e-2), values.c_2.index(1e-4)]
    text = (
        f"The least average objective, {grid[best]:.1f}, is at c = "
        f"{pair(values.c_1[best[0]], values.c_2[best[1]])}, the largest is {np.nanmax(grid):.1f}, "
        f"and the optimum is {optimum.objective[0]:.1f}. At the star of the paper's figure, its "
        f"middle mark, it is {star:.1f}. What matters is c_1: a factor of 10 in it costs "
        f"iterations, while c_2 {matters(grid)}. Our default does without this search."
    )
    caption = (
        "Ablation of the step-size parameters, first image. The marks are where the paper's "
        "figure has them, rows taken for c_1 and columns for c_2."
    )
    figure = Figure("ablation", caption, lambda: heat_map_with_curves(heat, panel, colours))
    return Section("Ablation of the step sizes", [text, figure])


def curves_section(found: SideBySide, parts: Parts) -> Section:
    """Energy, error, PSNR and gap against iterations."""
    beside = [found.runs["proposed"], found.runs["default"]]
    columns = {
        "SM-C": [*beside, *found.family("sm-c")],
        "SM-D": [*beside, *found.family("sm-d")],
    }
    rows = [
        [found.energy_panel(runs, f"Objective, {name}") for name, runs in columns.items()],
        [found.error_panel(runs, f"Objective error, {name}") for name, runs in columns.items()],
        [found.psnr_panel(runs, f"PSNR, {name}") for name, runs in columns.items()],
    ]
    everyone = [*beside, found.runs["lbfgs"], found.best("sm-c"), found.best("sm-d")]
    caption = (
        "The paper's comparison with the subgradient methods, first image: all its step sizes in "
        "shades of one colour, and ours beside them where its do not suit this network. Dotted: "
        "the iterations after which the paper shows pictures."
    )
    proof = (
        "All methods with their best steps: objective error, and the gap that each run certifies "
        "by itself, which the paper does not have. L-BFGS is made for smooth problems, which this "
        "is not."
    )
    return Section(
        "Against iterations",
        [
            Figure.of_curves("curves", caption, rows),
            Figure.of_curves("certificates", proof, [found.proof_panels(everyone)]),
            found.table(list(found.runs.values())),
            unbounded_note(found, parts),
        ],
    )


def pictures_section(found: SideBySide, data: Part, ours: Run, sm_c: Run, sm_d: Run) -> Section:
    """The paper's visual comparison, and the default."""
    runs = [
        ("Proposed", ours), ("SM-C", sm_c), ("SM-D", sm_d), ("Default", found.runs["default"])
    ]  # fmt: skip
    caption = (
        "Reconstructions with the PSNR in the corner, pixel for pixel. The default starts from "
        "medians, the others from the data."
    )
    return Section("Pictures", [Figure.of_pictures("pictures", caption, found.tiles(data, runs))])


def results(found: SideBySide, data: Part, parts: Parts, ours: Run) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "data": dict(data.values),
        "reference": dict(parts["reference"].values),
        "best_pair": list(ours.parameters),
        "ablation": [
            {"c": part.values["parameters"], "average_objective": average_objective(part)}
            for name, part in parts.items()
            if name.startswith("ablation-")
        ],
        "methods": found.as_plain(),
    }


def matters(grid: Array) -> str:
    """How much the columns of a row differ, beside how much the rows do."""
    inside = float(np.nanmax(np.nanmax(grid, axis=1) - np.nanmin(grid, axis=1)))
    share = inside / float(np.nanmax(grid) - np.nanmin(grid))
    return "hardly matters" if share < 0.05 else f"moves it by up to {inside:.1f}"


def pair(c_1: float, c_2: float) -> str:
    """As text."""
    return f"({c_1:g}, {c_2:g})"
