"""The numbers, tables and figures of ``report.md``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.common_steps import average_objective
from experiments.comparing import Column, Run, SideBySide, psnr_comparisons
from experiments.denoising.steps import AUTHORS, OURS, TRAINING, DenoisingSettings, ablation_name
from experiments.document import OTHER_NETWORK, Document, document, psnr
from experiments.figures import Figure, Line, Panel, heat_map_with_curves
from experiments.measuring import Curve
from experiments.runner import Array, Parts

FULL = DenoisingSettings()

MARKS = {  # (c_1, c_2): shape and colour of the five marks in the paper's Figure "Ablation study"
    (5e-3, 5e-5): ("s", "#b8a000"),
    (1e-1, 5e-5): ("*", "#7b3294"),
    (1e-1, 5e-6): ("h", "#2b5fd9"),
    (5.0, 5e-5): ("p", "#008837"),
    (1e-1, 5e-3): ("D", "#c4161c"),
}
"""Read off the figure's source: columns 0, 3 and 6 from the left, rows 0, 2 and 6 from the top. Its
axes are not in the text; in the released script columns are c_1 and rows c_2."""

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
    ours, default = found.runs["proposed"], found.runs["default"]
    sm_c, sm_d = found.best("sm-c", printed=True), found.best("sm-d", printed=True)
    shown = {"Proposed": ours, "SM-C": sm_c, "SM-D": sm_d}
    theirs, mine = columns_of(parts, values)
    panels = {
        name.upper(): [ours, default, *found.family(name)] for name in ("sm-c", "sm-d")
    }  # fmt: skip
    pdhg = [theirs.found.runs[key] for key in ("proposed", "proposed-our-duals")]
    everyone = [ours, default, found.runs["lbfgs"], found.best("sm-c"), found.best("sm-d")]
    grid = np.array([[average_objective(parts[ablation_name(c_1, c_2)]) for c_2 in values.c_2]
                     for c_1 in values.c_1])  # fmt: skip
    best = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    return document(
        Path(__file__).parent,
        {
            "values": values, "data": data.values, "found": found, "ours": ours, "sm_c": sm_c,
            "sm_d": sm_d, "of_the_pairs": of_the_pairs(values),
            "of_the_steps": of_the_steps(values), "unbounded": found.without_box(parts),
            "face": theirs, "pdhg": pdhg, "our_duals": found.runs["proposed-our-duals"],
            "grid": {
                "min": grid[best], "max": np.nanmax(grid),
                "best": pair(values.c_1[best[0]], values.c_2[best[1]]),
                "star": grid[values.c_1.index(1e-1), values.c_2.index(5e-5)],
                # the largest change by c_2 alone
                "inside": np.nanmax(np.nanmax(grid, axis=1) - np.nanmin(grid, axis=1)),
            },
        },
        comparisons=psnr_comparisons(
            PAPER_DATA, PAPER, (FULL.early, FULL.iterations), theirs, mine
        ),
        blocks=[
            ablation_figure(parts, values, grid, found),
            Figure.of_curves("curves", found.panels(panels, "objective", "error", "psnr")),
            Figure.of_curves("certificates", [found.proof_panels(everyone)]),
            found.table(),
            Figure.of_curves(
                "authors-curves", [theirs.found.psnr_and_objective(list(theirs.runs.values()))]
            ),
            Figure.of_curves("duals", [theirs.found.psnr_and_objective(pdhg)]),
            Figure.of_pictures("authors-pictures", theirs.tiles()),
            Figure.of_pictures("pictures", found.tiles(data, {**shown, "Default": default})),
        ],
        results={
            "data": dict(data.values),
            "reference": dict(parts["reference"].values),
            "best_pair": list(ours.parameters),
            "ablation": [
                {"c": part.values["parameters"], "average_objective": average_objective(part)}
                for name, part in parts.items()
                if name.startswith("ablation-")
            ],
            "methods": found.as_plain(),
            "face": {"authors": theirs.found.as_plain(), "ours": mine.found.as_plain()},
        },
    )  # fmt: skip


def columns_of(parts: Parts, values: DenoisingSettings) -> tuple[Column, Column]:
    """The face of the paper's pictures with the authors' choices, and with ours."""
    found = SideBySide.of(parts, values.authors_early, values.iterations, AUTHORS)
    mine = SideBySide.of(parts, values.early, values.iterations, OURS)
    keys = [f"sm-c-{values.authors_sm_c:g}", f"sm-d-{values.authors_sm_d:g}"]

    def runs(side: SideBySide, first: str) -> dict[str, Run]:
        return {label: side.runs[key] for label, key in zip(PAPER, [first, *keys], strict=True)}

    trained = TRAINING in parts
    theirs = Column(
        found, parts[f"{AUTHORS}data"], runs(found, "proposed"),
        "R trained by the authors' recipe" if trained else "our R",
        other="" if trained else OTHER_NETWORK,
    )  # fmt: skip
    ours = Column(mine, parts[f"{OURS}data"], runs(mine, "default"), f"`{values.model}`")
    return theirs, ours


def of_the_pairs(values: DenoisingSettings) -> str:
    """The number of pairs that were tried; quick runs try some of the paper's."""
    tried, all_pairs = (len(each.c_1) * len(each.c_2) for each in (values, FULL))
    return f"of its {all_pairs} pairs" if tried == all_pairs else f"of the {tried} pairs tried"


def of_the_steps(values: DenoisingSettings) -> str:
    """The steps that were tried for the subgradient methods."""
    everything = (values.sm_c, values.sm_d) == (FULL.sm_c, FULL.sm_d)
    return "of the paper's steps" if everything else "of those of the paper's steps that were tried"


def ablation_figure(
    parts: Parts, values: DenoisingSettings, grid: Array, found: SideBySide
) -> Figure:
    """The heat map and the five marked curves."""
    marks, lines = {}, []
    for (c_1, c_2), style in MARKS.items():
        if c_1 in values.c_1 and c_2 in values.c_2:
            curve, label = Curve.of(parts[ablation_name(c_1, c_2)]), pair(c_1, c_2)
            marks[label] = (values.c_2.index(c_2), values.c_1.index(c_1), *style)
            lines.append(Line(curve.iteration, found.optimum.error(curve)[:, 0], "paper", label))
    title = f"average objective over {values.ablation_iterations} iterations"
    panel = Panel("the five marked pairs", "relative objective error", lines)
    rows, columns = ("$c_2$", values.c_2), ("$c_1$", values.c_1)
    return Figure(
        "ablation", lambda: heat_map_with_curves(grid.T, rows, columns, title, marks, panel)
    )


def pair(c_1: float, c_2: float) -> str:
    """(c_1, c_2) as text."""
    return f"({c_1:g}, {c_2:g})"
