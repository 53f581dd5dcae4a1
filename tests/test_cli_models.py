"""``convexlift models``, as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


def run(*arguments):
    return CliRunner().invoke(app, ["models", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    weights = tmp_path / "weights"
    card = cl.ModelCard(
        name="small",
        summary="A toy [not bold].",
        task="denoising",
        weight=0.25,
        license="CC0-1.0; and so on",
        results={"test": {"psnr": 28.456}},
        not_for="diagnosis",
    )
    cl.save(network("plain", cl.ReLU()), weights / "small", card)
    cl.save(network("deep", cl.ReLU()), weights / "bare")
    monkeypatch.setattr(files, "SHIPPED", weights)
    return weights


@pytest.mark.parametrize("name", ["photo-open", "faces-inpainting-adversarial", "ct-abdomen-chest"])
def test_the_card_counts_the_weights_of_the_network(name):
    count = sum(each.numel() for each in cl.load(name).parameters())
    assert f" {count:,} parameters" in " ".join(run(name).output.split())


def test_the_table_has_the_psnr_of_every_shipped_one_at_the_usual_noise():
    lines = {line.split()[0]: line for line in run().output.splitlines() if line.strip()}
    for name, each in files.shipped_sheets().items():
        usual = each.card.results.get("BSD68, sigma 25", next(iter(each.card.results.values())))
        assert name.endswith("colour") or f" {usual['psnr']:.2f} " in lines[name]
    assert models._cells(cl.ModelCard("x", "y", "denoising", 1.0, results={"a": {"ssim": 1.0}}))


@pytest.mark.usefixtures("folder")
def test_the_table():
    result = run()
    assert result.exit_code == 0, result.output
    for column in ("Name", "Task", "Weight", "Test dB", "Licence"):
        assert column in result.output
    (small,) = [line for line in result.output.splitlines() if line.strip().startswith("small")]
    assert small.split("  ")[-1].strip() == "CC0-1.0"
    assert all(text in small for text in ("denoising", "0.25", "28.46"))
    assert " bare " in result.output
    assert "convexlift models NAME" in result.output
    assert "Weight: the factor of the regularizer in the objective" in result.output


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


@pytest.mark.usefixtures("folder")
def test_the_whole_card():
    result = run("small")
    assert result.exit_code == 0
    assert "small: A toy [not bold]." in result.output
    assert "Not for           diagnosis" in result.output
    assert files.sheet("small").sha256 in result.output
    assert "for images of 8 x 8" in result.output
    assert "It has no card." in run("bare").output


@pytest.mark.usefixtures("folder")
def test_json(tmp_path):
    assert run("--json", tmp_path / "all.json").exit_code == 0
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["version"] == cl.__version__
    assert [model["name"] for model in content["models"]] == ["bare", "small"]
    assert content["models"][0]["card"] is None
    assert cl.ModelCard.from_json(content["models"][1]["card"]) == cl.models.card("small")
    count = sum(p.numel() for p in cl.load("small").parameters())
    assert content["models"][1]["parameters"] == count
    assert run("small", "--json", tmp_path / "one.json").exit_code == 0
    (one,) = json.loads((tmp_path / "one.json").read_text())["models"]
    assert one == content["models"][1]


def test_a_model_of_ones_own(folder):
    assert "small: A toy" in run(folder / "small.json").output


@pytest.mark.usefixtures("folder")
def test_mistakes_are_one_sentence(tmp_path):
    result = run("smal")
    assert result.exit_code == 2
    assert result.output == (
        "convexlift: there is no model 'smal'; the models shipped are bare, small.\n"
    )
    result = run("--json", tmp_path)
    assert result.exit_code == 2
    assert "is a folder. Name a file in it" in result.output
    (tmp_path / "weights" / "bare.json").write_text("{")
    result = run()
    assert result.exit_code == 1
    assert "bare.json: not valid JSON" in result.output
    assert "Traceback" not in result.output
    with pytest.raises(ValueError, match="not valid JSON"):
        CliRunner().invoke(app, ["models", "--debug"], catch_exceptions=False)


def test_nothing_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "nowhere")
    result = run("--json", tmp_path / "none.json")
    assert result.exit_code == 0
    assert result.output == f"No regularizers are shipped with convexlift {cl.__version__}.\n"
    assert json.loads((tmp_path / "none.json").read_text())["models"] == []


def test_help():
    text = run("--help").output
    for option in ("--json", "--debug", "name"):
        assert option in text.lower()


def test_as_a_module():
    command = [sys.executable, "-m", "convexlift", "models"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert not done.stderr


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
