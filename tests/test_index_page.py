"""The README as a package index shows it: no link leads nowhere, and no picture is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGET = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def hook(monkeypatch):
    """The build hook, which runs where hatchling is, with a stand-in for its base class."""
    name = "hatchling.metadata.plugin.interface"
    stand_in = ModuleType(name)
    stand_in.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, name, stand_in)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_and_pictures_are_absolute_where_the_files_are_known(hook):
    text = hook.for_index(README, "https://example.org/raw/v{version}/{path}", "1.2")
    targets = TARGET.findall(text)
    assert "https://example.org/raw/v1.2/docs/images/readme.jpg" in targets
    for target in targets:
        assert target.startswith("https://")
        path = target.removeprefix("https://example.org/raw/v1.2/").partition("#")[0]
        assert target == path or (ROOT / path).exists(), target


def test_without_a_place_there_are_no_relative_links(hook):
    text = hook.for_index(README, None, "1.2")
    assert not [target for target in TARGET.findall(text) if not target.startswith("https://")]
    assert "![" not in text
    assert hook.ELSEWHERE.strip() in text
    assert "convexlift reconstruct denoise" in text


def test_the_hook_sets_the_field(hook):
    made = hook.CustomMetadataHook()
    made.root, made.config, metadata = str(ROOT), {}, {}
    made.update(metadata)
    assert metadata["readme"]["text"] == hook.for_index(README, None, "any")
