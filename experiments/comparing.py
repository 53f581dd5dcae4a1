"""Runs on the same problems side by side: the best of them, tables, panels and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.document import (
    OTHER_DATA,
    Comparison,
    Printed,
    Table,
    number,
    percent,
    small,
)
from experiments.figures import Line, Panel, Tile
from experiments.measuring import Curve
from experiments.runner import Array, Part, Parts


@dataclass(frozen=True, eq=False)
class Optimum:
    """Bounds of the optimal objective of each image."""

    objective: Array  # the least that any run found, (B,)
    bound: Array  # the best certified lower bound, (B,)

    @property
    def gap(self) -> Array:
        """The certified relative accuracy of ``objective``; smaller errors mean little, (B,)."""
        # Where both agree to rounding, the bound may come out above.
        return np.asarray(np.maximum(self.objective - self.bound, 0.0) / np.abs(self.objective))

    @classmethod
    def of(cls, found: Sequence[Curve], reference: Part | None = None) -> Optimum:
        """From all runs on the same problems, and the reference if there is one."""
        images = max((curve.objective.shape[1] for curve in found), default=0)
        objective, bound = np.full(images, np.nan), np.full(images, np.nan)
        if reference is not None:
            objective = np.asarray(reference.values["objective"], dtype=float)
            bound = objective - np.asarray(reference.values["gap"]) * np.abs(objective)
        for curve in found:
            first = slice(curve.objective.shape[1])
            least = np.fmin.reduce(curve.objective, axis=0)
            highest = np.fmax.reduce(curve.lower_bound, axis=0)
            objective[first] = np.fmin(objective[first], least)
            bound[first] = np.fmax(bound[first], highest)
        return cls(objective, bound)

    def error(self, curve: Curve) -> Array:
        """The relative objective error of current images, (K, B)."""
        return curve.error(self.objective[: curve.objective.shape[1]])

    def certified(self, curve: Curve) -> Array:
        """(objective - bound) / |objective|: a bound of the error, (K, B)."""
        bound = self.bound[: curve.objective.shape[1]]
        return np.asarray((curve.objective - bound) / np.abs(curve.objective))


@dataclass(frozen=True, eq=False)
class Run:
    """A curve with its method."""

    key: str
    label: str
    family: str
    printed: bool
    parameters: tuple[float, ...]
    curve: Curve

    @classmethod
    def of(cls, part: Part) -> Run:
        """From the part of a curve."""
        values = part.values
        return cls(
            values["key"], values["label"], values["family"], values["printed"],
            tuple(values["parameters"]), Curve.of(part),
        )  # fmt: skip

    @property
    def steps_text(self) -> str:
        """The step sizes."""
        values = ", ".join(f"{value:g}" for value in self.parameters)
        return f"c = ({values})" if len(self.parameters) > 1 else f"step {values}"


@dataclass(frozen=True, eq=False)
class SideBySide:
    """All runs of an experiment, and bounds of the optimum."""

    runs: Mapping[str, Run]  # by key
    optimum: Optimum  # for each image
    weight: float  # of the regularizer
    early: int  # iterations after which the paper shows pictures, the first time
    late: int  # and the second

    @classmethod
    def of(cls, parts: Parts, early: int, late: int, prefix: str = "") -> SideBySide:
        """From ``data``, ``reference`` if it is there, and all curves with a prefix."""
        curves = [part for name, part in parts.items() if name.startswith(f"{prefix}curve-")]
        runs = [Run.of(part) for part in curves]
        optimum = Optimum.of([run.curve for run in runs], parts.get(f"{prefix}reference"))
        weight = float(parts[f"{prefix}data"].values["weight"])
        return cls({run.key: run for run in runs}, optimum, weight, early, late)

    def family(self, family: str, *, printed: bool | None = None) -> list[Run]:
        """Its runs in their order; with ``printed``, only with the paper's step sizes or others."""
        return [
            run
            for run in self.runs.values()
            if run.family == family and printed in (None, run.printed)
        ]

    def best(self, family: str, *, printed: bool | None = None) -> Run:
        """The run with the lowest objective in the end, mean over the images."""
        return min(self.family(family, printed=printed), key=self._final)

    def psnr(self, run: Run, iteration: int) -> float:
        """Mean over the images."""
        return float(run.curve.psnr[run.curve.at(iteration)].mean())

    def psnr_deviation(self, run: Run, iteration: int) -> float | None:
        """Over the images, if there are several."""
        values = run.curve.psnr[run.curve.at(iteration)]
        return float(values.std(ddof=1)) if len(values) > 1 else None

    def error(self, run: Run, iteration: int) -> float:
        """Mean relative objective error of the current images."""
        return float(self.optimum.error(run.curve)[run.curve.at(iteration)].mean())

    def error_text(self, run: Run, iteration: int) -> str:
        """The mean objective error, as far as the optimum is known."""
        known, error = float(self.optimum.gap.max()), self.error(run, iteration)
        return f"less than {percent(known)}" if error < known else percent(error)

    def certified(self, run: Run, iteration: int) -> float:
        """The largest certified distance to the optimum, with the best bound known."""
        return float(self.optimum.certified(run.curve)[run.curve.at(iteration)].max())

    def own_gap(self, run: Run, iteration: int) -> float:
        """The largest gap that the run certifies by itself."""
        return float(run.curve.gap[run.curve.at(iteration)].max())

    def iterations_to(self, run: Run, error: float) -> float | None:
        """Mean over the images of the first check below an error; None if an image has none."""
        below = self.optimum.error(run.curve) <= error
        if not below.any(axis=0).all():
            return None
        return float(run.curve.iteration[below.argmax(axis=0)].mean())

    def table(self, error: float = 1e-3) -> Table:
        """Objective error, certified distance, own gap and PSNR of all runs at both moments."""
        moments, rows = (self.early, self.late), []
        for run in self.runs.values():
            cells: list[str] = [run.label + ("" if run.printed else " *")]
            for value in (self.error, self.certified, self.own_gap):
                cells += [small(value(run, k)) for k in moments]
            needed = self.iterations_to(run, error)
            cells.append("-" if needed is None else f"{needed:.0f}")
            rows.append((*cells, *(number(self.psnr(run, k)) for k in moments)))
        columns = [f"{title}, {k}" for title in ("Error", "Certified", "Own gap") for k in moments]
        qualities = [f"PSNR, {k}" for k in moments]
        return Table(
            "methods", ("Method", *columns, f"Iter. to {error:g}", *qualities), tuple(rows)
        )

    @property
    def all_printed(self) -> bool:
        """Whether all runs have step sizes of the paper."""
        return all(run.printed for run in self.runs.values())

    def panel(self, quantity: str, runs: Sequence[Run], name: str = "") -> Panel:
        """A quantity of ``PANELS`` of the first image against iterations, for some runs."""
        title, label, log, value = PANELS[quantity]
        limits: tuple[float, float] | None = None
        lines = [
            Line(run.curve.iteration, value(self, run.curve)[:, 0], run.family, run.label, shade)
            for run, shade in self._shaded(runs)
        ]
        first = max(float(value(self, run.curve)[0, 0]) for run in runs)
        if quantity == "objective":
            optimum = float(self.optimum.objective[0])
            margin = 0.05 * (first - optimum)
            limits = (optimum - margin, first + margin)
        elif quantity == "error":
            limits = (1e-6, 2.0 * max(first, 0.5))
        elif quantity == "gap":
            limits = (1e-5, 5.0)
        elif quantity == "psnr":
            limits = psnr_limits([line.y for line in lines])
        unknown = float(self.optimum.gap[0]) if quantity == "error" else None
        return Panel(f"{title}, {name}" if name else title, label, lines, log, limits,
                     (self.early, self.late), unknown=unknown)  # fmt: skip

    def panels(self, columns: Mapping[str, Sequence[Run]], *quantities: str) -> list[list[Panel]]:
        """A row for each quantity, a column for each name and its runs."""
        return [
            [self.panel(quantity, runs, name) for name, runs in columns.items()]
            for quantity in quantities
        ]

    def proof_panels(self, runs: Sequence[Run]) -> list[Panel]:
        """The objective error of runs, beside the gap that they certify themselves."""
        return [self.panel(quantity, runs) for quantity in ("error", "gap")]

    def psnr_and_objective(self, runs: Sequence[Run]) -> list[Panel]:
        """The PSNR of runs, beside their objective."""
        return [self.panel(quantity, runs) for quantity in ("psnr", "objective")]

    def without_box(self, parts: Parts) -> list[tuple[str, float, float]]:
        """The changes of the last objective (relative) and PSNR in runs without the box."""
        found = []
        for name, part in parts.items():
            if name.startswith("unbounded-"):
                free, inside = Curve.of(part), self.runs[part.values["key"]].curve
                before, after = inside.objective[-1, 0], free.objective[-1, 0]
                quality = free.psnr[-1, 0] - inside.psnr[-1, 0]
                found.append((part.values["label"], (after - before) / abs(before), quality))
        return found

    def as_plain(self) -> list[dict[str, Any]]:
        """Numbers of all runs at both moments, for JSON."""
        return [
            {
                "method": run.label,
                "parameters": list(run.parameters),
                "printed": run.printed,
                "iterations_to_1e-3": self.iterations_to(run, 1e-3),
                "at": [
                    {
                        "iteration": k,
                        "objective_error": self.error(run, k),
                        "certified": self.certified(run, k),
                        "own_gap": self.own_gap(run, k),
                        "psnr": self.psnr(run, k),
                    }
                    for k in (self.early, self.late)
                ],
            }
            for run in self.runs.values()
        ]

    def _shaded(self, runs: Sequence[Run]) -> list[tuple[Run, float]]:
        """Members of one family in shades of its colour."""
        found = []
        for run in runs:
            members = [each for each in runs if each.family == run.family]
            found.append((run, 0.62 * members.index(run) / max(len(members) - 1, 1)))
        return found

    def _final(self, run: Run) -> float:
        best = np.fmin.reduce(run.curve.objective, axis=0)
        return float(np.where(np.isfinite(best), best, np.inf).mean())

    def tiles(self, data: Part, runs: Mapping[str, Run]) -> list[list[Tile]]:
        """Above the truth and pictures after few iterations, below the data and after many."""
        above = [Tile("Ground truth", data.arrays["clean"])]
        below = [Tile("Data", data.arrays["picture"], f"{data.values['psnr'][0]:.2f}")]
        for label, run in runs.items():
            for row, iteration in ((above, self.early), (below, self.late)):
                quality = float(run.curve.psnr[run.curve.at(iteration), 0])
                title, picture = f"{label}, {iteration} iter.", run.curve.picture(iteration)
                row.append(Tile(title, picture, f"{quality:.2f}"))
        return [above, below]


PANELS: dict[str, tuple[str, str, bool, Callable[[SideBySide, Curve], Array]]] = {
    "objective": ("Objective", "objective", False, lambda found, curve: curve.objective),
    "error": ("Objective error", "relative objective error", True,
              lambda found, curve: found.optimum.error(curve)),
    "psnr": ("PSNR", "PSNR, dB", False, lambda found, curve: curve.psnr),
    "gap": ("Certified gap", "certified relative gap", True, lambda found, curve: curve.gap),
    "data": ("Data term", "data term D", True, lambda found, curve: curve.data_term),
    "regularizer": ("Regularizer", "gamma R", False,
                    lambda found, curve: found.weight * curve.regularizer),
}  # fmt: skip
"""Title, label of the axis, whether it is logarithmic, and values (K, B) of each quantity."""


def psnr_limits(curves: Sequence[Array]) -> tuple[float, float] | None:
    """From 0 dB where a curve falls below, so that it does not flatten the others."""
    values = np.concatenate([each[np.isfinite(each)] for each in curves])
    return (0.0, max(1.05 * float(values.max()), 1.0)) if (values < 0).any() else None


@dataclass(frozen=True, eq=False)
class Column:
    """Runs for one column of a comparison with the paper's pictures."""

    found: SideBySide  # all runs; ``early`` and ``late`` are the iterations of the pictures
    data: Part  # the part of the data
    runs: Mapping[str, Run]  # by the paper's names of the methods
    note: str = ""  # the network, or what else a reader must know
    data_note: str = ""  # the same of the data
    other: str = ""  # see ``Comparison``

    def data_psnr(self) -> float:
        """Of the data, mean over the images."""
        return float(np.mean(self.data.values["psnr"]))

    def psnr(self, label: str, late: bool) -> float | None:
        """Of one picture, mean over the images; None without such a run."""
        run = self.runs.get(label)
        return None if run is None else self.found.psnr(run, self._moment(late))

    def text(self, label: str, late: bool) -> str:
        """Steps, iterations and note of one picture."""
        run, k = self.runs[label], self._moment(late)
        steps = run.steps_text if run.parameters else run.label.lower()
        return ", ".join(filter(None, [steps, f"{k} iterations", self.note]))

    def tiles(self, runs: Mapping[str, Run] | None = None) -> list[list[Tile]]:
        """Pictures of its runs, under their names or others."""
        return self.found.tiles(self.data, runs or self.runs)

    def _moment(self, late: bool) -> int:
        return self.found.late if late else self.found.early


def psnr_comparisons(
    paper_data: Printed,
    paper: Mapping[str, tuple[Printed, Printed]],
    moments: tuple[int, int],
    authors: Column | None,
    ours: Column | None,
) -> list[Comparison]:
    """PSNR of data and reconstructions beside the corners of the paper's pictures.

    Args:
        paper_data: the paper's PSNR of its data.
        paper: PSNR after few and after many iterations, by the paper's names of the methods.
        moments: those iterations, as the paper prints them.
        authors: the runs with the authors' choices, if there are any.
        ours: the runs with our choices, if there are any.
    """
    columns = {
        name: column
        for name, column in (("As the authors", authors), ("Ours", ours))
        if column is not None
    }
    faithful = all(column.data.values["faithful"] for column in columns.values())
    notes = [f"{name}: {each.data_note}." for name, each in columns.items() if each.data_note]
    rows = [
        Comparison(
            "Data", paper_data, None if ours is None else ours.data_psnr(),
            None if authors is None else authors.data_psnr(), 0.05, " ".join(notes),
            other="" if faithful else OTHER_DATA,
        )
    ]  # fmt: skip
    for label, printed in paper.items():
        shown = {name: column for name, column in columns.items() if label in column.runs}
        other = next((column.other for column in shown.values()), "") if faithful else OTHER_DATA
        for late in (False, True):
            remarks = [f"{name}: {column.text(label, late)}." for name, column in shown.items()]
            if "Ours" in columns and "Ours" not in shown:
                remarks.append("Ours: only our default was run.")
            rows.append(
                Comparison(
                    f"{label}, {moments[late]} iterations", printed[late],
                    None if ours is None else ours.psnr(label, late),
                    None if authors is None else authors.psnr(label, late),
                    remark=" ".join(remarks), other=other,
                )
            )  # fmt: skip
    return rows
