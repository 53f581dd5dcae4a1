"""Trainings of regularizers that read the data: gradients of guides, steps, and their refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_runs import crops
from typer.testing import CliRunner
from zoo import NOISE, Constant, adaptive, guided

import convexlift as cl
from convexlift.cli import app
from convexlift.images import psnr, save_image
from convexlift.networks import AdaptiveNetwork
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.training import (
    PRESETS,
    BatchSampler,
    Bilevel,
    TrainingOptions,
    train,
)

TWO_LAYERS = {"depth": 2, "inner_channels": 4, "reads": ("output", "biases", "links")}


def trained(steps: int, of: dict | None = None, **options):
    """A short training on parts of the example pictures, for random noise levels."""
    net = guided(**(of or {}))
    stop = options.pop("stop", cl.StopWhen(gap=1e-3, max_iterations=400))
    objective = Bilevel(
        [(GaussianDenoising(0.05, up_to=0.3, box=None), 1.0)], decibels=True, strict=True, stop=stop
    )
    batches = BatchSampler(crops(8), 4)
    settings = TrainingOptions(
        steps=steps, learning_rate=2e-2, relative=True, zero_mean=True, checkpoint_every=2
    )
    return net, train(net, objective, batches, settings, **options)


@pytest.mark.parametrize("options", [{}, pytest.param(TWO_LAYERS, marks=pytest.mark.slow)], ids=str)
def test_training_raises_the_psnr(options):
    net, _ = trained(40, options)
    clean = torch.stack([crops(8)[i] for i in range(8)]).double()
    y = clean + NOISE * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))

    def quality(regularizer):
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=regularizer, weight=1.0, noise=NOISE
        )
        return float(psnr(cl.solve(problem).x, clean).mean())

    before = guided(**options)
    assert quality(net) > quality(before) + 1
    for name, read in net.readings(y, NOISE).items():
        assert not torch.allclose(read, before.readings(y, NOISE)[name], rtol=0.01), name
    assert float(net.layers[0].skip.weight.detach().mean((-2, -1)).abs().max()) < 1e-12


def test_a_step_whose_lower_level_missed_its_gap_is_not_taken():
    before = guided().state_dict()
    net, result = trained(3, stop=cl.StopWhen(gap=1e-9, max_iterations=2))
    assert [row["learning_rate"] for row in result.rows] == [0, 0, 0]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_training_can_be_resumed(tmp_path):
    whole, _ = trained(6, folder=tmp_path / "whole")
    settings = {"folder": tmp_path / "parts", "callback": lambda report: None}

    def interrupt(report):
        if report.step == 3:
            raise RuntimeError("the power failed")

    with pytest.raises(RuntimeError, match="power"):
        trained(6, **{**settings, "callback": interrupt})
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    parts, _ = trained(6, **settings, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name


# The command line


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    for i, part in enumerate(crops(6)[i] for i in range(6)):
        save_image(tmp_path / "pictures" / f"{i}.png", part)


def by_command(output: str, *more: str, size=("--channels", "2", "--kernel", "3", "--widths", "4")):
    words = ["train", "bilevel", "pictures", "--adaptive", "--output", output, "--steps", "2"]
    quick = ["--crop", "12", "--batch-size", "2", "--held-out", "2", "--device", "cpu"]
    return CliRunner().invoke(app, [*words, *quick, *size, *more])


@pytest.mark.usefixtures("pictures")
def test_the_command_trains_an_adaptive_network():
    result = by_command("out", "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert "not taken" not in result.output
    assert json.loads(Path("out.json").read_text())["steps_not_taken"] == 0
    trained = cl.load("out/model")
    assert isinstance(trained, AdaptiveNetwork)
    assert (trained.layers[0].channels, trained.guide.widths) == (2, [4])
    tasks = PRESETS["photo"].tasks
    assert trained.card.weights == {task.name: weight for task, weight in tasks}
    assert trained.card.recipe["network"]["architecture"] == "adaptive"
    assert trained.card.recipe["tasks"][0][0]["up_to"] == tasks[0][0].up_to
    again = CliRunner().invoke(app, ["train", "bilevel", "--resume", "out"])  # the same network
    assert again.exit_code == 0, again.output


@pytest.mark.usefixtures("pictures")
def test_the_command_prints_how_many_steps_were_not_taken(monkeypatch):
    hopeless = replace(PRESETS["photo"], stop=cl.StopWhen(gap=0.0, max_iterations=1))
    monkeypatch.setitem(PRESETS, "photo", hopeless)
    refused = by_command("refused", "--json", "refused.json", "--validate-every", "1")
    text = " ".join(refused.output.split())
    assert ", 1 step not taken step 2" in text
    assert "2 of 2 steps were not taken: reconstructions missed the gap of the recipe." in text
    assert json.loads(Path("refused.json").read_text())["steps_not_taken"] == 2


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "paper-bilevel"], "networks that read the data, and paper-bilevel is for"),
        (["--widths", "4,a"], "--widths is whole numbers and commas, such as 48,64,80, got '4,a'"),
        (["--widths", "0"], "a guide needs widths of at least 1"),
        (["--channels", "0"], "out_channels must be at least 1, got 0"),
        (["--kernel", "4"], "an odd kernel_size, got 4"),
        (["--start", "photo-any-size"], "photo-any-size does not read the data"),
        (["--start", "x", "--kernel", "3"], "--kernel is for a new network, and --start names"),
    ],
)  # fmt: skip
def test_bad_options_are_one_sentence(options, message):
    result = by_command("out", *options, size=())
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert result.stderr.count("\n") == 1


class Recording(Constant):
    """Remembers what it was given."""

    def forward(self, picture, noise, seen):
        self.picture, self.seen = picture, seen
        return super().forward(picture, noise, seen)


def test_other_damage_reaches_the_guide():
    """Missing pixels and impulses are filled in, and the guide is told where."""
    torch.manual_seed(0)
    clean = crops(1)[0][None].double()
    generator = [torch.Generator().manual_seed(0)]
    guide = Recording(0.0)
    net = adaptive("adaptive", guide=guide)
    holes = Inpainting(0.3, 0.01).measure(clean, generator)
    holes.problem(net, 1.0)
    assert torch.equal(guide.seen, (holes.operator.diagonal != 0).to(guide.seen))
    assert float((guide.picture - clean).abs().mean()) < 0.05
    impulses = SaltAndPepper(0.25).measure(clean, generator)
    impulses.problem(net, 1.0)
    hit = impulses.fidelity.y != clean
    assert float((guide.seen[hit] == 0).double().mean()) > 0.8
    assert float(guide.seen[~hit].mean()) > 0.8
    damage = float((impulses.fidelity.y - clean).abs().mean())
    assert float((guide.picture - clean).abs().mean()) < 0.3 * damage
