"""All experiments of the paper, by name."""

from __future__ import annotations

from typing import Any

from experiments import denoising, inpainting, tomography, training
from experiments.runner import Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    each.name: each
    for each in (
        denoising.EXPERIMENT,
        tomography.CT,
        tomography.CT_DEEP,
        inpainting.EXPERIMENT,
        training.EXPERIMENT,
    )
}


def registered() -> dict[str, Experiment[Any]]:
    """``EXPERIMENTS``, as a function that other processes can import."""
    return EXPERIMENTS
