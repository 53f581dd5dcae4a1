"""Progress bars and tables on a terminal. Imports rich: import it where a command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


@contextmanager
def progress(
    screen: Console,
    *,
    total: float | None = 1.0,
    count: bool = False,
    remaining: bool = False,
    transient: bool = False,
) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal; nothing in a pipe.

    Yields a function to call with any of ``description=``, ``completed=`` and ``total=``.

    Args:
        screen: the console to show the bar on.
        total: the value of ``completed`` at the end; None if unknown.
        count: show "12/500" and the remaining time instead of the elapsed time.
        remaining: show the remaining time after the elapsed time.
        transient: remove the bar at the end.
    """
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    if count:
        columns += [MofNCompleteColumn(), TimeRemainingColumn()]
    elif remaining:
        columns += [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
    else:
        columns += [TimeElapsedColumn()]
    bar = Progress(
        *columns,
        console=screen,
        transient=transient,
        disable=not screen.is_terminal,
        speed_estimate_period=600 if remaining else 30,  # steps of an experiment take long
    )
    with bar:
        yield partial(bar.update, bar.add_task("Starting", total=total))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Sequence[str],
    title: str | None = None,
    wrapped: Sequence[str] | None = None,
    tight: bool = False,
) -> Table:
    """A table of plain text.

    Args:
        columns: the header.
        rows: the cells.
        left: the columns aligned to the left; the others, with numbers, to the right.
        title: above the table.
        wrapped: the columns that may wrap on a narrow terminal; all by default.
        tight: one space between columns, to fit 80 characters.
    """
    padding = (0, 1, 0, 0) if tight else (0, 1)
    result = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=padding
    )
    for name in columns:
        result.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=wrapped is not None and name not in wrapped,
        )
    for row in rows:
        result.add_row(*map(Text, row))
    return result
