"""``convexlift reconstruct FILE...`` without a task: the kinds of the files, and the commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from convexlift.cli.app import BAD_INPUT, FAILURE, UserError, explained
from convexlift.files.formats import reason_of
from convexlift.problems.claims import percent
from convexlift.reconstruction.contents import PICTURES
from convexlift.reconstruction.proposals import Proposal, plan, propose
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.sources import SINOGRAMS, Source, find_sources

SHOWN = 3
"""The most files of a folder that are examined."""


def look(inputs: list[str], output: Path | None) -> None:
    """Print the kinds of the files, and the commands that reconstruct them."""
    proposals: dict[str, list[Proposal]] = {}
    for each in inputs:
        if Path(each).is_file():  # also if it cannot be read, to say why
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
    for text in dict.fromkeys(proposal.otherwise for proposal in found if proposal.otherwise):
        typer.echo(f"\n{text}")
    if not any(proposal.task for proposal in found):
        raise typer.Exit(BAD_INPUT)
    if output is not None:
        raise UserError("Nothing was done: name the task, as above.")
    typer.echo("\nNothing was written. --dry-run says more about a command; --help lists options.")
    if not all(proposal.task for proposal in found):
        raise typer.Exit(FAILURE)


VERBS = {
    "denoise": "remove the noise",
    "inpaint": "fill in missing pixels",
    "ct": "compute slices",
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


def describe_run(reconstructor: Reconstructor, sources: list[Source], proof: bool) -> Iterator[str]:
    """The plan of a run, for ``--dry-run``: the files, their noise, results, and the settings."""
    failing = False
    for source in sources[:SHOWN]:
        try:
            lines = plan(reconstructor, source)
        except Exception as error:  # decoders raise nearly every type
            plain = isinstance(error, ValueError | OSError | ImportError)
            reason = str(error).removeprefix(f"{source.path} ") if plain else reason_of(error)
            yield f"{source.path}: would fail: {reason}"
            failing = True
            continue
        taken = ", which exists: add --force or --resume" if source.target.exists() else ""
        beside = " and .proof" if proof else ""
        yield f"{source.path}: {lines[0]}"
        for line in lines[1:]:
            yield f"  {line}"
        yield f"  -> {source.target}{taken}, with {source.record.name}{beside}"
    if len(sources) > SHOWN:
        yield f"and {len(sources) - SHOWN} more files"
    yield from _settings(reconstructor)
    yield "Nothing was written: this is a dry run."
    if failing:
        raise typer.Exit(BAD_INPUT)


RULES = {
    "card": "from the model card",
    "auto": "chosen by predicting held-out data, which takes several solves",
}


def _settings(reconstructor: Reconstructor) -> Iterator[str]:
    """The regularizer and its permitted use, the weight, and the stopping criteria."""
    settings, card = reconstructor.settings(), reconstructor.network.card
    rule = reconstructor.rule
    restricted = card is not None and card.license and not card.commercial
    licence = f" (licence {card.license})" if restricted else ""
    weight = RULES.get(rule, "as given") if isinstance(rule, str) else f"{rule:g}"
    strength = f", times {reconstructor.strength:g}" if reconstructor.strength != 1 else ""
    twin = reconstructor.colour
    if twin is not None and twin is not reconstructor.network and twin.card is not None:
        licence += f" ({twin.card.name} for pictures in colour)"
    yield f"regularizer {settings['regularizer']}{licence}; weight: {weight}{strength}"
    limit = f" or {reconstructor.time_limit:g} s" if reconstructor.time_limit else ""
    yield (
        f"solved to within {percent(reconstructor.tolerance)}, or for at most "
        f"{reconstructor.max_iterations} iterations{limit}, on {settings['device']}"
    )
