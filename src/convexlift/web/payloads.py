"""The files that an event names: only the visitor's own pass, and addresses are taken out.

Gradio opens, copies and fetches whatever path or address an event describes, so every description
is checked before Gradio sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Refused(Exception):
    """A request that is not passed on: the status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def is_own_file(path: object, folder: Path) -> bool:
    """Whether a path is that of a file in a visitor's folder, written without links and detours."""
    if not isinstance(path, str) or "\0" in path:
        return False
    place = Path(path)
    try:
        real = place.resolve(strict=True)
        return path == str(real) and real.is_relative_to(folder) and real.is_file()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: links in a circle
        return False


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        Refused: there is none.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused(400, "The request is not a JSON object.")
    return content


def check_files(content: Any, owns: Callable[[object], bool]) -> list[str]:
    """The paths that a request names; addresses in it are removed, since nothing is fetched.

    Args:
        content: the request; changed in place.
        owns: whether a path is one of the visitor's files.

    Raises:
        Refused: a file is not the visitor's.
    """
    paths: list[str] = []
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "path" in item or "url" in item:
                paths += _checked(item, owns)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return paths


def _checked(item: dict[str, Any], owns: Callable[[object], bool]) -> list[str]:
    path, url = item.get("path"), item.pop("url", None)
    if path is None and url is None:
        return []
    if not isinstance(path, str) or not owns(path):
        raise Refused(403, "Only files that you uploaded here can be opened.")
    # The page describes an upload by its path and by the address under which it is served.
    served = url is None or (
        isinstance(url, str)
        and path in (url.partition("/file=")[2], unquote(url.partition("/file=")[2]))
    )
    if not served:
        raise Refused(403, "Files from other addresses are not fetched.")
    return [path]
