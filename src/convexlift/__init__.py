"""Image reconstruction with learned convex regularizers, and a proof with every image.

min_x  D(A x, y) + weight R(x),    R an input-convex neural network.
"""

import logging as _logging

from convexlift import startup as _startup

if _startup.is_the_command_line():  # before the imports that take long
    _startup.end_on_interrupt()

from convexlift import models as models
from convexlift import networks as networks
from convexlift import scans as scans
from convexlift.checks import CheckFailed as CheckFailed
from convexlift.checks import check_activation as check_activation
from convexlift.checks import check_functional as check_functional
from convexlift.checks import check_operator as check_operator
from convexlift.functionals.box import Box as Box
from convexlift.functionals.fidelity import L1 as L1
from convexlift.functionals.fidelity import Fidelity as Fidelity
from convexlift.functionals.fidelity import KullbackLeibler as KullbackLeibler
from convexlift.functionals.fidelity import SquaredL2 as SquaredL2
from convexlift.functionals.weighted import WeightedL2 as WeightedL2
from convexlift.models.cards import ModelCard as ModelCard
from convexlift.models.store import load as load
from convexlift.models.store import save as save
from convexlift.networks.activations import Abs as Abs
from convexlift.networks.activations import Activation as Activation
from convexlift.networks.activations import LeakyReLU as LeakyReLU
from convexlift.networks.activations import ReLU as ReLU
from convexlift.networks.exponential_activations import ELU as ELU
from convexlift.networks.exponential_activations import Softplus as Softplus
from convexlift.networks.group_activations import GroupNorm as GroupNorm
from convexlift.networks.icnn import ConvexLayer as ConvexLayer
from convexlift.networks.icnn import InputConvexNetwork as InputConvexNetwork
from convexlift.networks.smooth_activations import HalfSquare as HalfSquare
from convexlift.networks.smooth_activations import Huber as Huber
from convexlift.networks.smooth_activations import SmoothActivation as SmoothActivation
from convexlift.networks.smooth_activations import SmoothedLeakyReLU as SmoothedLeakyReLU
from convexlift.networks.smooth_activations import SmoothedReLU as SmoothedReLU
from convexlift.networks.total_variation import TotalVariation as TotalVariation
from convexlift.operators.imaging import Blur as Blur
from convexlift.operators.imaging import Mask as Mask
from convexlift.operators.linear import Composition as Composition
from convexlift.operators.linear import Identity as Identity
from convexlift.operators.linear import LinearOperator as LinearOperator
from convexlift.operators.linear import Scaled as Scaled
from convexlift.operators.linear import Sum as Sum
from convexlift.operators.tomography.beams import FanBeam as FanBeam
from convexlift.operators.tomography.beams import ParallelBeam as ParallelBeam
from convexlift.operators.tomography.filtered_backprojection import fbp as fbp
from convexlift.problems.certificate import Certificate as Certificate
from convexlift.problems.certificate import certify as certify
from convexlift.problems.claims import Guarantee as Guarantee
from convexlift.problems.lifting import lift as lift
from convexlift.problems.saddle import SaddlePointProblem as SaddlePointProblem
from convexlift.problems.variational import VariationalProblem as VariationalProblem
from convexlift.proof_checker import ProofRejected as ProofRejected
from convexlift.proof_checker import verify as verify
from convexlift.proofs import Proof as Proof
from convexlift.reconstruction.call import reconstruct as reconstruct
from convexlift.reconstruction.result import Reconstruction as Reconstruction
from convexlift.solvers.lbfgs import LBFGS as LBFGS
from convexlift.solvers.nmapg import NMAPG as NMAPG
from convexlift.solvers.pdhg import PDHG as PDHG
from convexlift.solvers.solution import Progress as Progress
from convexlift.solvers.solution import Solution as Solution
from convexlift.solvers.solution import Status as Status
from convexlift.solvers.solve import solve as solve
from convexlift.solvers.step_sizes import AdaptiveSteps as AdaptiveSteps
from convexlift.solvers.step_sizes import PaperSteps as PaperSteps
from convexlift.solvers.stopping import StopWhen as StopWhen
from convexlift.solvers.subgradient import Subgradient as Subgradient
from convexlift.transmission import Counts as Counts
from convexlift.transmission import LineIntegrals as LineIntegrals
from convexlift.transmission import expected_intensity as expected_intensity
from convexlift.transmission import line_integrals as line_integrals

__version__ = "0.1.0"

_logging.getLogger(__name__).addHandler(_logging.NullHandler())
