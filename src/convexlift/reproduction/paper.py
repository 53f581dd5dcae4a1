"""Numbers that the paper prints, each with its place there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """A number of the paper.

    Attributes:
        value: as printed.
        where: section, table or figure.
        unit: of the value, if it has one.
        deviation: its standard deviation, if printed.
    """

    value: float
    where: str
    unit: str = ""
    deviation: float | None = None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:g}"
        return f"{self.value:.2f}{spread}"


def psnr(value: float, where: str) -> Printed:
    """A PSNR in dB."""
    return Printed(value, where, "dB")
