"""The numbers, tables and figures of ``report.md``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.comparing import Run, SideBySide
from experiments.document import (
    OTHER_DATA,
    Comparison,
    Document,
    Printed,
    Table,
    document,
    number,
    psnr,
    small,
)
from experiments.figures import Figure, Tile, magnified
from experiments.runner import Array, Part, Parts
from experiments.training.steps import AUTHORS, SCHEMES, SEARCHED, TrainingSettings

SHORT = dict(zip(SCHEMES, ("AR", "BL+NMAPG", "BL+Proposed", "BL+default"), strict=True))
TABLE = "5.3.1, Table 2"
PAPER_SOLVERS = ("proposed", "sm-c", "sm-d", "nmapg")
PAPER = {  # mean PSNR with these solvers
    "adversarial": (28.18, 28.22, 25.88, 28.14),
    "bilevel-nmapg": (29.46, 29.40, 27.31, 29.46),
    "bilevel-proposed": (29.80, 29.72, 26.47, 29.80),
}
PAPER_SECONDS = {  # of training
    "adversarial": Printed(173, TABLE, "s"),
    "bilevel-nmapg": Printed(435, TABLE, "s"),
    "bilevel-proposed": Printed(431, TABLE, "s"),
}
FACE = 15
"""Of the paper's crops: with the noise of its seed 0, its data have 12.20 dB."""
PAPER_CROPS = {  # PSNR in the corners of its crops
    "adversarial": psnr(28.38, "5.3.1, crops"),
    "bilevel-nmapg": psnr(30.27, "5.3.1, crops"),
    "bilevel-proposed": psnr(30.47, "5.3.1, crops"),
}
PAPER_CROP_DATA = psnr(12.21, "5.3.1, crops")
CROP = (slice(110, 176), slice(90, 166))
"""The part of a 256 x 256 face that the paper shows, from the source of its figure."""
ENLARGED = 4


@dataclass(frozen=True, eq=False)
class SchemeRow:
    """All solvers with one regularizer."""

    scheme: str  # a key of ``SCHEMES``
    training: Part  # the part of the training
    data: Part  # the part of the data
    found: SideBySide  # the runs

    @classmethod
    def of(cls, parts: Parts, scheme: str, iterations: int) -> SchemeRow:
        """From the parts of one scheme; the optimum is bounded by its runs."""
        found = SideBySide.of(parts, iterations, iterations, f"{scheme}-")
        return cls(scheme.removeprefix(AUTHORS), parts[scheme], parts[f"{scheme}-data"], found)

    @property
    def title(self) -> str:
        """The name of the scheme."""
        return SCHEMES[self.scheme]

    @property
    def default(self) -> Run:
        """Our default."""
        return self.found.runs["default"]

    def printed(self, solver: str) -> Run:
        """The run with the paper's step size."""
        return next(
            run
            for run in self.found.runs.values()
            if run.printed and (run.key == solver or run.key.startswith(f"{solver}-"))
        )

    def best(self, solver: str) -> Run:
        """The run with the step size of the paper or of the search, whichever ends lower."""
        return self.found.best(self.printed(solver).family)

    def psnr(self, run: Run) -> float:
        """Mean after the last iteration."""
        return self.found.psnr(run, self.found.late)

    @property
    def columns(self) -> list[Run]:
        """In the order of the table."""
        found = []
        for solver in PAPER_SOLVERS:
            searched = self.found.runs.get(f"{solver}-searched")
            found += [self.printed(solver), *([] if searched is None else [searched])]
        return [*found, self.default, self.found.runs["lbfgs"]]

    @property
    def compared(self) -> list[Run]:
        """The runs of the summary, each once."""
        solvers = ("proposed", "sm-c", "sm-d")
        runs = [self.printed("proposed"), *map(self.best, solvers), self.printed("nmapg")]
        return list(dict.fromkeys([*runs, self.default]))


def report(parts: Parts, values: TrainingSettings) -> Document:
    """The document of finished parts."""
    rows = [SchemeRow.of(parts, scheme, values.iterations) for scheme in SCHEMES]
    first, second = rows[:2]
    theirs = {
        scheme: SchemeRow.of(parts, AUTHORS + scheme, values.iterations)
        for scheme in PAPER
        if AUTHORS + scheme in parts
    }
    quality = {row.title: row.psnr(row.default) for row in rows}
    gains = {title: value - quality[first.title] for title, value in quality.items()}
    del gains[first.title]
    spread = [abs(row.psnr(row.best(solver)) - row.psnr(row.default))
              for row in rows for solver in ("proposed", "nmapg")]  # fmt: skip
    tuned = [(name, first.printed(solver), first.best(solver)) for solver, name in SEARCHED.items()]
    shown = [row for row in rows if row.scheme in ("adversarial", "bilevel-proposed")]
    panels = [
        [row.found.panel(quantity, curves_of(row), row.title) for row in shown]
        for quantity in ("error", "psnr", "gap")
    ]
    return document(
        Path(__file__).parent,
        {
            "values": values, "rows": rows, "first": first, "data": first.data.values,
            "adversarial": first.training.values, "bilevel": second.training.values,
            "gains": gains, "better": all(gain > 0 for gain in gains.values()),
            "closeness": math.ceil(100 * max(spread)) / 100, "enlarged": ENLARGED,
            "tuned": [
                (name, printed, best)
                for name, printed, best in tuned
                if number(first.psnr(printed)) != number(first.psnr(best))
            ],
        },
        comparisons=[
            *(each for row in rows if row.scheme in PAPER
              for each in comparisons(row, theirs.get(row.scheme))),
            *crop_comparisons(rows, theirs),
        ],
        blocks=[
            table("psnr", rows, lambda row, run: number(row.psnr(run)), times=True),
            table("certified", rows,
                  lambda row, run: small(row.found.certified(run, row.found.late))),
            Figure.of_curves("curves", panels),
            Figure.of_pictures("crops", crops(rows, theirs)),
        ],
        results={
            prefix + row.scheme: {
                "training": dict(row.training.values),
                "data": dict(row.data.values),
                "methods": row.found.as_plain(),
            }
            for prefix, each in (("", rows), (AUTHORS, theirs.values()))
            for row in each
        },
    )  # fmt: skip


def comparisons(row: SchemeRow, authors: SchemeRow | None) -> list[Comparison]:
    """The training time and the PSNR of each solver."""
    other = "" if row.data.values["faithful"] else OTHER_DATA
    found = [
        Comparison(f"{row.title}, training time", PAPER_SECONDS[row.scheme],
                   round(row.training.values["seconds"]),
                   None if authors is None else round(authors.training.values["seconds"]), 10.0,
                   "Another machine; with `--jobs`, other steps ran beside it.", other=other)
    ]  # fmt: skip
    for solver, value in zip(PAPER_SOLVERS, PAPER[row.scheme], strict=True):
        run, theirs = row.best(solver), None
        remark = f"Ours: {run.steps_text}."
        if authors is not None:
            printed = authors.printed(solver)
            theirs = authors.psnr(printed)
            remark = f"As the authors: {printed.steps_text}. {remark}"
        found.append(
            Comparison(f"{row.title}, {SEARCHED.get(solver, 'NMAPG')}", psnr(value, TABLE),
                       row.psnr(run), theirs, remark=remark, other=other,
                       deviation=row.found.psnr_deviation(run, row.found.late))
        )  # fmt: skip
    return found


def crop_comparisons(rows: list[SchemeRow], theirs: Mapping[str, SchemeRow]) -> list[Comparison]:
    """The face of the paper's crops, where it is among the images; its noise is not the paper's."""

    def quality(row: SchemeRow | None) -> float | None:
        if row is None:
            return None
        values = row.best("proposed").curve.psnr[-1]
        return float(values[FACE]) if len(values) > FACE else None

    data, remark = rows[0].data.values, f"Face {FACE}, probably the paper's; other noise."
    seen = data["psnr"][FACE] if len(data["psnr"]) > FACE else None
    common: Any = {"remark": remark, "other": "" if data["faithful"] else OTHER_DATA}
    found = [Comparison("Crop, data", PAPER_CROP_DATA, seen, seen, 0.05, **common)]
    for row in rows:
        if row.scheme in PAPER_CROPS:
            printed, authors = PAPER_CROPS[row.scheme], quality(theirs.get(row.scheme))
            found.append(
                Comparison(f"Crop, {SHORT[row.scheme]}", printed, quality(row), authors, **common)
            )
    return found


def table(
    name: str, rows: list[SchemeRow], cell: Callable[[SchemeRow, Run], str], times: bool = False
) -> Table:
    """The paper's Table 2 with more columns and a row more, perhaps with training times."""
    lines = []
    for row in rows:
        seconds = f" ({row.training.values['seconds']:.0f} s)" if times else ""
        lines.append((f"{row.title}{seconds}", *(cell(row, run) for run in row.columns)))
    return Table(name, ("Training", *map(heading, rows[0].columns)), tuple(lines))


def heading(run: Run) -> str:
    """Without the numbers of a step, which differ from row to row."""
    if run.family in ("paper", "sm-c", "sm-d", "nmapg") and run.printed:
        return run.label.split(",")[0] + " *"
    return run.label


def curves_of(row: SchemeRow) -> list[Run]:
    """Every solver, with the best step sizes known."""
    return [*map(row.best, PAPER_SOLVERS), row.default, row.found.runs["lbfgs"]]


def crops(rows: list[SchemeRow], theirs: Mapping[str, SchemeRow]) -> list[list[Tile]]:
    """The paper's comparison of schemes, each with the proposed solver: the authors', and ours."""

    def crop(row: SchemeRow, whose: str) -> Tile:
        curve, late = row.best("proposed").curve, row.found.late
        quality = number(float(curve.psnr[curve.at(late), 0]))
        return Tile(f"{SHORT[row.scheme]}, {whose}", enlarged(curve.picture(late)), quality)

    data = rows[0].data
    truth = Tile("Ground truth", enlarged(data.arrays["clean"]))
    noisy = Tile("Noisy", enlarged(data.arrays["picture"]), number(data.values["psnr"][0]))
    ours = [crop(row, "ours") for row in rows]
    if not theirs:
        return [[truth, noisy, *ours]]
    return [[truth, *(crop(row, "as the authors") for row in theirs.values())], [noisy, *ours]]


def enlarged(picture: Array) -> Array:
    """The paper's crop, or all of a small picture, with every pixel a square."""
    crop = picture[CROP] if picture.shape == (256, 256) else picture
    return magnified(crop, ENLARGED)
