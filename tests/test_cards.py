"""Cards: to JSON and back, checked field by field, and readable."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import convexlift as cl
from convexlift.models.recipe_words import noise_levels, recipe_words
from convexlift.training import PRESETS, plain_settings

FULL = cl.ModelCard(
    name="toy",
    summary="A toy for tests.",
    task="denoising",
    weight=7,
    weights={"inpainting": 0.2},
    weight_choice="best PSNR on one picture",
    data="four pictures",
    license="CC0-1.0; the pictures are in the public domain",
    recipe={"steps": 90, "rates": (1e-2, 1e-3), "nested": {"flag": True, "none": None}},
    command="make toy",
    commit="abc123",
    seed=0,
    training_time=3 * 3600 + 61,
    machine="two cores",
    results={"test": {"psnr": np.float32(28.5), "ssim": 0.8125}},
    not_for="diagnosis",
    citation="nobody",
    best_step=40,
)


def test_round_trip():
    recipe = {"steps": [1]}
    card = replace(FULL, recipe=recipe)
    recipe["steps"].append(2)
    assert card.recipe == {"steps": [1]}  # a copy
    text = json.dumps(FULL.to_json())
    assert cl.ModelCard.from_json(json.loads(text)) == FULL
    assert json.loads(text)["recipe"]["rates"] == [0.01, 0.001]
    assert FULL.weight == 7.0
    assert FULL.weights == {"denoising": 7.0, "inpainting": 0.2}


def test_the_text_says_everything_in_lines_that_fit():
    text = FULL.text(60)
    assert max(map(len, text.splitlines())) <= 60
    words = " ".join(text.split())
    for part in (
        *("toy: A toy for tests.", "Weight 7", "inpainting 0.2", "best PSNR on one picture"),
        *("four pictures", "CC0-1.0; the pictures", "Steps 90", "make toy", "abc123", "Seed 0"),
        *("3 h 2 min", "two cores", "Results test: psnr 28.5, ssim 0.8125", "diagnosis", "nobody"),
        "Best step 40",
    ):
        assert part in words
    assert str(FULL) == FULL.text()
    short = str(cl.ModelCard("a", "b.", "c", 1.0))
    assert short.split() == ["a:", "b.", "Task", "c", "Weight", "1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "card.name must be a string, got 3"),
        ({"name": " "}, "card.name must not be empty"),
        ({"task": ""}, "card.task must not be empty"),
        ({"weight": "large"}, "card.weight must be a finite number, got 'large'"),
        ({"weight": True}, "card.weight must be a finite number, got True"),
        ({"weight": float("nan")}, "card.weight must be a finite number, got nan"),
        ({"weight": 0}, "card.weights.denoising must be positive, got 0"),
        ({"weights": {"inpainting": -1}}, "card.weights.inpainting must be positive, got -1"),
        ({"weights": {"denoising": 8}}, "card.weights says 8 for 'denoising', but card.weight"),
        ({"weights": 7}, "card.weights must be an object, got 7"),
        ({"seed": 1.5}, "card.seed must be a whole number, got 1.5"),
        ({"training_time": -1}, "card.training_time must not be negative, got -1"),
        ({"training_time": "1 h"}, "card.training_time must be a finite number"),
        ({"recipe": {"net": object()}}, "card.recipe.net must be a number, a string, a list"),
        ({"recipe": {"rate": [float("inf")]}}, r"card.recipe.rate\[0\] must be finite, got inf"),
        ({"recipe": {3: 4}}, "card.recipe must have strings as keys, got 3"),
        ({"results": {"test": 28.5}}, "card.results.test must be an object, got 28.5"),
        ({"results": {"test": {"psnr": "28"}}}, "card.results.test.psnr must be a finite number"),
    ],
)
def test_wrong_values_are_named(change, message):
    content = {**FULL.to_json(), "weights": {}, **change}
    with pytest.raises(ValueError, match=message):
        cl.ModelCard(**content)
    with pytest.raises(ValueError, match=message):
        cl.ModelCard.from_json(content)


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(ValueError, match="card has no field colour; its fields are name, summary"):
        cl.ModelCard.from_json({**FULL.to_json(), "colour": "red"})
    content = FULL.to_json()
    del content["task"]
    with pytest.raises(ValueError, match="card lacks the field task"):
        cl.ModelCard.from_json(content)
    with pytest.raises(ValueError, match=r"card must be an object with name, .*, got \[\]"):
        cl.ModelCard.from_json([])


@pytest.mark.parametrize(
    ("terms", "commercial"),
    [
        ("CC0 1.0; no conditions of use", True),
        ("CC BY 3.0 and 4.0 (TCIA); cite the collections", True),
        ("MIT", True),
        ("CC BY-NC-SA 4.0 (FFHQ); non-commercial research only", False),
        ("CC-BY-NC 4.0", False),
        ("research only; BSDS500: non-commercial research and education", False),
        ("its authors' terms; the code is BSD 3-Clause", False),
        ("unknown; yours to decide, as far as the training images allow", False),
        ("", False),
    ],
)
def test_licences_say_whether_companies_may_use_a_model(terms, commercial):
    assert replace(FULL, license=terms).commercial is commercial


def test_a_card_begins_with_its_licence_and_tells_the_recipe_in_words():
    for name in cl.models.names():
        lines = str(cl.models.card(name)).splitlines()
        first = next(line for line in lines if line.startswith("Licence"))
        assert lines.index(first) <= 2  # after the summary, which may need two lines
        assert "Recipe(" not in str(cl.models.card(name))
    text = " ".join(str(cl.models.card("ct-abdomen-chest-deep")).split())
    assert "ridge: 48 filters of 7 x 7, 3 layers, for images of any size" in text
    assert "150 steps of 4 whole images" in text


def test_settings_of_a_recipe_and_their_repr_have_the_same_words():
    """Cards of earlier versions hold the ``repr``."""
    for name, recipe in PRESETS.items():
        if "ct" in name.split("-"):  # its scanner has another repr
            continue
        words = recipe_words(plain_settings(recipe))
        assert recipe_words({"settings": repr(recipe)}) == words, name
        assert f"{recipe.options.steps} steps of {recipe.batch_size}" in dict(words)["Training"]


def test_notes_on_a_training_are_kept_as_they_are():
    assert recipe_words({"lower level": "60 steps", "settings": "not(python"}) == [
        ("Lower level", "60 steps"),
        ("Settings", "not(python"),
    ]


def test_noise_levels_of_recipes():
    """They come from the settings of any training, and nothing is guessed from other notes."""
    levels = {name: noise_levels(plain_settings(recipe)) for name, recipe in PRESETS.items()}
    first = {"gaussian-denoising": 0.1, "inpainting": 0.03}
    assert levels["photo-any-size-first"] == first
    assert levels["faces-denoising"] == {"salt-and-pepper": 0.25}
    assert "gaussian-denoising" not in levels["photo"]  # a range of levels
    assert noise_levels({"settings": repr(PRESETS["photo-any-size-first"])}) == first
    for other in ({}, {"tasks": "sigma 0.1"}, {"kind": "mine", "tasks": [3, [], ["a", 1]]}):
        assert noise_levels(other) == {}
