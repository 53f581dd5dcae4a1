"""Choices and defaults of options that help texts show, without importing torch."""

from typing import Literal

MethodName = Literal["default", "paper", "nmapg", "lbfgs", "sm-c", "sm-d"]
NoiseKind = Literal["gaussian", "salt-and-pepper"]
Quantity = Literal["counts", "transmission", "line integrals"]
AngleUnit = Literal["degrees", "radians"]
Beam = Literal["parallel", "fan"]

WATER = 0.02059
"""mu of water in 1/mm at 60 keV, 0.2059 cm^2/g in the tables of Hubbell and Seltzer (NIST)."""
