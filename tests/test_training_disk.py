"""A disk that is full during a training, and checkpoints whose parts do not fit together."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path

import pytest
import torch
from quick_training import quick
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.images import save_image
from convexlift.training.run_files import WriteError


@pytest.fixture
def full(monkeypatch):
    """A disk on which nothing more can be written to files of some name."""

    before = Path.write_bytes

    def fill(name):
        def write(self, data):
            if name in self.name:
                raise OSError(errno.ENOSPC, "No space left on device", str(self))
            return before(self, data)

        monkeypatch.setattr(Path, "write_bytes", write)

    return fill


def test_a_full_disk_is_named_and_keeps_the_last_checkpoint(tmp_path, full):
    quick(folder=tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    full("checkpoint.pt")
    with pytest.raises(WriteError, match=r"checkpoint\.pt cannot be written \(No space") as caught:
        quick(folder=tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_ends_the_command_with_a_sentence(tmp_path, full):
    torch.set_default_dtype(torch.float32)
    for i in range(4):
        save_image(tmp_path / "in" / f"{i}.png", torch.rand(16, 16))
    cl.save(cl.networks.ridge(channels=2, kernel=3), tmp_path / "tiny")
    full("checkpoint.pt")
    result = CliRunner().invoke(
        app,
        ["train", "adversarial", str(tmp_path / "in"), "--preset", "paper-salt-and-pepper",
         "--start", str(tmp_path / "tiny"), "--output", str(tmp_path / "out"), "--steps", "1",
         "--held-out", "1", "--batch-size", "2", "--validate-every", "5"],
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    assert result.output.count("convexlift: ") == 1
    assert "checkpoint.pt cannot be written (No space left on device); make room" in result.output
    assert "--resume" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "3"), ("step", -1), ("network", []), ("optimiser", {}), ("rows", [{"step": "x"}]),
        ("rows", [{}]), ("best", {"psnr": 1.0}), ("identity", {"options": 1}), ("seconds", None),
        ("generator", torch.zeros(3)), ("generator", None), ("weight", "x"),
    ],
)  # fmt: skip
def test_fields_of_the_wrong_kind_are_refused(tmp_path, name, value):
    quick(folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    torch.save(torch.load(path, weights_only=True) | {name: value}, path)
    with pytest.raises(ValueError, match=rf"checkpoint\.pt .*its {name} is damaged"):
        quick(folder=tmp_path, resume=True)


def test_states_that_do_not_fit_are_refused_by_name(tmp_path):
    quick(folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    content["optimiser"]["state"][0]["exp_avg"] = torch.zeros(7)
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt does not fit .*exp_avg .*\(7,\)"):
        quick(folder=tmp_path, resume=True)
    content["network"] = {"other": torch.zeros(1)}
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt does not fit this run"):
        quick(folder=tmp_path, resume=True)


def test_nothing_is_inflated(tmp_path):
    quick(folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    packed = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    path.write_bytes(packed.getvalue())
    with pytest.raises(ValueError, match=r"checkpoint\.pt is not a readable .*are compressed"):
        quick(folder=tmp_path, resume=True)
