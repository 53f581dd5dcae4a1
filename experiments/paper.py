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


@dataclass(frozen=True)
class PaperInpainting:
    """The task and the step sizes of section 5.3, which section 5.3.1 has too."""

    missing: float = 0.3  # section 5.3
    noise: float = 0.03  # section 5.3
    c: tuple[float, float] = (0.01, 0.001)  # section 5.3, Parameters
    sm_c: float = 1.5  # section 5.3, Parameters
    sm_d: float = 50.0  # section 5.3, Parameters
    nmapg: float = 0.1  # section 5.3, Parameters
