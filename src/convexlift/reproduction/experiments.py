"""All experiments, by name."""

from __future__ import annotations

from convexlift.reproduction.ct import CT
from convexlift.reproduction.ct_deep import CT_DEEP
from convexlift.reproduction.denoising import DENOISING
from convexlift.reproduction.inpainting import INPAINTING
from convexlift.reproduction.study import Experiment
from convexlift.reproduction.training import TRAINING

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (DENOISING, CT, CT_DEEP, INPAINTING, TRAINING)
}
