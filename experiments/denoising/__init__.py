"""Section 5.1: salt-and-pepper denoising,  min_x  lambda ||x - y||_1 + R(x).

The 7 x 7 ablation of the step-size parameters (c_1, c_2), the proposed method with the best pair
beside the subgradient methods, and pictures after 15 and 200 iterations.
"""

from experiments.catalogue import HEADINGS
from experiments.denoising.report import report
from experiments.denoising.steps import DenoisingSettings, steps
from experiments.runner import Experiment

EXPERIMENT = Experiment(
    *HEADINGS["denoising"],
    DenoisingSettings(), DenoisingSettings.quick(), steps, report,
)  # fmt: skip
