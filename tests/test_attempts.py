"""Attempts at a proof: better dual variables for the same image, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

import convexlift as cl
from convexlift.problems.certificate import judge
from convexlift.problems.lifting import lift
from convexlift.solvers import tiled_iterations
from convexlift.solvers.attempts import candidates
from convexlift.solvers.forecast import Course, Forecast
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.pdhg import PDHG, RestartedPDHG
from convexlift.solvers.tiled_iterations import TiledIterations

SIZE = 64
STOP = cl.StopWhen(gap=1e-4, max_iterations=400)


def salt_and_pepper(seeds=(0,), **options) -> cl.VariationalProblem:
    """With 48 trained filters, so that the layer is large enough for strips."""
    y = torch.cat([_noisy(seed) for seed in seeds])
    network = cl.load("photo-any-size").to(y)
    return cl.VariationalProblem(
        fidelity=cl.L1(y), regularizer=network, weight=7.3, box=(0, 1), **options
    )


def _noisy(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 1, SIZE // 8, SIZE // 8, generator=generator)
    clean = torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
    hit = torch.rand(clean.shape, generator=generator)
    return torch.where(hit < 0.1, 0.0, torch.where(hit > 0.9, 1.0, clean))


def never(monkeypatch) -> None:
    monkeypatch.setattr(Course, "is_worth_trying", lambda *_: False)


@pytest.fixture(params=[TiledIterations, Iterations])
def solver(request):
    """For one of two implementations of iterations, and a state that has come some way."""
    problem = salt_and_pepper(seeds=(0, 1))
    with torch.no_grad():
        solver = PDHG().solver(problem)
        assert isinstance(solver.iterations, TiledIterations)
        if request.param is Iterations:
            solver.iterations = Iterations(solver.saddle, solver.coupling)
            solver.iterations.block = 10
        yield problem, solver, solver.advance(solver.start(problem.initial_image()), 30)


def test_they_save_iterations(monkeypatch):
    """With weights that differ from pixel to pixel, some of which are not seen."""
    y = torch.nn.functional.interpolate(torch.rand(1, 1, 10, 10), size=(80, 80), mode="bilinear")
    mask = (torch.rand(80, 80) > 0.3).to(y)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y * mask), operator=cl.Mask(mask), noise=0.05, weight=1.0,
        regularizer=cl.load("photo-open").to(y), box=(0, 1),
    )  # fmt: skip
    stop = cl.StopWhen(gap=1e-3, max_iterations=400)
    tried = cl.solve(problem, stop=stop)
    never(monkeypatch)
    plain = cl.solve(problem, stop=stop)
    assert tried.status == plain.status == (cl.Status.CONVERGED,)
    assert int(tried.iterations) <= 0.8 * int(plain.iterations)
    # Two certified intervals that contain the same optimum.
    assert float(tried.lower_bound) <= float(plain.objective)
    assert float(plain.lower_bound) <= float(tried.objective)


def test_they_raise_the_bound_of_the_same_image(solver):
    problem, solver, state = solver
    both = torch.tensor([True, True])
    after = solver.proving(state, 10, both, both)
    assert torch.equal(after.x, state.x)
    before, now = (judge(problem, state.x, each.duals)[1].everywhere.gap for each in (state, after))
    ordinary = solver.advance(state, 10)
    usual = judge(problem, ordinary.x, ordinary.duals)[1].everywhere.gap
    assert (now < 0.5 * before).all()
    assert (now < usual).all()


def test_iterations_continue_as_if_there_had_been_none(solver):
    _, solver, state = solver
    expected = solver.advance(state, 20)
    again = solver.advance(solver.start(solver.problem.initial_image()), 30)
    both = torch.tensor([True, True])
    found = solver.advance(solver.proving(again, 10, both, both), 20)
    assert torch.equal(found.x, expected.x)
    assert all(torch.equal(part, expected.v[name]) for name, part in found.v.items())


def test_other_images_iterate_as_usual(solver):
    _, solver, state = solver
    both, second = torch.tensor([True, True]), torch.tensor([False, True])
    after = solver.proving(state, 10, ~second, both)
    start = solver.advance(solver.start(solver.problem.initial_image()), 30)
    expected = solver.advance(start, 10)
    assert torch.equal(after.x[1], expected.x[1])
    assert torch.equal(after.x[0], state.x[0])
    assert all(torch.equal(part[1], expected.v[name][1]) for name, part in after.v.items())
    assert int(after.memory.total[0]) == 30
    assert int(after.memory.total[1]) == 40


def test_large_dual_variables_have_no_second_iterate(monkeypatch):
    """Those in 16 bits: an attempt works on w itself, and iterations restart after it."""
    monkeypatch.setattr(tiled_iterations, "LARGE", 0)
    problem = salt_and_pepper().to(dtype=torch.float32)
    one = torch.tensor([True])
    with torch.no_grad():
        solver = PDHG().solver(problem)
        state = solver.advance(solver.start(problem.initial_image()), 30)
        assert solver.provable(state) == [True]
        place = solver.iterations.w.data_ptr()
        after = solver.proving(state, 10, one, one)
        gaps = [judge(problem, state.x, each.duals)[1].everywhere.gap for each in (state, after)]
        assert float(gaps[1]) < 0.5 * float(gaps[0])
        assert torch.equal(after.x, state.x)
        later = solver.advance(after, 10)
        assert solver.iterations.w.data_ptr() == place
    assert float(problem.objective(later.x)) < float(problem.objective(state.x))
    assert (int(later.memory.inner), int(later.memory.total)) == (10, 40)
    solution = cl.solve(problem, stop=STOP)
    assert solution.status == (cl.Status.CONVERGED,)


def test_images_of_a_batch_try_when_they_would_alone():
    """With data that need different numbers of iterations."""
    together = cl.solve(salt_and_pepper(seeds=(0, 1, 2)), stop=STOP)
    for i in range(3):
        alone = cl.solve(salt_and_pepper(seeds=(i,)), stop=STOP)
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.x, together.x[i : i + 1], rtol=0, atol=1e-4)


def test_a_limit_on_iterations_holds():
    for limit in (37, 40, 45):
        stop = cl.StopWhen(gap=1e-9, max_iterations=limit)
        assert int(cl.solve(salt_and_pepper(), stop=stop).iterations) == limit


def test_none_if_every_iteration_is_checked(monkeypatch):
    problem, stop = salt_and_pepper(), cl.StopWhen(gap=1e-3, check_every=2)
    found = cl.solve(problem, stop=stop)
    never(monkeypatch)
    assert torch.equal(found.x, cl.solve(problem, stop=stop).x)


def test_a_solution_continues_from_the_best_dual_variables():
    problem = salt_and_pepper()
    solution = cl.solve(problem, stop=STOP)
    resumed = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=0), start=solution.state)
    assert resumed.status == (cl.Status.CONVERGED,)


@pytest.mark.parametrize(
    ("fidelity", "operator", "free"),
    [
        (cl.SquaredL2, cl.Identity(), [False, False]),
        (cl.L1, cl.Identity(), [True, True]),
        (cl.SquaredL2, cl.Mask(1 - torch.eye(8, dtype=torch.float64)), [True, True]),
        (lambda y: cl.WeightedL2(y, torch.stack([torch.ones(1, 8, 8), torch.eye(8)[None]])),
         cl.Identity(), [False, True]),
        (cl.SquaredL2, cl.Blur(torch.full((3, 3), 1 / 9, dtype=torch.float64)), [False, False]),
    ],
)  # fmt: skip
def test_only_where_data_leave_pixels_free(fidelity, operator, free):
    problem = cl.VariationalProblem(
        fidelity=fidelity(torch.rand(2, 1, 8, 8)), operator=operator,
        regularizer=cl.TotalVariation(), weight=0.1, box=(0, 1),
    )  # fmt: skip
    assert candidates(PDHG().solver(problem).saddle, 2) == free


def test_and_where_layers_follow_one_another():
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(2, 1, 8, 8)), weight=0.1, box=(0, 1),
        regularizer=cl.networks.convolutional(channels=2, kernel=3),
    )  # fmt: skip
    assert candidates(lift(problem), 2) == [True, True]


def course(*gaps: float, in_data: float = 1.0, several: bool = False) -> Course:
    made = Course(several)
    for gap in gaps:
        made.note(gap, in_data)
    return made


@pytest.mark.parametrize(
    ("gaps", "worth"),
    [
        ((1.0,), False),  # nothing is known about the pace
        ((1e-1, 1e-2, 1e-3), False),  # the next ordinary round will do
        ((1e-2, 8e-3, 7.5e-3), True),  # a tenth of a slow gap is below the tolerance
        ((1.0, 0.8, 0.7), False),  # too far away, too early to see what is left
        ((1.0, 0.9, 0.8, 0.7, 0.65), True),  # but not now, with a hundred rounds to go
        ((5e-3, float("nan"), float("nan")), True),  # as if it had not changed
        ((float("inf"), float("inf")), False),
        ((1e-2, 0.0), False),
    ],
)
def test_when_an_attempt_is_worthwhile(gaps, worth):
    assert course(*gaps).is_worth_trying(1e-3) == worth


def test_attempts_are_for_gaps_in_the_data_or_for_several_layers():
    slow, long = (1e-2, 8e-3, 7.5e-3), (1.0, 0.9, 0.8, 0.7, 0.65)
    assert course(*slow).left == pytest.approx(0.1)
    assert not course(*slow, in_data=0.5).is_worth_trying(1e-3)
    assert not course(*long, in_data=0.5).is_worth_trying(1e-3)
    assert not course(*slow, in_data=0.0, several=True).is_worth_trying(1e-3)
    assert course(*long, in_data=0.0, several=True).is_worth_trying(1e-3)


def test_an_attempt_teaches_what_it_leaves_and_is_not_repeated_at_once():
    made = course(1.0, 0.9, 0.8, 0.7, 0.6)
    assert made.is_worth_trying(1e-3)
    made.trying = True
    assert not made.is_worth_trying(1e-3)
    assert made.expected() == pytest.approx(0.06)
    made.note(0.3)
    made.trying = False
    assert (made.left, made.gaps[-1]) == (0.5, 0.6)
    made.note(0.55)
    assert made.left == 0.5
    assert not made.is_worth_trying(1e-3)  # half as many rounds again come first
    made.note(0.5)
    assert made.is_worth_trying(1e-3)


def test_attempts_are_announced_one_check_ahead():
    plan = Forecast(2, 1e-3)

    def note(*gaps: float) -> None:
        plan.note([-10.0, -10.0], [10 * gap for gap in gaps], [10 * gap for gap in gaps])

    for gap in (6e-3, 5.5e-3):
        note(gap, 1e-1 * gap)
    assert plan.worth_trying([True, True]) == [True, False]
    assert plan.worth_trying([False, True]) == [False, False]
    plan.announce([True, False])
    note(5e-3, 5e-4)  # still of an ordinary round
    assert plan.courses[0].trying
    assert not plan.courses[1].trying
    assert not plan.expects_more([True, False])
    assert plan.worth_trying([True, False]) == [False, False]
    plan.announce([False, False])
    note(2e-3, 5e-4)
    assert plan.courses[0].gaps[-1] == pytest.approx(5e-3)


def test_attempts_with_less_rounding_are_judged_anew():
    plan = Forecast(1, 1e-3)
    plan.note([1.0], [8e-3], [8e-3])
    plan.announce([True])
    plan.note([1.0], [7e-3], [7e-3])
    plan.announce([False])
    plan.note([1.0], [6.9e-3], [6.9e-3])  # of the attempt, which leaves nearly everything
    plan.note([1.0], [6e-3], [6e-3])
    assert plan.worth_trying([True]) == [False]
    plan.forget_attempts()
    plan.note([1.0], [5.5e-3], [5.5e-3])
    assert plan.worth_trying([True]) == [True]


def test_nothing_is_tried_without_a_tolerance():
    for tolerance in (None, 0.0):
        plan = Forecast(1, tolerance)
        for gap in (1e-2, 8e-3, 7e-3, 6e-3, 5e-3, 4e-3):
            plan.note([1.0], [gap], [gap])
            assert plan.worth_trying([True]) == [False]


def test_only_wanted_attempts_ask_whether_they_are_possible(monkeypatch):
    """That would make a GPU wait: with squared L2 data, it compares curvatures."""
    asked = []
    monkeypatch.setattr(
        RestartedPDHG, "provable", lambda self, state: asked.append(state) or [True] * len(state.x)
    )
    cl.solve(salt_and_pepper(), stop=cl.StopWhen(gap=1e-3, max_iterations=20))
    assert not asked
    cl.solve(salt_and_pepper(), stop=STOP)
    assert asked
