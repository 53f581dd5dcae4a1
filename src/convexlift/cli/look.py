"""``convexlift reconstruct FILE...`` without a task: what the files are, and what to write."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from convexlift.cli.app import FAILURE, UserError, explained
from convexlift.reconstruction.contents import PICTURES
from convexlift.reconstruction.proposals import Proposal, propose
from convexlift.reconstruction.sources import SINOGRAMS, Source, find_sources

SHOWN = 3
"""Files of a folder that are looked at."""


def look(inputs: list[str], output: Path | None) -> None:
    """Print what the files are, and the command that reconstructs them."""
    proposals: dict[str, list[Proposal]] = {}
    for each in inputs:
        if Path(each).is_file():  # also one that cannot be read, to say why
            proposals[each] = [propose(Path(each))]
            continue
        with explained():
            sources = find_sources([each], Path("out"), tuple({*PICTURES, *SINOGRAMS}))
        proposals[each] = [propose(source.path) for source in sources[:SHOWN]]
        typer.echo(f"{each}: {len(sources)} file{'s' * (len(sources) > 1)}")
    found = [proposal for group in proposals.values() for proposal in group]
    for proposal in found:
        typer.echo(f"{proposal.path}: {proposal.about}")
    for task in dict.fromkeys(proposal.task for proposal in found if proposal.task):
        typer.echo(f"\nTo {VERBS[task]}:")
        for line in _commands(task, proposals, output):
            typer.echo(f"  {line}")
    if not any(proposal.task for proposal in found):
        raise typer.Exit(FAILURE)
    if output is not None:
        raise UserError("Nothing was done: name the task, as above.")
    typer.echo("\n--dry-run shows more; --help has all options.")


VERBS = {
    "denoise": "remove the noise",
    "inpaint": "fill in what is missing",
    "ct": "compute slices",
    "mri": "compute images",
}


def _commands(
    task: str, proposals: dict[str, list[Proposal]], output: Path | None
) -> Iterator[str]:
    for name, group in proposals.items():
        own = [proposal for proposal in group if proposal.task == task]
        if own:
            target = own[0].target if Path(name).is_file() else Path(f"{Path(name).stem}-results")
            words = [name, "-o", str(output or target), *own[0].options]
            yield f"convexlift reconstruct {task} {shlex.join(words)}"


def describe_run(sources: list[Source], settings: dict[str, object]) -> Iterator[str]:
    """What a run would do, for ``--dry-run``: the files, their noise, and the settings."""
    for source in sources[:SHOWN]:
        taken = ", which exists" if source.target.exists() else ""
        yield f"{source.path}: {propose(source.path).about} -> {source.target}{taken}"
    if len(sources) > SHOWN:
        yield f"and {len(sources) - SHOWN} more files"
    names = ("regularizer", "weight", "strength", "tolerance", "method", "device")
    yield ", ".join(f"{name} {settings[name]}" for name in names if name in settings)
    yield "Nothing was written: this is a dry run."
