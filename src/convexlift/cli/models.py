"""``convexlift models``, and ``convexlift models import FILE -o OUT``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import convexlift
from convexlift.cli.app import (
    Debug,
    JsonFile,
    UserError,
    check_json_file,
    console,
    explained,
    one_sentence_errors,
    register,
    write_json,
)
from convexlift.models.files import ModelCard, Sheet, names, sheet, shipped_sheets

COLUMNS = ("Name", "Task", "Weight", "Test dB", "Licence")
TEXTS = ("Name", "Task", "Licence")
UNKNOWN = "-"
USUAL = "sigma 25"
"""The end of the names of results that the table prefers."""
IMPORT = "import"
"""The word in place of a name that converts files of other authors."""


@register(
    "convexlift models\nconvexlift models photo-open\nconvexlift models runs/photos/model\n"
    "convexlift models import FILE -o OUT"
)
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of one, or the path of a saved one; all by default. Or the word import, "
            "to convert published regularizers.",
            autocompletion=lambda: list(names()),
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Argument(help="With import: a state dict of its authors.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With import: the model to write.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help="With import: the format, if it cannot be detected."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise", help="With import: the noise of goujon-crr-2024, images in [0, 1]."
        ),
    ] = None,
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """List the shipped regularizers, or show the card of one; import published ones.

    convexlift models import FILE -o OUT converts a file of its authors, and writes OUT.safetensors
    and OUT.json.

    The table ends with those that companies may use; a card begins with its licence.
    """
    from convexlift.cli.terminal import table

    screen = console()
    with one_sentence_errors(debug):
        check_json_file(json_file)
        if name == IMPORT:
            name = str(_imported(file, output, format, noise))
        elif (file, output, format, noise) != (None, None, None, None):
            raise UserError(
                "FILE, --output, --format and --noise belong to an import. Write "
                "convexlift models import FILE -o OUT."
            )
        if name is None:  # an error in a shipped file is not the user's mistake
            sheets = shipped_sheets()
        else:
            with explained():
                sheets = {name: sheet(name)}
        write_json(json_file, as_json(sheets, convexlift.__version__))
        if name is not None:
            screen.print(details(sheets[name]), markup=False, soft_wrap=True)
        elif sheets:
            screen.print(table(COLUMNS, rows(sheets), left=TEXTS, wrapped=["Licence"], tight=True))
            if free := [
                name for name, each in sheets.items() if each.card and each.card.commercial
            ]:
                screen.print(
                    f"Companies may use {', '.join(free)} (CC BY: if they name the source); the "
                    "others are for non-commercial research.",
                    markup=False,
                )
            screen.print(
                "Weight: the factor of the regularizer in the objective, for this task at the "
                "noise level on the card; convexlift reconstruct scales it to your noise. Weights "
                "of different models cannot be compared."
            )
            screen.print(
                "Test dB: PSNR on the images that each card names, which differ; for photographs, "
                "with noise of 25/255."
            )
            screen.print("Show the card of one: convexlift models NAME. In Python: cl.load(NAME).")
        else:
            screen.print(f"No regularizers are shipped with convexlift {convexlift.__version__}.")


def _imported(
    file: Path | None, output: Path | None, format: str | None, noise: float | None
) -> Path:
    """Convert and save; returns the file of weights."""
    if file is None or output is None:
        raise UserError("Name the file to convert and the model to write: import FILE -o OUT.")
    from convexlift.models.interop import load
    from convexlift.models.store import save

    with explained():
        network = load(file, format, noise=noise)
        output.parent.mkdir(parents=True, exist_ok=True)
        return save(network, output, network.card)


def as_json(sheets: dict[str, Sheet], version: str) -> dict[str, Any]:
    """The cards of models, for other programs."""
    return {
        "version": version,
        "models": [
            {
                "name": name,
                "network": outline(each),
                "parameters": each.parameters,
                "sha256": each.sha256,
                "card": None if each.card is None else each.card.to_json(),
            }
            for name, each in sheets.items()
        ],
    }


def rows(sheets: dict[str, Sheet]) -> list[tuple[str, ...]]:
    """The table's cells, in the order of ``COLUMNS``."""
    return [(name, *_cells(each.card)) for name, each in sheets.items()]


def outline(sheet: Sheet) -> str:
    """A short description of the network."""
    layers = sheet.architecture.get("layers", ())
    count = f"{len(layers)} layer{'s' if len(layers) != 1 else ''}"
    size = sheet.architecture.get("image_size")
    only = f", for images of {size[0]} x {size[1]}" if size else ""
    return f"{count}, {sheet.parameters:,} parameters{only}"


def details(sheet: Sheet) -> str:
    """The whole card, and the network it describes."""
    text = "It has no card." if sheet.card is None else sheet.card.text()
    return f"{text}\n{'Network':<17} {outline(sheet)}\n{'SHA-256':<17} {sheet.sha256}"


def _cells(card: ModelCard | None) -> tuple[str, str, str, str]:
    if card is None:
        return (UNKNOWN,) * 4
    # Results differ in their images and noise: for photographs, those of the usual level.
    found = {name: numbers["psnr"] for name, numbers in card.results.items() if "psnr" in numbers}
    usual = [psnr for name, psnr in found.items() if name.endswith(USUAL)]
    psnr = next(iter((*usual, *found.values())), None)
    return (
        card.task,
        f"{card.weight:g}",
        UNKNOWN if psnr is None else f"{psnr:.2f}",
        card.license.split(";")[0].strip() or UNKNOWN,
    )
