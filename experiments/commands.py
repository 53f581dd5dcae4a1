"""Commands of the experiments."""

from convexlift.cli.app import Interrupted as Interrupted
from convexlift.cli.app import UserError as BadInput
from experiments.benchmark_command import benchmark as benchmark
from experiments.reproduce_command import reproduce as reproduce

__all__ = ["BadInput", "Interrupted", "benchmark", "reproduce"]
