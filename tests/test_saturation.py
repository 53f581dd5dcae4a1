"""Heads whose units are all on: the smaller problem, its duals, and the way back."""

from __future__ import annotations

import pytest
import torch
import zoo

import convexlift as cl
from convexlift.solvers.saturated_head import SaturatedHead, SaturatedState

STOP = cl.StopWhen(gap=1e-6, max_iterations=4000)


def problem(shift: float | list[float], activation=None, fidelity="L2", batch=1):
    """A baseline whose head has the bias ``shift``: large ones keep all units on."""
    activation = cl.LeakyReLU(0.2) if activation is None else activation
    made = zoo.problem("plain", activation, fidelity, "box", batch=batch)
    head = made.regularizer.layers[-1]
    with torch.no_grad():
        head.bias.copy_(torch.as_tensor(shift).expand_as(head.bias))
    return cl.VariationalProblem(
        fidelity=made.fidelity, regularizer=made.regularizer, weight=made.weight,
        operator=made.operator, box=made.box,
    )  # fmt: skip


def head_of(of: cl.VariationalProblem) -> SaturatedHead:
    head = SaturatedHead.of(of)
    assert head is not None
    return head


@pytest.mark.parametrize("activation", [cl.LeakyReLU(0.2), zoo.MONOTONE["smoothed"]], ids=str)
def test_without_the_head_r_is_smaller_by_a_constant_where_all_units_are_on(activation):
    full = problem(5.0, activation)
    head = head_of(full)
    x = torch.rand(1, 1, 8, 8, dtype=full.fidelity.y.dtype)
    z = torch.rand_like(x)
    assert head.holds(x).all()
    differences = [full.objective(v) - head.problem.objective(v) for v in (x, z)]
    torch.testing.assert_close(differences[0], differences[1])


def test_without_the_head_r_plus_the_constant_is_a_minorant():
    full = problem(0.0)
    head = head_of(full)
    network = full.network
    constant = full.weight * (network.output * network.layers[-1].bias).sum()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 1, 8, 8, generator=generator, dtype=full.fidelity.y.dtype)
        assert float(head.problem.objective(x) + constant) <= float(full.objective(x)) + 1e-9


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fidelity", ["L2", "masked L2", "L1", "KL"])
@pytest.mark.parametrize("activation", [cl.LeakyReLU(0.2), zoo.MONOTONE["smoothed"]], ids=str)
@pytest.mark.parametrize("shift", [5.0, 0.0, -0.5], ids=["on", "mixed", "off"])
def test_the_optimum_is_that_of_the_whole_network(shift, activation, fidelity):
    full = problem(shift, activation, fidelity)
    solution = cl.solve(full, stop=STOP)
    reference = cl.solve(full, method=cl.PDHG(steps=cl.PaperSteps(steps(full))), stop=REFERENCE)
    lowest, highest = float(reference.lower_bound), float(reference.objective)
    assert solution.status == (cl.Status.CONVERGED,)
    assert lowest - 1e-6 * abs(lowest) <= float(solution.objective) <= highest * (1 + 1e-6)
    assert float(solution.lower_bound) <= highest + 1e-9 * abs(highest)


REFERENCE = cl.StopWhen(gap=1e-6, max_iterations=6000, check_every=100)


def steps(of: cl.VariationalProblem) -> tuple[float, ...]:
    return (0.5,) * len(cl.lift(of, pooled=False).f)


def test_the_head_is_left_out_while_it_is_on():
    on = cl.solve(problem(5.0), stop=STOP)
    assert isinstance(on.state, SaturatedState)
    assert on.state.holds.all()
    assert on.state.full is None
    off = cl.solve(problem(-50.0), stop=cl.StopWhen(max_iterations=20))
    assert isinstance(off.state, SaturatedState)
    assert not off.state.holds.any()
    assert off.state.without is None


def test_the_certificate_is_that_of_the_whole_network():
    full = problem(5.0)
    solution = cl.solve(full, stop=STOP)
    again = cl.certify(full, solution.x, solution.duals)
    assert float(again.gap) <= 2e-6
    torch.testing.assert_close(again.objective, full.objective(solution.x))


def test_an_image_that_leaves_the_saturated_region_gets_its_head_back():
    """The start is on, the minimiser is not: found on the way, and solved all the same."""
    full = problem(0.0)
    start = torch.rand(1, 1, 8, 8, dtype=full.fidelity.y.dtype)
    at_start = full.network.forward(start).a[-1].min()
    shifted = problem(float(-at_start) + 1e-3)  # on at the start, by a hair
    assert head_of(shifted).holds(start).all()
    solution = cl.solve(shifted, start=start, stop=STOP)
    assert isinstance(solution.state, SaturatedState)
    assert solution.status == (cl.Status.CONVERGED,)
    assert not solution.state.holds.any()


def test_images_of_a_batch_decide_alone():
    """Images that are on and images that are off, together and one by one."""
    torch.manual_seed(3)
    full = problem(0.0, batch=4)
    y = (
        full.fidelity.y
        * torch.tensor([0.01, 1.0, 3.0, 0.5], dtype=full.fidelity.y.dtype)[:, None, None, None]
    )
    options = {"regularizer": full.regularizer, "weight": full.weight, "box": full.box}
    together = cl.solve(cl.VariationalProblem(fidelity=cl.SquaredL2(y), **options), stop=STOP)
    for i in range(4):
        alone = cl.solve(
            cl.VariationalProblem(fidelity=cl.SquaredL2(y[i : i + 1]), **options), stop=STOP
        )
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.x, together.x[i : i + 1])


def test_a_state_with_the_head_is_continued_without_and_the_other_way_round():
    on = problem(5.0)
    paper = cl.PDHG(steps=cl.PaperSteps(steps(on)))
    by_paper = cl.solve(on, method=paper, stop=REFERENCE)
    assert int(cl.solve(on, start=by_paper.state, stop=cl.StopWhen(gap=1e-5)).iterations) == 0
    ours = cl.solve(on, stop=STOP)
    again = cl.solve(on, method=paper, start=ours.state, stop=cl.StopWhen(gap=1e-5))
    assert int(again.iterations) == 0


def test_networks_without_such_a_head():
    one = cl.VariationalProblem(
        fidelity=cl.SquaredL2(torch.rand(1, 1, 16, 16)),
        regularizer=cl.networks.ridge(channels=4, kernel=3),
        weight=1.0,
    )
    assert SaturatedHead.of(one) is None
    for architecture in ("skips", "residual last"):
        assert SaturatedHead.of(zoo.problem(architecture, cl.LeakyReLU(0.2), "L2")) is None


def test_continuing_a_batch_is_continuing_each_image():
    """Also for images that have just left the saturated region, or come back to it."""
    torch.manual_seed(4)
    full = problem(0.0, batch=3)
    scale = torch.tensor([0.02, 1.0, 3.0], dtype=full.fidelity.y.dtype)[:, None, None, None]
    y = full.fidelity.y * scale
    options = {"regularizer": full.regularizer, "weight": full.weight, "box": full.box}
    short = cl.StopWhen(gap=None, max_iterations=5, check_every=5)

    def twice(y):
        stated = cl.VariationalProblem(fidelity=cl.SquaredL2(y), **options)
        first = cl.solve(stated, stop=short)
        again = cl.solve(stated, start=first.state, stop=short)
        assert (again.objective <= first.objective * (1 + 1e-9)).all()
        return again

    together = twice(y)
    for i in range(3):
        torch.testing.assert_close(twice(y[i : i + 1]).x, together.x[i : i + 1])


def test_the_smaller_problem_keeps_its_network_in_another_precision_and_for_some_images():
    full = problem(5.0, batch=3)
    smaller = head_of(full).problem
    x = torch.rand(3, 1, 8, 8)
    single, some = smaller.to(dtype=torch.float32), smaller.select(torch.tensor([2, 0]))
    for other in (single, some):
        assert len(other.network.layers) == len(full.network.layers) - 1
    torch.testing.assert_close(single.objective(x.float()), smaller.objective(x), rtol=1e-5, atol=0)
    torch.testing.assert_close(some.objective(x[[2, 0]]), smaller.objective(x)[[2, 0]])
