"""Section 5.3.1: how a regularizer is trained, against how it is used; Table 2 of the paper.

    adversarial:  min_theta  R(clean) - R(damaged) + penalty
    bilevel:      min_theta  1/2 ||x(theta) - truth||^2,   x(theta) minimises the problem with R

The same smooth network for inpainting, trained adversarially and by bilevel learning with several
solvers for x(theta); each is then used with every solver. The paper's comparison of crops.
"""

from experiments.catalogue import HEADINGS
from experiments.runner import Experiment
from experiments.training.report import report
from experiments.training.steps import TrainingSettings, steps

EXPERIMENT = Experiment(
    *HEADINGS["training"],
    TrainingSettings(), TrainingSettings.quick(), steps, report,
)  # fmt: skip
