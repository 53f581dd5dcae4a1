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
