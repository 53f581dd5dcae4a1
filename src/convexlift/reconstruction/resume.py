"""Results of an earlier run, and whether they are what this run would make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convexlift.reconstruction.input_files import Source

_OF_THE_RUN = ("command", "files_at_once")
"""Settings that do not change results."""

Fingerprint = list[list[Any]]


def fingerprint(source: Source, also_read: Iterable[Path]) -> Fingerprint:
    """Name, length and time of change, in ns, of all files that a result is made from."""
    found: Fingerprint = []
    for path in (source.path, *also_read):
        try:
            status = path.stat()
        except OSError:  # reading it says more
            found.append([path.name, None, None])
        else:
            found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def earlier_record(
    source: Source, inputs: Fingerprint, settings: dict[str, Any], *, gap_map: bool, proof: bool
) -> dict[str, Any] | None:
    """The record of a finished result, if it was made from these inputs with these settings.

    A result is finished if its image and its record are there and belong together, and if no Ctrl-C
    ended its solve. Anything else is None: the file is to be reconstructed again.
    """
    places = source.results(gap_map=gap_map, proof=proof)
    try:
        if not all(place.is_file() for place in places):
            return None
        record = json.loads(source.record.read_text(encoding="utf-8"))
        made = (record["inputs"], _options(record["settings"]), record["output_sha256"])
        wanted = (inputs, _options(settings), digest(source.target))
        if record["status"] == "INTERRUPTED" or record["lower_bound"] is None or made != wanted:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # no record of this version
    return dict(record)


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """Those that decide on results, as JSON has them."""
    kept = {name: value for name, value in settings.items() if name not in _OF_THE_RUN}
    decoded: dict[str, Any] = json.loads(json.dumps(kept))
    return decoded
