"""Kills and signals do not change what a training does, and checkpoints are not mixed up."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import forked
import pytest
import torch
from quick_training import Valley, quick, rows, same_weights
from training_runs import STEPS, crops

import convexlift as cl
from convexlift.tasks import GaussianDenoising, Inpainting
from convexlift.training import (
    Adversarial,
    BatchSampler,
    TrainingOptions,
    Validation,
    train,
)

pytestmark = pytest.mark.single_precision


# Exact resumption


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    forked.run(f"import training_runs; training_runs.main('break', {str(folder)!r})", folder)
    return folder, json.loads((folder / "found.json").read_text())


@pytest.mark.sampled(3)
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
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 3
    going_on = quick(folder=tmp_path, resume=True)
    assert not going_on.interrupted
    assert same_weights(going_on.network.state_dict(), whole.network.state_dict())
    assert going_on.rows == whole.rows
    assert going_on.seconds > saved["seconds"]  # those before the signal count


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
    def go(penalty=5.0, channels=2, noise=0.1, *, mask=None, resume=True):
        task = GaussianDenoising(noise) if mask is None else Inpainting(mask=mask)
        network, objective = (
            cl.networks.ridge(channels=channels, kernel=3),
            Adversarial(task, penalty),
        )
        batches = BatchSampler(crops(4, 8), 2)
        train(network, objective, batches, TrainingOptions(1), folder=tmp_path, resume=resume)

    go(resume=False)
    go()
    with pytest.raises(ValueError, match=r"objective\.penalty = 5\.0, but this run has 4\.0"):
        go(penalty=4.0)
    with pytest.raises(ValueError, match=r"objective\.task\.sigma = 0\.1, but this run has 0\.2"):
        go(noise=0.2)
    with pytest.raises(ValueError, match=r"network\.output = \(2,\), but this run has \(3,\)"):
        go(channels=3)
    mask = torch.ones(8, 8)
    go(mask=mask, resume=False)
    go(mask=mask.clone())
    mask[2, 2] = 0
    with pytest.raises(ValueError, match=r"objective\.task\.mask"):
        go(mask=mask)


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
    (tmp_path / ".checkpoint.pt.99999999.part").write_bytes(b"half")
    quick(folder=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if "tfevents" not in p.name) == [
        "checkpoint.pt", "log.csv",
    ]  # fmt: skip
