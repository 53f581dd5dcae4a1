"""``convexlift train``, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed.run import get_args_parser
from training_runs import crops
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli.app import app, load
from convexlift.cli.training_options import AdversarialOptions, BilevelOptions, TrainingTask
from convexlift.cli.training_recipe import changed_recipe
from convexlift.images import save_image
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.training import ImageSet, Validation, plain_settings
from convexlift.training.initialization import absorb_weight_, start_from_filters_
from convexlift.training.presets import PRESETS
from convexlift.training.recipes import AdversarialRecipe, validated_task

FAST = ("--batch-size", "2", "--held-out", "2", "--device", "cpu")
"""With ``--start``, a tiny network, and a preset that searches no weights."""

pytestmark = pytest.mark.single_precision


@pytest.fixture(autouse=True)
def _one_weight_of_total_variation(monkeypatch):
    """The search for the best one takes longer than these trainings; ``finished`` has it."""

    def score(self, like):
        once = replace(self, weight=0.1, search=False, method=None, from_picture=False)
        return once(cl.TotalVariation())

    monkeypatch.setattr(Validation, "total_variation", score)


def run(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def flat(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Pictures, others that are no good, and a tiny model to start from."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("training")
    images = crops(6, 16)
    for place in ("pictures", "noisy", "few", "mixed"):
        (folder / place).mkdir()
    for i in range(len(images)):
        save_image(folder / "pictures" / f"{i}.png", images[i])
        save_image(folder / "noisy" / f"{i}.png", images[i] + 0.1 * torch.randn(1, 16, 16))
    save_image(folder / "few" / "0.png", images[0])
    for i, size in enumerate((16, 16, 20, 16)):
        save_image(folder / "mixed" / f"{i}.png", torch.zeros(size, size))
    save_image(folder / "mask.png", (torch.rand(16, 16) > 0.3).float())
    save_image(folder / "small-mask.png", torch.ones(8, 8))
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "bad.png").write_bytes(b"no picture")
    cl.save(cl.networks.ridge(channels=2, kernel=3), folder / "tiny")
    return folder


def adversarial(here, output, *more):
    return run(
        *("adversarial", here / "pictures", "--preset", "paper-salt-and-pepper"),
        *("--start", here / "tiny", "--output", output, "--steps", 4, *FAST, *more),
    )


def bilevel(here, output, *more):
    return run(
        *("bilevel", here / "pictures", "--start", here / "tiny", "--output", output),
        *("--steps", 3, "--crop", 12, *FAST, *more),
    )


@pytest.fixture(scope="module")
def finished(here):
    torch.set_default_dtype(torch.float32)
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


def test_what_it_prints(finished):
    folder, result = finished
    lines = result.output.splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == [f"step {k} of 4" for k in (0, 2, 4)]
    assert all(word in steps[1] for word in ("loss", "PSNR", "SSIM", "weight"))
    assert "━" not in result.output  # no progress bar in a pipe
    for row in ("at the start", "best (step", "total variation, its best weight"):
        assert row in result.output
    assert lines[0].startswith("Method        adversarial")
    assert "salt and pepper on 25 % of the pixels" in lines[1]
    assert "4 to train on, 2 held out for validation every 2 steps" in result.output
    assert f"cl.load('{folder / 'model'}')" in result.output


def test_json(here, finished):
    folder, _ = finished
    content = json.loads((here / "out.json").read_text())
    assert content["version"] == cl.__version__
    assert content["model"] == str(folder / "model.safetensors")
    assert content["steps"] == 4
    assert [row["step"] for row in content["validations"]] == [0, 2, 4]
    card = cl.models.card(folder / "model")
    assert cl.ModelCard.from_json(content["card"]) == card
    best = max(row["psnr"] for row in content["validations"])
    assert card.results["validation"]["psnr"] == best


def test_a_used_folder_is_refused(here, finished):
    folder, _ = finished
    before = (folder / "model.safetensors").read_bytes()
    result = adversarial(here, folder)
    assert result.exit_code == 2
    assert result.output == (
        f"convexlift: {folder} holds the checkpoint of an earlier training. Continue with "
        f"convexlift train adversarial --resume {folder}, or name another folder with --output.\n"
    )
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
        (["adversarial", "--resume", folder, "--steps", 9], "Leave out --steps."),
        (["bilevel", "--resume", folder], "Write convexlift train adversarial --resume"),
        (["bilevel", "--resume", tmp_path], "holds no training"),
        (["bilevel"], "Name a folder with clean pictures, or a training to --resume."),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in flat(result)
    (tmp_path / "options.json").write_text('{"train": "bilevel", "options": {"steps": [1]}}')
    assert "does not hold the options" in flat(run("bilevel", "--resume", tmp_path))


def test_bilevel(here, tmp_path):
    result = bilevel(here, tmp_path / "out", "--hypergradient", "jacobian-free")
    assert result.exit_code == 0, result.output
    card = cl.models.card(tmp_path / "out" / "model")
    assert set(card.weights) == {"gaussian-denoising", "inpainting"}
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
        *(
            "bilevel",
            here / "pictures",
            "--preset",
            "faces-inpainting-bilevel",
            "--mask",
            here / "mask.png",
        ),
        *("--start", here / "tiny", "--output", tmp_path, "--steps", 1, "--images", 3, *FAST),
    )
    assert result.exit_code == 0, result.output
    assert cl.models.card(tmp_path / "model").recipe["tasks"][0][0]["mask"]["shape"] == [16, 16]


def test_of_few_pictures_a_fifth_is_held_out(tmp_path, here):
    words = ("bilevel", here / "pictures", "--channels", 2, "--kernel", 3, "--crop", 8)
    result = run(*words, "--output", tmp_path, "--steps", 1, "--batch-size", 2)
    assert result.exit_code == 0, result.output
    assert "5 to train on, 1 held out for validation" in result.output


SP = ("--preset", "paper-salt-and-pepper")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adversarial", "nowhere"], "nowhere does not exist; give a folder with pictures"),
        (["adversarial", "empty"], "empty has no pictures; their names must end in"),
        (["adversarial", "broken"], "bad.png cannot be read as a picture"),
        (["adversarial", "mask.png"], "mask.png is not a folder"),
        (["adversarial", "few"], "a split needs at least two images"),
        (["adversarial", "mixed", "--preset", "faces-denoising", "--held-out", "1"],
         "not 16 x 16; use images of one size"),
        (["adversarial", "pictures", "pictures"], "is given twice"),
        (["bilevel", "nowhere"], "nowhere does not exist; give a folder with pictures"),
        (["adversarial", "pictures", "--damaged", "nowhere"], "nowhere does not exist"),
        (["adversarial", "pictures", "--held-out", "6"], "6 of 6 images cannot be held out "
         "with some left for training. Use --held-out with a number from 0 to 5, or more images."),
        (["bilevel", "pictures", "--held-out", "-1"], "a number from 0 to 5, or more images."),
        (["adversarial", "pictures", "--preset", "best"], "no adversarial preset 'best'. Choose"),
        (["adversarial", "pictures", "--preset", "photo-any-size"], "`convexlift train bilevel`"),
        (["bilevel", "pictures", "--preset", "paper-ct"], "`convexlift train adversarial`"),
        (["adversarial", "pictures", "--preset", "paper-ct"], "got (1, 16, 16)"),
        (["adversarial", "pictures", "--damaged", "few"], "6 clean and 1 damaged images"),
        (["adversarial", "pictures", "--preset", "faces-denoising", "--crop", "12"],
         "must be a multiple of the pooling size"),
        (["adversarial", "pictures", *SP, "--mask", "mask.png"], "--mask is for inpainting"),
        (["bilevel", "pictures", "--preset", "paper-bilevel", "--images", "3", "--mask",
          "small-mask.png"], "the mask is 8 x 8, but the images are 16 x 16"),
        (["bilevel", "pictures", "--mask", "nothing.png"], "nothing.png cannot be read"),
        (["bilevel", "pictures", "--crop", "64"], "is 16 x 16, smaller than 64 x 64"),
        (["bilevel", "pictures", "--steps", "0"], "steps must be at least 1, got 0"),
        (["bilevel", "pictures", "--learning-rate", "-1"], "learning_rate must be positive"),
        (["bilevel", "pictures", "--batch-size", "0"], "batch_size must be at least 1"),
        (["bilevel", "pictures", "--images", "9"], "and 9 were asked for"),
        (["bilevel", "pictures", "--start", "nothing"], "there is no model 'nothing'"),
        (["bilevel", "pictures", "--json", "few"], "is a folder. Name a file in it"),
        (["bilevel", "pictures", "--output", "mask.png"], "cannot be used as a folder"),
        (["adversarial", "pictures", "--crop", "12", "--penalty", "-1"], "needs penalty >= 0"),
        (["bilevel", "pictures", "--sigma", "0.1"], "Add --task denoise, for example."),
        (["bilevel", "pictures", "--task", "denoise", "--sigma", "-1"], "needs sigma >= 0"),
        (["bilevel", "pictures", "--preset", "paper-bilevel", "--task", "denoise"],
         "paper-bilevel is the paper's recipe. Leave out --task"),
        (["adversarial", "pictures", "--damaged", "noisy", "--sigma", "0.1"], "Leave out --sigma"),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_one_sentence(arguments, message, here, tmp_path, monkeypatch):
    monkeypatch.chdir(here)
    more = [] if "--output" in arguments else ["--output", tmp_path / "out"]
    held_out = [] if "--held-out" in arguments else ["--held-out", 2]
    result = run(*arguments, *more, *held_out)
    assert result.exit_code == 2, result.output
    assert message in flat(result)
    assert result.stderr.startswith("convexlift: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert not (tmp_path / "out" / "checkpoint.pt").exists()


def test_wrong_choices_are_refused_by_typer(here):
    result = run("bilevel", here / "pictures", "--hypergradient", "magic")
    assert result.exit_code == 2
    assert "jacobian-free" in result.output


def test_debug_shows_the_cause(here, tmp_path):
    arguments = ["train", "adversarial", str(here / "empty"), "--debug"]
    with pytest.raises(Exception, match="has no pictures"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_failure_is_one_sentence_too(here, tmp_path):
    np.save(tmp_path / "a.npy", np.full((16, 16), 1e30, dtype=np.float32))
    np.save(tmp_path / "b.npy", np.full((16, 16), 1e30, dtype=np.float32))
    np.save(tmp_path / "c.npy", np.full((16, 16), 1e30, dtype=np.float32))
    result = run(
        *("adversarial", tmp_path, "--damaged", tmp_path, "--start", here / "tiny", *FAST),
        *("--output", tmp_path / "out", "--steps", 2, "--learning-rate", 1e30),
    )
    assert result.exit_code == 1, result.output
    assert "FloatingPointError: the gradient is" in result.output
    assert "Traceback" not in result.output


def test_help():
    overview = run("--help").output
    assert "adversarial" in overview
    assert "bilevel" in overview
    common = (
        *("--preset", "--output", "--steps", "--batch-size", "--learning-rate", "--crop"),
        *("--images", "--held-out", "--seed", "--start", "--mask", "--resume", "--device"),
        *("--json", "--debug"),
    )
    environment = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    for command, own in (("adversarial", ("--damaged", "--penalty")), ("bilevel", ("--hyperg",))):
        result = CliRunner().invoke(app, ["train", command, "--help"], env=environment)
        assert result.exit_code == 0
        for option in (*common, *own):
            assert option in result.output
        for name, recipe in PRESETS.items():
            fits = isinstance(recipe, AdversarialRecipe) == (command == "adversarial")
            assert (f"\n  {name}  " in result.output) == fits


@pytest.mark.parametrize("kind", [AdversarialOptions, BilevelOptions])
def test_the_help_repeats_the_recipes_and_their_numbers(kind):
    """They are written down twice, since importing the recipes takes seconds."""
    recipes = {
        name
        for name, recipe in PRESETS.items()
        if isinstance(recipe, AdversarialRecipe) == (kind is AdversarialOptions)
    }
    assert set(kind.presets) == recipes
    recipe = PRESETS[next(iter(kind.presets))]
    for name, number in kind.defaults.items():
        places = (recipe, recipe.options, recipe.network)
        assert number in [getattr(place, name) for place in places if hasattr(place, name)], name
    assert changed_recipe(kind(folders=[])) == recipe


@pytest.mark.parametrize(
    ("task", "sigma", "expected"),
    [
        ("denoise", None, GaussianDenoising(0.1)),
        ("denoise", 0.05, GaussianDenoising(0.05)),
        ("inpaint", 0.06, Inpainting(0.3, 0.06)),
        ("salt-and-pepper", 0.4, SaltAndPepper(0.4)),
    ],
)
def test_task_and_noise_level_of_the_options(task, sigma, expected):
    options = {"folders": [], "task": TrainingTask(task), "sigma": sigma}
    critic = changed_recipe(AdversarialOptions(**options))
    learned = changed_recipe(BilevelOptions(**options))
    ((found, weight),) = learned.tasks
    assert plain_settings(critic.task) == plain_settings(found) == plain_settings(expected)
    assert weight > 0
    assert validated_task(learned) is found


def test_larger_noise_starts_with_a_larger_weight():
    def weight(sigma):
        options = BilevelOptions(folders=[], task=TrainingTask.denoise, sigma=sigma)
        return changed_recipe(options).tasks[0][1]

    assert weight(0.05) < weight(0.1) == 1.0 < weight(0.2)


def test_a_training_for_the_task_of_the_options(here, tmp_path):
    result = bilevel(here, tmp_path / "out", "--task", "salt-and-pepper", "--sigma", 0.2)
    assert result.exit_code == 0, result.output
    assert "Trained for   salt and pepper on 20 % of the pixels" in result.output
    assert set(cl.models.card(tmp_path / "out" / "model").weights) == {"salt-and-pepper"}


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


@pytest.mark.parametrize("command", ["adversarial", "bilevel"])
def test_torchrun_leaves_our_options_alone(command):
    """Its parser takes what could abbreviate one of its own options, wherever it stands."""
    ours = [option for each in load("train").commands[command].params for option in each.opts]
    ours = [option for option in ours if option.startswith("--") and option != "--start"]
    assert "--start-from" in ours
    command_line = ["--nproc-per-node", "2", "-m", "convexlift", "train", command, "images", *ours]
    parsed = get_args_parser().parse_args(command_line)
    assert parsed.training_script_args == ["train", command, "images", *ours]


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
    (tmp_path / "out" / "options.json").write_text(
        (tmp_path / "out" / "options.json").read_text().replace('"steps": 100000', '"steps": 4')
    )
    result = run("adversarial", "--resume", tmp_path / "out")
    assert result.exit_code == 2
    assert "options.steps = 100000, but this run has 4" in result.output


def test_resume_without_a_checkpoint_begins(here, finished, tmp_path):
    folder, _ = finished
    (tmp_path / "options.json").write_bytes((folder / "options.json").read_bytes())
    result = run("adversarial", "--resume", tmp_path)
    assert result.exit_code == 0, result.output
    assert "There is no checkpoint in" in result.output
