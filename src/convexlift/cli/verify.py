"""``convexlift verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from convexlift.cli.app import (
    FAILURE,
    Debug,
    JsonFile,
    UserError,
    check_json_file,
    computes,
    one_sentence_errors,
    register,
    write_json,
)


@register("convexlift verify clean.proof\nconvexlift verify results/*.proof --json verdicts.json")
@computes
def verify(
    files: Annotated[list[Path], typer.Argument(help="Proof files.", show_default=False)],
    json_file: JsonFile = None,
    debug: Debug = False,
) -> None:
    """Check proof files, written by reconstruct --proof or solution.proof.save.

    The checker shares no code with the solver: it recomputes objective and lower bound from the
    image, the data, the network and the dual variables in the file, and accounts for rounding. The
    printed bound is proved: no image has a smaller objective. For a regularizer that reads the
    data, this holds given the weights that its guide read, which are in the file. If a file is
    rejected, the exit status is 1.
    """
    with one_sentence_errors(debug):
        check_json_file(json_file)
        for path in files:
            if not path.is_file():
                raise UserError(f"There is no file {path}. Check the name.")
        results = [_checked(path) for path in files]
        write_json(json_file, {"files": results})
        if any("error" in result for result in results):
            raise typer.Exit(FAILURE)


def _checked(path: Path) -> dict[str, Any]:
    from convexlift.problems.claims import Guarantee, in_words
    from convexlift.proof_checker import ProofRejected
    from convexlift.proof_checker import verify as check

    try:
        verdicts = check(path)
    except (ProofRejected, OSError) as error:
        typer.echo(f"convexlift: rejected: {error}", err=True)
        return {"file": str(path), "error": str(error)}
    for number, verdict in enumerate(verdicts):
        image = f" [{number}]" if len(verdicts) > 1 else ""
        heading, meaning = in_words(verdict.gap, Guarantee[verdict.guarantee], verdict.premise)
        heading = f"{heading[:1].lower()}{heading[1:]}"
        typer.echo(f"{path}{image}: confirmed: {heading}: {meaning}\n  {verdict}")
    return {"file": str(path), "images": [verdict._asdict() for verdict in verdicts]}
