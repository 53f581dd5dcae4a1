"""All experiments of the paper, by name."""

from __future__ import annotations

from typing import Any

from experiments import ct, ct_deep, denoising, inpainting, training
from experiments.runner import Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (denoising, ct, ct_deep, inpainting, training)
}
