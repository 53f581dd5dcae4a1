"""At home in deepinv: its physics as operators, and ours as its reconstructors and priors.

    physics      ->  as_operator, as_problem
    regularizer  ->  CertifiedReconstructor, RegularizerPrior

The extra ``convexlift[deepinv]`` installs deepinv.
"""

from convexlift.files.formats import load_extra

load_extra("deepinv", "adapters to deepinv", "deepinv")

from convexlift.deepinv.physics import PhysicsOperator, as_data, as_operator  # noqa: E402
from convexlift.deepinv.prior import RegularizerPrior  # noqa: E402
from convexlift.deepinv.problem import as_problem  # noqa: E402
from convexlift.deepinv.reconstructor import CertifiedReconstructor  # noqa: E402

__all__ = [
    "CertifiedReconstructor",
    "PhysicsOperator",
    "RegularizerPrior",
    "as_data",
    "as_operator",
    "as_problem",
]
