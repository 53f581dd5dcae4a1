"""Places of results: checked before any work, so that nothing else is overwritten."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from convexlift.files.atomic import leftovers, remove_leftovers
from convexlift.reconstruction.input_files import InputError, Source, resolved, sides


def check_targets(
    sources: Sequence[Source],
    *,
    force: bool,
    resume: bool = False,
    gap_map: bool = False,
    proof: bool = False,
    also_read: Sequence[Path] = (),
    summary: Path | None = None,
) -> None:
    """Refuse to overwrite: inputs never, results only if ``force``; and make the folders.

    Temporary files that a killed run left beside these results are removed.

    Args:
        sources: files and targets.
        force: whether files that exist may be replaced.
        resume: whether results of an earlier run may be; files without a record are none.
        gap_map: whether maps of the gap are written.
        proof: whether proof files are written.
        also_read: further inputs: masks, truths, a saved regularizer.
        summary: the file of all results, if there is to be one.
    """
    inputs = {resolved(place) for place in also_read}
    for source in sources:
        inputs |= {resolved(place) for place in (source.path, *sides(source.path))}
    written: set[Path] = set()
    for source in sources:
        places = source.results(gap_map=gap_map, proof=proof)
        there = any(place.exists() for place in places)
        may = force or (resume and there and _is_result(source))
        for place in places:
            _require_free(place, inputs, may, resume)
        written |= {resolved(place) for place in places}
    if summary is not None:
        _require_free(summary, inputs, force or (resume and _is_ours(summary)), resume)
        if resolved(summary) in written:
            raise InputError(f"{summary} is the name of a result; name another file for all")
    _make_folders({source.target.parent for source in sources}, summary)
    results = [place for source in sources for place in source.results()]
    remove_leftovers(results if summary is None else [*results, summary])


def _make_folders(folders: set[Path], summary: Path | None) -> None:
    for folder in folders if summary is None else folders | {summary.parent}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{folder} cannot be a folder ({error.strerror}); name another"
            ) from None
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(
                f"nothing can be written to {folder} ({error.strerror}); name another folder"
            ) from None


def _require_free(place: Path, inputs: set[Path], may_replace: bool, resume: bool) -> None:
    if resolved(place) in inputs:
        raise InputError(f"{place} is an input; write the results to another folder")
    if place.is_dir():
        raise InputError(f"{place} is a folder; name another output")
    if place.exists() and not place.is_file():  # results replace what has their name
        raise InputError(f"{place} is a device or a pipe; name a file (--json - writes to a pipe)")
    if not place.exists() or may_replace:
        return
    if resume:
        raise InputError(
            f"{place} exists, and no record says that it is a result; move it away, name another "
            "output, or use --force in place of --resume"
        )
    raise InputError(
        f"{place} exists; name another output, or add --force (or --resume, which keeps finished "
        "results)"
    )


def _is_result(source: Source) -> bool:
    """Whether an earlier run wrote here; if it was killed, its record has a temporary name yet."""
    return _is_ours(source.record) or any(leftovers([source.record]))


def _is_ours(record: Path) -> bool:
    """Whether a JSON file was written by a run: each says with which settings."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "settings" in content
