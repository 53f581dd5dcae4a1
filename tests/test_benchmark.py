"""The benchmark: what it counts, what it times, and what it writes."""

from __future__ import annotations

import csv
import json
import math
import signal

import pytest
import torch

import convexlift as cl
from convexlift import METHODS
from convexlift.images import load_image, save_image
from convexlift.networks import ridge
from convexlift.tasks import GaussianDenoising, SaltAndPepper
from convexlift.training import start_from_filters_
from experiments.benchmark.__main__ import main
from experiments.benchmark.bench import Request, choose_steps, run_benchmark
from experiments.benchmark.cases import Case, choose_images, example_images
from experiments.benchmark.results import (
    ERROR,
    Convergence,
    Entry,
    Results,
    spread,
)
from experiments.catalogue import BenchmarkSettings
from experiments.measuring import Trace, find_reference, first_below

CPU = torch.device("cpu")
SIZE = 16
PROMISED = {
    *("task", "method", "device", "batch", "tolerance", "iterations", "seconds"),
    *("objective_error", "gap", "psnr"),
}
pytestmark = pytest.mark.single_precision


def tiny_network(size, seed):
    network = ridge(channels=4, kernel=3, smoothing=0.05, padding="circular")
    start_from_filters_(network, 0.05)
    return network


TINY = Case("tiny", "a tiny case", GaussianDenoising(), tiny_network, weight=1.0)
KINKS = Case("kinks", "a case with an L1 data term", SaltAndPepper(), tiny_network, weight=3.0)
OPTIONS = BenchmarkSettings(
    tolerances=(1e-2, 1e-3), repeats=2, count=2, batches=(1, 2), max_iterations=60,
    tuning_iterations=20, seconds=20.0, coarse=True,
)  # fmt: skip


def pictures(size):
    return choose_images(example_images(), OPTIONS.count, size)


@pytest.fixture(scope="module")
def results():
    torch.set_default_dtype(torch.float32)
    return run_benchmark(Request([TINY], list(METHODS.values()), pictures, OPTIONS, CPU, SIZE))


def test_first_crossings():
    values = [1.0, 0.5, 0.01, 0.001]
    assert [first_below(values, t) for t in (2.0, 0.5, 0.1, 1e-3, 1e-4)] == [0, 1, 2, 3, None]
    assert first_below([math.nan, 0.1], 0.5) == 1
    trace = Trace(((0, 0.1, 1.0), (10, 0.3, 0.05), (20, 0.7, 0.001)))
    assert trace.reached(0.05) == (10, 0.3)
    assert trace.reached(1e-4) is None


def test_what_is_not_reached_counts_as_infinite():
    assert spread([1.0, 3.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread([1.0, None, 2.0]) == (2.0, 1.0, None)
    assert spread([1.0, None, None]) == (None, 1.0, None)
    assert spread([None]) == (None, None, None)


def test_seconds_of_iterations_are_on_lines_between_timed_runs():
    entry = Entry("t", "m", "", (), ((1, 3.0), (11, 4.0), (21, 6.0)), None)
    assert [entry.seconds(k) for k in (1, 6, 11, 16, 21, 31)] == pytest.approx([3, 3.5, 4, 5, 6, 8])
    assert math.isnan(Entry("t", "m", "", (), (), None).seconds(3))


def test_rows(results):
    assert results.complete
    assert {row.method for row in results.rows} == set(METHODS)
    assert len(results.rows) == len(METHODS) * 2 * 2 * 2  # batches, measures, tolerances
    for row in results.rows:
        assert vars(row).keys() >= PROMISED
        assert (row.reached == row.images) == (row.iterations_max is not None)
        if row.iterations is not None:
            assert row.iterations_min <= row.iterations <= row.iterations_max
            assert 0 < row.seconds_min <= row.seconds <= row.seconds_max
            assert (row.objective_error if row.measure == ERROR else row.gap) <= row.tolerance
        assert 10 < row.psnr < 60
        assert row.method != "default" or row.reached == 2
    counts = {
        (row.method, row.measure, row.batch, row.tolerance): row.iterations or math.inf
        for row in results.rows
    }
    assert all(counts[(*case, 1e-2)] <= counts[(*case, 1e-3)] for *case, _ in counts)


def test_references_are_certified(results):
    assert {(r["image"], r["box"]) for r in results.references} == {
        (i, box) for i in (0, 1) for box in (True, False)
    }
    for reference in results.references:
        assert reference["certified"]
        assert reference["gap"] <= 1e-6
    trial = TINY.trial(pictures(SIZE), OPTIONS.seed, CPU)
    problem = trial.problem([1]).to(dtype=torch.float64)
    optimum = cl.solve(problem, stop=cl.StopWhen(gap=1e-8))
    found = next(r for r in results.references if r["image"] == 1 and r["box"])
    assert found["objective"] == pytest.approx(float(optimum.objective), rel=2e-6)


def test_a_reference_out_of_reach_is_said_to_be():
    options = BenchmarkSettings(
        tolerances=(1e-2,), repeats=1, max_iterations=5, reference_iterations=20
    )
    results = run_benchmark(Request([KINKS], [METHODS["default"]], pictures, options, CPU, SIZE))
    assert not any(reference["certified"] for reference in results.references)
    assert any("is certified to a gap of" in note for note in results.notes)


def test_an_unreached_tolerance_is_an_empty_cell():
    options = BenchmarkSettings(tolerances=(1e-2, 1e-5), repeats=1, max_iterations=3)
    results = run_benchmark(Request([TINY], [METHODS["default"]], pictures, options, CPU, SIZE))
    lost = [row for row in results.rows if row.tolerance == 1e-5]
    assert len(lost) == 2
    for row in lost:
        assert row.iterations is row.seconds is None
        assert row.reached == 0
        assert row.objective_error > 1e-5  # where it ended
    lines = csv.DictReader(results.as_csv().splitlines())
    assert {line["seconds"] for line in lines if line["tolerance"] == "1e-05"} == {""}


def test_a_method_that_does_not_apply_is_not_hidden():
    class Picky(cl.NMAPG):
        def solver(self, problem):
            raise ValueError("not for this problem")

    picky = cl.NamedMethod("nmapg", lambda problem, coarse: [Picky()])
    results = run_benchmark(Request([TINY], [picky], pictures, OPTIONS, CPU, SIZE))
    assert len(results.rows) == 8
    assert all(row.iterations is None and row.reached == 0 for row in results.rows)
    assert results.notes == ["tiny: nmapg does not apply: not for this problem."]


def test_steps_are_chosen_by_iterations():
    trial = TINY.trial(pictures(SIZE), 0, CPU)
    problem = trial.problem([0], bounded=False)
    reference = find_reference(problem, cl.StopWhen(gap=1e-6, max_iterations=1000))
    candidates = [cl.Subgradient(step) for step in (1e-6, 0.2, 1e3)]
    method, choice = choose_steps(problem, candidates, reference, 100, 10.0)
    assert method is candidates[1]
    assert choice.iterations is not None
    assert not choice.at_edge
    method, choice = choose_steps(problem, candidates[:1], reference, 10, 10.0)
    assert method is candidates[0]
    assert choice.iterations is None
    assert choice.at_edge


def test_grids_scale_with_the_objective():
    """scale (L1 + weight R) has the iterates of L1 + weight R, with c times scale."""
    trial = KINKS.trial(pictures(SIZE), 0, CPU)
    problem = trial.problem([0])
    scaled = cl.VariationalProblem(
        fidelity=cl.L1(problem.fidelity.y, 0.02), regularizer=problem.regularizer,
        weight=0.02 * problem.weight, box=(0.0, 1.0),
    )  # fmt: skip
    stop = cl.StopWhen(gap=None, max_iterations=7)
    for name in ("paper", "sm-c", "sm-d"):
        ours, theirs = (METHODS[name].grid(p, False)[2] for p in (problem, scaled))
        x, y = (cl.solve(p, method=m, stop=stop).x for p, m in ((problem, ours), (scaled, theirs)))
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_infinity_and_nan_are_empty_in_files(tmp_path):
    results = Results(Request([], [], pictures, OPTIONS, CPU).about())
    curve = Convergence((math.inf, 1.0), (math.inf, math.nan), (20.0, 20.0))
    results.entries.append(Entry("t", "default", "", (curve,), ((1, 0.5), (2, 0.6)), None))
    results.write(tmp_path)
    (found,) = json.loads((tmp_path / "benchmark.json").read_text())["curves"]
    assert found["objective_error"] == [None, 1.0]
    assert found["gap"] == [None, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerances": (1e-7,)}, "the accuracy of the reference"),
        ({"tolerances": (0.1, 0.1)}, "names a value twice"),
        ({"batches": ()}, "at least one"),
        ({"batches": (3,), "count": 4}, "3 does not divide 4"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"seconds": -1.0}, "seconds must be positive"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchmarkSettings(**changes)


TINY_COMMAND = ["--tasks", "tiny", "--size", str(SIZE), "--quick", "--device", "cpu"]


def test_the_command(tmp_path, capsys):
    arguments = ["--methods", "default,sm-d", "--output", str(tmp_path / "out"),
                 "--repeats", "2", "--count", "2",
                 "--batch", "1,2", "--tolerances", "0.05,0.01"]  # fmt: skip
    main([*TINY_COMMAND, *arguments], {"tiny": TINY})
    shown = capsys.readouterr().out
    assert "error 0.01" in shown
    assert "the best of 6" in shown
    content = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    with (tmp_path / "out" / "benchmark.csv").open() as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, content["rows"], strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}
    assert content["version"] == cl.__version__
    assert content["machine"]["torch"] == torch.__version__
    assert content["complete"]
    assert {row["batch"] for row in content["rows"]} == {1, 2}
    assert {c["method"] for c in content["choices"]} == {"sm-d"}
    assert {c["method"] for c in content["curves"]} == {"default", "sm-d"}
    assert load_image(tmp_path / "out" / "benchmark-tiny.png").shape[-1] > 900


class Interrupted(cl.LBFGS):
    """Ctrl-C, as soon as a problem is solved by it."""

    def solver(self, problem):
        signal.raise_signal(signal.SIGINT)


def test_control_c_keeps_what_there_is(tmp_path, capsys):
    interrupted = cl.NamedMethod("lbfgs", lambda problem, coarse: [Interrupted()])
    arguments = ["--methods", "default,lbfgs", "--output", str(tmp_path)]
    methods = {"default": METHODS["default"], "lbfgs": interrupted}
    with pytest.raises(SystemExit) as ended:
        main([*TINY_COMMAND, *arguments], {"tiny": TINY}, methods)
    assert ended.value.code == 130
    assert "Interrupted; the 4 rows measured so far are in" in capsys.readouterr().err
    content = json.loads((tmp_path / "benchmark.json").read_text())
    assert not content["complete"]
    assert {row["method"] for row in content["rows"]} == {"default"}
    assert (tmp_path / "benchmark-tiny.png").is_file()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "knitting"], "--tasks knows no 'knitting'; choose among inpainting,"),
        (["--methods", "default,default"], "--methods names default twice"),
        (["--methods", ","], "--methods is empty"),
        (["--batch", "two"], "--batch: invalid integers value: 'two'"),
        (["--tolerances", "1e-9"], "the accuracy of the reference"),
        (["--count", "60"], "ask for a count of 5 or fewer"),
        (["--size", "20"], "--size must be a multiple of 16"),
        (["--tasks", "inpainting", "--size", "64"], "leave --size out"),
        (["--images", "NOWHERE"], "NOWHERE"),
        (["--tasks", "any-size-gaussian", "--mask", "MASK"], "--mask is for inpainting"),
        (["--tasks", "inpainting", "--mask", "MASK"], "--mask is 8 x 8"),
        (["--output", "MASK"], "cannot be used as a folder"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(arguments, message, tmp_path, capsys):
    save_image(tmp_path / "mask.png", torch.ones(8, 8))
    places = {"MASK": str(tmp_path / "mask.png")}
    arguments = [places.get(a, a) for a in arguments]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cpu", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
