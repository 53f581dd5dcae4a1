"""Section 5.3: inpainting with a smooth network,  min_x  1/2 ||A x - y||^2 + gamma R(x).

Table 1, the time to a relative objective error of 1e-3 on 20 images; energy and PSNR against
iterations; pictures after 60 and 300 iterations.
"""

from experiments.catalogue import HEADINGS
from experiments.inpainting.report import report
from experiments.inpainting.steps import InpaintingSettings, steps
from experiments.runner import Experiment

EXPERIMENT = Experiment(
    *HEADINGS["inpainting"],
    InpaintingSettings(), InpaintingSettings.quick(), steps, report,
)  # fmt: skip
