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


@pytest.fixture
def saved(tmp_path):
    """A network and the path of its two files."""
    return save_toy(tmp_path)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder in place of the package's, with two models; another one to work in."""
    folder = tmp_path / "weights"
    for name, architecture in (("small", "plain"), ("large", "deep")):
        card = cl.ModelCard(name=name, summary="A toy.", task="denoising", weight=1)
        cl.save(network(architecture, cl.ReLU()), folder / name, card)
    (folder / "README.md").write_text("")
    (folder / "lonely.json").write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(files, "SHIPPED", folder)


@pytest.mark.usefixtures("shipped")
def test_shipped_models_are_found_by_name():
    assert cl.models.names() == ("large", "small")
    assert same(cl.load("small"), network("plain", cl.ReLU()))
    assert cl.load("large").card.name == cl.models.card("large").name == "large"
    with pytest.raises(ValueError, match="no model 'medium'; the models shipped are large, small"):
        cl.load("medium")
    Path("small").mkdir()  # a folder of that name is not in the way
    assert same(cl.load("small"), network("plain", cl.ReLU()))


@pytest.mark.usefixtures("shipped")
def test_a_path_wins_where_it_is_one():
    own = network("residual", cl.ReLU())
    cl.save(own, "small")
    assert same(cl.load("small"), own)
    assert same(cl.load("small.json"), own)
    assert same(cl.load("./small"), own)
    assert files.shipped_sheets()["small"].architecture == describe(network("plain", cl.ReLU()))
    for path in ("./large", "large.safetensors", "large.json", Path("large")):
        with pytest.raises(ValueError, match=r"neither large.safetensors nor large.json exists"):
            cl.load(path)


def test_what_is_no_model(tmp_path, saved, monkeypatch):
    with pytest.raises(ValueError, match=r"is a folder; name a model in it \(there: toy\)"):
        cl.load(tmp_path)
    torch.save({}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match=r"old\.pt: not a regularizer of a known format"):
        cl.load(tmp_path / "old.pt")
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "nowhere")
    assert cl.models.names() == ()
    with pytest.raises(ValueError, match="no model 'medium': none are shipped"):
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
