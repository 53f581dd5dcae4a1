"""The commands that ``convexlift.cli.experiments`` registers."""

import convexlift as cl
from experiments.benchmark.cases import CASES
from experiments.benchmark_command import benchmark_command
from experiments.command_line import BadInput as BadInput
from experiments.registry import EXPERIMENTS
from experiments.reproduce_command import reproduce_command

reproduce = reproduce_command(EXPERIMENTS)
benchmark = benchmark_command(CASES, cl.METHODS)
