"""Progress bars and tables on a terminal. Imports rich: import it where a command runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text


@contextmanager
def progress(
    screen: Console,
    *columns: ProgressColumn,
    total: float = 1.0,
    width: int = 40,
    transient: bool = False,
) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal; nothing in a pipe.

    Yields a function to call with ``description=`` and ``completed=``.

    Args:
        screen: the console to show the bar on.
        columns: shown after the description and the bar.
        total: the value of ``completed`` at the end.
        width: width of the bar, in characters.
        transient: remove the bar at the end.
    """
    with Progress(
        TextColumn("{task.description}"), BarColumn(width), *columns, console=screen,
        transient=transient, disable=not screen.is_terminal,
    ) as bar:  # fmt: skip
        yield partial(bar.update, bar.add_task("Starting", total=total))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Sequence[str],
    wrapped: Sequence[str] | None = None,
    tight: bool = False,
) -> Table:
    """A table of plain text.

    Args:
        columns: the header.
        rows: the cells.
        left: the columns aligned to the left; the others, with numbers, to the right.
        wrapped: the columns that may wrap on a narrow terminal; all by default.
        tight: one space between columns, to fit 80 characters.
    """
    padding = (0, 1, 0, 0) if tight else (0, 1)
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for name in columns:
        result.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=wrapped is not None and name not in wrapped,
        )
    for row in rows:
        result.add_row(*map(Text, row))
    return result


class Screen(Console):
    """A console that raises an error for a closed pipe instead of ending the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error, in place of ``SystemExit``."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def discard(stream: IO[str]) -> None:
    """Discard the rest of a stream, which Python would otherwise try to write at exit."""
    with suppress(OSError, ValueError):  # streams of tests have no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
