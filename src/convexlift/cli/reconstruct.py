"""``convexlift reconstruct denoise|inpaint|ct``."""

from __future__ import annotations

import inspect
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from convexlift.cli.app import (
    FAILURE,
    Failed,
    Interrupted,
    UserError,
    app,
    choose_device,
    one_sentence_errors,
    write_json,
)
from convexlift.cli.reconstruct_options import OF_RUNS, PLACES, READERS, checked, signature
from convexlift.cli.reconstruct_report import Narrator, as_json, discard, print_json
from convexlift.models.files import pair
from convexlift.reconstruction.batch import RECONSTRUCTORS, BatchResult, reconstruct_files
from convexlift.reconstruction.contents import DICOM, PICTURES
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.sources import SINOGRAMS, check_targets, find_sources

STATUSES = (
    "Exit status: 0 all files done, 1 some files failed (they are listed, the others are done), "
    "2 bad usage (nothing was done), 130 interrupted (finished files, and the best image of the "
    "current one, are kept)."
)

group = typer.Typer(
    help=f"Reconstruct your own files, with a proof beside each result.\n\n{STATUSES}",
    no_args_is_help=True,
)
app.add_typer(group, name="reconstruct")


def _command(kind: type[Reconstructor]) -> Callable[..., None]:
    """The command for a task."""

    def command(debug: bool, **given: Any) -> None:
        with one_sentence_errors(debug):
            own = {name: given.pop(name) for name in (*PLACES, *OF_RUNS) if name in given}
            options = {
                name: READERS[name](value) if name in READERS else value
                for name, value in given.items()
            }
            _run(kind, options, debug=debug, **own)

    command.__signature__ = signature(kind)  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in signature(kind).parameters.items()}
    return command


for _kind in RECONSTRUCTORS.values():
    _about = inspect.cleandoc(_kind.__doc__ or "").partition("\n\nArgs:")[0]
    group.command(_kind.task, help=_about, epilog=STATUSES)(_command(_kind))


def _run(
    kind: type[Reconstructor], options: dict[str, Any], *, inputs: list[str], output: Path,
    proof: bool, force: bool, resume: bool, json_file: str | None, debug: bool,
) -> None:  # fmt: skip
    """Check everything that can be checked, then process the files."""
    if force and resume:
        raise UserError(
            "--resume keeps finished results and --force replaces them. Leave one of them out."
        )
    reconstructor = checked(kind, **{**options, "device": choose_device(options["device"])})
    simulated = kind.task == "ct" and options["simulate"]
    slices = (*DICOM, ".tif", ".tiff", ".png", ".npy")
    suffixes = PICTURES if kind.task != "ct" else slices if simulated else SINOGRAMS
    ending = ".tif" if suffixes is SINOGRAMS else None
    sources = checked(find_sources, inputs, output, suffixes, ending)
    checked(reconstructor.check, sources)
    saved = [file for file in checked(pair, options["regularizer"]) if file.is_file()]
    also_read = [*reconstructor.reads([source.path for source in sources]), *saved]
    checked(
        check_targets, sources, force=force, resume=resume, gap_map=reconstructor.gap_map,
        proof=proof, also_read=also_read,
        summary=None if json_file in (None, "-") else Path(str(json_file)),
    )  # fmt: skip
    settings = checked(reconstructor.settings)
    checked(lambda: reconstructor.network)
    command = f"convexlift {shlex.join(sys.argv[1:])}"
    narrator = Narrator(
        to_stderr=json_file == "-", debug=debug, total=len(sources), tolerance=options["tolerance"]
    )
    with narrator, warnings.catch_warnings():
        warnings.showwarning = narrator.warn
        try:
            result = reconstruct_files(
                sources, reconstructor, narrator, proof=proof, resume=resume, command=command
            )
        except KeyboardInterrupt:
            raise Interrupted("Interrupted twice; only finished files are kept.") from None
        narrator.summarise(result)
    unwritten = _write_json(json_file, as_json(result, settings | {"command": command}))
    _finish(result, len(sources), unwritten or narrator.unsaid)


def _write_json(json_file: str | None, content: dict[str, Any]) -> str:
    """The reason if the file cannot be written, else an empty string."""
    try:
        if json_file == "-":
            print_json(content)
        elif json_file is not None:
            write_json(Path(json_file), content)
    except OSError as error:
        if json_file == "-":
            discard(sys.stdout)
        where = "Standard output" if json_file == "-" else json_file
        return f"{where} cannot be written ({error.strerror or error})"
    return ""


def _finish(result: BatchResult, files: int, unwritten: str) -> None:
    """Raise the exception that sets the exit status, if any."""
    done = f"{len(result.records)} of {files} results are written"
    if result.interrupted and not result.records:
        raise Interrupted("Interrupted; nothing was written.")
    if result.interrupted:
        raise Interrupted(
            f"Interrupted; {done}, the last one with the gap reached. --resume does the others."
        )
    if unwritten:
        raise Failed(f"{unwritten}; {done}, each with its JSON file.")
    if result.failures:
        raise typer.Exit(FAILURE)
