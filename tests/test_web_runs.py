"""The web page without a browser: jobs, runs, and the files of results."""

from __future__ import annotations

import json
import math
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from web_runs import LIMITS, crop, denoising, finished, inpainting, jobs, letters, long_job

import convexlift as cl
from convexlift.images import load_example, psnr, salt_and_pepper
from convexlift.solvers.solution import Status
from convexlift.web.limits import PageError
from convexlift.web.pictures import InputPicture, data_url, false_colours
from convexlift.web.run import TV, PageJob, Run, fitting

pytest.importorskip("jinja2", reason="the web page needs gradio, which brings jinja2")

from convexlift.web import html
from convexlift.web.result import record, write_files
from convexlift.web.uploads import read_upload
from soak.page_visitor import wait_until


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


pytestmark = pytest.mark.single_precision


# Jobs


def test_only_fitting_regularizers_are_offered():
    photos = ("photo-open", "photo", "photo-any-size")
    for task in ("gaussian-denoising", "inpainting", "salt-and-pepper"):
        assert fitting(task, (80, 70)) == (*photos, TV)
    assert "faces-inpainting-bilevel" in fitting("inpainting", (256, 256))
    assert "faces-inpainting-bilevel" not in fitting("inpainting", (256, 255))
    assert fitting("ct", (64, 64)) == ("ct-abdomen-chest", "ct", "ct-abdomen-chest-deep", TV)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"regularizer": "ct-abdomen-chest"}, "does not fit"),
        ({"regularizer": "../../etc/passwd"}, "does not fit"),
        ({"tolerance": math.nan}, "not a number"), ({"tolerance": 0.0}, "tolerance is 0"),
        ({"strength": 1e9}, "strength"), ({"seed": -1}, "seed"), ({"seed": 1.5}, "seed"),
        ({"sigma": 7.0}, "noise level is 7"), ({"sigma": "0.1"}, "not a number"),
        ({"sigma": None}, "no noise to simulate"), ({"views": 10**6}, "number of views"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(change, said):
    with pytest.raises(PageError, match=said):
        denoising(crop(), **{"regularizer": "photo-open", **change})


def test_errors_of_the_library_get_hints_of_the_page():
    job = denoising(crop(), noise="poisson")
    with pytest.raises(PageError, match="poisson") as caught:
        job.reconstructor(torch.device("cpu"), 60.0)
    assert caught.value.hint.endswith("and its level.")


@pytest.mark.parametrize("planes", [1, 3])
def test_the_noise_of_text_is_not_guessed(planes):
    text = InputPicture(letters().repeat(1, planes, 1, 1), "page.png")
    with pytest.raises(PageError, match=r"as in text.*Gaussian.*level"):
        finished(denoising(text, simulate=False, noise=None, sigma=None))
    noise = finished(denoising(text, simulate=False)).reconstruction.noise
    assert (noise.kind, noise.level, noise.estimated) == ("gaussian", 0.1, False)


def test_bad_masks_are_named():
    for mask, said in (
        (torch.ones(48, 48), "No pixel is missing"),
        (torch.zeros(48, 48), "100 %"),
        (torch.ones(10, 48), "10"),
    ):
        with pytest.raises(PageError, match=said):
            inpainting(crop(), mask=mask)
    with pytest.raises(PageError, match="which pixels"):
        inpainting(crop(), simulate=False)


def test_an_error_says_that_noise_cannot_be_estimated():
    mask = torch.zeros(48, 48)
    mask[::2, ::2] = 1
    job = inpainting(crop(), simulate=False, mask=mask, sigma=None)
    with pytest.raises(PageError, match=r"Too few pixels.*fewer pixels as missing"):
        finished(job)


@pytest.mark.parametrize("name", jobs())
@pytest.mark.sampled(3)
def test_a_run_is_a_call_of_reconstruct(name, tmp_path):
    job = jobs()[name]
    result = finished(job)
    assert result.status is Status.CONVERGED
    x, numbers = result.reconstruction.solution.x, record(result)
    called = cl.reconstruct(job.picture.values, job.task, **job.call())
    torch.testing.assert_close(called.solution.x, x, rtol=0, atol=1e-5)
    assert called.record["objective"] == pytest.approx(numbers["objective"], rel=1e-5)
    if job.simulated:
        assert numbers["psnr"] > numbers["psnr_before"] or job.task == "ct"
    files = write_files(result, numbers, tmp_path)
    with zipfile.ZipFile(files["zip"]) as archive:
        assert np.array_equal(np.load(archive.open("reconstruction.npy")), x.numpy())
        for kind in ("image", "json"):
            assert archive.read(files[kind].name) == files[kind].read_bytes()
    written = json.loads(files["json"].read_text())
    assert written["input"] == job.picture.name
    assert written["gap"] <= job.options["tolerance"]
    assert written["history"][-1]["iteration"] == numbers["iterations"]


def test_a_result_is_shown_with_the_maps_that_are_known():
    result = finished(jobs()["impulses"])
    assert "Solved to within" in html.verdict(result)
    maps, said = html.details("denoise", result), html.facts("denoise", result, record(result))
    assert maps.count("<img") == 2
    assert "Black: not at all." in maps
    assert "of white." in maps
    assert "times the average." in maps
    assert "PSNR" in said
    assert "Note" not in said
    unknown = finished(jobs()["noisy"])
    assert html.details("denoise", unknown).count("<img") == 1
    assert "PSNR" not in html.facts("denoise", unknown, record(unknown))


def test_a_picture_that_may_be_damaged_is_not_damaged_again():
    upload = replace(crop(), clean=False)
    for job in (denoising, inpainting):
        with pytest.raises(PageError, match="may be damaged already"):
            job(upload)
        with pytest.raises(PageError, match="may be damaged already"):
            job(upload, noise="salt-and-pepper", sigma=0.2)
    assert not denoising(upload, simulate=False).compared


def test_nothing_is_compared_with_a_slice_that_is_not_known_to_be_clean(executor, tmp_path):
    job = jobs()["slice"]
    assert job.compared
    job = replace(job, picture=replace(job.picture, clean=False))
    run = Run(job, 60.0, executor).start()
    result = run.result()
    assert all(point.psnr is None for point in result.points)
    assert "dB" not in html.live_picture(run.state, job)
    numbers = record(result)
    assert not {"psnr", "ssim", "psnr_before", "ssim_before"} & set(numbers)
    assert "PSNR" not in html.facts("ct", result, numbers)
    assert "Error" not in html.details("ct", result)
    files = write_files(result, numbers, tmp_path)
    assert "psnr" not in files["json"].read_text().lower()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_upload_is_one_problem_grey_or_in_colour(channels, tmp_path):
    grey = load_example("coffee")[0, 0, 60:100, 60:108]
    levels = (255 * torch.stack([grey, grey**2, 1 - grey], -1)[..., :channels]).byte()
    Image.fromarray(levels.squeeze(-1).numpy()).save(tmp_path / "mine.png")
    truth = levels.permute(2, 0, 1)[None] / 255
    picture = replace(read_upload(tmp_path / "mine.png", LIMITS), clean=True)
    torch.testing.assert_close(picture.values, truth)
    result = finished(denoising(picture, regularizer="photo-open", tolerance=1e-3))
    solution, numbers = result.reconstruction.solution, record(result)
    assert solution.x.shape == (1, channels, 40, 48)
    (proved,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert proved.gap == pytest.approx(numbers["gap"], rel=1e-3)
    quality = float(psnr(solution.x, truth))
    assert quality > numbers["psnr_before"] + 3
    assert numbers["psnr"] == pytest.approx(quality)
    assert result.points[-1].psnr == pytest.approx(quality, abs=0.1)
    files = write_files(result, numbers, tmp_path)
    after = read_upload(files["image"], LIMITS).values
    torch.testing.assert_close(after, solution.x, rtol=0, atol=1e-4)
    before = read_upload(files["before"], LIMITS).values
    assert float(psnr(before, truth)) == pytest.approx(numbers["psnr_before"], abs=0.2)
    error = (solution.x - truth).abs().mean((0, 1))
    highest = float(error.flatten().kthvalue(int(0.995 * error.numel())).values)
    shown = html.details("denoise", result)
    assert data_url(false_colours(error, highest)) in shown
    assert shown.count("<img") == 3  # and the maps of gap and weights


def test_a_note_says_that_the_regularizer_is_for_other_noise():
    noisy = salt_and_pepper(crop().values, 0.25, torch.Generator().manual_seed(0))
    result = cl.reconstruct(noisy, task="denoise", regularizer="ct", range=(0.0, 1.0))
    assert result.noise.kind == "salt-and-pepper"
    assert result.notes == ("ct is not made for salt and pepper; --regularizer photo-open is",)


# Runs


def test_a_large_picture_is_solved_whole_on_request(executor, tmp_path, monkeypatch):
    monkeypatch.setattr("convexlift.web.run.TILE", 128)
    generator = torch.Generator().manual_seed(0)
    clean = load_example("camera")[0, 0, :200, :]
    noisy = (clean + 0.05 * torch.randn(clean.shape, generator=generator)).clamp(0, 1)
    Image.fromarray((255 * noisy).byte().numpy()).save(tmp_path / "large.png")
    scaled = read_upload(tmp_path / "large.png", LIMITS)
    picture = scaled.whole()
    assert (picture.size, picture.tiled, scaled.tiled) == ((200, 256), True, False)
    assert LIMITS.seconds_for(200, 256) == pytest.approx(5.12 * LIMITS.seconds)
    assert LIMITS.seconds_for(50, 50) == LIMITS.seconds
    job = denoising(picture, simulate=False, sigma=0.05)
    run = Run(job, 60.0, executor).start()
    seen = [html.progress(state.points, 1e-2) for state in run.states()]
    result = run.result()
    assert result.status is Status.CONVERGED
    assert [point.iteration for point in result.points] == [4]  # one sweep
    assert result.points[-1].tiles == 4
    assert result.points[-1].gap == pytest.approx(result.reconstruction.record["gap"])
    assert "tile 4 of 4" in " ".join(seen)
    assert result.reconstruction.x.shape == picture.values.shape
    numbers = record(result)
    assert numbers["settings"]["tiles"] == 128
    files = write_files(result, numbers, tmp_path)
    with Image.open(files["image"]) as image:
        assert image.size == (256, 200)
    assert "Gap" not in html.details("denoise", result)


def test_stop_stops_the_solver(executor):
    run = Run(long_job(), 60.0, executor).start()
    for snapshot in run.states(pause=0.01):
        if snapshot.points:
            break
    else:
        pytest.fail("the run ended by itself")
    result = run.result(60.0)  # leaving the loop was enough: nobody watches any more
    assert result.status is Status.STOPPED


def test_the_time_limit_ends_a_run_with_its_proof():
    result = finished(long_job(), seconds=0.3)
    assert result.status is Status.TIME_LIMIT
    assert "Stopped at the time limit" in html.verdict(result)


def test_runs_wait_for_a_thread_even_if_nobody_watches_the_others(executor):
    first = Run(long_job(), 60.0, executor).start()
    second = Run(long_job(), 60.0, executor).start()
    third = Run(long_job(tolerance=0.5), 60.0, executor).start()
    assert wait_until(lambda: first.state.points, 60.0)
    second.stop()
    with pytest.raises(PageError, match="before it began"):
        list(second.states())
    for run in (first, third):  # the first one computes, and the third one waits
        with pytest.raises(TimeoutError):
            run.result(0.0)
    assert third.state.prepared is None
    first.stop()
    assert first.result(60.0).status is Status.STOPPED
    assert third.result(60.0).status is Status.CONVERGED


def test_the_given_picture_comes_before_the_first_iteration(executor):
    run = Run(long_job(), 60.0, executor).start()
    states = run.states(pause=0.001)
    first = next(state for state in states if state.prepared is not None)
    assert "Given" in html.live_picture(replace(first, x=None), run.job)
    assert "<img" in html.live_picture(first, run.job)
    states.close()
    assert run.result(60.0).status is Status.STOPPED


def test_errors_in_a_run_are_sentences(monkeypatch, caplog, executor):
    job = jobs()["impulses"]
    monkeypatch.setattr(PageJob, "prepared", lambda *_: 1 / 0)
    with pytest.raises(PageError, match="ZeroDivisionError"):
        list(Run(job, 5.0, executor).start().states())
    assert "a run failed" in caplog.text  # the traceback is for the log


def test_stop_ends_the_search_for_a_weight(executor, monkeypatch):
    """A weight is searched if the card has none for the estimated kind of noise."""
    monkeypatch.setattr("convexlift.reconstruction.weight.card_weight", lambda *_: None)
    run = Run(long_job(regularizer="photo-any-size"), 600.0, executor).start()
    assert wait_until(lambda: run._solver is not None, 60.0)
    run.stop()
    result = run.result(60.0)  # the search may take 300 s
    assert result.status is Status.STOPPED
    assert result.reconstruction.weight.note


def test_a_stop_before_there_is_a_solver_ends_the_search_for_a_weight(executor, monkeypatch):
    monkeypatch.setattr("convexlift.reconstruction.weight.card_weight", lambda *_: None)
    reconstructor, prepared, found = PageJob.reconstructor, PageJob.prepared, []

    def stopped(*arguments):
        run.stop()
        return reconstructor(*arguments)

    def noted(*arguments):
        found.append(prepared(*arguments))
        return found[-1]

    monkeypatch.setattr(PageJob, "reconstructor", stopped)
    monkeypatch.setattr(PageJob, "prepared", noted)
    run = Run(denoising(crop(), regularizer="photo-any-size"), 600.0, executor)
    run.start().result(60.0)
    assert found[0].weight.note  # a search that ends by itself has none
    assert not found[0].weight.trials
