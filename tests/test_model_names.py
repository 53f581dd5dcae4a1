"""Which model a name or a path means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_files import same, save_toy
from zoo import network

import convexlift as cl
from convexlift.models import files
from convexlift.models.store import describe


def test_a_path_wins_where_it_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo, own = cl.load("photo-open"), network("residual", cl.ReLU())
    assert photo.card.name == cl.models.card("photo-open").name == "photo-open"
    for path in ("./photo", "photo.safetensors", "photo.json", Path("photo")):
        with pytest.raises(ValueError, match=r"neither photo.safetensors nor photo.json exists"):
            cl.load(path)
    Path("photo-open").mkdir()  # a folder of that name is not in the way
    assert same(cl.load("photo-open"), photo)
    Path("photo-open").rmdir()
    cl.save(own, "photo-open")
    for path in ("photo-open", "photo-open.json", "./photo-open"):
        assert same(cl.load(path), own)
    assert files.shipped_sheets()["photo-open"].architecture == describe(photo)


def test_what_is_no_model(tmp_path):
    save_toy(tmp_path)
    with pytest.raises(ValueError, match=r"is a folder; name a model in it \(there: toy\)"):
        cl.load(tmp_path)
    torch.save({}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match=r"old\.pt: not a regularizer of a known format"):
        cl.load(tmp_path / "old.pt")
    with pytest.raises(ValueError, match="no model 'medium'; the models shipped are ct, ct"):
        cl.load("medium")
    with pytest.raises(ValueError, match="is not a file name"):
        cl.load("")


def test_the_folder_of_a_training_stands_for_its_model(tmp_path):
    own = network("residual", cl.ReLU())
    cl.save(own, tmp_path / "model")
    (tmp_path / "options.json").write_text("{}")
    assert same(cl.load(tmp_path), own)
    (tmp_path.with_suffix(".json")).write_text('{"settings": {}}')  # the record of another result
    assert same(cl.load(tmp_path), own)
    (tmp_path.with_suffix(".json")).unlink()
    (tmp_path / "model.json").unlink()
    with pytest.raises(ValueError, match="is a folder without a model"):
        cl.load(tmp_path)


def test_every_model_in_the_package_loads():
    """Names that can be typed, cards that say what they must."""
    for name in cl.models.names():
        net = cl.load(name)
        assert "." not in name
        assert net.card.name == name
        for field_name in ("data", "license", "command", "weight_choice", "not_for", "results"):
            assert getattr(net.card, field_name), f"{name}: {field_name}"
