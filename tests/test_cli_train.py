"""``convexlift train``, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from train_commands import FAST, adversarial, bilevel, flat, run, training_folder

import convexlift as cl
from convexlift.training import ImageSet, Validation
from convexlift.training.initialization import absorb_weight_, start_from_filters_
from convexlift.training.presets import PRESETS

pytestmark = pytest.mark.single_precision


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return training_folder(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def finished(here):
    result = adversarial(here, here / "out", "--validate-every", 2, "--json", here / "out.json")
    return here / "out", result


def test_a_run_from_beginning_to_end(here, finished):
    folder, result = finished
    assert result.exit_code == 0, result.output
    names = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    assert names == {"model.safetensors", "model.json", "log.csv", "options.json", "checkpoint.pt"}
    network = cl.load(folder / "model")
    card = network.card
    assert card.name == "out"
    assert card.task == "salt-and-pepper"
    assert card.weight == 1.0
    assert str(here / "pictures") in card.data
    assert card.data.startswith("4 of 6 images")
    assert "training on 4 images" in card.summary
    assert "SHA-256" in card.data
    assert card.license.startswith("unknown;")
    assert card.recipe["kind"] == "AdversarialRecipe"
    assert card.recipe["options"]["steps"] == 4
    assert card.command.startswith("convexlift ")
    assert card.seed == 0
    assert card.training_time > 0
    assert "PyTorch" in card.machine
    assert set(card.results["validation"]) == {"psnr", "ssim"}
    content = json.loads((here / "out.json").read_text())
    assert content["version"] == cl.__version__
    assert content["model"] == str(folder / "model.safetensors")
    assert content["steps"] == 4
    assert [row["step"] for row in content["validations"]] == [0, 2, 4]
    assert cl.ModelCard.from_json(content["card"]) == card
    best = max(row["psnr"] for row in content["validations"])
    assert card.results["validation"]["psnr"] == best
    lines = result.output.splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == [f"step {k} of 4" for k in (0, 2, 4)]
    assert all(word in steps[1] for word in ("loss", "PSNR", "SSIM", "weight"))
    assert "━" not in result.output  # no progress bar in a pipe
    named = f"best (step {card.best_step})" if card.best_step else "last (step 4)"
    for row in ("at the start", named, "total variation, its best weight"):
        assert row in result.output
    assert lines[0].startswith("Method        adversarial")
    assert "salt and pepper on 25 % of the pixels" in lines[1]
    assert "4 to train on, 2 held out for validation every 2 steps" in result.output
    assert f"cl.load('{folder / 'model'}')" in result.output


def test_a_used_folder_is_refused_unless_torchrun_restarts_a_run(here, finished, monkeypatch):
    folder, _ = finished
    before = (folder / "model.safetensors").read_bytes()
    result = adversarial(here, folder)
    assert result.exit_code == 2
    assert result.output == (
        f"convexlift: {folder} holds the checkpoint of an earlier training. Continue with "
        f"convexlift train adversarial --resume {folder}, or name another folder with --output.\n"
    )
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # after a process was lost
    assert adversarial(here, folder).exit_code == 2  # with other options
    assert adversarial(here, folder, "--validate-every", 2).exit_code == 0
    assert (folder / "model.safetensors").read_bytes() == before


def test_resume_needs_no_other_option(here, finished, tmp_path, monkeypatch):
    folder, _ = finished
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)  # paths in the file are absolute
    result = run("adversarial", "--resume", folder)
    assert result.exit_code == 0, result.output
    assert (folder / "model.safetensors").read_bytes() == before
    saved = json.loads((folder / "options.json").read_text())
    assert saved["train"] == "adversarial"
    assert saved["options"]["steps"] == 4


def test_what_cannot_be_resumed_is_refused_by_name(here, finished, tmp_path):
    folder, _ = finished
    for arguments, message in (
        (["adversarial", "--resume", folder, "--steps", 9], "Leave out --steps. To train longer"),
        (["adversarial", "--resume", folder, "--seed", 9], "Leave out --seed."),
        (["bilevel", "--resume", folder], "Write convexlift train adversarial --resume"),
        (["bilevel", "--resume", tmp_path], "holds no training"),
        (["bilevel"], "Name a folder with clean pictures, or a training to --resume."),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in flat(result)
    (tmp_path / "options.json").write_text('{"train": "bilevel", "options": {"steps": [1]}}')
    assert "does not hold the options" in flat(run("bilevel", "--resume", tmp_path))


def test_the_command_to_train_longer_works(here, finished, tmp_path):
    """--resume with more steps is refused with a command that does what was meant."""
    folder, _ = finished
    before = (folder / "model.safetensors").read_bytes()
    for arguments, steps in ((["--steps", 5], 5), (["--steps", 1], 1)):
        refused = run("adversarial", "--resume", folder, *arguments)
        words = shlex.split(refused.output.split("its model: ")[1])
        assert words[:2] == ["convexlift", "train"]
        at = words.index("-o")
        assert words[at + 1] == f"{folder}-longer"
        words[at + 1] = str(tmp_path / str(steps))
        result = run(*words[2:])
        assert result.exit_code == 0, result.output
        content = json.loads((tmp_path / str(steps) / "options.json").read_text())["options"]
        first = json.loads((folder / "options.json").read_text())["options"]
        assert content == {**first, "start": str(folder / "model"), "steps": steps}
    assert (folder / "model.safetensors").read_bytes() == before
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "options.json").write_text((folder / "options.json").read_text())
    refused = run("adversarial", "--resume", tmp_path / "unfinished", "--steps", 5)
    assert "finish this training first" in flat(refused)


def test_a_training_that_improves_nothing_says_so(here, tmp_path):
    folder = tmp_path / "out"
    result = bilevel(
        here, folder, "--start", "photo-any-size", "--learning-rate", 30, "--json",
        tmp_path / "out.json", "--task", "denoise",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "out.json").read_text())
    psnr, tv = content["validations"][0]["psnr"], content["total_variation"]["psnr"]
    assert all(row["psnr"] < psnr for row in content["validations"][1:])
    assert "No validated step was better than the start" in flat(result)
    assert "at the start (kept)" in result.output
    assert "last (step 3)" in result.output
    assert "best (step" not in result.output
    assert re.search(r"longer before you.*\nconvexlift train bilevel", result.output)
    card = cl.models.card(folder / "model")
    assert card.best_step == 0
    assert card.weight_choice.startswith("fixed before the training")
    text = " ".join(card.text().split())
    assert "Best step the start: no validated step was better" in text
    assert "Architecture" not in text  # the card of the start does not state it
    assert card.results["validation"]["psnr"] == psnr
    assert card.results["validation, total variation instead"]["psnr"] == tv
    assert ("dB better on these images" in flat(result)) == (tv > psnr)


def test_bilevel(here, tmp_path):
    result = bilevel(here, tmp_path / "out", "--hypergradient", "jacobian-free")
    assert result.exit_code == 0, result.output
    card = cl.models.card(tmp_path / "out" / "model")
    assert set(card.weights) == {"gaussian-denoising", "inpainting"}
    assert card.weight_choice.startswith("for gaussian-denoising, fixed before the training;")
    assert "Weight 1 at noise level 0.1 " in " ".join(card.text().split())
    assert card.recipe["hypergradient"]["kind"] == "JacobianFree"
    assert card.recipe["crop"] == 12
    result = bilevel(here, tmp_path / "out")
    assert result.exit_code == 2
    assert "holds the checkpoint of an earlier training" in result.output


def test_damaged_images_and_no_validation(here, tmp_path):
    folder = tmp_path / "my run"
    result = adversarial(here, folder, "--damaged", here / "noisy", "--penalty", 3)
    assert result.exit_code == 0, result.output
    assert "step " not in result.output
    assert f"RESULT --regularizer '{folder / 'model'}'\n" in result.output  # to be copied
    card = cl.models.card(folder / "model")
    assert card.task == "given damaged images"
    assert card.weight_choice.startswith("not chosen")
    assert card.recipe["penalty"] == 3.0
    assert card.results == {}


def test_bilevel_learning_absorbs_the_weight_of_its_start(here, tmp_path):
    """R starts as weight R: the first validation is that of the model with its own weight."""
    network = cl.networks.ridge(channels=4, kernel=3)
    start_from_filters_(network, 0.003)
    card = cl.ModelCard(name="start", summary="A start.", task="gaussian-denoising", weight=3.0)
    cl.save(network, tmp_path / "start", card)
    loud = cl.load(tmp_path / "start")
    absorb_weight_(loud, 3.0)
    cl.save(loud, tmp_path / "absorbed")
    found = []
    for name in ("start", "absorbed"):
        result = bilevel(here, tmp_path / f"from-{name}", "--start", tmp_path / name)
        assert result.exit_code == 0, result.output
        rows = (tmp_path / f"from-{name}" / "log.csv").read_text().splitlines()
        found.append(rows[1])
    assert found[0] == found[1]


def test_a_fixed_mask(here, tmp_path):
    result = run(
        *("bilevel", here / "pictures", "--preset", "faces-inpainting-bilevel"),
        *("--mask", here / "mask.png"),
        *("--start", here / "tiny", "--output", tmp_path, "--steps", 1, "--images", 3, *FAST),
    )
    assert result.exit_code == 0, result.output
    assert cl.models.card(tmp_path / "model").recipe["tasks"][0][0]["mask"]["shape"] == [16, 16]


def test_of_few_pictures_a_fifth_is_held_out(tmp_path, here):
    words = ("bilevel", here / "pictures", "--channels", 2, "--kernel", 3, "--crop", 8)
    words += ("--task", "salt-and-pepper", "--sigma", 0.2)
    result = run(*words, "--output", tmp_path, "--steps", 1, "--batch-size", 2)
    assert result.exit_code == 0, result.output
    assert "5 to train on, 1 held out for validation" in result.output
    assert "Trained for   salt and pepper on 20 % of the pixels" in result.output
    assert set(cl.models.card(tmp_path / "model").weights) == {"salt-and-pepper"}
    longer = flat(run("bilevel", "--resume", tmp_path, "--steps", 5))
    assert "--sigma 0.2" in longer
    assert f"--start {tmp_path / 'model'}" in longer
    assert "--channels" not in longer  # the start has them


def test_a_failure_is_one_sentence_too(here, tmp_path):
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", np.full((16, 16), 1e30, dtype=np.float32))
    result = run(
        *("adversarial", tmp_path, "--damaged", tmp_path, "--start", here / "tiny", *FAST),
        *("--output", tmp_path / "out", "--steps", 2, "--learning-rate", 1e30),
    )
    assert result.exit_code == 1, result.output
    assert "FloatingPointError: the gradient is" in result.output
    assert "Traceback" not in result.output


def test_total_variation_is_compared_with_its_best_weight(here, finished):
    """No other weight of the grid around it is better on the held-out images."""
    found = json.loads((here / "out.json").read_text())["total_variation"]
    images = ImageSet.from_folder(here / "pictures")
    recipe = PRESETS["paper-salt-and-pepper"]
    _, held_out = images.split(2, recipe.seed)
    tv = cl.TotalVariation()
    for factor in (1 / 1.3, 1.0, 1.3):
        weight = factor * found["weight"]
        check = Validation(recipe.task, held_out, weight, seed=recipe.seed)
        psnr = float(check(tv).psnr.mean())
        assert psnr == pytest.approx(found["psnr"], rel=1e-6) if factor == 1 else True
        assert psnr <= found["psnr"] + 1e-6


@pytest.mark.slow
def test_training_needs_none_of_the_other_extras(here, tmp_path):
    """With the extra cli alone: TensorBoard and torchmetrics are not there."""
    for name in ("tensorboard", "torchmetrics", "pydicom", "h5py", "gradio"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "convexlift", "train", "bilevel", str(here / "pictures"), *FAST,
         "--start", str(here / "tiny"), "--steps", "1", "--crop", "12",
         "--output", str(tmp_path / "out")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SSIM" in done.stdout
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_nothing_is_called_the_start_that_was_not_measured(here, tmp_path):
    result = run(
        *("adversarial", here / "pictures", "--start", here / "tiny", "--output", tmp_path),
        *("--steps", 2, "--crop", 12, *FAST),
    )
    assert result.exit_code == 0, result.output
    assert "at the start" not in result.output
    assert "best (step 2)" in result.output


@pytest.mark.slow
def test_control_c_exits_with_130_and_says_how_to_go_on(here, tmp_path):
    command = [
        *(sys.executable, "-m", "convexlift", "train", "adversarial", str(here / "pictures")),
        *("--preset", "paper-salt-and-pepper", "--start", str(here / "tiny"), *FAST),
        *("--output", str(tmp_path / "out"), "--steps", "100000", "--validate-every", "100000"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    log, limit = tmp_path / "out" / "log.csv", time.time() + 120
    while time.time() < limit and (not log.exists() or log.read_bytes().count(b"\n") < 4):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.startswith("convexlift: Interrupted after step ")
    continued = f"Continue with convexlift train adversarial --resume {tmp_path / 'out'}.\n"
    assert errors.endswith(continued)
    assert errors.count("\n") == 1
    assert "\nstep 0 of 100000: start, PSNR" in printed
    names = {path.name for path in (tmp_path / "out").iterdir() if "tfevents" not in path.name}
    assert names == {"log.csv", "options.json", "checkpoint.pt"}


def test_resume_without_a_checkpoint_begins(here, finished, tmp_path):
    folder, _ = finished
    (tmp_path / "options.json").write_bytes((folder / "options.json").read_bytes())
    result = run("adversarial", "--resume", tmp_path)
    assert result.exit_code == 0, result.output
    assert "There is no checkpoint in" in result.output
