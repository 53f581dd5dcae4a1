"""What the experiment on training schemes found: the paper's Table 2, crops and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.comparing import Run, SideBySide
from experiments.document import Document, Figure, Section
from experiments.figures import Tile, curves, magnified
from experiments.measuring import Optimum
from experiments.paper import Printed, psnr
from experiments.parts import Array, Part
from experiments.remarks import percent, steps_text
from experiments.tables import Comparison, Table, number, small

Parts = Mapping[str, Part]

SCHEMES = {
    "adversarial": "Adversarial",
    "bilevel-nmapg": "Bilevel + NMAPG",
    "bilevel-proposed": "Bilevel + Proposed",
    "bilevel-default": "Bilevel + our default",
}
"""Rows of the table; the paper has the first three."""
SEARCHED = {"proposed": "Proposed", "sm-c": "SM-C", "sm-d": "SM-D"}
"""Solvers whose step sizes were searched for."""
SHORT = {
    "adversarial": "AR",
    "bilevel-nmapg": "BL+NMAPG",
    "bilevel-proposed": "BL+Proposed",
    "bilevel-default": "BL+default",
}

TABLE = "Table 2, 5.3.1"
PAPER = {  # mean PSNR with Proposed, SM-C, SM-D, NMAPG
    "adversarial": (28.18, 28.22, 25.88, 28.14),
    "bilevel-nmapg": (29.46, 29.40, 27.31, 29.46),
    "bilevel-proposed": (29.80, 29.72, 26.47, 29.80),
}
PAPER_SOLVERS = ("proposed", "sm-c", "sm-d", "nmapg")
PAPER_SECONDS = {  # of training
    "adversarial": Printed(173, TABLE, "s"),
    "bilevel-nmapg": Printed(435, TABLE, "s"),
    "bilevel-proposed": Printed(431, TABLE, "s"),
}
CROP = (slice(110, 176), slice(90, 166))
"""The part of a 256 x 256 face that the paper shows, from the source of its figure."""
ENLARGED = 4


@dataclass(frozen=True, eq=False)
class Row:
    """All solvers with one regularizer.

    Attributes:
        scheme: a key of ``SCHEMES``.
        training: the part of the training.
        data: the part of the data.
        found: the runs.
    """

    scheme: str
    training: Part
    data: Part
    found: SideBySide

    @classmethod
    def of(cls, parts: Parts, scheme: str, iterations: int) -> Row:
        """From the parts of one scheme; the optimum is what its runs know."""
        prefix = f"{scheme}-curve-"
        runs = {run.key: run for run in (
            Run.of(part) for name, part in parts.items() if name.startswith(prefix)
        )}  # fmt: skip
        objectives = [np.fmin.reduce(run.curve.objective, axis=0) for run in runs.values()]
        bounds = [np.fmax.reduce(run.curve.lower_bound, axis=0) for run in runs.values()]
        optimum = Optimum(np.fmin.reduce(objectives), np.fmax.reduce(bounds))
        data = parts[f"{scheme}-data"]
        found = SideBySide(runs, optimum, data.values["weight"], iterations, iterations)
        return cls(scheme, parts[scheme], data, found)

    def printed(self, solver: str) -> Run:
        """With the paper's step size."""
        return next(
            run
            for run in self.found.runs.values()
            if run.printed and (run.key == solver or run.key.startswith(f"{solver}-"))
        )

    def best(self, solver: str) -> Run:
        """With the step size of the paper or of the search, whichever ends lower."""
        return self.found.best(self.printed(solver).family)

    def psnr(self, run: Run) -> float:
        """Mean after the last iteration."""
        return self.found.psnr(run, self.found.late)

    @property
    def columns(self) -> list[Run]:
        """In the order of the table."""
        own = [run for solver in PAPER_SOLVERS for run in self._both(solver)]
        return [*own, self.found.runs["default"], self.found.runs["lbfgs"]]

    def _both(self, solver: str) -> list[Run]:
        searched = self.found.runs.get(f"{solver}-searched")
        return [self.printed(solver), *([] if searched is None else [searched])]


def training_report(parts: Parts, iterations: int) -> Document:
    """The whole report."""
    rows = [Row.of(parts, scheme, iterations) for scheme in SCHEMES]
    return Document(
        title="Training schemes and solvers (section 5.3.1)",
        summary=[about(rows, iterations), scheme_decides(rows), reveals(rows)],
        comparisons=comparisons(rows),
        sections=[
            Section("Scheme and solver", [psnr_table(rows), gap_table(rows)]),
            Section("Against iterations", [curves_figure(rows)]),
            Section("Crops", [crops_figure(rows)]),
        ],
        results=results(rows),
    )


def about(rows: list[Row], iterations: int) -> str:
    """Problem, recipes and images."""
    data = rows[0].data.values
    first, second = rows[0].training.values, rows[1].training.values
    fixed = "the paper's mask" if data["faithful"] else "the mask beside the images"
    masks = fixed if data["mask"] else "random masks"
    other = "" if data["faithful"] else (
        " Images are smaller than the paper's or not its faces, and trainings short: only rows of "
        "one table can be compared with one another."
    )  # fmt: skip
    return (
        f"Inpainting of 30 % missing pixels with 3 % noise, {masks}, and the paper's smoothed "
        "baseline network, trained here. Adversarial: the paper's recipe with filters of mean "
        "zero, missing pixels filled for the critic, and gamma searched for on held-out images, "
        f"{first['steps']} steps of {first['batch_size']}. Bilevel: from there, gamma absorbed as "
        f"in the paper, {second['steps']} steps of {second['batch_size']} with hypergradients by "
        "the implicit function theorem instead of 1200 steps of 4 with Jacobian-free ones, which "
        f"need not be directions of descent. Every solver has {iterations} iterations from the "
        "data, our default from a start of its own. PSNR is the mean over "
        f"{len(data['names'])} {data['source']}.{other}"
    )


def scheme_decides(rows: list[Row]) -> str:
    """What the table says."""
    best = {row.scheme: row.psnr(row.found.runs["default"]) for row in rows}
    gains = ", ".join(
        f"{SCHEMES[scheme]} {value - best['adversarial']:+.2f} dB"
        for scheme, value in best.items()
        if scheme != "adversarial"
    )
    spread = [row.psnr(row.best(s)) - row.psnr(row.found.runs["default"])
              for row in rows for s in ("proposed", "nmapg")]  # fmt: skip
    better = [value > best["adversarial"] for scheme, value in best.items()][1:]
    start = (
        "As in the paper, bilevel learning is better than adversarial training"
        if all(better)
        else "The paper finds bilevel learning better than adversarial training; here it brings"
    )
    first = rows[0]

    def ends(run: Run) -> str:
        return number(first.psnr(run))

    steps = "; ".join(
        f"{name} ends at {ends(first.printed(solver))} dB with the paper's "
        f"{steps_text(first.printed(solver))}, at {ends(first.best(solver))} dB with "
        f"{steps_text(first.best(solver))}"
        for solver, name in SEARCHED.items()
        if ends(first.best(solver)) != ends(first.printed(solver))
    )
    tuned = (
        " The paper's step sizes are for its network, whose gamma is 0.1. With the adversarial "
        f"regularizer here, {steps}." if steps else ""
    )  # fmt: skip
    closeness = math.ceil(100 * max(map(abs, spread))) / 100
    return (
        f"{start}: {gains}, solved by our default. Which solver was in the training matters less "
        "than that it converges, and so does which one is used: Proposed (with its best steps) and "
        f"NMAPG are within {closeness:.2f} dB of the default in every row.{tuned}"
    )


def reveals(rows: list[Row]) -> str:
    """How far from optimal the solvers end."""
    texts = []
    for row in rows[:3]:
        found = row.found
        ends = ", ".join(
            f"{labelled(run)} {percent(found.certified(run, found.late))}"
            for run in dict.fromkeys((row.printed("proposed"), row.best("proposed"),
                                      row.best("sm-c"), row.best("sm-d"), row.printed("nmapg"),
                                      found.runs["default"]))
        )  # fmt: skip
        texts.append(f"{SCHEMES[row.scheme]}: {ends}")
    return (
        "What the certificate reveals: how far from optimal the last images are at most, the worst "
        f"image, by the best bound of all solvers. {'; '.join(texts)}. PSNR hides it: a solver "
        "that stops early regularizes less, which need not cost decibels."
    )


def comparisons(rows: list[Row]) -> list[Comparison]:
    """Cell by cell, and training times."""
    found = []
    for row in rows:
        if row.scheme not in PAPER:
            continue
        seconds, faithful = row.training.values["seconds"], row.data.values["faithful"]
        found.append(
            Comparison(f"{SCHEMES[row.scheme]}, training time", PAPER_SECONDS[row.scheme], seconds,
                       "lower", 10.0, "another machine and recipe", comparable=faithful)
        )  # fmt: skip
        for solver, value in zip(PAPER_SOLVERS, PAPER[row.scheme], strict=True):
            run, printed = row.best(solver), row.printed(solver)
            remark = "" if run is printed else (
                f"{steps_text(run)}; {number(row.psnr(printed))} dB with the paper's "
                f"{steps_text(printed)}"
            )  # fmt: skip
            name = SEARCHED.get(solver, "NMAPG")
            found.append(
                Comparison(f"{SCHEMES[row.scheme]}, {name}", psnr(value, TABLE), row.psnr(run),
                           remark=remark, deviation=row.found.psnr_deviation(run, row.found.late),
                           comparable=faithful)
            )  # fmt: skip
    return found


def psnr_table(rows: list[Row]) -> Table:
    """The paper's Table 2, with more columns and a row more."""
    heads = [heading(run) for run in rows[0].columns]
    cells = [
        (f"{SCHEMES[row.scheme]} ({row.training.values['seconds']:.0f} s)",
         *(number(row.psnr(run)) for run in row.columns))
        for row in rows
    ]  # fmt: skip
    caption = (
        "Mean PSNR in dB; training time in parentheses. * The paper's step size; searched: the "
        "best of a search on one image that is not tested."
    )
    return Table("psnr", ("Training", *heads), tuple(cells), caption)


def gap_table(rows: list[Row]) -> Table:
    """The same for the certified distance to the optimum."""
    heads = [heading(run) for run in rows[0].columns]
    cells = [
        (SCHEMES[row.scheme],
         *(small(row.found.certified(run, row.found.late)) for run in row.columns))
        for row in rows
    ]  # fmt: skip
    caption = (
        "How far the objective of the last image is from the optimum at most (relative, the worst "
        "image), by the best certified bound; the paper has no such number."
    )
    return Table("certified", ("Training", *heads), tuple(cells), caption)


def heading(run: Run) -> str:
    """Without the numbers of a step, which differ from row to row."""
    if run.family in ("paper", "sm-c", "sm-d", "nmapg") and run.printed:
        return run.label.split(",")[0] + " *"
    return run.label


def labelled(run: Run) -> str:
    """With the numbers of its steps, if it has any."""
    name = run.label.split(",")[0]
    return f"{name} ({steps_text(run)})" if run.parameters else name


def curves_figure(rows: list[Row]) -> Figure:
    """Objective error and PSNR of the first image, adversarial and bilevel."""
    shown = [row for row in rows if row.scheme in ("adversarial", "bilevel-proposed")]
    columns = [
        (SCHEMES[row.scheme], row.found, [row.best(solver) for solver in PAPER_SOLVERS]
         + [row.found.runs["default"], row.found.runs["lbfgs"]])
        for row in shown
    ]  # fmt: skip
    panels = [
        [found.error_panel(runs, f"Objective error, {name}") for name, found, runs in columns],
        [found.psnr_panel(runs, f"PSNR, {name}") for name, found, runs in columns],
        [found.gap_panel(runs, f"Certified gap, {name}") for name, found, runs in columns],
    ]
    caption = "The first test image with two of the regularizers; the best step sizes known."
    return Figure("curves", caption, lambda: curves(panels))


def crops_figure(rows: list[Row]) -> Figure:
    """The paper's comparison of schemes, each with the proposed solver."""
    data = rows[0].data
    tiles = [
        Tile("Ground truth", enlarged(data.arrays["clean"])),
        Tile("Noisy", enlarged(data.arrays["picture"]), number(data.values["psnr"][0])),
    ]
    for row in rows:
        run = row.best("proposed")
        quality = float(run.curve.psnr[run.curve.at(row.found.late), 0])
        picture = enlarged(run.curve.picture(row.found.late))
        tiles.append(Tile(SHORT[row.scheme], picture, number(quality)))
    caption = (
        f"The first test image, solved by Proposed with its best c: the part that the paper shows, "
        f"{ENLARGED} times enlarged; the PSNR is that of the whole image. The paper has 12.21 for "
        "the data, 28.38, 30.27 and 30.47 for a face it does not name."
    )
    return Figure.of_pictures("crops", caption, [tiles])


def enlarged(picture: Array) -> Array:
    """The paper's crop, or all of a small picture, with every pixel a square."""
    crop = picture[CROP] if picture.shape == (256, 256) else picture
    return magnified(crop, ENLARGED)


def results(rows: list[Row]) -> dict[str, Any]:
    """For the JSON file."""
    return {
        row.scheme: {
            "training": dict(row.training.values),
            "data": dict(row.data.values),
            "methods": row.found.as_plain(),
        }
        for row in rows
    }
