"""What users see of regularizers that read the data: maps of weights, the premise, strength."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from reconstruct_runs import noisy, one_record, run
from typer.testing import CliRunner
from zoo import NOISE, Constant, guided

import convexlift as cl
from convexlift.cli import app
from convexlift.images import load_image, save_image
from convexlift.networks import AdaptiveNetwork
from convexlift.problems.claims import CAVEAT

PREMISE = "given the weights that the guide read from these data, "


def denoising(batch: int = 2) -> cl.VariationalProblem:
    torch.manual_seed(0)
    y = torch.rand(batch, 1, 9, 12)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=guided(), weight=1.0, noise=NOISE
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A noisy picture, and a saved regularizer."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "noisy.png", torch.from_numpy(noisy(sigma=NOISE)))
    cl.save(guided().float(), tmp_path / "net")
    return tmp_path


def reconstruct(*more: str):
    words = ("denoise", "noisy.png", "-o", "out.png", "--regularizer", "net", "--sigma", NOISE)
    return run(*words, "--tolerance", "1e-2", *more, quick=False)


# Maps


def test_the_map_is_the_share_of_the_largest_weights():
    solution = cl.solve(denoising())
    net, y = guided(), denoising().fidelity.y
    largest = NOISE * net.output.detach()
    by_hand = net.weights(y, NOISE).detach().sum(1, keepdim=True) / largest.sum()
    torch.testing.assert_close(solution.weight_map, by_hand)
    assert solution.weight_map.shape == (2, 1, 9, 12)


@pytest.mark.parametrize("number", [-math.inf, -1.0, 0.0, math.inf])
def test_the_map_of_a_constant_guide_is_its_number(number):
    net = AdaptiveNetwork(list(guided().layers), Constant(number), floor=0.01)
    shown = net.condition(torch.rand(1, 1, 5, 6), NOISE).weight_map
    share = float(torch.sigmoid(torch.tensor(number))) ** 2
    torch.testing.assert_close(shown, torch.full((1, 1, 5, 6), 0.01 + 0.99 * share))


def test_fixed_regularizers_have_no_map_and_need_no_premise(tmp_path):
    with pytest.raises(ValueError, match="tv does not read them; leave it out"):
        cl.reconstruct(noisy(), regularizer="tv", sigma=0.05, weight_map=True)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 8, 8)), regularizer=cl.TotalVariation(), weight=0.1
    )
    solution = cl.solve(problem)
    assert solution.weight_map is None
    assert solution.meaning == ("no image in the box has an objective below the lower bound",)
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.premise == ""
    for text in (str(solution), str(cl.explain(problem)), str(verdict)):
        assert "given" not in text


@pytest.mark.parametrize("batch", [1, 2, "auto"])
def test_planes_solved_in_pieces_have_the_maps_of_all(batch):
    planes = torch.rand(3, 1, 24, 20).float()
    net = guided().float()
    result = cl.reconstruct(
        planes, regularizer=net, sigma=NOISE, noise="gaussian", batch=batch, tolerance=1e-2
    )
    torch.testing.assert_close(result.weight_map, net.condition(planes, NOISE).weight_map)


def test_the_command_line_writes_it(files):
    result = reconstruct("--weight-map")
    assert result.exit_code == 0, result.output
    numbers = np.load(files / "out.weights.npy")
    with torch.no_grad():
        expected = guided().float().condition(load_image(files / "noisy.png"), NOISE).weight_map
    np.testing.assert_allclose(numbers, expected[:, 0], rtol=1e-5)
    shown = load_image(files / "out.weights.png")
    torch.testing.assert_close(shown, expected.sqrt(), rtol=0, atol=0.5 / 255 + 1e-6)
    assert one_record(files, "out")["weight_map"] == ["out.weights.npy", "out.weights.png"]


def test_maps_are_not_overwritten_and_are_resumed(files):
    (files / "out.weights.npy").write_text("mine")
    result = reconstruct("--weight-map")
    assert result.exit_code == 2
    assert "out.weights.npy exists" in result.output
    assert reconstruct("--weight-map", "--force").exit_code == 0
    assert "by an earlier run" in reconstruct("--weight-map", "--resume").output
    (files / "out.weights.png").unlink()
    assert "by an earlier run" not in reconstruct("--weight-map", "--resume").output
    assert (files / "out.weights.png").exists()


def test_a_map_that_does_not_exist_is_refused_before_any_work(files):
    result = run("denoise", "noisy.png", "-o", "out.png", "--weight-map")
    assert result.exit_code == 2
    assert "tv does not read them; leave it out" in result.output
    assert not (files / "out.png").exists()


# The premise


def test_every_text_about_a_certificate_has_the_premise(tmp_path):
    problem = denoising()
    solution = cl.solve(problem)
    assert problem.regularizer.premise == guided().premise == PREMISE
    everywhere = "no image in the box has an objective below the lower bound"
    assert solution.meaning == (PREMISE + everywhere,) * 2
    assert PREMISE in " ".join(str(solution).split())
    assert f"{PREMISE}no image has an objective below the bound" in str(cl.explain(problem))
    verdicts = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert {verdict.premise for verdict in verdicts} == {PREMISE}
    assert f"; {PREMISE}no image in the box is below" in str(verdicts[0])


def test_the_command_line_says_it_once(files):
    (files / "photos").mkdir()
    for i in range(2):
        (files / "photos" / f"{i}.png").write_bytes((files / "noisy.png").read_bytes())
    words = ("denoise", "photos", "-o", "out", "--sigma", NOISE, "--tolerance", "1e-2", "--proof")
    result = run(*words, "--regularizer", "net", "--json", "all.json", quick=False)
    assert result.exit_code == 0, result.output
    assert (
        result.output.count(
            f"{PREMISE}no picture fits this model better by more than that. {CAVEAT}"
        )
        == 1
    )
    for record in json.loads((files / "all.json").read_text())["files"]:
        assert record["meaning"].startswith(PREMISE)
    checked = CliRunner().invoke(app, ["verify", "out/0.proof"])
    assert checked.exit_code == 0
    assert PREMISE in checked.output
    assert "given the weights" not in run(*words, "--force").output


# Strength


def test_strength_multiplies_what_a_rule_finds():
    y, given = noisy(), {"sigma": 0.05, "regularizer": "tv", "tolerance": 1e-2}
    for rule in ("card", "auto"):
        once, twice = (cl.reconstruct(y, weight=rule, strength=s, **given) for s in (1, 2.0))
        assert twice.weight.value == pytest.approx(2 * once.weight.value)


def test_the_command_line_prints_the_strength(files):
    result = reconstruct("--strength", "1.5")
    assert "weight 1.5 (the regularizer scales with the noise; strength 1.5);" in result.output
    assert one_record(files, "out")["settings"]["strength"] == 1.5
    fixed = run("denoise", "noisy.png", "-o", "tv.png", "--sigma", "0.1", "--strength", "0.5")
    assert "(of the card, scaled to noise and texture; strength 0.5)" in fixed.output


@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf, "2", True, None, [1.0]])
def test_bad_strengths_are_refused(value):
    with pytest.raises(ValueError, match="strength= is a number > 0, got"):
        cl.reconstruct(noisy(), sigma=0.05, strength=value)


def test_a_weight_and_a_strength_are_one_too_many(files):
    result = reconstruct("--weight", "2", "--strength", "1.5")
    assert result.exit_code == 2
    assert "leave out --strength and write --weight 3, or leave out --weight" in result.output
    with pytest.raises(ValueError, match=r"leave out strength= and write weight= 3"):
        cl.reconstruct(noisy(), weight=2.0, strength=1.5)
