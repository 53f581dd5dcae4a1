"""The training loop: it learns, and neither kills nor several processes change what it does."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import training_runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_runs import KINDS, STEPS, crops, ingredients

import convexlift as cl
from convexlift.images import save_image
from convexlift.tasks import GaussianDenoising, Inpainting
from convexlift.training import (
    Adversarial,
    BatchSampler,
    Bilevel,
    Implicit,
    TrainingOptions,
    Validation,
    follow,
    presets,
    train,
)
from convexlift.training.objectives import Loss, Objective
from convexlift.training.recipes import AdversarialRecipe, BilevelRecipe

PROGRAM = str(Path(training_runs.__file__))
SHORT = cl.StopWhen(gap=1e-3, max_iterations=60)


@pytest.fixture(autouse=True)
def _single_precision(_double_precision):
    torch.set_default_dtype(torch.float32)


def rows(folder):
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def psnrs(trained):
    return [row["psnr"] for row in trained.rows if "psnr" in row]


def same_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Valley(Objective):
    """A cheap objective: the mean square of the output weights, or a surprise at some step."""

    def __init__(self, surprise=None, at=None):
        super().__init__()
        self.surprise, self.at = surprise, at

    def forward(self, network, batch):
        loss = network.output.square().mean()
        if batch.step == self.at:
            if callable(self.surprise):
                self.surprise()
            else:
                loss = loss * self.surprise
        return Loss(loss, loss.detach())


def quick(options=None, *, objective=None, seed=0, images=4, **more):
    """A training of no use that takes no time."""
    torch.manual_seed(1)
    network = cl.networks.ridge(channels=2, kernel=3)
    batches = BatchSampler(crops(images, 8), 2, seed=seed)
    options = options or TrainingOptions(6, checkpoint_every=2)
    return train(network, objective or Valley(), batches, options, **more)


class Told:
    """A validation whose PSNR was decided beforehand."""

    def __init__(self, *values):
        self.values, self.seen = list(values), []

    def __call__(self, network, weight):
        self.seen.append({name: t.clone() for name, t in network.state_dict().items()})
        value = torch.tensor([self.values[len(self.seen) - 1]])
        return cl.training.validation.Score(value, value, 2.0, value, value)


# It learns


def test_adversarial_training_helps():
    task = GaussianDenoising(0.1)
    torch.manual_seed(0)
    network = cl.networks.baseline(16, channels=4, pool=4, hidden=4, padding="reflect")
    training, held_out = crops(24, 32).split(4, seed=0)
    trained = train(
        network,
        Adversarial(task, 5.0),
        BatchSampler(training, 8, crop=16),
        TrainingOptions(40, 1e-2, betas=(0.5, 0.99), zero_mean=True, validate_every=40),
        validation=Validation(
            task, held_out, search=True, crop=16,
            stop=cl.StopWhen(gap=1e-4, max_iterations=80),
        ),
    )  # fmt: skip
    first, last = psnrs(trained)
    assert last > first + 3
    assert trained.score["psnr"] == last
    network.check_convexity()
    assert network.layers[0].skip.weight.mean((-2, -1)).abs().max() < 1e-6


@pytest.mark.parametrize("filters", [None, 0.003])
def test_bilevel_training_helps(filters):
    task = GaussianDenoising(0.1)
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=4, kernel=3)
    if filters is not None:
        cl.training.start_from_filters_(network, filters)
    training, held_out = crops(12, 32).split(4, seed=0)
    objective = Bilevel([(task, 1.0)], hypergradient=Implicit(damping=1e-2, iterations=10))
    trained = train(
        network,
        objective,
        BatchSampler(training, 4, crop=16),
        TrainingOptions(20, 0.1, relative=True, zero_mean=True, validate_every=20),
        validation=Validation(task, held_out, crop=16, stop=SHORT),
    )
    first, last = psnrs(trained)
    assert last > first + 2
    assert last > 22.5  # the data have 20
    network.check_convexity()


# Exact resumption


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    subprocess.run([sys.executable, PROGRAM, "break", str(folder)], check=True, timeout=300)
    return folder, json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("kind", ["adversarial", "warm"])
@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_broken_run_ends_bit_for_bit_like_a_whole_one(broken, kind, way):
    folder, found = broken
    assert found[kind]["whole"] == [0]
    *hit, last = found[kind][way]
    assert last == 0
    assert hit  # unless the machine was asleep, each signal came in time
    assert set(hit) == {-signal.SIGKILL if way == "killed" else 5}  # 5: ended early, as asked
    whole, other = folder / kind / "whole", folder / kind / way
    assert (whole / "log.csv").read_bytes() == (other / "log.csv").read_bytes()
    for name in ("final.pt", "checkpoint.pt"):
        one, two = (torch.load(place / name, weights_only=True) for place in (whole, other))
        if name == "checkpoint.pt":
            one, two = one["network"], two["network"]
        assert same_weights(one, two)
    assert len({row["loss"] for row in rows(other)}) > STEPS // 2  # it went somewhere
    assert not list(other.glob(".*"))
    assert [int(row["step"]) for row in rows(other)] == list(range(STEPS + 1))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step(kind, tmp_path):
    whole = quick()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    surprised = Valley(lambda: signal.raise_signal(kind), at=2)
    cut = quick(objective=surprised, folder=tmp_path)
    assert cut.interrupted
    assert cut.step == 3
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 3
    going_on = quick(folder=tmp_path, resume=True)
    assert not going_on.interrupted
    assert same_weights(going_on.network.state_dict(), whole.network.state_dict())
    assert going_on.rows == whole.rows
    assert going_on.seconds > cut.seconds


def test_a_second_control_c_ends_at_once_and_spoils_nothing(tmp_path):
    """A solver swallows KeyboardInterrupt; what it returns then must not become a step."""

    def twice():
        signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):  # as ``solve`` does
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        quick(objective=Valley(twice, at=4), folder=tmp_path)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 4


def test_a_run_in_a_thread_needs_no_signals():
    import threading

    done = []
    thread = threading.Thread(target=lambda: done.append(quick()))
    thread.start()
    thread.join()
    assert done[0].step == 6


def test_a_finished_run_is_not_repeated(tmp_path):
    first = quick(folder=tmp_path)
    before = (tmp_path / "log.csv").read_bytes()
    steps = []
    again = quick(folder=tmp_path, resume=True, callback=lambda report: steps.append(report.step))
    assert not steps
    assert same_weights(first.network.state_dict(), again.network.state_dict())
    assert (tmp_path / "log.csv").read_bytes() == before


# Several processes


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    images = crops(6)
    for i in range(len(images)):
        save_image(folder / "pictures" / f"{i}.png", images[i])
    torch.set_default_dtype(torch.float32)
    cl.save(cl.networks.ridge(channels=2, kernel=3), folder / "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        *(PROGRAM, "share", str(folder)),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_take_the_steps_of_one(shared, kind):
    torch.set_default_dtype(torch.float64)  # rounding is then far below the tolerance
    alone = training_runs.run(kind, None)
    found = rows(shared / kind)
    losses = torch.tensor([row["loss"] for row in alone.rows[1:]])
    others = torch.tensor([float(row["loss"]) for row in found[1:]])
    assert len(others) == STEPS
    assert float((losses - others).abs().max()) <= 1e-5 * float(losses.abs().max())
    for name in ("psnr", "weight"):
        expected = [row[name] for row in alone.rows if name in row]
        assert [float(row[name]) for row in found if row[name]] == pytest.approx(expected, rel=1e-5)
    first, second = (torch.load(shared / f"{kind}-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert same_weights(first, second)
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(first[name], value, rtol=1e-5, atol=1e-8)


def test_a_batch_that_cannot_be_shared(shared):
    for rank in (0, 1):
        text = (shared / f"uneven-{rank}.txt").read_text()
        assert text == "2 processes cannot share a batch of 3 evenly; write batch_size=4"


def test_one_process_of_the_command_line_talks_and_writes(shared):
    first, second = ((shared / f"command-2-{rank}.txt").read_text() for rank in (0, 1))
    assert first.startswith("0\nstep 0 of 2")
    assert "cl.load" in first
    assert second == "0\n"
    card = cl.load(shared / "output-2" / "model").card
    assert "2 processes" in card.machine
    assert card.command.startswith("torchrun --nproc-per-node 2 -m convexlift ")
    first, second = ((shared / f"command-3-{rank}.txt").read_text() for rank in (0, 1))
    assert first == (
        "2\nconvexlift: 2 processes cannot share a batch of 3 evenly; write batch_size=4.\n"
    )
    assert second == "2\n"
    assert not (shared / "output-3" / "log.csv").exists()


# Checkpoints


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"options": TrainingOptions(7, checkpoint_every=2)}, "options.steps = 6"),
        ({"options": TrainingOptions(6, 1e-2, checkpoint_every=2)}, "options.learning_rate"),
        ({"seed": 1}, "batches.seed = 0, but this run has 1"),
        ({"images": 5}, "batches.images.images = 4, but this run has 5"),
        ({"objective": Adversarial(GaussianDenoising())}, "objective.kind = Valley"),
        ({"validation": Validation(GaussianDenoising(), crops(2, 8))}, "validation"),
    ],
)
def test_other_settings_are_refused_by_name(change, name, tmp_path):
    quick(folder=tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint\.pt was written with") as caught:
        quick(**change, folder=tmp_path, resume=True)
    assert name in str(caught.value)
    assert "start it with the same settings, or choose another folder" in str(caught.value)


def test_settings_of_the_objective_and_the_network_count(tmp_path):
    def go(penalty=5.0, channels=2, noise=0.1, resume=True):
        torch.manual_seed(0)
        train(
            cl.networks.ridge(channels=channels, kernel=3),
            Adversarial(GaussianDenoising(noise), penalty),
            BatchSampler(crops(4, 8), 2),
            TrainingOptions(1),
            folder=tmp_path,
            resume=resume,
        )

    go(resume=False)
    go()
    with pytest.raises(ValueError, match=r"objective\.penalty = 5\.0, but this run has 4\.0"):
        go(penalty=4.0)
    with pytest.raises(ValueError, match=r"objective\.task\.sigma = 0\.1, but this run has 0\.2"):
        go(noise=0.2)
    with pytest.raises(ValueError, match=r"network\.output = \(2,\), but this run has \(3,\)"):
        go(channels=3)


def test_masks_count_by_their_pixels():
    mask = torch.ones(4, 4)
    other = mask.clone()
    other[2, 2] = 0
    ones, twos, others = (
        Bilevel([(Inpainting(mask=m), 1.0)]).settings() for m in (mask, mask.clone(), other)
    )
    plain = cl.training.settings.plain_settings
    assert plain(ones) == plain(twos)
    assert plain(ones) != plain(others)
    json.dumps(plain(ones), allow_nan=False)


def test_relative_rates_come_from_the_checkpoint(tmp_path):
    """A resumed run may be given other weights at first; its rates are those of its start."""
    options = TrainingOptions(6, 0.1, relative=True, checkpoint_every=2)
    whole = quick(options)
    quick(
        options, objective=Valley(lambda: signal.raise_signal(signal.SIGINT), at=2), folder=tmp_path
    )
    network = cl.networks.ridge(channels=2, kernel=3)
    with torch.no_grad():
        network.output.mul_(100)
    batches = BatchSampler(crops(4, 8), 2)
    train(network, Valley(), batches, options, folder=tmp_path, resume=True)
    assert same_weights(network.state_dict(), whole.network.state_dict())


@pytest.mark.parametrize("content", [b"", b"nonsense", "cut", "older"])
def test_damaged_checkpoints_are_refused_by_name(content, tmp_path):
    quick(folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    if content == "cut":
        content = path.read_bytes()[:-200]
    if content == "older":
        torch.save({"format": 0}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is not a"):
        quick(folder=tmp_path, resume=True)


def test_checkpoints_run_no_code(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    quick(folder=tmp_path)
    torch.save({"format": Evil()}, tmp_path / "checkpoint.pt", pickle_module=pickle)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is not a readable checkpoint"):
        quick(folder=tmp_path, resume=True)
    assert not (tmp_path / "evil").exists()


def test_what_a_kill_left_behind_is_removed(tmp_path):
    (tmp_path / ".checkpoint.pt.123.part").write_bytes(b"half")
    quick(folder=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if "tfevents" not in p.name) == [
        "checkpoint.pt", "log.csv",
    ]  # fmt: skip


# Logs


def test_the_table_has_a_row_for_each_step(tmp_path):
    network, objective, batches, validation = ingredients("bilevel")
    options = TrainingOptions(3, 1e-2, validate_every=2)
    trained = train(network, objective, batches, options, validation=validation, folder=tmp_path)
    table = rows(tmp_path)
    assert list(table[0]) == [
        *("step", "loss", "learning_rate", "train_psnr", "gap", "iterations"),
        *("psnr", "ssim", "weight"),
    ]
    assert [row["step"] for row in table] == ["0", "1", "2", "3"]
    assert [bool(row["psnr"]) for row in table] == [True, False, True, True]
    assert [bool(row["loss"]) for row in table] == [False, True, True, True]
    for text, row in zip(table, trained.rows, strict=True):
        for name, value in row.items():
            assert float(text[name]) == pytest.approx(value, rel=1e-8)


def test_rows_after_the_checkpoint_are_not_kept_twice(tmp_path):
    def crash():
        raise RuntimeError("power cut")

    options = TrainingOptions(6, checkpoint_every=2)
    with pytest.raises(RuntimeError, match="power cut"):
        quick(options, objective=Valley(crash, at=5), folder=tmp_path)
    assert len(rows(tmp_path)) == 5
    quick(options, folder=tmp_path, resume=True)
    assert [row["step"] for row in rows(tmp_path)] == list("123456")


@pytest.mark.parametrize("validated", [True, False])
def test_tensorboard_reads_the_same_numbers(tmp_path, validated):
    """Those of steps that a crash undid are taken back; no others are lost."""

    def crash():
        raise RuntimeError

    options = TrainingOptions(6, checkpoint_every=2, validate_every=3)
    validation = Told(1.0, 2.0, 3.0) if validated else None
    with pytest.raises(RuntimeError):
        quick(options, objective=Valley(crash, at=5), folder=tmp_path, validation=validation)
    again = Told(3.0) if validated else None
    trained = quick(options, folder=tmp_path, resume=True, validation=again)
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    losses = board.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
    expected = [row["loss"] for row in trained.rows if "loss" in row]
    assert [event.value for event in losses] == pytest.approx(expected, rel=1e-6)
    if validated:
        assert [(event.step, event.value) for event in board.Scalars("psnr")] == [
            (0, 1.0), (3, 2.0), (6, 3.0),
        ]  # fmt: skip


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(quick().rows) == 6
    assert not list(tmp_path.iterdir())


def test_callbacks_hear_of_every_step():
    heard = []
    quick(
        TrainingOptions(3, validate_every=2),
        validation=Told(1.0, 2.0, 3.0),
        callback=lambda report: heard.append((report.step, report.steps, report.score is None)),
    )
    assert heard == [(0, 3, False), (1, 3, True), (2, 3, False), (3, 3, False)]


# Options


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path):
    for surprise in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="at step 4; lower the learning rate"):
            quick(objective=Valley(surprise, at=3), folder=tmp_path)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 2
    assert all(value.isfinite().all() for value in saved["network"].values())


def test_the_best_weights_are_returned():
    told = Told(20.0, 22.0, 25.0, 24.0, 23.0)
    trained = quick(TrainingOptions(4, validate_every=1), validation=told)
    assert trained.step == 2
    assert trained.score == {"psnr": 25.0, "ssim": 25.0, "weight": 2.0}
    assert same_weights(trained.network.state_dict(), told.seen[2])
    assert not same_weights(trained.network.state_dict(), told.seen[4])


def test_patience(tmp_path):
    told = Told(20.0, 25.0, 24.0, 23.0, 26.0)
    options = TrainingOptions(50, validate_every=2, patience=2, checkpoint_every=50)
    trained = quick(options, validation=told, folder=tmp_path)
    assert [row["step"] for row in trained.rows][-1] == 6
    assert not trained.interrupted
    assert trained.step == 2
    again = quick(options, validation=Told(), folder=tmp_path, resume=True)
    assert not again.interrupted
    assert again.rows == trained.rows
    assert same_weights(again.network.state_dict(), trained.network.state_dict())


def test_mixed_precision():
    network, objective, batches, _ = ingredients("adversarial")
    options = TrainingOptions(3, 1e-2, mixed_precision=True)
    trained = train(network, objective, batches, options)
    network, objective, batches, _ = ingredients("adversarial")
    exact = train(network, objective, batches, replace(options, mixed_precision=False))
    for mixed, full in zip(trained.rows, exact.rows, strict=True):
        assert mixed["loss"] != full["loss"]
        assert mixed["loss"] == pytest.approx(full["loss"], rel=0.1, abs=0.05)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    network, objective, batches, _ = ingredients("bilevel")
    with pytest.raises(ValueError, match=r"Bilevel needs full precision.*mixed_precision=False"):
        train(network, objective, batches, options)


def test_schedules():
    constant = TrainingOptions(10, warm_up=3)
    assert [constant.rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = TrainingOptions(10, schedule="cosine")
    assert cosine.rate(0) == 1.0
    assert cosine.rate(5) == pytest.approx(0.5)
    assert 0 < cosine.rate(9) < 0.03
    assert replace(cosine, warm_up=1).rate(0) == 0.5
    trained = quick(replace(cosine, steps=4, learning_rate=0.1))
    expected = [0.1 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert [row["learning_rate"] for row in trained.rows] == pytest.approx(expected)


def test_relative_rates_change_all_tensors_by_the_same_fraction():
    class Everything(Objective):
        def forward(self, network, batch):
            loss = sum(p.sum() for p in network.parameters())
            return Loss(loss, loss.detach())

    network = cl.networks.convolutional(channels=3, kernel=3)
    with torch.no_grad():
        for layer in network.layers:
            layer.bias.zero_()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    batches = BatchSampler(crops(2, 8), 1)
    train(network, Everything(), batches, TrainingOptions(1, 0.01, relative=True))
    for name, p in network.named_parameters():
        size = float(before[name].square().mean().sqrt()) or 0.01
        moved = (before[name] - p.detach()).abs()  # Adam's first step has the length of the rate
        free = before[name] > 0.011 * size if (p >= 0).all() else torch.ones_like(p, dtype=bool)
        torch.testing.assert_close(moved[free], torch.full_like(moved[free], 0.01 * size))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"betas": (0.9, 1.0)},
        {"schedule": "linear"}, {"clip": 0.0}, {"validate_every": 0}, {"warm_up": -1},
        {"checkpoint_every": 0}, {"patience": 0},
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingOptions(**{"steps": 1, **wrong})


def test_images_that_do_not_fit_the_network_fail_before_any_work(tmp_path):
    network = cl.networks.baseline(16, channels=2, pool=4, hidden=2)
    with pytest.raises(ValueError, match=r"takes images of shape \(1, 16, 16\), got \(1, 8, 8\)"):
        train(network, Valley(), BatchSampler(crops(2, 8), 1), TrainingOptions(1), folder=tmp_path)
    assert not list(tmp_path.iterdir())


# Recipes


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_runs(name):
    recipe = presets.PRESETS[name]
    size = 32
    network = replace(recipe.network, channels=4)
    if network.image_size is not None:
        network = replace(network, image_size=size)
    recipe = replace(
        recipe, network=network, batch_size=2, held_out=1, images=3,
        crop=None if recipe.crop is None else 24, validation_crop=None,
        options=replace(recipe.options, steps=2, validate_every=2),
    )  # fmt: skip
    images, damaged = crops(4, size), None
    if isinstance(recipe, AdversarialRecipe):
        recipe = replace(recipe, search=False)
        if recipe.task is None:
            noise = 0.1 * torch.randn(4, size, size)
            damaged = cl.training.ImageSet.from_tensors(
                [images[i][0] + noise[i] for i in range(len(images))]
            )
    outcome = follow(recipe, images, damaged=damaged)
    assert outcome.trained.rows[-1]["step"] == 2
    assert all(math.isfinite(row["loss"]) for row in outcome.trained.rows[1:])
    outcome.trained.network.check_convexity()
    if damaged is None:
        assert len(psnrs(outcome.trained)) == 1 + recipe.options.validate_start
        assert all(weight > 0 for weight in outcome.weights.values())
    else:
        assert outcome.validation is None
        assert outcome.weights == {}
    if isinstance(recipe, BilevelRecipe):
        assert set(outcome.weights) == {task.name for task, _ in recipe.tasks}


SMALL = replace(
    presets.FACES_DENOISING,
    network=replace(presets.FACES_DENOISING.network, channels=2),
    batch_size=2, held_out=1, search=False,
    options=TrainingOptions(1, 1e-2),
)  # fmt: skip


def test_crops_for_a_network_of_one_size():
    outcome = follow(replace(SMALL, crop=16), crops(3, 40))
    assert outcome.trained.network.image_size == (16, 16)
    assert outcome.validation.crop == 16


def test_damaged_images_must_match():
    recipe = replace(SMALL, task=None, flips=False)
    images = crops(4, 16)
    with pytest.raises(ValueError, match="4 clean and 3 damaged images"):
        follow(recipe, images, damaged=images.first(3))
    with pytest.raises(ValueError, match="need crop=None and flips=False"):
        follow(replace(recipe, flips=True), images, damaged=images)
    with pytest.raises(ValueError, match="the damaged image image 0 is 8 x 8, but image 0"):
        follow(recipe, images, damaged=crops(4, 8))
    with pytest.raises(ValueError, match="needs a task that damages images, or damaged images"):
        follow(replace(SMALL, flips=False), images, damaged=images)
    with pytest.raises(ValueError, match="for adversarial recipes"):
        follow(replace(presets.PAPER_BILEVEL, images=None, held_out=1), images, damaged=images)


def test_a_mask_of_another_size_is_refused():
    recipe = replace(SMALL, task=Inpainting(mask=torch.ones(8, 8)))
    with pytest.raises(ValueError, match="the mask is 8 x 8, but the images are 16 x 16"):
        follow(recipe, crops(4, 16))


def test_the_partner_of_an_image_is_the_one_before_it():
    """Unpaired lines join k and k - 1 of the whole batch."""
    batches = BatchSampler(crops(4, 8), 4)
    batch = batches.batch(0)
    damaged = torch.arange(4.0).reshape(4, 1, 1, 1)
    partner = cl.training.adversarial._previous(damaged, batch)
    assert partner.flatten().tolist() == [3.0, 0.0, 1.0, 2.0]
