"""The numbers, tables and figures of ``report.md``, with the times of Table 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.authors import WEIGHTS
from experiments.comparing import Column, Run, SideBySide, psnr_comparisons
from experiments.document import (
    OTHER_NETWORK,
    Comparison,
    Document,
    Printed,
    Table,
    document,
    number,
    psnr,
)
from experiments.figures import Figure
from experiments.inpainting.steps import AUTHORS, OURS, TIMED, InpaintingSettings
from experiments.runner import Array, Parts

FULL = InpaintingSettings()

TABLE = "5.3, Table 1"
PAPER_SECONDS = {
    "proposed": Printed(0.18, TABLE, "s", 0.026),
    "sm-c": Printed(0.27, TABLE, "s", 0.047),
    "sm-d": Printed(1.35, TABLE, "s", 0.260),
    "nmapg": Printed(0.26, TABLE, "s", 0.032),
}
PAPER_SPEED_UP = {
    "sm-c": Printed(1.52, TABLE),
    "sm-d": Printed(7.50, TABLE),
    "nmapg": Printed(1.47, TABLE),
}
FIGURE = "5.3, visual comparison"
PAPER_DATA = psnr(11.91, FIGURE)
PAPER = {  # PSNR in the corners of its pictures, after 60 and after 300 iterations
    "Proposed": (psnr(29.93, FIGURE), psnr(30.01, FIGURE)),
    "SM-C": (psnr(19.54, FIGURE), psnr(29.97, FIGURE)),
    "SM-D": (psnr(20.82, FIGURE), psnr(27.85, FIGURE)),
    "NMAPG": (psnr(29.75, FIGURE), psnr(30.01, FIGURE)),
}

FASTER = {"proposed": "Proposed", "searched": "Proposed *", "default": "Default"}
"""Methods whose speed-up over the others is shown."""


def report(parts: Parts, values: InpaintingSettings) -> Document:
    """The document of finished parts."""
    data = parts["data"]
    found = SideBySide.of(parts, values.early, values.iterations)
    shown, shown_data = found, data
    if values.pictures:
        shown = SideBySide.of(parts, values.early, values.iterations, "bilevel-")
        shown_data = parts["bilevel-data"]
    times, their_times = Times.of(parts), Times.of(parts, TIMED)
    printed, searched = printed_runs(found, values), searched_runs(found)
    default, lbfgs = found.runs["default"], found.runs["lbfgs"]
    same_start, nmapg = found.runs["default-same-start"], found.runs["nmapg"]
    columns = {
        "the paper's steps": [*printed.values(), default, lbfgs],
        "the best of a search": [*searched.values(), nmapg, default, same_start, lbfgs],
    }
    others = {f"{label} *": run for label, run in searched_runs(shown).items()}
    theirs, mine = columns_of(parts, values)
    return document(
        Path(__file__).parent,
        {
            "values": values, "data": data.values, "found": found, "printed": printed,
            "searched": searched, "unbounded": found.without_box(parts), "face": theirs,
            "released": released(theirs), "trained": bool(their_times.parts),
        },
        comparisons=[
            *time_comparisons(their_times if their_times.parts else times, times, values),
            *psnr_comparisons(
                PAPER_DATA, PAPER, (FULL.early, FULL.iterations), theirs, mine
            ),
        ],
        blocks=[
            times.table(),
            their_times.table("authors-times", ("proposed",)),
            *authors_curves(parts, values),
            Figure.of_curves("curves", found.panels(columns, "objective", "error", "psnr", "gap")),
            found.table(),
            Figure.of_pictures("authors-pictures", theirs.tiles()),
            Figure.of_pictures("pictures", shown.tiles(shown_data, printed_runs(shown, values))),
            Figure.of_pictures(
                "pictures-searched",
                shown.tiles(shown_data, {**others, "Default": shown.runs["default"]}),
            ),
        ],
        results={
            "data": dict(data.values),
            "reference": dict(parts["reference"].values),
            "methods": found.as_plain(),
            "times": times.as_plain(),
            "authors_times": their_times.as_plain(),
            "bilevel_methods": shown.as_plain() if values.pictures else None,
            "face": {"authors": theirs.found.as_plain(), "ours": mine.found.as_plain()},
        },
    )  # fmt: skip


def authors_curves(parts: Parts, values: InpaintingSettings) -> list[Figure]:
    """Curves of Table 1 as the authors ran it, if its network was trained."""
    if f"{TIMED}data" not in parts:
        return []
    found = SideBySide.of(parts, values.early, values.iterations, TIMED)
    runs = list(found.runs.values())
    return [
        Figure.of_curves(
            "authors-curves", [[found.panel("error", runs), found.panel("psnr", runs)]]
        )
    ]


def columns_of(parts: Parts, values: InpaintingSettings) -> tuple[Column, Column]:
    """The face of the paper's pictures with the authors' choices, and with ours."""
    found = SideBySide.of(parts, values.authors_early, values.authors_iterations, AUTHORS)
    mine = SideBySide.of(parts, values.early, values.iterations, OURS)
    data = parts[f"{AUTHORS}data"]
    theirs = Column(found, data, printed_runs(found, values), "the authors' R")
    if not released(theirs):
        theirs = replace(theirs, note="our R", other=OTHER_NETWORK)
    runs = dict(zip(PAPER, mine.runs.values(), strict=True))
    return theirs, Column(mine, parts[f"{OURS}data"], runs, f"`{values.bilevel}`")


def released(column: Column) -> bool:
    """Whether R has the authors' weights."""
    return str(column.data.values["regularizer"]).endswith(WEIGHTS)


def printed_runs(found: SideBySide, values: InpaintingSettings) -> dict[str, Run]:
    """The paper's methods with its step sizes, by its names."""
    first = values.competitors[:4]
    return {label: found.runs[each.key] for label, each in zip(PAPER, first, strict=True)}


def searched_runs(found: SideBySide) -> dict[str, Run]:
    """The best of the searches."""
    return {
        "Proposed": found.runs["searched"],
        "SM-C": found.best("sm-c", printed=False),
        "SM-D": found.best("sm-d", printed=False),
    }


def time_comparisons(theirs: Times, times: Times, values: InpaintingSettings) -> list[Comparison]:
    """Beside the paper's Table 1: seconds, then speed-ups; ours is our default throughout."""
    keys = dict(zip(PAPER_SECONDS, (each.key for each in values.competitors), strict=False))
    whose, other = "As the authors", ""
    if theirs is times:
        whose, other = "As the authors, with our R", OTHER_NETWORK
    default, rows = times.mean("default"), []
    for name, key in keys.items():
        remark = f"{whose}: {theirs.iterations_text(key)}, another machine. "
        if not theirs.all_reached(key):
            goal = f"{values.race.error:g} within {values.race.iterations} iterations"
            remark = f"{whose}: {theirs.reached(key)} images reach an error of {goal}. "
        remark += "Ours: our default"
        if (better := times.fastest(PRINTED_FAMILIES[name])) is not None:
            remark += f"; {times.label(better)}: {number(times.mean(better))} s"
        rows.append(
            Comparison(
                f"{times.label(key)}, time", PAPER_SECONDS[name], default,
                theirs.mean(key) or math.inf, 0.0, f"{remark}.", times.deviation("default"),
                theirs.deviation(key), other,
            )
        )  # fmt: skip
    for name, printed in PAPER_SPEED_UP.items():
        faster = theirs.speed_up("proposed", keys[name])
        ours = times.speed_up("default", keys[name])
        remark = f"{whose}: of Proposed. Ours: of our default"
        remark += (
            "." if ours else f"; with our R, {times.label(keys[name])} does not reach the error."
        )
        quantity, tolerance = f"Speed-up over {name.upper()}", 0.25 * printed.value
        rows.append(
            Comparison(quantity, printed, ours or math.inf, faster or math.inf, tolerance, remark,
                       other=other)
        )  # fmt: skip
    return rows


PRINTED_FAMILIES = {"proposed": "paper", "sm-c": "sm-c", "sm-d": "sm-d", "nmapg": "nmapg"}
"""The families of the methods of Table 1."""


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds and iterations to the error, by the key of the method.

    Means are None unless all images reached the error: a mean over some of them would flatter.
    """

    parts: Parts

    @classmethod
    def of(cls, parts: Parts, prefix: str = "") -> Times:
        """All methods that were timed, in the parts of a prefix."""
        timed = [part for name, part in parts.items() if name.startswith(f"{prefix}time-")]
        return cls({part.values["key"]: part for part in timed})

    def label(self, key: str) -> str:
        """The label of a method."""
        return str(self.parts[key].values["label"])

    def all_reached(self, key: str) -> bool:
        """Whether all images reached the error."""
        return self.mean(key) is not None

    def reached(self, key: str) -> str:
        """How many images reached the error."""
        steps = self._values(key, "iterations")
        return f"{np.isfinite(steps).sum()} of {len(steps)}"

    def iterations_text(self, key: str) -> str:
        """The mean number of iterations."""
        return f"{self._values(key, 'iterations').mean():.0f} iterations"

    def mean(self, key: str) -> float | None:
        """Seconds, mean over the images."""
        return _known(self._values(key, "seconds").mean())

    def deviation(self, key: str) -> float | None:
        """The standard deviation of the seconds over the images, if there are several."""
        seconds = self._values(key, "seconds")
        return _known(seconds.std(ddof=1)) if len(seconds) > 1 else None

    def speed_up(self, key: str, over: str) -> float | None:
        """The factor by which ``over`` takes longer than ``key``, mean over the images."""
        return _known((self._values(over, "seconds") / self._values(key, "seconds")).mean())

    def fastest(self, family: str) -> str | None:
        """The key of the fastest with step sizes that are not the paper's."""
        means = {
            key: mean
            for key, part in self.parts.items()
            if part.values["family"] == family and not part.values["printed"]
            if (mean := self.mean(key)) is not None
        }
        return min(means, key=means.__getitem__) if means else None

    def table(self, name: str = "times", faster: Sequence[str] = tuple(FASTER)) -> Table:
        """Mean and deviation of seconds, iterations, speed-ups, and counts of images."""
        rows = []
        for key, part in self.parts.items():
            deviation, steps = self.deviation(key), self._values(key, "iterations")
            rows.append(
                (
                    self.label(key) + ("" if part.values["printed"] else " *"),
                    number(self.mean(key)) + (f" ± {number(deviation)}" if deviation else ""),
                    "-" if np.isnan(steps).any() else f"{steps.mean():.0f}",
                    *(number(self.speed_up(ours, key)) for ours in faster),
                    self.reached(key),
                )
            )
        factors = (f"{FASTER[ours]} is faster" for ours in faster)
        return Table(name, ("Method", "Seconds", "Iterations", *factors, "Reached"), tuple(rows))

    def as_plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [dict(part.values) for part in self.parts.values()]

    def _values(self, key: str, name: str) -> Array:
        """Of all images; NaN where the error was not reached."""
        return np.array(self.parts[key].values[name], dtype=float)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
