"""The application, which imports commands on use, and the helpers that all commands share."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperGroup

import convexlift
from convexlift import startup
from convexlift import threads as processor
from convexlift.cli.help_text import Command, Group, epilog

if TYPE_CHECKING:
    import torch
    from rich.console import Console

COMMANDS = {
    "demo": "Solve three tasks on a built-in picture; half a minute on one core.",
    "doctor": "Examine the installation, and test it by a small problem with a verified proof.",
    "models": "List the shipped regularizers, or show the card of one; import published ones.",
    "reconstruct": "Reconstruct your own files, with a proof beside each result.",
    "serve": "Serve the web page: reconstruct pictures in a browser.",
    "train": "Train a regularizer on your own images.",
    "verify": "Check proof files, written by reconstruct --proof or solution.proof.save.",
}
"""Names and summaries. The module ``cli.NAME`` registers the command with ``app``."""


class Commands(Group):
    """The commands: outlines for the help text; the invoked one is imported."""

    def __init__(self, *, commands: Any = None, **more: Any) -> None:
        outlines = {name: Command(name, help=text) for name, text in COMMANDS.items()}
        super().__init__(commands=outlines | (commands or {}), **more)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to invoke, imported."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a command."""
    importlib.import_module(f"convexlift.cli.{name}")
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


F = TypeVar("F", bound=Callable[..., None])
HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=Commands,
    help="Image reconstruction with learned convex regularizers, and a proof with every image.",
    epilog=epilog(
        "convexlift doctor\nconvexlift reconstruct denoise noisy.png -o clean.png\n"
        "convexlift models photo-open\nconvexlift --install-completion"
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


def register(examples: str) -> Callable[[F], F]:
    """Decorates a function that becomes a command, with examples for its help text."""
    return app.command(cls=Command, epilog=epilog(examples))


def group_of_commands(name: str, text: str, examples: str, cls: type[Group] = Group) -> typer.Typer:
    """A group of commands inside ``app``."""
    group = typer.Typer(
        cls=cls, help=text, epilog=epilog(examples), no_args_is_help=True, context_settings=HELP
    )
    app.add_typer(group, name=name)
    return group


BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, startup.INTERRUPTED

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write the results to this file.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def _use_threads(count: int | None) -> int | None:
    try:
        processor.use(count)
    except ValueError as error:
        typer.echo(f"convexlift: --threads: {error}.", err=True)
        raise typer.Exit(BAD_INPUT) from None
    return count


Threads = Annotated[
    int | None,
    typer.Option(
        callback=_use_threads,
        help="Threads on the processor; by default OMP_NUM_THREADS, else one for each free core.",
    ),
]


class Device(StrEnum):
    """The device to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def fraction(text: str) -> float:
    """A number that may be written as a quotient, such as 25/255."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{text!r} is not a number; write 0.1 or 25/255") from error


class CommandError(Exception):
    """The end of a command: one sentence, a hint, and an exit status."""

    status: ClassVar[int]


class UserError(CommandError):
    """A mistake that the user can correct."""

    status = BAD_INPUT


class Failed(CommandError):
    """Results could not be written or reported in full."""

    status = FAILURE


class Interrupted(CommandError):
    """Interrupted by the user: the results so far, and how to continue."""

    status = INTERRUPTED


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convexlift {convexlift.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Image reconstruction with learned convex regularizers, and a proof with every image."""


@contextlib.contextmanager
def one_sentence_errors(debug: bool, *, quiet: bool = False) -> Iterator[None]:
    """One sentence and an exit status instead of a traceback, unless ``debug``.

    ``quiet`` leaves the sentence to another process, except for failures of this one.
    """
    startup.raise_on_interrupt()  # imports are done; Ctrl-C is handled here from now on
    try:
        yield
    except typer.Exit:
        raise  # an exit status chosen by the command
    except BaseException as error:
        if debug and not isinstance(error, Interrupted | Failed):
            raise
        if isinstance(error, CommandError):
            message, status = str(error), error.status
        elif isinstance(error, KeyboardInterrupt):
            message, status = "Interrupted; nothing was written.", INTERRUPTED
        else:
            message = f"{type(error).__name__}: {error}. Use --debug for details."
            status = FAILURE
        if not quiet or status == FAILURE:
            typer.echo(f"convexlift: {message}", err=True)
        raise typer.Exit(status) from None


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors that the library explains, in options and files, into messages for the user."""
    try:
        yield
    except (ValueError, ImportError) as error:
        raise UserError(f"{error}.") from error


def with_options(
    command: Callable[..., None], options: Mapping[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """Give a command with ``**options`` the signature that Typer reads.

    Args:
        command: called with all options by name.
        options: default and annotation of each; ``Parameter.empty`` for no default.
    """
    command.__annotations__ = {name: annotation for name, (_, annotation) in options.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (default, annotation) in options.items()
        ]
    )
    return command


def computes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option ``--threads``; its callback acts before torch is imported."""

    @functools.wraps(command)
    def run(*, threads: int | None, **options: Any) -> None:
        command(**options)

    signature = inspect.signature(command, eval_str=True)
    *others, debug = signature.parameters.values()
    threads = Parameter("threads", Parameter.KEYWORD_ONLY, default=None, annotation=Threads)
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*others, threads, debug)]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def console() -> Console:
    """Standard output; lines are not wrapped in a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def choose_device(choice: Device) -> torch.device:
    """The device asked for, or the best one available."""
    import torch

    if choice is Device.cuda and not torch.cuda.is_available():
        raise UserError("No CUDA device is available here. Use --device cpu or --device auto.")
    if choice is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(choice.value)


def check_folder(folder: Path) -> None:
    """Create the folder of ``--output``, or say why it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output {folder} cannot be used as a folder ({error.strerror}). Name another one."
        ) from None


def check_json_file(path: Path | None) -> None:
    """Refuse a folder as the file of ``--json``, before any work."""
    if path is not None and path.is_dir():
        raise UserError(f"--json {path} is a folder. Name a file in it.")


def write_json(path: Path | None, content: Any) -> None:
    """Write the file of ``--json``, if there is one, atomically."""
    if path is not None:
        from convexlift.files.atomic import atomic_path  # which imports numpy

        with atomic_path(path) as part:
            part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
