"""The contact sheet of many files: a page with each image before and after, and its numbers."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from convexlift.descriptions import picture
from convexlift.files.atomic import atomic_path
from convexlift.problems.claims import percent
from convexlift.reconstruction.batch import BatchResult
from convexlift.reconstruction.results import SIDE, Previews
from convexlift.reconstruction.sources import Source

NAME = "contact-sheet.html"
MARK = '<meta name="generator" content="convexlift contact sheet">'
COLUMNS = {
    "noise": ("noise", ".3g"),
    "weight": ("weight", ".3g"),
    "gap": ("solved to within", ".1e"),
    "psnr": ("PSNR, dB", ".2f"),
    "seconds": ("seconds", ".1f"),
}
STYLE = """\
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
table { border-collapse: collapse; }
td, th { padding: 0.3em 0.8em; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child, td.text { text-align: left; overflow-wrap: anywhere; }
small { display: none; }
.wide { overflow-x: auto; }"""


class ContactSheet:
    """Collects small pictures as files are finished, and writes the page at the end.

    Args:
        folder: the folder of the page.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.proved = ""  # a statement about all files, in plain words
        self._pictures: dict[str, tuple[str, str]] = {}

    def add(self, source: Source, previews: Previews) -> None:
        """Keep small pictures of a file before and after."""
        before, after = previews
        shown = "" if before is None else picture(before, "before", SIDE)
        self._pictures[str(source.target)] = shown, picture(after, "after", SIDE)

    def write(self, result: BatchResult, command: str) -> str:
        """Write the page, unless another file has its name; returns a line about the outcome."""
        try:
            if self.path.exists() and MARK not in self.path.read_text("utf-8", errors="replace"):
                return f"No contact sheet: {self.path} exists, and is another file."
            with atomic_path(self.path) as part:
                part.write_text("".join(self._page(result, command)), encoding="utf-8")
        except OSError as error:  # the results are already written
            return f"No contact sheet: {self.path} cannot be written ({error.strerror or error})."
        return f"Contact sheet: {self.path}"

    def _page(self, result: BatchResult, command: str) -> Iterator[str]:
        done = [*result.earlier, *result.records]
        shown = [
            key for key in COLUMNS if any(value_of(record, key) is not None for record in done)
        ]
        yield f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n{MARK}\n'
        yield '<meta name="viewport" content="width=device-width">\n'
        yield f"<title>{len(done)} results of convexlift</title>\n<style>\n{STYLE}\n</style>\n"
        yield f"<h1>{len(done)} results</h1>\n<p><code>{html.escape(command)}</code></p>\n"
        yield f"<p>{html.escape(self.proved)}</p>\n" if self.proved else ""
        heads = "".join(f"<th>{COLUMNS[key][0]}</th>" for key in shown)
        yield '<div class="wide"><table>\n<tr><th>file</th><th>before</th><th>after</th>'
        yield f"{heads}</tr>\n"
        for record in done:
            target = record["output"]
            link = quote(os.path.relpath(target, self.path.parent))
            name = html.escape(Path(record["input"]).name)
            before, after = self._pictures.get(target, ("", ""))
            numbers = quote(os.path.relpath(Path(target).with_suffix(".json"), self.path.parent))
            cells = "".join(f"<td>{_cell(record, key, numbers)}</td>" for key in shown)
            yield f'<tr><td><a href="{link}">{name}</a></td><td>{before}</td><td>{after}</td>'
            yield f"{cells}</tr>\n"
        yield "</table></div>\n"
        if result.failures:
            yield f"<h2>{len(result.failures)} failed</h2>\n<table>\n"
            for source, reason in result.failures:
                name, why = html.escape(str(source.path)), html.escape(reason)
                yield f'<tr><td>{name}</td><td class="text">{why}</td></tr>\n'
            yield "</table>\n"
        yield "</html>\n"


def value_of(record: dict[str, Any], key: str) -> float | None:
    """A number of a record; noise and weight are records of their own."""
    value = record.get(key)
    if isinstance(value, dict):
        value = value.get("level" if key == "noise" else "value")
    return None if value is None else float(value)


def duration(seconds: float) -> str:
    """A rough time: "12 s", "3 min", "1 h 20 min"."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _cell(record: dict[str, Any], key: str, numbers: str) -> str:
    """A number; the gap in percent, with its digits in a hint and a link to all numbers."""
    value = value_of(record, key)
    if value is None:
        return ""
    text = format(value, COLUMNS[key][1])
    if key == "gap":
        return f'<a href="{numbers}" title="gap {text}">{percent(value)}</a>'
    return text
