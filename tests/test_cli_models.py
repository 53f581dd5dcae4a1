"""``convexlift models``, as a user runs it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner
from zoo import network

import convexlift as cl
from convexlift.cli import app, models
from convexlift.models import files

ROOT = Path(__file__).parents[1]


def run(*arguments, **options):
    return CliRunner().invoke(app, ["models", *map(str, arguments)], **options)


@pytest.fixture
def own(tmp_path):
    """Two saved models, of which the first has a card."""
    card = cl.ModelCard(
        name="small", summary="A toy [not bold].", task="denoising", weight=0.25,
        not_for="diagnosis",
    )  # fmt: skip
    cl.save(network("plain", cl.ReLU()), tmp_path / "small", card)
    cl.save(network("deep", cl.ReLU()), tmp_path / "bare")
    return tmp_path


def test_the_table_has_licences_and_the_psnr_of_every_shipped_one_at_the_usual_noise():
    shown = run().output
    for column in ("Name", "Task", "Weight", "Test dB", "Licence"):
        assert column in shown
    assert "Weight: the factor of the regularizer in the objective" in shown
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    for name, each in files.shipped_sheets().items():
        assert each.card.task in lines[name]
        assert lines[name].rstrip().endswith(each.card.license.partition(";")[0])
        usual = each.card.results.get("BSD68, sigma 25", next(iter(each.card.results.values())))
        assert name.endswith("colour") or f" {usual['psnr']:.2f} " in lines[name]


def test_the_card_of_a_model_of_ones_own(own):
    shown = run(own / "small.json").output
    assert "small: A toy [not bold]." in shown
    assert "Not for           diagnosis" in shown
    assert files.sheet(own / "small").sha256 in shown
    assert "for images of 8 x 8" in shown
    assert "It has no card." in run(own / "bare").output


def test_json(own):
    assert run("--json", own / "all.json").exit_code == 0
    content = json.loads((own / "all.json").read_text())
    assert content["version"] == cl.__version__
    assert tuple(model["name"] for model in content["models"]) == cl.models.names()
    first, name = content["models"][0], cl.models.names()[0]
    assert cl.ModelCard.from_json(first["card"]) == cl.models.card(name)
    assert first["parameters"] == sum(p.numel() for p in cl.load(name).parameters())
    assert run(name, "--json", own / "one.json").exit_code == 0
    assert json.loads((own / "one.json").read_text())["models"] == [first]
    assert run(own / "bare", "--json", own / "bare.out").exit_code == 0
    assert json.loads((own / "bare.out").read_text())["models"][0]["card"] is None


def test_mistakes_are_one_sentence(own):
    result = run("smal")
    assert result.exit_code == 2
    known = ", ".join(cl.models.names())
    said = f"convexlift: there is no model 'smal'; the models shipped are {known}.\n"
    assert result.output == said
    assert "is a folder. Name a file in it" in run("--json", own).output
    (own / "bare.json").write_text("{")
    result = run(own / "bare")
    assert result.exit_code == 2
    assert "bare.json: not valid JSON" in result.output
    assert "Traceback" not in result.output
    with pytest.raises(Exception, match="not valid JSON"):
        run(own / "bare", "--debug", catch_exceptions=False)


@pytest.mark.parametrize("name", ["photo-open", "faces-inpainting-adversarial", "ct-abdomen-chest"])
def test_the_card_counts_the_weights_of_the_network(name):
    count = sum(each.numel() for each in cl.load(name).parameters())
    assert f" {count:,} parameters" in " ".join(run(name).output.split())


def test_a_terminal_of_80_columns_cuts_no_name_or_task(monkeypatch):
    narrow = Console(width=80)
    monkeypatch.setattr(models, "console", lambda: narrow)
    with narrow.capture() as captured:
        assert run().exit_code == 0
    text = captured.get()
    for name in cl.models.names():
        assert name in text
        assert cl.models.card(name).task in text
    assert "…" not in text


def published(folder):
    """A file of the paper's authors, with random weights."""
    torch.manual_seed(0)
    shapes = {"wx.weight": (2, 1, 5, 5), "wx.bias": (2,), "fc1.weight": (3, 8), "fc1.bias": (3,),
              "fc2.weight": (1, 3), "fc2.bias": (1,)}  # fmt: skip
    torch.save({name: torch.rand(shape).float() for name, shape in shapes.items()}, folder / "a.pt")
    return folder / "a.pt"


def test_a_published_regularizer_is_imported_with_its_card(tmp_path):
    file = published(tmp_path)
    result = run("import", file, "-o", tmp_path / "new" / "mine", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "Converted from the format paper" in result.output
    assert "its authors' terms" in result.output
    x = torch.rand(1, 1, 32, 32)
    saved = cl.load(tmp_path / "new" / "mine")
    assert torch.equal(saved(x.float()), cl.interop.load(file)(x.float()))
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["models"][0]["card"]["weight"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("import", "a.pt"), "import FILE -o OUT"),
        (("import", "-o", "b"), "import FILE -o OUT"),
        (("photo", "a.pt"), "belong to an import"),
        (("--format", "paper"), "belong to an import"),
        (("import", "nothing.pt", "-o", "b"), "there is no such file"),
        (("import", "a.pt", "-o", "b", "--format", "no"), "known are"),
        (("import", "a.pt", "-o", "b", "--noise", "0.1"), "noise=... is for goujon-crr-2024"),
    ],
)
def test_a_wrong_import_is_refused_in_a_sentence(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    published(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "b.safetensors").exists()


def test_the_package_states_the_licence_of_every_regularizer():
    """In the README beside the weights, which the wheel has among its licence files."""
    text = (files.SHIPPED / "README.md").read_text("utf-8")
    stated = dict(re.findall(r"^\| `(.*?)` \| (.*) \|$", text, re.MULTILINE))
    assert stated == {name: cl.models.card(name).license for name in cl.models.names()}


def test_the_metadata_name_the_licences_of_the_weights():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "src/convexlift/models/weights/README.md" in project["license-files"]
    parts = set(project["license"].split(" AND "))
    words = {"CC0 1.0": "CC0-1.0", "CC BY-NC-SA 4.0": "CC-BY-NC-SA-4.0", "CC BY 3.0": "CC-BY-3.0",
             "BSDS500": "LicenseRef-BSDS500"}  # fmt: skip
    terms = " ".join(cl.models.card(name).license for name in cl.models.names())
    assert {each for word, each in words.items() if word in terms} | {"MIT", "CC-BY-4.0"} == parts
