"""Commands of the experiments with settings of a test."""

from __future__ import annotations

from collections.abc import Callable

import typer

from convexlift.cli.experiments import guarded
from experiments import commands


def app_of(**named: Callable[..., None]) -> typer.Typer:
    """A command line with some commands, whose errors are those of ``convexlift``."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    for name, command in named.items():
        app.command(name)(guarded(commands, command))
    return app
