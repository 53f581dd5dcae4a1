"""Sections 5.2 and 5.2.1: sparse-view tomography,  min_x  D(A x, y) + gamma R(x)  over x >= 0.

D is the Kullback-Leibler divergence of Poisson data behind the paper's scanner. Energy, PSNR, data
term and regularizer against iterations for the proposed method and the subgradient methods, and
pictures after 50 and 500 iterations; ``ct`` with the paper's baseline network, ``ct-deep`` with

    R(x) = W_4 h_4(W_3 P z_3 + b_3),  z_3 = h_3(W_2 z_2 + b_2),  z_2 = h_2(W_1 z_1 + b_1),

z_1 = h_1(V_0 x + b_0): the lift gets an epigraph more for each layer, and five step sizes c. The
authors released the slice of their figure, with its counts, but not these weights: the regularizer
is trained first, with the paper's architecture, on the slices there are. The released slice is
reconstructed from its counts where a user has it (``authors``).
"""

from __future__ import annotations

from dataclasses import replace

import convexlift as cl
from experiments.catalogue import HEADINGS
from experiments.common_steps import L_BFGS
from experiments.document import OTHER_NETWORK, psnr
from experiments.runner import Experiment
from experiments.tomography.report import report
from experiments.tomography.slices import SliceCounts
from experiments.tomography.steps import Story, TomographySettings, steps

BASELINE_NUMBERS = "5.2, its baseline"
FIGURE = "5.2, visual comparison"
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
BASELINE = TomographySettings(
    STORY,
    preset="paper-ct",  # learning rate 2e-5, penalty 30, batches of 20, 20 epochs: section 5.2
    gamma=600.0,  # section 5.2, Parameters
    c=(500.0, 100.0, 0.1),  # section 5.2, Parameters
    shipped="ct-abdomen-chest",
)
BASELINE_QUICK = replace(
    BASELINE, size=128, counts=SliceCounts(training=48, validation=4, test=2), steps=150,
    batch_size=4,
    # At this size only the sharpest filter leaves back projections rougher than clean slices,
    # and a critic of smoother ones learns to roughen.
    filter="ram-lak", as_printed=False,
    validation_stop=cl.StopWhen(gap=1e-2, max_iterations=60),
    test_stop=cl.StopWhen(gap=1e-2, max_iterations=200),
    sm_c=(1e-3,), sm_d=(1e-2,), every=10, iterations=250,
    reference=cl.StopWhen(gap=1e-4, max_iterations=500),
    search_iterations=60, tries_c=4, tries_step=3, released_iterations=50,
)  # fmt: skip

CT = Experiment(
    *HEADINGS["ct"],
    BASELINE, BASELINE_QUICK, steps, report,
)  # fmt: skip

# The solver that ``cl.solve`` takes for smooth networks of three layers.
SMOOTH_DEEP = replace(L_BFGS, key="default", label="Our default", own_start=True)

DEEP_STORY = Story(
    title="Sparse-view tomography with a deeper network (section 5.2.1)",
    network="the paper's deeper one: three convolutions of 32 filters of 5 x 5, pooling, a dense "
    "layer of 256 units",
    # The paper has curves of this network, but prints no number: these are its baseline's.
    paper_data=replace(STORY.paper_data, where=BASELINE_NUMBERS),
    paper={
        method: (replace(early, where=BASELINE_NUMBERS), replace(late, where=BASELINE_NUMBERS))
        for method, (early, late) in STORY.paper.items()
    },
    remark="The paper prints no PSNR for this network and says only that it is on par with the "
    "baseline or slightly worse. The printed numbers in the table are those of its baseline; our "
    "numbers for the baseline are in the report of `ct`.",
    other=OTHER_NETWORK,
)
DEEP = TomographySettings(
    DEEP_STORY,
    preset="paper-ct-deep",  # as for the baseline, with a penalty of 20: section 5.2.1
    gamma=650.0,  # section 5.2.1, Parameters
    c=(500.0, 100.0, 5.0, 0.5, 0.1),  # section 5.2.1, Parameters
    shipped="ct-abdomen-chest-deep",
    # A step costs many times one of the baseline: fewer and smaller ones, and fewer test slices.
    steps=300, batch_size=8, printed_epochs=20,
    counts=SliceCounts(training=None, validation=4, test=5),
    validation_stop=cl.StopWhen(gap=1e-2, max_iterations=60),
    reference=cl.StopWhen(gap=1e-5, max_iterations=1500),
    tries_step=4, every=10, released_method=SMOOTH_DEEP,
)  # fmt: skip
DEEP_QUICK = replace(
    BASELINE_QUICK, story=DEEP_STORY, preset=DEEP.preset, gamma=DEEP.gamma, c=DEEP.c,
    shipped=DEEP.shipped, size=64, counts=SliceCounts(training=48, validation=2, test=2), steps=60,
    iterations=150, validation_stop=cl.StopWhen(gap=1e-2, max_iterations=40),
    test_stop=cl.StopWhen(gap=1e-2, max_iterations=120),
    search_iterations=40, reference=cl.StopWhen(gap=1e-4, max_iterations=300),
    released_method=SMOOTH_DEEP,
)  # fmt: skip

CT_DEEP = Experiment(*HEADINGS["ct-deep"], DEEP, DEEP_QUICK, steps, report)
