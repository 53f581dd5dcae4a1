"""docs/ecosystem.md, as printed, with the libraries themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # for ``pages``

import pages  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


def test_the_page_prints_what_it_shows():
    for block, printed in pages.run(ROOT / "docs" / "ecosystem.md", {}):
        if block.shown is not None:
            found = pages.differences(block.shown, printed)
            assert not found, f"line {block.line}: {printed}"
