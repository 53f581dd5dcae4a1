"""Section 5.2: sparse-view tomography with Poisson noise and the paper's baseline network.

Energy, PSNR, data term and regularizer against iterations for the proposed method and the
subgradient methods, and pictures after 50 and 500 iterations.
"""

from __future__ import annotations

from dataclasses import replace

import convexlift as cl
from experiments.document import psnr
from experiments.runner import Experiment
from experiments.tomography.report import report
from experiments.tomography.slices import SliceCounts
from experiments.tomography.steps import Story, TomographySettings, steps

FIGURE = "Fig. Visual comparison, 5.2"
STORY = Story(
    title="Sparse-view tomography (section 5.2)",
    paper_data=psnr(21.29, FIGURE),
    paper={  # PSNR in the corners of its pictures, after 50 and after 500 iterations
        "Proposed": (psnr(31.06, FIGURE), psnr(31.16, FIGURE)),
        "SM-C": (psnr(26.19, FIGURE), psnr(31.16, FIGURE)),
        "SM-D": (psnr(26.67, FIGURE), psnr(29.06, FIGURE)),
    },
    network="the paper's baseline: 32 filters of 5 x 5, pooling, a dense layer of 256 units",
)
FULL = TomographySettings(
    STORY,
    preset="paper-ct",  # learning rate 2e-5, penalty 30, batches of 20, 20 epochs: section 5.2
    gamma=600.0,  # section 5.2, Parameters
    c=(500.0, 100.0, 0.1),  # section 5.2, Parameters
    shipped="ct-abdomen-chest",
)
QUICK = replace(
    FULL, size=128, counts=SliceCounts(training=48, validation=4, test=2), steps=150, batch_size=4,
    # At this size only the sharpest filter leaves back projections rougher than clean slices,
    # and a critic of smoother ones learns to roughen.
    filter="ram-lak", as_printed=False,
    validation_stop=cl.StopWhen(gap=1e-2, max_iterations=60),
    test_stop=cl.StopWhen(gap=1e-2, max_iterations=200),
    sm_c=(1e-3, 5e-3), sm_d=(1e-2, 7e-2), every=10,
    reference=cl.StopWhen(gap=1e-4, max_iterations=500),
    search_iterations=100, tries_c=6, tries_step=3,
)  # fmt: skip

EXPERIMENT = Experiment(
    "ct", "Sparse-view tomography, Poisson noise", "section 5.2", FULL, QUICK, steps, report
)
