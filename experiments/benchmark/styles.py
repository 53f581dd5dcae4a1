"""How methods look in figures; the same in all of them."""

from __future__ import annotations

STYLES: dict[str, tuple[str, str, float]] = {
    "default": ("#0072b2", "-", 2.4),
    "paper": ("#d55e00", "-", 1.6),
    "nmapg": ("#009e73", "--", 1.6),
    "lbfgs": ("#cc79a7", "-.", 1.6),
    "sm-c": ("#000000", ":", 1.4),
    "sm-d": ("#8a6d00", (0, (5, 1, 1, 1, 1, 1)), 1.4),  # type: ignore[dict-item]
}
"""Colour (told apart by all), line and width of each method; the same in every figure."""

FLOOR = 1e-7
"""Errors are known to the accuracy of the reference; what is below is drawn here."""
