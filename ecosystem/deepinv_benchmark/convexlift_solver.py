"""A solver for the public benchmarks of deepinv, in their benchopt protocol.

For ``cbsd500_gaussian_denoising`` and ``div2k_gaussian_deblurring`` of deepinv/benchmarks: copy it
into the folder ``solvers/`` of one of them. Every image has a certified gap of 0.1 %.
"""

import deepinv
import torch
from benchopt import BaseSolver

import convexlift as cl

DENOISING, DEBLURRING = 0.9, 0.15
"""Weights of total variation over the noise; the second was tried on one picture, blurred by a
Gaussian of 2 pixels with noise 0.05: 0.1 to 0.2 give the same PSNR within 0.2 dB."""


class Solver(BaseSolver):
    """min_x  1/2 |A x - y|^2 + weight R(x)  over [0, 1].

    R is a convex regularizer that has read the data (``photo-open-colour``), or total variation.
    By default the first for denoising, for which it was trained, and the second otherwise.
    """

    name = "convexlift"
    parameters = {"regularizer": ["default"]}  # noqa: RUF012 - as the protocol has it
    sampling_strategy = "run_once"
    requirements = ["pip::convexlift[deepinv]"]  # noqa: RUF012

    def set_objective(self, train_dataset=None, physics=None):
        """Build the model; there is nothing to train."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        denoising = isinstance(physics, deepinv.physics.Denoising)
        name = self.regularizer
        if name == "default":
            name = "photo-open-colour" if denoising else "tv"
        if name == "tv":
            regularizer = cl.TotalVariation(in_channels=3, joint=True)
            share = DENOISING if denoising else DEBLURRING
            weight = share * float(physics.noise_model.sigma)
        else:  # in units of the noise, which the model takes from the physics
            regularizer, weight = cl.load(name), 1.0
        self.model = cl.deepinv.CertifiedReconstructor(regularizer, weight, box=(0, 1)).to(device)
        self.model.device = device

    def run(self, _):
        """Nothing: the objective calls the model."""

    def get_result(self):
        """The model, which is called as model(y, physics)."""
        return {"model": self.model}
