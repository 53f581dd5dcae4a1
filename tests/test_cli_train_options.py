"""Options of ``convexlift train``: its help, the recipes they change, and mistakes."""

from __future__ import annotations

import pytest
import typer
from torch.distributed.run import get_args_parser
from train_commands import flat, run, training_folder
from typer.testing import CliRunner

from convexlift.cli.app import app, fraction, load
from convexlift.cli.training_options import AdversarialOptions, BilevelOptions, TrainingTask
from convexlift.cli.training_recipe import changed_recipe
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.training import plain_settings
from convexlift.training.presets import PRESETS
from convexlift.training.recipes import AdversarialRecipe, validated_task

pytestmark = pytest.mark.single_precision


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return training_folder(tmp_path_factory.mktemp("training"))


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


def test_debug_shows_the_cause(here, tmp_path):
    arguments = ["train", "adversarial", str(here / "empty"), "--debug"]
    with pytest.raises(Exception, match="has no pictures"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize("kind", [AdversarialOptions, BilevelOptions])
def test_the_help_repeats_the_recipes_and_their_numbers(kind):
    """They are written down twice, since importing the recipes takes seconds."""
    recipes = {
        name
        for name, recipe in PRESETS.items()
        if isinstance(recipe, AdversarialRecipe) == (kind is AdversarialOptions)
    }
    assert set(kind.presets) == recipes
    command = "adversarial" if kind is AdversarialOptions else "bilevel"
    shown = run(command, "--help").output
    assert all((f"\n  {name}  " in shown) == (name in recipes) for name in PRESETS)
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


@pytest.mark.parametrize("command", ["adversarial", "bilevel"])
def test_torchrun_leaves_our_options_alone(command):
    """Its parser takes what could abbreviate one of its own options, wherever it stands."""
    ours = [option for each in load("train").commands[command].params for option in each.opts]
    ours = [option for option in ours if option.startswith("--") and option != "--start"]
    assert "--start-from" in ours
    command_line = ["--nproc-per-node", "2", "-m", "convexlift", "train", command, "images", *ours]
    parsed = get_args_parser().parse_args(command_line)
    assert parsed.training_script_args == ["train", command, "images", *ours]


@pytest.mark.parametrize(("text", "number"), [("0.1", 0.1), ("25/255", 25 / 255), ("1e-2", 0.01)])
def test_noise_levels_may_be_quotients(text, number):
    assert fraction(text) == number


@pytest.mark.parametrize("text", ["", "a", "1/0", "25/", "/255", "1/2/3"])
def test_what_is_no_quotient_is_refused(text):
    with pytest.raises(typer.BadParameter, match=r"write 0\.1 or 25/255"):
        fraction(text)
