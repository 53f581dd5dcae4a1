"""What experiments in tomography found: text, tables and figures from their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from experiments.comparing import Run, SideBySide
from experiments.curves import Curve
from experiments.document import Document, Figure, Section
from experiments.figures import Panel, curves, magnified
from experiments.paper import Printed
from experiments.parts import Part
from experiments.remarks import (
    certificate_reveals,
    percent,
    psnr_comparisons,
    steps_text,
)
from experiments.tables import Table, number, small
from experiments.tomography import (
    AS_PRINTED,
    BOX,
    TRAINING,
    TomographySettings,
)

WHITE = 0.65
"""Of the pictures: 620 HU. Soft tissue is at 0.41."""

PAPER_MOMENTS = (50, 500)
"""Iterations after which the paper shows pictures; ours may be fewer in short versions."""
SMALLEST = 128
"""Smaller pictures are magnified, so that there is space for their titles."""

Parts = Mapping[str, Part]


@dataclass(frozen=True)
class Story:
    """What differs between the experiments.

    Attributes:
        title: of the report.
        paper_data: the paper's PSNR of filtered back projection.
        paper: PSNR after few and after many iterations, by method.
        network: which, in a few words.
        remark: what else is to be said.
    """

    title: str
    paper_data: Printed
    paper: Mapping[str, tuple[Printed, Printed]]
    network: str
    remark: str = ""


def tomography_report(parts: Parts, values: TomographySettings, story: Story) -> Document:
    """The whole report."""
    data = parts["data"]
    found = SideBySide.of(parts, values.early, values.iterations)
    ours = found.runs["proposed"]
    sm_c, sm_d = found.best("sm-c", printed=True), found.best("sm-d", printed=True)
    shown = {"Proposed": ours, "SM-C": sm_c, "SM-D": sm_d}
    summary = [
        about(parts, values, story),
        suits(found, parts, sm_c, sm_d),
        certificate_reveals(found, ours),
    ]
    return Document(
        title=story.title,
        summary=[*summary, story.remark] if story.remark else summary,
        comparisons=psnr_comparisons(
            found,
            data,
            story.paper_data,
            shown,
            story.paper,
            PAPER_MOMENTS,
            {label: found.runs[f"{label.lower()}-searched"] for label in shown},
        ),
        sections=[
            training_section(parts, values),
            curves_section(found, values),
            certificates_section(found, parts),
            pictures_section(found, data, shown),
        ],
        results=results(found, parts),
    )


def about(parts: Parts, values: TomographySettings, story: Story) -> str:
    """Problem, network, and what is not the paper's."""
    data, trained = parts["data"].values, parts[TRAINING].values
    smaller = "" if values.size == 512 else (
        f" This run is at {values.size} x {values.size} instead of 512 x 512, with as many fewer "
        "views and bins, and a short training."
    )  # fmt: skip
    return (
        "The problem is `min D(A x, y) + gamma R(x)` over x >= 0, with the Kullback-Leibler "
        "divergence D, 200 views, 400 bins and a background of 50 counts. R is "
        f"{story.network}. Neither the paper's weights nor its data can be had: R was trained here "
        f"on {data['source']}, which have other CT numbers and other anatomy: "
        "PSNR is not comparable with the paper's. gamma is "
        f"{trained['weight']:.3g}, the best on other slices; the paper has {values.gamma:g} for "
        f"its network. Curves are those of one test image, {data['names'][0]}.{smaller}"
    )


def suits(found: SideBySide, parts: Parts, sm_c: Run, sm_d: Run) -> str:
    """Whether the paper's step sizes suit this network."""
    ours, better = found.runs["proposed"], found.runs["proposed-searched"]
    tried = len(parts["search-proposed"].values["tried"])
    worst = [
        run.label
        for run in (*found.family("sm-c", printed=True), *found.family("sm-d", printed=True))
        if not found.error(run, found.late) < 1.0
    ]
    lost = (
        f" More than twice the optimal objective, or nothing at all, is what {', '.join(worst)} "
        f"have after {found.late} iterations." if worst else ""
    )  # fmt: skip
    search = (
        f"none of {tried - 1} others that were tried from there is better"
        if better.parameters == ours.parameters
        else f"the best of {tried - 1} others that were tried from there has "
        f"{steps_text(better)}: after {found.early} iterations its objective is "
        f"{percent(found.error(better, found.early))} above the optimum, with the printed one "
        f"{percent(found.error(ours, found.early))}"
    )
    return (
        f"Proposed is the paper's PDHG with its printed {steps_text(ours)}; {search}. "
        "SM-C and SM-D have the best of "
        f"the paper's steps, {sm_c.parameters[0]:g} and {sm_d.parameters[0]:g}: the printed ones, "
        f"and those of the authors' released script, which are a tenth of them.{lost} All start "
        "from the filtered back projection, but for our default, which has a start of its own."
    )


def training_section(parts: Parts, values: TomographySettings) -> Section:
    """How R was made, and how good it is beside others."""
    trained = parts[TRAINING].values
    rows = []
    for name, label in (
        ("test-learned", "Trained here, its best gamma"),
        (AS_PRINTED, "The paper's recipe to the letter, its best gamma"),
        ("test-shipped", f"`{values.shipped}`, inside the package"),
        ("test-tv", "Total variation"),
    ):
        if name not in parts:
            continue
        rows.append(test_row(label, parts[name].values["best"]))
        printed = parts[name].values.get("gamma")
        if printed is not None and printed["weight"] != parts[name].values["best"]["weight"]:
            plain = label.replace("its best gamma", "gamma as printed")
            rows.append(test_row(plain, printed))
    count = len(parts["test-tv"].values["best"]["psnr"])
    table = Table(
        "regularizers",
        ("Regularizer", "Weight", "PSNR", "SSIM", "Iterations", "Largest gap"),
        tuple(rows),
        f"Means over {count} test images, reconstructed with our default solver until it certifies "
        f"a gap of {values.test_stop.gap:g}, or for {values.test_stop.max_iterations} iterations.",
    )
    made = (
        f"R was trained adversarially for {trained['steps']} steps of {trained['batch_size']} in "
        f"{trained['seconds']:.0f} s, with a learning rate of {trained['learning_rate']:g}, a "
        f"penalty of {values.penalty:g}, a cosine schedule, and filters of mean zero that start as "
        "cosines (the paper: 20 "
        "epochs of 2240 slices, 2e-5, and a penalty of 30, for the deeper network 20). The changes "
        "are ours: with as few slices the paper's critic is far from steep after 20 epochs. What "
        "matters most is what the critic sees: back projections with the "
        f"{values.filter} filter, which must be rougher than clean slices. In small versions with "
        "Hann's window they are smoother, R learns to roughen, and its optimum is worse than the "
        "data. The paper does not name its filter. That choice alone moves the PSNR of the data of "
        "the shown slice, at full size, from 17.7 dB (Ram-Lak) over 19.5 (Shepp-Logan) and 23.2 "
        "(cosine) to 25.7 (Hann); the paper's 21.29 lies between."
    )
    return Section("The regularizer", [made, table])


def test_row(label: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Means of one test."""
    return (
        label,
        f"{values['weight']:.4g}",
        number(mean(values["psnr"])),
        f"{mean(values['ssim']):.3f}",
        f"{mean(values['iterations']):.0f}",
        small(max(values["gap"])),
    )


def curves_section(found: SideBySide, values: TomographySettings) -> Section:
    """The paper's two figures, with its printed steps and with those of its script."""
    text = (
        "Dotted: the iterations after which the paper shows pictures. Shades of one colour are "
        "step sizes of one method."
    )
    figures = []
    for name, released, caption in (
        ("printed-steps", False, "With the step sizes that the paper prints."),
        ("released-steps", True, "With the step sizes of the released script, a tenth of them, and "
         "with the best of a search."),
    ):  # fmt: skip
        columns = {
            title: [
                found.runs["proposed"],
                found.runs["default"],
                *members(found, family, released),
            ]
            for title, family in (("SM-C", "sm-c"), ("SM-D", "sm-d"))
        }
        rows = [
            [found.energy_panel(runs, f"Objective, {title}") for title, runs in columns.items()],
            [found.psnr_panel(runs, f"PSNR, {title}") for title, runs in columns.items()],
            [data_panel(found, runs, f"Data term, {title}") for title, runs in columns.items()],
            [regularizer_panel(found, runs, f"Regularizer, {title}")
             for title, runs in columns.items()],
        ]  # fmt: skip
        figures.append(Figure(name, caption, lambda rows=rows: curves(rows)))  # type: ignore[misc]
    return Section("Against iterations", [text, *figures])


def members(found: SideBySide, family: str, released: bool) -> list[Run]:
    """The runs of a family with printed steps, or all others."""
    return [
        run
        for run in found.family(family)
        if released == (run.label.endswith("released") or not run.printed)
    ]


def data_panel(found: SideBySide, runs: list[Run], title: str) -> Panel:
    """D, as the paper draws it."""
    return found.panel(runs, title, "data term D", lambda curve: curve.data_term)


def regularizer_panel(found: SideBySide, runs: list[Run], title: str) -> Panel:
    """gamma R."""
    weight = found.weight
    return found.panel(runs, title, "gamma R", lambda curve: weight * curve.regularizer, log=False)


def certificates_section(found: SideBySide, parts: Parts) -> Section:
    """Objective error and certified gap of everyone with the best steps."""
    ours, better = found.runs["proposed"], found.runs["proposed-searched"]
    everyone = [
        ours, *([better] if better.parameters != ours.parameters else []), found.runs["default"],
        found.runs["lbfgs"], found.best("sm-c"), found.best("sm-d"),
    ]  # fmt: skip
    panels = found.proof_panels(everyone)
    caption = (
        "All methods, the subgradient ones with their best steps: objective error (shaded where it "
        "is below the accuracy of the optimum), and the gap that each run certifies by itself, "
        "which the paper does not have. L-BFGS is made for smooth problems: it may get low on "
        "this one, which has kinks, but all it has for a certificate is a gradient."
    )
    return Section(
        "Certificates",
        [
            Figure("certificates", caption, lambda: curves([panels])),
            found.table(list(found.runs.values())),
            box_note(found, parts),
        ],
    )


def box_note(found: SideBySide, parts: Parts) -> str:
    """Whether the upper bound, which certificates like, changes what the paper's method does."""
    free, inside = Curve.of(parts["halfline-curve-proposed"]), found.runs["proposed"].curve
    change = abs(free.objective[-1, 0] / inside.objective[-1, 0] - 1)
    largest = float(parts["reference"].arrays["picture"].max())
    proved = free.gap[-1, 0], inside.gap[-1, 0]
    return (
        f"The paper has x >= 0. Here {BOX[0]:g} <= x <= {BOX[1]:g}: the largest pixel of the "
        f"optimum is {largest:.2f}, so that the problem is the same, but a certificate need not "
        "hold against arbitrarily bright images. With x >= 0 alone the last objective of Proposed "
        f"differs by {change:.0e} (relative); it certifies {percent(float(proved[0]))} instead of "
        f"{percent(float(proved[1]))}."
    )


def pictures_section(found: SideBySide, data: Part, shown: Mapping[str, Run]) -> Section:
    """The paper's visual comparison, and the default."""
    runs = [*shown.items(), ("Default", found.runs["default"])]
    caption = (
        f"Reconstructions with the PSNR in the corner; white is {WHITE:g}, "
        "where PSNR is of values between 0 and 1. Data: the filtered back projection."
    )
    times = max(1, SMALLEST // data.arrays["clean"].shape[-1])
    tiles = [
        [replace(tile, picture=None if tile.picture is None else magnified(tile.picture, times))
         for tile in row]
        for row in found.tiles(data, runs)
    ]  # fmt: skip
    return Section("Pictures", [Figure.of_pictures("pictures", caption, tiles, high=WHITE)])


def results(found: SideBySide, parts: Parts) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "data": dict(parts["data"].values),
        "training": dict(parts[TRAINING].values),
        "reference": dict(parts["reference"].values),
        "tests": {
            name: dict(part.values)
            for name, part in parts.items()
            if name.startswith("test-") or name == AS_PRINTED
        },
        "searches": {
            name: dict(part.values) for name, part in parts.items() if name.startswith("search-")
        },
        "methods": found.as_plain(),
    }
