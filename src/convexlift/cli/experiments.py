"""``convexlift reproduce`` and ``convexlift benchmark``: launchers of the folder ``experiments``.

The paper's experiments and the benchmark of methods belong to the repository and are not in the
wheel. In a checkout their commands are registered here with all their options. Elsewhere the
folder is searched for in the current directory, and only when one of the commands is called: no
other command imports code from the current directory.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import convexlift
from convexlift.cli.app import COMMANDS, Interrupted, UserError, app, computes, one_sentence_errors
from convexlift.cli.app import register as command_with_examples

PACKAGES = Path(convexlift.__file__).parents[1]
EXAMPLES = {
    "reproduce": "convexlift reproduce denoising --quick\nconvexlift reproduce all --data DIR",
    "benchmark": "convexlift benchmark --quick\nconvexlift benchmark --help",
}
CHECKOUT = PACKAGES.parent if PACKAGES.name == "src" else None
"""The root of the repository, if the package is used from a checkout."""


def load_commands(root: Path) -> ModuleType:
    """The module ``experiments.commands`` of a repository."""
    if not (root / "experiments" / "commands.py").is_file():
        raise UserError(
            "The experiments are not part of the installed package. Clone the repository of "
            "convexlift and run this command in its folder."
        )
    sys.path.insert(0, str(root))
    try:
        return importlib.import_module("experiments.commands")
    finally:
        sys.path.remove(str(root))


def guarded(commands: ModuleType, command: Callable[..., None]) -> Callable[..., None]:
    """A command of ``experiments`` with one-sentence errors and the usual exit codes."""

    @computes
    @functools.wraps(command)
    def run(*, debug: bool, **options: Any) -> None:
        import torch  # noqa: F401 - takes seconds, in which Ctrl-C must end the process at once

        with one_sentence_errors(debug):
            try:
                command(debug=debug, **options)
            except commands.BadInput as error:
                raise UserError(str(error)) from error.__cause__
            except KeyboardInterrupt as error:
                if not error.args:
                    raise
                raise Interrupted(str(error)) from None  # it says which results are kept

    return run


def register(name: str) -> None:
    """Add a command to the application: the real one in a checkout, elsewhere a launcher."""
    if CHECKOUT is not None and (CHECKOUT / "experiments" / "commands.py").is_file():
        commands = load_commands(CHECKOUT)
        command_with_examples(EXAMPLES[name], name)(guarded(commands, getattr(commands, name)))
        return

    def launch(context: typer.Context) -> None:
        with one_sentence_errors(debug=False):
            commands = load_commands(Path.cwd())
        inner = typer.Typer(pretty_exceptions_enable=False)
        inner.command(name)(guarded(commands, getattr(commands, name)))
        inner(args=context.args, prog_name=f"convexlift {name}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=COMMANDS[name], add_help_option=False, context_settings=anything)(launch)


for _name in ("reproduce", "benchmark"):
    register(_name)
