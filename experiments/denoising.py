"""Section 5.1: salt-and-pepper denoising,  min_x  lambda ||x - y||_1 + R(x).

The 7 x 7 ablation of the step-size parameters (c_1, c_2), the proposed method with the best pair
beside the subgradient methods, and pictures after 15 and 200 iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convexlift.models.store import load
from convexlift.solvers.named_methods import C_FIRST_L1, C_LAST_L1, PAPER_L1
from convexlift.tasks import SaltAndPepper
from experiments.benchmark.cases import Case
from experiments.comparing import Run, SideBySide
from experiments.competitors import (
    DEFAULT,
    L_BFGS,
    Competitor,
    constant,
    diminishing,
    proposed,
)
from experiments.curves import Curve
from experiments.data import load_faces
from experiments.document import Document, Figure, Section
from experiments.figures import (
    HeatMap,
    Line,
    Mark,
    Panel,
    curves,
    heat_map_with_curves,
)
from experiments.measuring import (
    Accuracy,
    Looks,
    Optimum,
    average_objective,
    chosen_curve_step,
    curve_step,
    data_step,
    reference_step,
)
from experiments.paper import psnr
from experiments.parts import Array, Part
from experiments.remarks import (
    certificate_reveals,
    images_used,
    psnr_comparisons,
    unbounded_note,
)
from experiments.setup import Setup
from experiments.steps import Step
from experiments.study import Experiment, Study

REFERENCE = Accuracy(gap=1e-4, iterations=3000)


@dataclass(frozen=True)
class DenoisingSettings:
    """Values of the paper, and how much of them a run does."""

    scale: float = PAPER_L1  # lambda = 0.02: section 5.1, Parameters
    fraction: float = 0.25  # salt and pepper together: the authors' released script
    c_1: tuple[float, ...] = C_FIRST_L1  # section 5.1, Parameters
    c_2: tuple[float, ...] = C_LAST_L1  # section 5.1, Parameters
    sm_c: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)  # section 5.1, Parameters
    sm_d: tuple[float, ...] = (1.0, 3.0, 5.0, 10.0)  # section 5.1, Parameters
    more_sm_c: tuple[float, ...] = (0.2, 4.0)  # ours: does another step suit this network better?
    more_sm_d: tuple[float, ...] = (30.0, 100.0, 300.0)  # ours
    ablation_iterations: int = 200  # section 5.1, Ablation study
    ablation_every: int = 1  # the average objective is over all iterations
    iterations: int = 200  # Figure "Denoising: Comparison to subgradient methods"
    every: int = 1
    early: int = 15  # Figure "Denoising: Visual comparison"
    images: int = 20  # the released test set; the paper shows one image
    reference: Accuracy = REFERENCE  # ours


FULL = DenoisingSettings()
QUICK = DenoisingSettings(
    # every step of the paper's marked curves is still there
    c_1=(5e-3, 5e-2, 1.0, 5.0), c_2=(5e-6, 1e-4, 5e-3),
    sm_c=(0.5, 2.0), sm_d=(3.0, 10.0), more_sm_c=(), more_sm_d=(30.0,),
    ablation_iterations=60, ablation_every=5, every=5, images=1,
    reference=Accuracy(gap=1e-4, iterations=400),
)  # fmt: skip

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


def steps(study: Study) -> Sequence[Step]:
    """Data, reference, the ablation, and one run for each method."""
    values = QUICK if study.quick else FULL
    setup = Setup(case(values), load_faces(study.data, values.images), study)
    looks = Looks(values.iterations, values.every, (values.early, values.iterations), values.images)
    ablation = [
        curve_step(
            setup,
            proposed((c_1, c_2)),
            Looks(values.ablation_iterations, values.ablation_every),
            name=ablation_name(c_1, c_2),
            cost=0.1 * values.ablation_iterations,
        )
        for c_1 in values.c_1
        for c_2 in values.c_2
    ]
    names = [step.name for step in ablation]
    others = [
        *map(constant, values.sm_c),
        *(constant(step, printed=False) for step in values.more_sm_c),
        *map(diminishing, values.sm_d),
        *(diminishing(step, printed=False) for step in values.more_sm_d),
        DEFAULT,
        L_BFGS,
    ]
    long = values.images * values.iterations
    return [
        data_step(setup),
        reference_step(setup, values.reference, cost=15.0 * values.images),
        *ablation,
        chosen_curve_step(setup, "proposed", best_pair, looks, names, cost=0.12 * long),
        *(curve_step(setup, other, looks, cost=0.05 * long) for other in others),
        *without_box(setup, values, names),
    ]


def case(values: DenoisingSettings) -> Case:
    """The paper's problem with our weights: R of ``faces-denoising`` has the weight 1."""
    return Case(
        "denoising",
        "faces-denoising",
        SaltAndPepper(fraction=values.fraction, scale=values.scale),
        lambda size, seed: load("faces-denoising"),
        weight=1.0,
        only_size=256,
    )


def ablation_name(c_1: float, c_2: float) -> str:
    """Of the part of one pair."""
    return f"ablation-{c_1:g}-{c_2:g}"


def best_pair(parts: Mapping[str, Part]) -> Competitor:
    """The pair with the least average objective, as the paper chooses."""
    best = min(parts.values(), key=average_objective)
    return proposed(best.values["parameters"])


def without_box(setup: Setup, values: DenoisingSettings, needs: Sequence[str]) -> list[Step]:
    """The paper states no box: the same runs without one, for the first image."""
    looks = Looks(values.iterations, values.iterations)
    return [
        chosen_curve_step(setup, "proposed", best_pair, looks, needs, bounded=False,
                          name="unbounded-proposed", cost=0.1 * values.iterations),
        *(
            curve_step(setup, each, looks, bounded=False, name=f"unbounded-{each.key}",
                       cost=0.04 * values.iterations)
            for each in (constant(values.sm_c[-1]), diminishing(values.sm_d[-1]))
        ),
    ]  # fmt: skip


def report(parts: Mapping[str, Part]) -> Document:
    """What the parts say."""
    data = parts["data"]
    values = QUICK if data.values["quick"] else FULL
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
    """How many pairs the best one was chosen from; quick runs try a part of the paper's."""
    tried, all_pairs = (len(each.c_1) * len(each.c_2) for each in (values, FULL))
    return f"of its {all_pairs} pairs" if tried == all_pairs else f"of the {tried} pairs tried"


def of_the_steps(values: DenoisingSettings) -> str:
    """The same for the subgradient methods."""
    everything = (values.sm_c, values.sm_d) == (FULL.sm_c, FULL.sm_d)
    return "of the paper's steps" if everything else "of those of the paper's steps that were tried"


def ablation_section(
    parts: Mapping[str, Part], values: DenoisingSettings, optimum: Optimum
) -> Section:
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


def curves_section(found: SideBySide, parts: Mapping[str, Part]) -> Section:
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
    last = found.proof_panels(everyone)
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
            Figure("curves", caption, lambda: curves(rows)),
            Figure("certificates", proof, lambda: curves([last])),
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


def results(found: SideBySide, data: Part, parts: Mapping[str, Part], ours: Run) -> dict[str, Any]:
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


DENOISING = Experiment("denoising", "Salt-and-pepper denoising", "section 5.1", steps, report)
