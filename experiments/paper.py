"""Numbers that the paper prints, each with its place there, and ours beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from experiments.tables import number


@dataclass(frozen=True)
class Printed:
    """A number of the paper."""

    value: float  # as printed
    where: str  # section, table or figure
    unit: str = ""  # of the value, if it has one
    deviation: float | None = None  # its standard deviation, if printed

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:g}"
        return f"{self.value:.2f}{spread}"


def psnr(value: float, where: str) -> Printed:
    """A PSNR in dB."""
    return Printed(value, where, "dB")


@dataclass(frozen=True)
class Comparison:
    """One quantity of the paper, and ours."""

    quantity: str  # its name
    paper: Printed  # the printed number
    ours: float | None  # the same quantity here; None where it was not reached or not measured
    better: Literal["higher", "lower", "neither"] = "higher"  # which direction is an improvement
    tolerance: float = 0.5  # a difference up to this counts as agreement, in the unit of the number
    remark: str = ""  # why it differs, or what a reader must know
    deviation: float | None = None  # the standard deviation of ours, if there is one
    comparable: bool = True  # whether both numbers are of the same kind of data at all

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None else self.ours - self.paper.value

    @property
    def verdict(self) -> str:
        """In a word: agrees, better, worse, higher, lower, not reached, not comparable."""
        if self.difference is None or not math.isfinite(self.difference):
            return "not reached"
        if not self.comparable:
            return "not comparable"
        if abs(self.difference) <= self.tolerance:
            return "agrees"
        higher = self.difference > 0
        if self.better == "neither":
            return "higher" if higher else "lower"
        return "better" if higher == (self.better == "higher") else "worse"

    @property
    def cells(self) -> tuple[str, ...]:
        """Quantity, place in the paper, its number, ours, difference, verdict."""
        ours, difference = "-", "-"
        if self.ours is not None and self.difference is not None:
            spread = "" if self.deviation is None else f" ± {number(self.deviation)}"
            ours, difference = f"{number(self.ours)}{spread}", f"{self.difference:+.2f}"
        unit = f", {self.paper.unit}" if self.paper.unit else ""
        verdict = self.verdict + (f": {self.remark}" if self.remark else "")
        quantity, where = f"{self.quantity}{unit}", self.paper.where
        return quantity, where, str(self.paper), ours, difference, verdict

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "quantity": self.quantity,
            "paper": self.paper.value,
            "where": self.paper.where,
            "unit": self.paper.unit,
            "ours": self.ours,
            "deviation": self.deviation,
            "difference": self.difference,
            "verdict": self.verdict,
            "remark": self.remark,
        }


@dataclass(frozen=True)
class PaperInpainting:
    """The task and the step sizes of section 5.3, which section 5.3.1 has too."""

    missing: float = 0.3  # section 5.3
    noise: float = 0.03  # section 5.3
    c: tuple[float, float] = (0.01, 0.001)  # section 5.3, Parameters
    sm_c: float = 1.5  # section 5.3, Parameters
    sm_d: float = 50.0  # section 5.3, Parameters
    nmapg: float = 0.1  # section 5.3, Parameters
