"""The experiments in a shortened version: small images, few iterations, one fact about each."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.tasks import GaussianDenoising
from convexlift.training import start_from_filters_
from experiments import denoising, inpainting
from experiments.__main__ import main
from experiments.common_steps import (
    Checks,
    TimeToError,
    curve_step,
    data_step,
    proposed,
    reference_step,
    time_steps,
    with_our_duals,
)
from experiments.comparing import SideBySide
from experiments.denoising.steps import DenoisingSettings
from experiments.images import Images
from experiments.inpainting.steps import InpaintingSettings
from experiments.measuring import Start, record_batches
from experiments.runner import Study, Work
from experiments.runner.run import finished_parts, prepared
from experiments.setups import Regularizer, Setup

SIZE, ITERATIONS = 64, 60
pytestmark = pytest.mark.single_precision


def network(folder, smoothing):
    """The paper's architecture, small, about a total variation of cosine filters: its file."""
    torch.manual_seed(0)
    made = cl.networks.baseline(image_size=SIZE, channels=8, hidden=16, smoothing=smoothing)
    start_from_filters_(made)
    cl.save(made, folder / "network.safetensors")
    return str(folder / "network.safetensors")


def reproduce(experiment, folder):
    torch.set_default_dtype(torch.float32)
    known = {experiment.name: experiment}
    arguments = [experiment.name, "--quick", "--device", "cpu", "--output", str(folder)]
    main(arguments, lambda: known)
    with prepared(experiment, Study(quick=True), folder) as plan:
        assert not plan.missing  # a second run has nothing to compute
    return finished_parts(experiment, folder)[0]


@pytest.fixture(scope="module")
def denoised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("denoising")
    torch.set_default_dtype(torch.float32)
    tiny = DenoisingSettings(
        model=network(tmp_path_factory.mktemp("model"), 0.0), weight=0.3, size=SIZE,
        c_1=(1e-1, 1.0), c_2=(5e-5,), ablation_iterations=20, ablation_every=5, sm_c=(0.5, 2.0),
        sm_d=(3.0, 10.0), more_sm_c=(), more_sm_d=(), authors_every=4, recipe=None,
        iterations=ITERATIONS, every=5, images=2,
        reference=cl.StopWhen(gap=1e-3, max_iterations=400),
    )  # fmt: skip
    experiment = replace(denoising.EXPERIMENT, quick=tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CONVEXLIFT_DATA", raising=False)
        parts = reproduce(experiment, folder)
        yield folder, SideBySide.of(parts, 15, ITERATIONS)


@pytest.fixture(scope="module")
def inpainted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inpainting")
    torch.set_default_dtype(torch.float32)
    model = network(tmp_path_factory.mktemp("model"), 0.01)
    tiny = InpaintingSettings(
        adversarial=model, bilevel=model, weight=1.0, size=SIZE,
        more_c_1=(0.1, 1.0), more_c_2=(1e-3,), more_sm_c=(0.3,),
        more_sm_d=(5.0,), search_iterations=20, early=20, iterations=80, every=2, images=1,
        reference=cl.StopWhen(gap=1e-4, max_iterations=400),
        race=TimeToError(error=1e-3, iterations=100, repeats=1, every=10),
        authors_early=21, authors_iterations=63, authors_every=21,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        parts = reproduce(replace(inpainting.EXPERIMENT, quick=tiny), folder)
        yield folder, SideBySide.of(parts, 20, 80)


def test_files_of_a_report(denoised):
    folder, _ = denoised
    for name in ("ablation", "curves", "certificates", "pictures"):
        assert load_image(folder / "figures" / f"{name}.png").shape[-1] > 300
        assert (folder / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    for name in ("comparison.csv", "comparison.md", "methods.csv", "methods.md"):
        assert (folder / "tables" / name).exists()
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 3 + 10  # figures, and pictures one by one
    assert "with the best of the 2 pairs tried for this network" in " ".join(page.split())
    assert not list(folder.rglob("*.part"))


def test_numbers_beside_the_paper_s(denoised):
    folder, _ = denoised
    results = json.loads((folder / "results.json").read_text())
    assert [each["paper"] for each in results["comparisons"]] == [
        10.90, 28.80, 28.87, 16.00, 28.52, 28.02, 28.75,
    ]  # fmt: skip
    assert {each["verdict"] for each in results["comparisons"]} == {"other data"}  # no faces
    assert all(each["authors"] > 9 and each["ours"] > 9 for each in results["comparisons"])
    assert results["experiment"] == "denoising"
    assert results["quick"] is True
    assert results["data"]["source"] == "photographs inside the package"
    assert len(results["ablation"]) == 2


def assert_proved(found, best, others):
    """The objective of the best is below the others' by more than the certificate leaves open."""
    for run in found.runs.values():
        assert (run.curve.lower_bound <= found.optimum.objective * (1 + 1e-6)).all()
        assert np.isfinite(run.curve.psnr).all()
    for other in others:
        lower, higher = best.curve.objective[-1], other.curve.objective[-1]
        assert (lower < higher).all()
        # Every image has an objective above the bound: the others are certified to be worse
        # than the optimum by at least their distance to the best, and no method gets below it.
        assert (found.optimum.bound <= found.optimum.objective).all()
        assert (found.optimum.objective <= lower * (1 + 1e-6)).all()
        assert (found.optimum.gap < (higher - found.optimum.objective) / higher).all()


def test_pdhg_ends_below_the_subgradient_methods_and_the_certificate_proves_it(denoised):
    _, found = denoised
    subgradient = [*found.family("sm-c"), *found.family("sm-d")]
    assert len(subgradient) == 4
    default, proposed = found.runs["default"], found.runs["proposed"]
    assert_proved(found, proposed, subgradient)
    assert found.certified(default, ITERATIONS) < 1e-2
    assert found.error(default, ITERATIONS) < found.error(proposed, ITERATIONS)
    assert found.own_gap(default, ITERATIONS) < found.own_gap(found.best("sm-d"), ITERATIONS)


@pytest.mark.slow
def test_inpainting_pdhg_is_below_the_gradient_methods_and_times_are_told(inpainted):
    folder, found = inpainted
    gradient = [*found.family("sm-c"), *found.family("sm-d")]
    assert_proved(found, found.runs["searched"], gradient)
    results = json.loads((folder / "results.json").read_text())
    times = {each["key"]: each for each in results["times"]}
    assert times["default"]["seconds"][0] > 0
    assert times["default"]["iterations"][0] == found.iterations_to(found.runs["default"], 1e-3)
    assert times["sm-c-1.5"]["seconds"] == [None]  # not reached, and said so
    verdicts = {each["quantity"]: each["verdict"] for each in results["comparisons"]}
    assert verdicts["SM-C, 1.5, time"] == "not reached"
    assert results["bilevel_methods"] is not None


def test_a_method_has_its_time_although_it_needs_more_iterations_than_its_curve_has():
    images = Images(("a",), torch.rand(1, 1, 16, 16), "noise", False)
    regularizer = Regularizer("TV", lambda parts: (cl.TotalVariation(), 0.1))
    setup = Setup(GaussianDenoising(), regularizer, images, Study())
    method = with_our_duals(proposed((0.1,)))
    race = TimeToError(error=1e-3, iterations=2000, repeats=1, every=5)
    parts = {}
    for step in (
        data_step(setup),
        reference_step(setup, cl.StopWhen(gap=1e-5), 1.0),
        curve_step(setup, method, Checks(4)),
        *time_steps(setup, method, race, cost=1.0),
    ):
        parts[step.name] = step.compute(Work(parts))
    assert parts[f"time-{method.key}"].values["iterations"][0] > 4
    assert parts[f"time-{method.key}"].values["seconds"][0] > 0


def small_problem():
    y = torch.rand(1, 1, 16, 16)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(), weight=0.1
    )
    return Start(problem, y, y)


def test_half_a_curve_is_none():
    def press(fraction):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_batches([small_problem()], cl.PDHG(), 20, tell=press)


def test_a_run_that_becomes_infinite_is_shown_as_far_as_it_got():
    curve = record_batches([small_problem()], cl.Subgradient(1e30), 20, keep=(5, 20))
    assert curve.iteration[-1] < 20
    assert np.isfinite(curve.picture(20)).all()
    assert curve.kept.tolist() == [5, 20]
