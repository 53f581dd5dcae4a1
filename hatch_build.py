"""The README for package indexes, made from README.md when a package is built.

An index page has the text alone: relative links lead nowhere there, and pictures stay blank. Links
become absolute if ``pyproject.toml`` says where the files of a release are:

    [tool.hatch.metadata.hooks.custom]
    files = "https://HOST/OWNER/convexlift/raw/v{version}/{path}"

Without such a place, links become their text, and a sentence takes the place of pictures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n\n\*[^*]+\*\n\n", re.DOTALL)
ELSEWHERE = "*The pictures and the documentation are in the source distribution, in `docs`.*\n\n"
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def for_index(text: str, files: str | None, version: str) -> str:
    """The README with absolute links, or without relative ones."""
    if files is None:
        return LINK.sub(r"\1", PICTURE.sub(ELSEWHERE, text))
    place = files.replace("{version}", version)
    return LINK.sub(lambda found: f"[{found[1]}]({place.replace('{path}', found[2])})", text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md and adapt it."""
        root = Path(self.root)
        code = (root / "src/convexlift/__init__.py").read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(.+)"', code, re.MULTILINE)
        assert version is not None
        text = (root / "README.md").read_text(encoding="utf-8")
        text = for_index(text, self.config.get("files"), version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
