"""Runs on the same problems side by side: who is best, figures, tables and pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.curves import Curve
from experiments.figures import Line, Panel, Tile, shades
from experiments.measuring import Optimum
from experiments.parts import Array, Part
from experiments.tables import Table, number, small


@dataclass(frozen=True, eq=False)
class Run:
    """A curve with the method it is of."""

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


@dataclass(frozen=True, eq=False)
class SideBySide:
    """All runs of an experiment, and what the optimum lies between.

    Attributes:
        runs: by key.
        optimum: for each image.
        weight: of the regularizer.
        early, late: the iterations after which the paper shows pictures.
    """

    runs: Mapping[str, Run]
    optimum: Optimum
    weight: float
    early: int
    late: int

    @classmethod
    def of(cls, parts: Mapping[str, Part], early: int, late: int, prefix: str = "") -> SideBySide:
        """From ``reference``, ``data`` and all curves of the set-up with such a prefix."""
        curves = [part for name, part in parts.items() if name.startswith(f"{prefix}curve-")]
        runs = [Run.of(part) for part in curves]
        optimum = Optimum.of(parts[f"{prefix}reference"], [run.curve for run in runs])
        weight = float(parts[f"{prefix}data"].values["weight"])
        return cls({run.key: run for run in runs}, optimum, weight, early, late)

    def family(self, family: str, *, printed: bool | None = None) -> list[Run]:
        """Its runs, as they were computed; only those with the paper's step sizes, or others."""
        return [
            run
            for run in self.runs.values()
            if run.family == family and printed in (None, run.printed)
        ]

    def best(self, family: str, *, printed: bool | None = None) -> Run:
        """The one with the lowest objective after the last iteration, on average."""
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

    def certified(self, run: Run, iteration: int) -> float:
        """The largest certified distance to the optimum, with the best bound known."""
        return float(self.optimum.certified(run.curve)[run.curve.at(iteration)].max())

    def own_gap(self, run: Run, iteration: int) -> float:
        """The largest gap that the run certifies by itself."""
        return float(run.curve.gap[run.curve.at(iteration)].max())

    def iterations_to(self, run: Run, error: float) -> float | None:
        """Mean over the images of the first look at such an error; None if one never gets there."""
        below = self.optimum.error(run.curve) <= error
        if not below.any(axis=0).all():
            return None
        return float(run.curve.iteration[below.argmax(axis=0)].mean())

    def table(self, runs: Sequence[Run], name: str = "methods", error: float = 1e-3) -> Table:
        """Objective error, certified distance, own gap and PSNR at both moments."""
        rows = []
        for run in runs:
            cells: list[str] = [run.label + ("" if run.printed else " *")]
            for value in (self.error, self.certified, self.own_gap):
                cells += [small(value(run, self.early)), small(value(run, self.late))]
            needed = self.iterations_to(run, error)
            cells.append("-" if needed is None else f"{needed:.0f}")
            cells += [number(self.psnr(run, self.early)), number(self.psnr(run, self.late))]
            rows.append(tuple(cells))
        columns = ["Method"]
        for title in ("Error", "Certified", "Own gap"):
            columns += [f"{title}, {self.early}", f"{title}, {self.late}"]
        columns += [f"Iter. to {error:g}", f"PSNR, {self.early}", f"PSNR, {self.late}"]
        caption = (
            f"After {self.early} and {self.late} iterations. Error: relative objective error "
            "against the best objective known, mean over the images. Certified: how far the "
            "objective is from the best certified lower bound at most, relative to itself, the "
            "largest. Own gap: what the run proves by itself, the largest. PSNR in dB, mean."
            + ("" if all(run.printed for run in runs) else " * Not a step size of the paper.")
        )
        return Table(name, tuple(columns), tuple(rows), caption)

    def panel(
        self,
        runs: Sequence[Run],
        title: str,
        label: str,
        value: Callable[[Curve], Array],
        *,
        log: bool = True,
        limits: tuple[float, float] | None = None,
    ) -> Panel:
        """One quantity of the first image against iterations, for some runs."""
        lines = [
            Line(run.curve.iteration, value(run.curve)[:, 0], run.family, run.label, shade)
            for run, shade in self._shaded(runs)
        ]
        return Panel(title, label, lines, log, limits, (self.early, self.late))

    def error_panel(self, runs: Sequence[Run], title: str) -> Panel:
        """The relative objective error."""
        first = max(float(self.optimum.error(run.curve)[0, 0]) for run in runs)
        return replace(
            self.panel(
                runs, title, "relative objective error", self.optimum.error,
                limits=(1e-6, 2.0 * max(first, 0.5)),
            ),
            unknown=float(self.optimum.gap[0]),
        )  # fmt: skip

    def gap_panel(self, runs: Sequence[Run], title: str) -> Panel:
        """The gap that runs certify by themselves."""
        return self.panel(
            runs, title, "certified relative gap", lambda curve: curve.gap, limits=(1e-5, 5.0)
        )

    def proof_panels(self, runs: Sequence[Run]) -> list[Panel]:
        """How far from the optimum runs are, beside how far they know that they are at most."""
        return [self.error_panel(runs, "Objective error"), self.gap_panel(runs, "Certified gap")]

    def psnr_panel(self, runs: Sequence[Run], title: str) -> Panel:
        """PSNR in dB."""
        return self.panel(runs, title, "PSNR, dB", lambda curve: curve.psnr, log=False)

    def energy_panel(self, runs: Sequence[Run], title: str) -> Panel:
        """The objective itself, as the paper draws it."""
        optimum = float(self.optimum.objective[0])
        first = max(float(run.curve.objective[0, 0]) for run in runs)
        margin = 0.05 * (first - optimum)
        return self.panel(runs, title, "objective", lambda curve: curve.objective, log=False,
                          limits=(optimum - margin, first + margin))  # fmt: skip

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
            found.append((run, shades(len(members))[members.index(run)]))
        return found

    def _final(self, run: Run) -> float:
        best = np.fmin.reduce(run.curve.objective, axis=0)
        return float(np.where(np.isfinite(best), best, np.inf).mean())

    def tiles(self, data: Part, runs: Sequence[tuple[str, Run]]) -> list[list[Tile]]:
        """Above the truth and pictures after few iterations, below the data and after many."""
        above = [Tile("Ground truth", data.arrays["clean"])]
        below = [Tile("Data", data.arrays["picture"], f"{data.values['psnr'][0]:.2f}")]
        for label, run in runs:
            for row, iteration in ((above, self.early), (below, self.late)):
                quality = float(run.curve.psnr[run.curve.at(iteration), 0])
                row.append(
                    Tile(
                        f"{label}, {iteration} iter.",
                        run.curve.picture(iteration),
                        f"{quality:.2f}",
                    )
                )
        return [above, below]
