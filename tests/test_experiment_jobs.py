"""Steps of experiments in several processes: order, needs, times measured alone, failures."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_reproduction import contents, experiment, made

from experiments.__main__ import main
from experiments.runner import Experiment, Step, Study
from experiments.runner.jobs import compute_all
from experiments.runner.run import OtherRun, finished_parts


def timed(work):
    begin = time.time()
    time.sleep(0.05)
    found = made(sum(part.values["value"] for part in work.parts.values()) + 1)
    when = {"begin": begin, "end": time.time(), "pid": os.getpid()}
    when["threads"] = torch.get_num_threads()
    return replace(found, values={**found.values, **when})


def steps(study, settings):
    """Two chains of two steps, and two measurements of times."""
    return [
        Step("a", {}, timed),
        Step("watch", {}, timed, ("a",), alone=True),
        Step("b", {}, timed, cost=5.0),
        Step("c", {}, timed, ("a",)),
        Step("d", {}, timed, ("b", "c"), cost=2.0),
        Step("watch-too", {}, timed, alone=True),
    ]


def failing(work):
    raise ArithmeticError("no such number")


class Unusual(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def failing_unusually(work):
    raise Unusual("this", "that")


def hungry(work):
    """Out of memory the first time."""
    try:
        Path(os.environ["TRIED"]).touch(exist_ok=False)
    except FileExistsError:
        return timed(work)
    raise torch.OutOfMemoryError("too much")


def starving(work):
    raise torch.OutOfMemoryError("too much")


def load():
    def of(name, steps):
        return Experiment(name, "", "1", None, None, steps, lambda parts, settings: None)

    def broken(study, settings):
        return [
            Step("good", {}, timed),
            Step("bad", {}, failing, cost=9.0),
            Step("worse", {}, timed, ("bad",), alone=True),
            Step("better", {}, timed, ("good",), alone=True),
        ]

    def beside(other):
        return lambda study, settings: [Step("bad", {}, other), Step("good", {}, timed)]

    made = {"first": steps, "second": steps, "broken": broken}
    made |= {each.__name__: beside(each) for each in (failing_unusually, hungry, starving)}
    return {name: of(name, each) for name, each in made.items()}


@pytest.mark.slow
def test_processes_compute_what_one_would_and_measure_times_alone(tmp_path):
    folders = {name: tmp_path / name for name in ("first", "second")}
    seen = []
    compute_all(load, folders, Study(), 2, lambda *told: seen.append(told))
    assert seen[-1] == ("done", 22.0, 22.0)
    spans, pids = {}, set()
    for name, folder in folders.items():
        parts, run = finished_parts(load()[name], folder)
        assert run["complete"]
        values = {key: part.values["value"] for key, part in parts.items()}
        assert values == {"a": 1, "watch": 2, "b": 1, "c": 2, "d": 4, "watch-too": 1}
        pids |= {part.values["pid"] for part in parts.values()}
        times = {key: (part.values["begin"], part.values["end"]) for key, part in parts.items()}
        spans |= {(name, key): span for key, span in times.items()}
    assert len(pids) == 2
    assert os.getpid() not in pids
    for (name, key), (begin, end) in spans.items():
        if key.startswith("watch"):
            others = (span for other, span in spans.items() if other != (name, key))
            assert all(last <= begin or end <= first for first, last in others)
    before = contents(tmp_path)
    compute_all(load, folders, Study(), 2)  # nothing is missing
    assert contents(tmp_path) == before
    with pytest.raises(OtherRun, match="another seed"):
        compute_all(load, folders, Study(seed=1), 2)


def test_a_step_that_fails_does_not_stop_those_that_do_not_need_it(tmp_path):
    seen = []
    with pytest.raises(ArithmeticError, match="no such number"):
        compute_all(load, {"broken": tmp_path}, Study(), 2, lambda *told: seen.append(told[0]))
    assert "broken: bad failed: no such number" in seen
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["finished"], run["complete"]) == (2, False)
    found = {path.stem for path in (tmp_path / "parts").glob("*.json")}
    assert found == {"good", "better"}


@pytest.mark.slow
def test_an_error_that_does_not_travel_between_processes_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="Unusual: this and that"):
        compute_all(load, {"failing_unusually": tmp_path}, Study(), 2)
    assert [path.stem for path in (tmp_path / "parts").glob("*.json")] == ["good"]


@pytest.mark.slow
def test_a_step_without_enough_memory_is_repeated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIED", str(tmp_path / "tried"))
    folders = {name: tmp_path / name for name in ("hungry", "starving")}
    compute_all(load, {"hungry": folders["hungry"]}, Study(), 2)
    assert set(finished_parts(load()["hungry"], folders["hungry"])[0]) == {"bad", "good"}
    with pytest.raises(torch.OutOfMemoryError, match="too much"):
        compute_all(load, {"starving": folders["starving"]}, Study(), 2)


@pytest.mark.slow
def test_times_are_measured_with_the_threads_of_this_process(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    options = ["--output", str(tmp_path), "--device", "cpu", "--jobs", "2", "--compute"]
    try:
        main(["first", *options], load)
    finally:
        torch.set_num_threads(before)
    parts, _ = finished_parts(load()["first"], tmp_path)
    used = {name: part.values["threads"] for name, part in parts.items()}
    assert used == {"a": 1, "b": 1, "c": 1, "d": 1, "watch": 2, "watch-too": 2}


def test_one_job_stays_in_this_process(tmp_path: Path):
    calls: list[str] = []
    compute_all(lambda: {"chain": experiment(calls)}, {"chain": tmp_path}, Study())
    assert calls == ["a", "b", "c"]
