"""The web page without a browser: jobs, runs and races."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from web_runs import crop, finished, letters, long_job

from convexlift.images import load_example
from convexlift.phantoms import shepp_logan
from convexlift.web.jobs import TV, CTJob, DenoisingJob, InpaintingJob, fitting
from convexlift.web.limits import PageError
from convexlift.web.race import Race
from convexlift.web.results import error_map, record, write_files
from convexlift.web.running import Ending, Run, Slots
from convexlift.web.scripts import script
from convexlift.web.uploads import Picture
from convexlift.web.views import live_picture, maps, numbers, standings, verdict

pydicom = pytest.importorskip("pydicom")


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


# Jobs


def test_regularizers_that_fit():
    assert fitting("inpainting", (256, 256))[0] == "photo-any-size"
    assert "faces-inpainting-bilevel" in fitting("inpainting", (256, 256))
    assert "faces-inpainting-bilevel" not in fitting("inpainting", (256, 255))
    assert fitting("ct", (64, 64))[-1] == TV


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"regularizer": "ct-abdomen-chest"}, "does not fit"),
        ({"regularizer": "../../etc/passwd"}, "does not fit"),
        ({"tolerance": math.nan}, "not a number"),
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"strength": 1e9}, "strength"),
        ({"seed": -1}, "seed"),
        ({"level": 7.0}, "noise level is 7"),
        ({"kind": None}, "no noise to simulate"),
    ],
)
def test_bad_requests_by_name(change, said):
    with pytest.raises(PageError, match=said):
        DenoisingJob(**{"picture": crop(), "regularizer": "photo-any-size", **change})


@pytest.mark.parametrize("planes", [1, 3])
def test_the_noise_of_text_is_not_guessed(planes):
    text = Picture(letters().repeat(planes, 1, 1, 1), "page.png")
    real = {"picture": text, "regularizer": TV, "simulated": False}
    with pytest.raises(PageError, match=r"as in text.*Gaussian.*level"):
        DenoisingJob(**real, kind=None, level=None)
    assert DenoisingJob(**real, level=0.1).noise().level == 0.1
    assert DenoisingJob(picture=text, regularizer=TV).simulated


def test_bad_masks_by_name():
    job = {"picture": crop(), "regularizer": TV}
    for mask, said in (
        (torch.ones(48, 48), "No pixel is missing"),
        (torch.zeros(48, 48), "100%"),
        (torch.ones(10, 48), "10"),
    ):
        with pytest.raises(PageError, match=said):
            InpaintingJob(**job, mask=mask)
    with pytest.raises(PageError, match="which pixels"):
        InpaintingJob(**job, simulated=False)


def test_noise_that_cannot_be_estimated_is_said():
    mask = torch.zeros(48, 48)
    mask[::2, ::2] = 1
    job = InpaintingJob(picture=crop(), regularizer=TV, simulated=False, mask=mask, level=None)
    with pytest.raises(PageError, match=r"Too few pixels.*fewer pixels as missing"):
        job.stated()


def jobs():
    mask = torch.ones(48, 48)
    mask[10:20, 15:30] = 0
    loose = {"tolerance": 1e-2}
    return {
        "gaussian": DenoisingJob(
            picture=Picture(load_example("camera"), "camera", example=True),
            regularizer=TV,
            **loose,
        ),
        "impulses": DenoisingJob(
            picture=crop(), regularizer="photo-any-size", kind="salt-and-pepper", level=0.2, **loose
        ),
        "noisy": DenoisingJob(
            picture=crop(), regularizer=TV, simulated=False, kind=None, level=None, **loose
        ),
        "random": InpaintingJob(
            picture=crop(planes=3), regularizer="photo-any-size", seed=3, **loose
        ),
        "drawn": InpaintingJob(
            picture=crop(), regularizer=TV, mask=mask, simulated=False, level=None, **loose
        ),
        "phantom": CTJob(
            picture=Picture(shepp_logan(48), "Shepp-Logan phantom", example=True),
            regularizer="ct-abdomen-chest",
            views=30,
            tolerance=5e-2,
        ),
        "slice": CTJob(picture=crop(), regularizer=TV, views=20, tolerance=0.3),
    }


@pytest.mark.parametrize("name", ["gaussian", "random", "drawn", "phantom"])
def test_the_script_repeats_the_run(name, tmp_path):
    repeat(jobs()[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impulses", "noisy", "slice"])
def test_more_scripts_repeat_their_runs(name, tmp_path):
    repeat(jobs()[name], tmp_path)


def repeat(job, folder):
    outcome = finished(job)
    assert outcome.ending is Ending.CERTIFIED
    facts = record(outcome)
    files = write_files(outcome, facts, folder)
    elsewhere = folder / "elsewhere"
    with zipfile.ZipFile(files.everything) as archive:
        archive.extractall(elsewhere)
    done = subprocess.run(
        [sys.executable, elsewhere / files.script.name],
        cwd=elsewhere, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    repeated = torch.from_numpy(np.load(elsewhere / "repeated.npy"))
    kept = torch.from_numpy(np.load(elsewhere / "reconstruction.npy"))
    assert torch.allclose(repeated, kept, atol=1e-5)
    assert f"converged after {int(outcome.solution.iterations[0])} iterations" in done.stdout
    assert f"objective {float(outcome.solution.objective[0]):.5g}"[:-1] in done.stdout
    if job.simulated:
        assert f"PSNR {facts['psnr_after']:.2f} dB" in done.stdout
        assert facts["psnr_after"] > facts["psnr_before"] or name_of(job) == "ct"
    assert json.loads(files.numbers.read_text())["gap"] == outcome.gap <= job.tolerance


def name_of(job):
    return job.name


def test_a_result_is_shown_whole(tmp_path):
    outcome = finished(jobs()["impulses"])
    assert "Certified gap" in verdict(outcome)
    assert error_map(outcome).shape == (48, 48)
    assert maps(outcome).count("<img") == 2
    assert "PSNR" in numbers(record(outcome))
    unknown = finished(jobs()["noisy"])
    assert maps(unknown).count("<img") == 1
    assert "PSNR" not in numbers(record(unknown))


# Runs


def test_stop_stops_the_solver():
    run = Run(long_job(), 60.0).start()
    for snapshot in run.snapshots(pause=0.0):
        if snapshot.points:
            break
    else:
        pytest.fail("the run ended by itself")
    assert run.join(10.0)  # leaving the loop was enough: nobody looks any more
    assert run.outcome.ending is Ending.STOPPED
    iterations = run.outcome.iterations
    time.sleep(0.2)
    assert run.outcome.iterations == iterations
    assert f"max_iterations={iterations}" in script(run.outcome, "0")


def test_the_time_limit_ends_a_run_with_its_proof():
    outcome = finished(long_job(), seconds=0.3)
    assert outcome.ending is Ending.TIME
    assert "Stopped at the time limit" in verdict(outcome)


def test_runs_wait_for_a_slot_also_for_those_that_nobody_watches():
    freed = []
    slots = Slots(1, lambda: freed.append(1))
    first = Run(long_job(), 60.0, slots=slots).start()
    second = Run(long_job(), 60.0, slots=slots).start()
    third = Run(replace(long_job(), tolerance=0.5), 60.0, slots=slots).start()
    time.sleep(0.5)
    second.stop()
    assert second.join(20.0)
    with pytest.raises(PageError, match="before it began"):
        list(second.snapshots())
    assert not freed  # the first one computes, and the third one waits
    assert first.outcome is third.outcome is None
    first.stop()
    assert first.join(20.0)
    assert third.join(60.0)
    assert third.outcome.ending is Ending.CERTIFIED
    assert len(freed) == 2


def test_the_first_picture_comes_at_once():
    run = Run(long_job(), 60.0)
    start = time.perf_counter()
    run.start()
    snapshots = run.snapshots(pause=0.0)
    first = next(s for s in snapshots if s.stated is not None)
    assert "<img" in live_picture(first, run.job)
    assert time.perf_counter() - start < 2.0
    snapshots.close()
    assert run.join(10.0)


def test_errors_in_a_run_are_sentences(monkeypatch, caplog):
    job = jobs()["impulses"]
    monkeypatch.setattr(DenoisingJob, "damaged", lambda self: 1 / 0)
    with pytest.raises(PageError, match="ZeroDivisionError"):
        list(Run(job, 5.0).start().snapshots())
    assert "a run failed" in caplog.text  # the traceback is for the log


def test_a_race():
    job = replace(jobs()["impulses"], kind="gaussian", level=0.1)
    race = Race(job, ("default", "paper", "nmapg", "lbfgs", "sm-c", "sm-d"), seconds=1.0).start()
    assert list(race.news(pause=0.0))
    table = standings(race)
    for lap in race.laps:
        assert lap.name in table
        assert lap.objective[-1] >= race.bound - 1e-6 * abs(race.bound), lap.name
    reached = {line.name: line.y[-1] for line in race.lines()}
    assert reached["default"] < 1e-2
    with pytest.raises(PageError, match="No method"):
        Race(job, (), 1.0)


def test_a_race_in_a_scanner_and_its_stop():
    race = Race(jobs()["slice"], ("default", "paper", "sm-c"), seconds=0.5).start()
    for _ in race.news(pause=0.0):
        pass
    assert all(lap.objective and not lap.note for lap in race.laps)
    # The clock of the drawing is the one that ends a lap: nobody has less of it than others.
    assert all(lap.seconds[-1] >= 0.5 for lap in race.laps), [lap.seconds[-1] for lap in race.laps]
    race = Race(jobs()["slice"], ("default", "paper", "sm-c"), seconds=30.0).start()
    threading.Timer(0.3, race.stop).start()
    start = time.perf_counter()
    list(race.news())
    assert time.perf_counter() - start < 10
