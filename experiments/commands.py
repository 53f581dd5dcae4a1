"""The commands that ``convexlift.cli.experiments`` registers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.benchmark_command import benchmark_command
from experiments.catalogue import CASES, HEADINGS, METHODS
from experiments.command_line import BadInput as BadInput
from experiments.reproduce_command import reproduce_command

if TYPE_CHECKING:
    from experiments.benchmark_command import Compared
    from experiments.runner import Experiment


def _experiments() -> "Mapping[str, Experiment[Any]]":
    from experiments.registry import EXPERIMENTS

    return EXPERIMENTS


def _compared() -> "Compared":
    import convexlift as cl
    from experiments.benchmark import cases

    return cases.CASES, cl.METHODS


reproduce = reproduce_command(HEADINGS, _experiments)
benchmark = benchmark_command(CASES, METHODS, _compared)
