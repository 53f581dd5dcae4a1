"""All experiments, by name."""

from __future__ import annotations

from experiments.ct import CT
from experiments.ct_deep import CT_DEEP
from experiments.denoising import DENOISING
from experiments.inpainting import INPAINTING
from experiments.study import Experiment
from experiments.training import TRAINING

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (DENOISING, CT, CT_DEEP, INPAINTING, TRAINING)
}
