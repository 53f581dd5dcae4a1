"""Scanners of publications."""

from __future__ import annotations

from convexlift.operators.linear import Scaled
from convexlift.operators.tomography.beams import ParallelBeam

PAPER_BACKGROUND = 50.0
"""The counts r that are added to A x, in ``KullbackLeibler(y, background=r)``."""
PAPER_UNIT = 0.1
"""Integrals are divided by this, which makes the counts larger."""


def paper_scanner() -> Scaled:
    """A = (ray transform) / 0.1 of the paper's experiments in tomography.

    512 x 512 pixels over the square from -128 to 128, 200 parallel beams from 0 to before pi, 400
    bins over the diagonal. Data are Poisson numbers of A x + ``PAPER_BACKGROUND``.
    """
    return ParallelBeam(512, 200, 400, 256.0) * (1 / PAPER_UNIT)
