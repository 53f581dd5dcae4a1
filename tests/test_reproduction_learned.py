"""Experiments that train their regularizers, shortened, with one fact about each."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.images import load_image, save_image
from experiments import tomography, training
from experiments.common_steps import Search, proposed
from experiments.comparing import SideBySide
from experiments.document import Document
from experiments.runner import Study
from experiments.runner.report import results, write
from experiments.runner.run import compute, prepared
from experiments.tomography.slices import (
    SHOWN,
    VALIDATION_PATIENT,
    SliceCounts,
    load_slices,
    phantom_slices,
)
from experiments.training.report import SchemeRow
from experiments.training.steps import TrainingSettings

SIZE, ITERATIONS = 32, 80
pytestmark = pytest.mark.single_precision


def run(experiment, folder):
    """All parts, and the report written from them."""
    torch.set_default_dtype(torch.float32)
    parts = compute(experiment, Study(quick=True), folder)
    with prepared(experiment, Study(quick=True), folder) as plan:
        assert not plan.missing  # a second run has nothing to compute
    document = experiment.report(parts, experiment.quick)
    assert isinstance(document, Document)
    content = results(document, json.loads((folder / "run.json").read_text()), parts)
    write(document, folder, content)
    return parts, document


def short(values, **changes):
    """A setting of tomography that takes seconds."""
    return replace(
        values, size=SIZE, counts=SliceCounts(training=12, validation=1, test=2), steps=20,
        printed_epochs=20, batch_size=4, early=20, iterations=ITERATIONS, every=10,
        validation_stop=cl.StopWhen(gap=1e-2, max_iterations=20),
        test_stop=cl.StopWhen(gap=1e-2, max_iterations=30),
        reference=cl.StopWhen(gap=1e-3, max_iterations=200), search_iterations=20, tries_c=4,
        tries_step=2, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ct")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tiny = short(tomography.BASELINE_QUICK, as_printed=True, sm_c=(1e-3, 5e-3))
        yield folder, *run(replace(tomography.CT, quick=tiny), folder)


@pytest.mark.slow
def test_pdhg_ends_below_the_subgradient_methods_and_the_certificate_proves_it(scanned):
    _, parts, _ = scanned
    found = SideBySide.of(parts, 20, ITERATIONS)
    assert found.optimum.gap[0] < 1e-2
    best = found.runs["default"].curve.objective[-1, 0]
    for other in (*found.family("sm-c"), *found.family("sm-d")):
        last = other.curve.objective[-1, 0]
        assert best < last or found.optimum.gap[0] > (last - best) / last
    # The printed steps are ten times those of the released script, and only these converge.
    largest = found.runs["sm-c-0.005"].curve.objective[-1, 0]
    assert found.optimum.bound[0] < found.runs["sm-c-0.0001"].curve.objective[-1, 0] < largest
    assert (largest - found.optimum.objective[0]) / largest > found.optimum.gap[0]
    assert found.certified(found.runs["proposed"], ITERATIONS) < 0.1
    searched = found.runs["proposed-searched"]
    assert not searched.printed
    tried = parts["search-proposed"].values["tried"]
    assert len(tried) == 4
    assert min(tried, key=lambda each: each["objective"])["numbers"] == list(searched.parameters)


@pytest.mark.slow
def test_files_and_tables_of_tomography(scanned):
    folder, parts, document = scanned
    for name in ("printed-steps", "released-steps", "certificates", "pictures"):
        assert load_image(folder / "figures" / f"{name}.png").shape[-1] > 200
    table = (folder / "tables" / "regularizers.md").read_text()
    for row in ("Trained here", "to the letter", "`ct-abdomen-chest`", "Total variation"):
        assert row in table
    assert [each.paper.value for each in document.comparisons] == [
        21.29, 31.06, 31.16, 26.19, 31.16, 26.67, 29.06,
    ]  # fmt: skip
    assert "weights.output" in parts["training"].arrays
    assert "weights.output" in parts["training-as-printed"].arrays
    assert {each.cells[3] for each in document.comparisons} == {"not measured"}  # without the slice


@pytest.mark.slow
def test_a_deeper_network_has_five_step_sizes_and_no_shipped_row_until_there_is_one(
    tmp_path, monkeypatch
):
    tiny = short(tomography.DEEP_QUICK, sm_c=(1e-3,), sm_d=(1e-2,), shipped="no-such-model")
    monkeypatch.chdir(tmp_path)
    tiny = replace(tiny, steps=8, iterations=60)
    parts, document = run(replace(tomography.CT_DEEP, quick=tiny), tmp_path)
    found = SideBySide.of(parts, 20, 60)
    assert found.runs["proposed"].parameters == (500.0, 100.0, 5.0, 0.5, 0.1)
    assert "test-shipped" not in parts
    assert found.error(found.runs["default"], 60) < found.error(found.runs["proposed"], 60)
    assert "baseline" in document.comparisons[0].paper.where


@pytest.fixture(scope="module")
def schemes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    quick = TrainingSettings.quick()
    tiny = replace(
        quick, size=SIZE, images=1, iterations=90, every=30, search_iterations=20, tries_c=3,
        tries_step=2,
        adversarial=replace(quick.adversarial, options=replace(
            quick.adversarial.options, steps=40, validate_every=40)),
        bilevel=replace(quick.bilevel, images=8, batch_size=4, options=replace(
            quick.bilevel.options, steps=6, validate_every=6)),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder, *run(replace(training.EXPERIMENT, quick=tiny), folder)


@pytest.mark.slow
def test_bilevel_learning_is_better_and_solvers_that_converge_agree_in_psnr(schemes):
    folder, parts, document = schemes
    # On images held out from both: what each of them was chosen by.
    before = parts["adversarial"].values["validation_psnr"]
    for scheme in ("bilevel-nmapg", "bilevel-proposed", "bilevel-default"):
        assert parts[scheme].values["validation_psnr"] > before
    for scheme in ("adversarial", "bilevel-proposed"):
        row = SchemeRow.of(parts, scheme, 90)
        values = [row.psnr(row.found.runs[key]) for key in ("default", "nmapg", "lbfgs")]
        assert np.ptp(values) < 0.1
        assert row.found.certified(row.found.runs["default"], 90) < 1e-3
    psnrs = [each.paper.value for each in document.comparisons if each.paper.unit == "dB"]
    assert psnrs == [28.18, 28.22, 25.88, 28.14, 29.46, 29.40, 27.31, 29.46,
                     29.80, 29.72, 26.47, 29.80, 12.21, 28.38, 30.27, 30.47]  # fmt: skip
    for name in ("curves", "crops"):
        assert load_image(folder / "figures" / f"{name}.png").shape[-1] > 200
    assert (folder / "tables" / "psnr.md").read_text().count("Bilevel + ") == 3


def test_no_patient_is_both_trained_on_and_validated_on(tmp_path):
    training = [*(f"A_{i}" for i in range(5)), *(f"{VALIDATION_PATIENT}_{i}" for i in "12")]
    for name in (*(f"train/{each}.png" for each in training), "test/T_1.png", f"test/{SHOWN}"):
        save_image(tmp_path / "ct" / name, torch.rand(1, 1, 64, 64))
    slices = load_slices(tmp_path, SIZE, SliceCounts(3, 8, 2))
    assert len(slices.training) == 3
    assert all(name.startswith("A") for name in slices.training.names)
    assert all(name.startswith(VALIDATION_PATIENT) for name in slices.validation.names)
    assert slices.test.names[0] == SHOWN
    assert slices.shown.clean.shape == (1, 1, SIZE, SIZE)


def test_phantoms_are_the_same_every_time_and_differ_by_purpose():
    one, other = (phantom_slices(SIZE, SliceCounts(2, 1, 1)) for _ in range(2))
    assert torch.equal(one.training[0], other.training[0])
    pictures = [one.training[0], one.training[1], one.validation[0], one.test[0]]
    assert len({picture.numpy().tobytes() for picture in pictures}) == 4


def test_a_search_goes_downhill_one_number_at_a_time():
    search = Search("proposed", "Proposed", proposed, (1.0, 1.0), 10.0, 20, 0)
    scores = search.climb(lambda c: abs(np.log10(c[0]) - 2) + abs(np.log10(c[1]) + 1))
    assert min(scores, key=scores.__getitem__) == (100.0, 0.1)
    assert len(replace(search, tries=3).climb(lambda c: -c[0])) == 3
