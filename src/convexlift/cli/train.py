"""``convexlift train adversarial`` and ``convexlift train bilevel``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter
from typing import Any, get_type_hints

import typer

from convexlift.cli.app import app, with_options
from convexlift.cli.training_options import AdversarialOptions, BilevelOptions, TrainOptions

group = typer.Typer(
    help="Train a regularizer on your own images.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(group, name="train")

DETAILS = """

Options not given are taken from the recipe of --preset.
Writes model.safetensors, model.json, log.csv and checkpoint.pt to the folder of --output.
Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
"""


def _command(kind: type[TrainOptions]) -> Callable[..., None]:
    """The command whose options are the fields of a record."""

    def command(**given: Any) -> None:
        from convexlift.cli.training_job import run_job

        run_job(kind(**given))

    hints = get_type_hints(kind, include_extras=True)
    options = {
        each.name: (Parameter.empty if each.default is MISSING else each.default, hints[each.name])
        for each in fields(kind)
    }
    return with_options(command, options)


for _name, _kind in {"adversarial": AdversarialOptions, "bilevel": BilevelOptions}.items():
    group.command(_name, help=f"{_kind.__doc__}{DETAILS}")(_command(_kind))
