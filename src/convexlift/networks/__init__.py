"""Input-convex neural networks: activations, linear maps, layers, ready-made architectures."""

# Not used here: its classes register themselves, so that files may name them.
from convexlift.networks import exponential_activations as _exponential  # noqa: F401
from convexlift.networks.architectures import TotalVariation as TotalVariation
from convexlift.networks.architectures import baseline as baseline
from convexlift.networks.architectures import convolutional as convolutional
from convexlift.networks.architectures import deep as deep
from convexlift.networks.architectures import ridge as ridge
from convexlift.networks.maps import AveragePool as AveragePool
from convexlift.networks.maps import Chain as Chain
from convexlift.networks.maps import Convolution as Convolution
from convexlift.networks.maps import Dense as Dense
from convexlift.networks.maps import ForwardDifferences as ForwardDifferences
from convexlift.networks.maps import LinearMap as LinearMap

__all__ = [
    "AveragePool",
    "Chain",
    "Convolution",
    "Dense",
    "ForwardDifferences",
    "LinearMap",
    "TotalVariation",
    "baseline",
    "convolutional",
    "deep",
    "ridge",
]
