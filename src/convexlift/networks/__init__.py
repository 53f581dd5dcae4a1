"""Input-convex neural networks: activations, linear maps, layers, ready-made architectures."""

# Not used here: their classes register themselves, so that files may name them.
from convexlift.networks import quadratic_spline as _quadratic_spline  # noqa: F401
from convexlift.networks.adaptive import AdaptiveNetwork as AdaptiveNetwork
from convexlift.networks.adaptive import ConditionedNetwork as ConditionedNetwork
from convexlift.networks.architectures import TotalVariation as TotalVariation
from convexlift.networks.architectures import adaptive as adaptive
from convexlift.networks.architectures import baseline as baseline
from convexlift.networks.architectures import convolutional as convolutional
from convexlift.networks.architectures import deep as deep
from convexlift.networks.architectures import ridge as ridge
from convexlift.networks.guides import Guide as Guide
from convexlift.networks.guides import NoiseGuide as NoiseGuide
from convexlift.networks.guides import UNetGuide as UNetGuide
from convexlift.networks.maps import AveragePool as AveragePool
from convexlift.networks.maps import Chain as Chain
from convexlift.networks.maps import Convolution as Convolution
from convexlift.networks.maps import Dense as Dense
from convexlift.networks.maps import ForwardDifferences as ForwardDifferences
from convexlift.networks.maps import LinearMap as LinearMap
from convexlift.networks.maps import PixelSum as PixelSum

__all__ = [
    "AdaptiveNetwork",
    "AveragePool",
    "Chain",
    "ConditionedNetwork",
    "Convolution",
    "Dense",
    "ForwardDifferences",
    "Guide",
    "LinearMap",
    "NoiseGuide",
    "PixelSum",
    "TotalVariation",
    "UNetGuide",
    "adaptive",
    "baseline",
    "convolutional",
    "deep",
    "ridge",
]
