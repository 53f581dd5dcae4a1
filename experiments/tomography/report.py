"""The numbers, tables and figures of ``report.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.comparing import Column, Run, SideBySide, psnr_comparisons
from experiments.document import Document, Table, document, number, small
from experiments.figures import Figure, Tile, magnified
from experiments.measuring import Curve
from experiments.runner import Parts
from experiments.tomography.steps import (
    AS_PRINTED,
    AUTHORS,
    BOX,
    OURS,
    TEST_AS_PRINTED,
    TRAINING,
    TomographySettings,
)

WHITE = 0.65
"""Of the pictures: 620 HU. Soft tissue is at 0.41."""
PAPER_MOMENTS = (50, 500)
"""Iterations after which the paper shows pictures; ours may be fewer in short versions."""
SMALLEST = 128
"""Smaller pictures are magnified, so that there is space for their titles."""


def report(parts: Parts, values: TomographySettings) -> Document:
    """The document of finished parts."""
    data, story = parts["data"], values.story
    found = SideBySide.of(parts, values.early, values.iterations)
    ours, better = found.runs["proposed"], found.runs["proposed-searched"]
    sm_c, sm_d = found.best("sm-c", printed=True), found.best("sm-d", printed=True)
    default, shown = found.runs["default"], {"Proposed": ours, "SM-C": sm_c, "SM-D": sm_d}
    everyone = [
        ours, *([better] if better.parameters != ours.parameters else []), default,
        found.runs["lbfgs"], found.best("sm-c"), found.best("sm-d"),
    ]  # fmt: skip
    printed = [*found.family("sm-c", printed=True), *found.family("sm-d", printed=True)]
    theirs, mine = columns_of(parts, values)
    other = Column(found, data, shown, "another slice")
    free, inside = Curve.of(parts["halfline-curve-proposed"]), ours.curve
    tiles = [list(map(enlarged, row)) for row in found.tiles(data, {**shown, "Default": default})]
    return document(
        Path(__file__).parent,
        {
            "story": story, "values": values, "data": data.values, "found": found,
            "trained": parts[TRAINING].values, "ours": ours, "better": better,
            "sm_c": sm_c, "sm_d": sm_d, "box": BOX, "white": WHITE, "theirs": theirs,
            "mine": mine,
            "tried": len(parts["search-proposed"].values["tried"]),
            "worst": [run.label for run in printed if not found.error(run, found.late) < 1.0],
            "tests": len(parts["test-tv"].values["best"]["psnr"]),
            "largest": parts["reference"].arrays["picture"].max(),
            "halfline": {
                "change": abs(free.objective[-1, 0] / inside.objective[-1, 0] - 1),
                "gap": free.gap[-1, 0], "inside": inside.gap[-1, 0],
            },
        },
        comparisons=psnr_comparisons(
            story.paper_data, story.paper, PAPER_MOMENTS, theirs, mine or other
        ),
        blocks=[
            regularizers_table(parts, values),
            curves_figure("printed-steps", found, released=False),
            curves_figure("released-steps", found, released=True),
            Figure.of_curves("certificates", [found.proof_panels(everyone)]),
            found.table(),
            Figure.of_pictures("pictures", tiles, high=WHITE),
            *released_figures(theirs, mine),
        ],
        results={
            "data": dict(data.values),
            "training": dict(parts[TRAINING].values),
            "reference": dict(parts["reference"].values),
            "tests": {
                name: dict(part.values)
                for name, part in parts.items()
                if name.startswith("test-")
            },
            "searches": {
                name: dict(part.values)
                for name, part in parts.items()
                if name.startswith("search-")
            },
            "methods": found.as_plain(),
            "released_slice": {
                name: None if column is None else column.found.as_plain()
                for name, column in (("authors", theirs), ("ours", mine))
            },
        },
    )  # fmt: skip


def released_figures(theirs: Column | None, mine: Column | None) -> list[Figure]:
    """The slice of the paper's figure, with the authors' choices and with ours, as far as run."""
    found = []
    if theirs is not None and theirs.runs:
        runs = list(theirs.runs.values())
        panels = [[theirs.found.panel(quantity, runs) for quantity in row]
                  for row in (("objective", "psnr"), ("data", "regularizer"))]  # fmt: skip
        found.append(Figure.of_curves("authors-curves", panels))
        found.append(Figure.of_pictures("authors-pictures", theirs.tiles(), high=WHITE))
    if mine is not None:
        tiles = mine.tiles({"Default": mine.runs["Proposed"]})
        found.append(Figure.of_pictures("our-pictures", tiles, high=WHITE))
    return found


def columns_of(parts: Parts, values: TomographySettings) -> tuple[Column | None, Column | None]:
    """The slice of the paper's figure with the authors' choices, and with ours, as far as run."""
    theirs = mine = None
    if f"{AUTHORS}data" in parts:
        found = SideBySide.of(parts, values.authors_early, values.iterations, AUTHORS)
        runs = dict(zip(values.story.paper, found.runs.values(), strict=False))  # perhaps none
        theirs = Column(
            found, parts[f"{AUTHORS}data"], runs, trained_note(parts), other=values.story.other
        )
    if f"{OURS}data" in parts:
        found = SideBySide.of(parts, values.early, values.released_iterations, OURS)
        runs = {"Proposed": found.runs["default"]}
        mine = Column(
            found, parts[f"{OURS}data"], runs, f"`{values.shipped}`",
            "filtered back projection with Hann's window", values.story.other,
        )  # fmt: skip
    return theirs, mine


def trained_note(parts: Parts) -> str:
    """How the network of the authors' column was trained."""
    if AS_PRINTED not in parts:
        return ""
    trained = parts[AS_PRINTED].values
    return (
        "R trained by the authors' recipe on our slices, "
        f"{trained['steps']} steps of {trained['batch_size']}"
    )


def regularizers_table(parts: Parts, values: TomographySettings) -> Table:
    """The trained regularizer beside others, on the test slices."""
    rows = []
    for name, label in (
        ("test-learned", "Trained here, its best gamma"),
        (TEST_AS_PRINTED, "The paper's recipe to the letter, its best gamma"),
        ("test-shipped", f"`{values.shipped}`, inside the package"),
        ("test-tv", "Total variation"),
    ):
        if name not in parts:
            continue
        best, printed = parts[name].values["best"], parts[name].values.get("gamma")
        rows.append(test_row(label, best))
        if printed is not None and printed["weight"] != best["weight"]:
            rows.append(test_row(label.replace("its best gamma", "gamma as printed"), printed))
    columns = ("Regularizer", "Weight", "PSNR", "SSIM", "Iterations", "Largest gap")
    return Table("regularizers", columns, tuple(rows))


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


def curves_figure(name: str, found: SideBySide, *, released: bool) -> Figure:
    """The paper's two figures, with its printed steps, or with released and searched ones."""

    def members(family: str) -> list[Run]:
        return [
            run
            for run in found.family(family)
            if released == (run.label.endswith("released") or not run.printed)
        ]

    ours = [found.runs["proposed"], found.runs["default"]]
    columns = {family.upper(): [*ours, *members(family)] for family in ("sm-c", "sm-d")}
    return Figure.of_curves(name, found.panels(columns, "objective", "psnr", "data", "regularizer"))


def enlarged(tile: Tile) -> Tile:
    """A small picture, magnified."""
    times = max(1, SMALLEST // tile.picture.shape[-1])
    return replace(tile, picture=magnified(tile.picture, times))
