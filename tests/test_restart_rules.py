"""The rules of restarts: coefficients, times of tests, decisions, and new step sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo

import convexlift as cl
from convexlift.problems.lifting import lift
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.rebalancing import (
    LARGEST_CHANGE,
    Restarts,
    lateness,
    only_recent,
    rebalance,
)
from convexlift.solvers.restart_rules import (
    RestartMemory,
    RestartRules,
    should_restart,
    times_to_rebalance,
)
from convexlift.tensors import Blocks

KINKS = replace(
    zoo.problem("plain", cl.LeakyReLU(0.2), "L1"), operator=cl.Blur(torch.ones(3, 3) / 9)
)
MIXED = zoo.problem("plain", cl.LeakyReLU(0.2), "L2")  # two layers
SMOOTH = cl.VariationalProblem(
    fidelity=cl.SquaredL2(torch.rand(1, 1, 8, 8)),
    regularizer=cl.networks.ridge(smoothing=0.01),
    weight=1.0,
)


@pytest.mark.parametrize("problem", [KINKS, MIXED, SMOOTH])
def test_fixed_points_stay_fixed(problem):
    """a + b + e = 1: where P(w) = w = anchor, the next iterate is the same."""
    rules, memory = RestartRules(problem), RestartMemory.at_start(2)
    np.testing.assert_allclose(rules.mix(memory, 200).sum(0), 1.0, rtol=1e-14)


def test_halpern_forgets_its_anchor_and_a_restart_goes_to_the_step_itself():
    rules, memory = RestartRules(KINKS), RestartMemory.at_start(1)
    _, _, e = rules.mix(memory, 50)[:, :, 0]
    np.testing.assert_allclose(e, 1 / (np.arange(50) + 2))
    restart = replace(memory, restart_next=torch.tensor([True]))
    assert rules.mix(restart)[:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert rules.until_decision(restart, 100) == 1


def test_kinks_of_data_matter_behind_operators_only():
    """Elsewhere they are in the proximal step of the images."""
    kinks, smooth = (
        cl.VariationalProblem(
            fidelity=cl.L1(torch.rand(1, 1, 8, 8)),
            regularizer=cl.networks.ridge(smoothing=smoothing),
            weight=1.0,
            operator=cl.Mask(torch.rand(8, 8) > 0.3),
        )
        for smoothing in (0.0, 0.01)
    )
    assert RestartRules(kinks).relaxed == 20
    assert RestartRules(smooth).relaxed == math.inf
    for activation in (cl.LeakyReLU(0.2), cl.SmoothedLeakyReLU(0.2, 0.01)):  # two layers
        assert RestartRules(zoo.problem("plain", activation, "L1")).relaxed == 100
    blur = cl.Blur(torch.ones(3, 3) / 9)
    assert RestartRules(replace(smooth, operator=blur)).relaxed == 0


def test_relaxation_is_for_ever_on_smooth_problems_and_at_first_on_mixed_ones():
    relaxed = [RestartRules(problem).relaxed for problem in (KINKS, MIXED, SMOOTH)]
    assert relaxed[0] == 0 < relaxed[1] < relaxed[2] == math.inf
    a = RestartRules(MIXED).mix(RestartMemory.at_start(1), int(relaxed[1]) + 1)[0, :, 0]
    assert (a[:-1] == 1.9).all()
    assert a[-1] != 1.9


def test_relaxation_is_for_ever_where_steps_are_long_unless_data_have_kinks():
    relaxed = [RestartRules(problem, relaxed=True).relaxed for problem in (KINKS, MIXED, SMOOTH)]
    assert relaxed == [0, math.inf, math.inf]
    assert "steps of frequencies" in RestartRules(MIXED, relaxed=True).choice.why


@pytest.mark.parametrize(
    ("growth", "times"),
    [(None, [5, 10, 20, 40, 80, 160]), (1.5, [5, 10, 15, 25, 40, 60, 90, 135])],
)
def test_relaxed_iterations_restart_at_growing_times(growth, times):
    rules, memory = RestartRules(SMOOTH, growth=growth), RestartMemory.at_start(1)
    tested = rules.tested(memory, 200)[:, 0].nonzero()[0] + 1
    assert tested.tolist() == times == [t for t in times_to_rebalance(growth or 2) if t <= 200]


@pytest.mark.parametrize("problem", [KINKS, MIXED, SMOOTH])
def test_extrapolated_iterations_are_always_relaxed(problem):
    rules = RestartRules(problem, extrapolated=True)
    assert rules.relaxed == math.inf
    assert rules.choice.chosen == "relaxation by 1.9"
    assert ("extrapolated" in rules.choice.why) == (problem is not SMOOTH)


def test_extrapolated_iterations_restart_more_often():
    rules, memory = RestartRules(KINKS, extrapolated=True), RestartMemory.at_start(1)
    tested = rules.tested(memory, 200)[:, 0].nonzero()[0] + 1
    assert tested.tolist() == [5, 10, 15, 20, 30, 40, 60, 80, 120, 160]


@pytest.mark.parametrize("problem", [KINKS, MIXED])
def test_counting_one_by_one_or_until_the_next_decision_is_the_same(problem):
    rules, residuals = RestartRules(problem), torch.rand(400, dtype=torch.float64)
    single = several = RestartMemory.at_start(1)
    done = 0
    while done < 300:
        count = rules.until_decision(several, 300)
        for i in range(count):
            r = residuals[done + i, None] if rules.measured(single) else None
            single = rules.counted(single, r)
        done += count
        r = residuals[done - 1, None] if rules.measured(several, count) else None
        several = rules.counted(several, r, count)
        for name in ("inner", "total", "restart_next", "residual_at_test", "residual_at_restart"):
            assert torch.equal(getattr(single, name), getattr(several, name)), name


def test_halpern_iterations_take_over_earlier_where_layers_follow_one_another():
    one = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 8, 8)),
        regularizer=cl.TotalVariation(),
        weight=1.0,
    )
    assert RestartRules(MIXED).relaxed == 100 < RestartRules(one).relaxed == 160


@pytest.mark.parametrize("problem", [KINKS, MIXED, SMOOTH])
def test_residuals_that_decide_nothing_are_not_measured(problem):
    rules, residuals = RestartRules(problem), torch.rand(300, dtype=torch.float64)
    always = sometimes = RestartMemory.at_start(1)
    measured = []
    for r in residuals[:, None]:
        measured.append(rules.measured(sometimes))
        sometimes = rules.counted(sometimes, r if measured[-1] else None)
        always = rules.counted(always, r)
        for name in ("inner", "total", "restart_next"):
            assert torch.equal(getattr(always, name), getattr(sometimes, name)), name
    assert any(measured) == (problem is not SMOOTH)
    assert any(measured[:100]) == (problem is KINKS)  # the others are relaxed


@pytest.mark.parametrize(
    ("current", "previous", "at_restart", "inner", "total", "restart"),
    [
        (0.19, 0.5, 1.0, 10, 100, True),  # fell enough
        (0.70, 0.6, 1.0, 10, 100, True),  # fell a little and rises again
        (0.70, 0.8, 1.0, 10, 100, False),  # still falling
        (0.90, 0.8, 1.0, 10, 100, False),  # rises, but has hardly fallen
        (0.90, 0.8, 1.0, 50, 100, True),  # half of all iterations
        (0.90, 0.8, 1.0, 5, 5, True),  # the first one, which corrects guessed steps
        (0.0, 0.0, 0.0, 10, 100, False),  # already solved
    ],
)
def test_decisions(current, previous, at_restart, inner, total, restart):
    numbers = (torch.tensor([value]) for value in (current, previous, at_restart, inner, total))
    assert should_restart(*numbers).tolist() == [restart]


def test_steps_change_by_a_limited_factor_and_not_at_all_if_nothing_moved():
    coupling = Coupling(lift(KINKS))
    sigma = Blocks({name: torch.ones(1) for name in coupling.weights})
    nothing = Blocks({name: torch.zeros(1) for name in sigma})
    far = Blocks({name: torch.full((1,), 1e12) for name in sigma})
    late = torch.zeros(1)
    same = rebalance(coupling, sigma, (nothing, nothing), (nothing, nothing), late)
    grown = rebalance(coupling, sigma, (sigma, far), (sigma, far), late)
    assert all(float(part) == 1.0 for part in same.values())
    assert all(float(part) == LARGEST_CHANGE for part in grown.values())


def test_the_whole_way_counts_at_first_and_the_recent_one_later():
    coupling, total = Coupling(lift(KINKS)), torch.tensor([1, 100, 200, 400, 10_000])
    late = lateness(total, recent=only_recent(KINKS, coupling, extrapolated=False))
    assert late.tolist() == [0.0, 0.0, pytest.approx(0.5), 1.0, 1.0]
    assert (
        lateness(total, recent=only_recent(MIXED, Coupling(lift(MIXED)), extrapolated=False)) == 1
    ).all()


@pytest.mark.parametrize("problem", [MIXED, SMOOTH])
@pytest.mark.parametrize("count", [5, 10, 25])
def test_relaxed_iterations_are_counted_without_residuals(problem, count):
    rules, memory = RestartRules(problem), RestartMemory.at_start(2)
    while (total := int(memory.total[0])) < 100:
        expected = memory
        for _ in range(count // 5):
            expected = rules.counted(rules.counted(expected, None), None, 4)
        plan, due = rules.relaxed_plan(total, bool(memory.restart_next[0]), count)
        memory = rules.relaxed_on(memory, plan, due)
        for name, numbers in vars(expected).items():
            assert torch.equal(getattr(memory, name), numbers), name


def test_relaxed_iterations_are_planned_until_halpern_iterations_take_over():
    assert RestartRules(MIXED).relaxed_plan(90, False, 40) == ([False, False], True)
    assert RestartRules(MIXED).relaxed_plan(100, True, 40) == ([], True)
    assert RestartRules(SMOOTH).relaxed_plan(0, False, 20) == ([False, True, True, False], True)


def test_rules_on_tensors_are_those_on_arrays():
    rules, memory = RestartRules(KINKS), RestartMemory.at_start(3)
    there = RestartMemory.unpacked(memory.packed())
    for r in torch.rand(60, 3, dtype=torch.float64):
        a, b, e = rules.coefficients(there.inner, there.total, 1)
        mixed = torch.where(there.restart_next, torch.eye(3)[:, :1], torch.cat([a, b, e]))
        np.testing.assert_allclose(mixed, rules.mix(memory)[:, 0], rtol=1e-6)
        memory, there = rules.counted(memory, r), rules.counted_there(there, r, 1)
        for name, numbers in vars(memory).items():
            assert torch.equal(getattr(there, name), numbers), name


OUTLIERS = replace(SMOOTH, fidelity=cl.L1(torch.rand(1, 1, 8, 8)))
WITH_KINKS = replace(OUTLIERS, regularizer=cl.networks.ridge(smoothing=0.0))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [(SMOOTH, 81), (OUTLIERS, 81), (WITH_KINKS, 21), (MIXED, 0), (KINKS, 0)],
)
def test_the_first_anchor_that_somebody_reads(problem, expected):
    """In a Halpern iteration, or for a recent displacement that counts: followed one by one."""
    rules, coupling = RestartRules(problem), Coupling(lift(problem))
    restarts = Restarts(rules, coupling, only_recent(problem, coupling, extrapolated=False))
    memory, last, read = RestartMemory.at_start(1), 0, []
    for iteration in range(1, 400):
        late = lateness(torch.tensor([iteration]), recent=restarts.recent)
        if bool(memory.restart_next) and late > 0:
            read.append(last)  # for recent displacements
        if float(rules.mix(memory)[2, 0, 0]) != 0:
            read.append(last)  # by a Halpern iteration
        if bool(memory.restart_next):
            last = iteration
        memory = rules.counted(memory, None if math.isinf(rules.relaxed) else torch.ones(1))
    assert restarts.anchored_from == min(read) == expected
