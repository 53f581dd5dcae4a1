"""All experiments, by name."""

from __future__ import annotations

from convexlift.reproduction.denoising import DENOISING
from convexlift.reproduction.inpainting import INPAINTING
from convexlift.reproduction.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (DENOISING, INPAINTING)}
