"""What a training tells: a table, TensorBoard, callbacks."""

from __future__ import annotations

import pytest
from quick_training import Told, Valley, quick, rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_runs import ingredients

from convexlift.training import TrainingOptions, train

pytestmark = pytest.mark.single_precision


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
