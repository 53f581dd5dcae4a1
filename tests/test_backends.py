"""Every path solves every problem as the plain one does, and claims no more than is true."""

from __future__ import annotations

import gc
import itertools
import math
import signal
import threading
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch
from backends import BACKENDS, Backend, broken_kernels, plain
from host_kernels import COMPILER
from marks import slow
from problem_cases import CASES, made, posed, smooth, with_other_data

import convexlift as cl
from convexlift.kernels.availability import KernelsUnavailable
from convexlift.tensors import Blocks


@cache
def plainly(name: str, single: bool, alone: bool, stop: cl.StopWhen, exact: bool) -> cl.Solution:
    """The plain solution; ``exact``: in double precision, from the same numbers."""
    problem = made(name, torch.float32 if single else torch.float64, alone=alone)
    with pytest.MonkeyPatch.context() as patch:
        plain(patch)
        return cl.solve(problem.to(dtype=torch.float64) if exact else problem, stop=stop)


def path_of(name: str) -> Backend:
    if BACKENDS[name].missing:
        pytest.skip(BACKENDS[name].missing)
    return BACKENDS[name]


def on_the_host(solution: cl.Solution) -> tuple[torch.Tensor, ...]:
    return tuple(
        part.cpu().double() for part in (solution.x, solution.objective, solution.lower_bound)
    )


def assert_near(path: Backend, found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor):
    """No farther from double precision than the plain path is, up to a factor."""
    error, usual = (float((x.cpu().double() - exact).abs().max()) for x in (found, plain))
    assert error <= 4 * usual + path.close * max(1.0, float(exact.abs().max()))


ON_THREADS = [
    ("huber", "kernels"), ("biases of pixels", "kernels"), ("L1 and huber", "captured kernels"),
]  # fmt: skip
"""Quick pairs of kernels that threads of a CPU run, and which are compiled first."""
PAIRS = [
    (name, backend) if (k % 11 == 0 and path.takes != "kernels") or (name, backend) in ON_THREADS
    else slow(name, backend)
    for k, (name, (backend, path)) in enumerate(itertools.product(CASES, BACKENDS.items()))
]  # fmt: skip


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_paths_agree(name, backend, monkeypatch):
    path = path_of(backend)
    whole = cl.StopWhen(gap=CASES[name].gap, max_iterations=path.most)
    few = cl.StopWhen(gap=None, max_iterations=min(25, path.most // 2))  # through restarts
    same = name, path.dtype is torch.float32, path.alone
    after, exactly = (plainly(*same, few, exact).x for exact in (False, True))
    expected = plainly(*same, whole, True)
    problem = made(name, path.dtype, path.device, alone=path.alone)
    exact = problem.to(dtype=torch.float64, device="cpu")
    with monkeypatch.context() as patch:
        used = path.use(patch)
        for _ in range(path.solves):
            short, found = (cl.solve(problem, stop=stop) for stop in (few, whole))
        own = cl.certify(problem, found.x, found.duals)
        taken, serves = used() > 0, path.serves(CASES[name].tags)
        assert taken or not serves  # kernels of claims may run where those of iterations do not
    if serves:  # elsewhere the default of a device may take other iterations than the plain path
        assert_near(path, short.x, after, exactly)
    assert found.status == expected.status
    assert found.guarantee == expected.guarantee
    allowed = 10 + expected.iterations // (2 if path.faster else 5)
    more = found.iterations.cpu() - expected.iterations
    if math.isfinite(path.close):  # dual variables in 16 bits take their own way
        assert (more <= allowed).all()
        assert path.faster or (more >= -allowed).all()
    x, objective, bound = on_the_host(found)
    # Two certified intervals of the same optimum, and an objective that is rounded up.
    assert (bound <= expected.objective).all()
    assert (expected.lower_bound <= objective).all()
    torch.testing.assert_close(objective, exact.objective(x), rtol=1e-6, atol=1e-9)
    with monkeypatch.context() as patch:
        plain(patch)
        duals = Blocks({name: part.cpu() for name, part in found.duals.items()})
        again = cl.certify(problem.to(device="cpu"), found.x.cpu(), duals)
    for ours, usual in ((own.objective, again.objective), (own.lower_bound, again.lower_bound)):
        # On a GPU other margins for rounding are added.
        rtol, atol = (1e-7, 1e-9) if path.device == "cuda" else (1e-9, 1e-11)
        torch.testing.assert_close(ours.cpu(), usual, rtol=rtol, atol=atol)


every_path = pytest.mark.parametrize(
    "backend",
    [name if name in ("strips", "captured") else slow(name)
     for name in BACKENDS],
)  # fmt: skip


@pytest.fixture
def solve(backend, monkeypatch):
    """``cl.solve`` by a path, of problems that are brought to its precision and device."""
    path = path_of(backend)
    path.use(monkeypatch)

    def solved(problem: cl.VariationalProblem, **options) -> cl.Solution:
        assert problem.fidelity.y.dtype is path.dtype
        return cl.solve(problem, **options)

    return solved


def of(backend: str, batch: int = 2) -> cl.VariationalProblem:
    path = BACKENDS[backend]
    if path.missing:
        pytest.skip(path.missing)
    problem = posed(smooth(), size=(12, 16), batch=1 if path.alone else batch, weight=0.1)
    return problem.to(dtype=path.dtype, device=path.device)


STOP = cl.StopWhen(gap=1e-3, max_iterations=200)


def assert_plain(solution: cl.Solution, problem: cl.VariationalProblem) -> None:
    """Two certified intervals of the same optimum, after about as many iterations."""
    with pytest.MonkeyPatch.context() as patch:
        plain(patch)
        expected = cl.solve(problem, stop=STOP)
    assert solution.status == expected.status
    assert (solution.lower_bound <= expected.objective).all()
    assert (expected.lower_bound <= solution.objective).all()
    assert ((solution.iterations - expected.iterations).abs() <= 10).all()


@every_path
def test_nothing_is_left_of_earlier_problems(backend, solve):
    """Whatever is kept of one for the next: other data, weights, masks, and changes in place."""
    problem, kept = of(backend), []
    network = problem.regularizer
    for k in range(7):
        solution = solve(problem, stop=STOP)
        assert_plain(solution, problem)
        kept.append(
            (solution, solution.x.clone(), {n: v.clone() for n, v in solution.duals.items()})
        )
        if k == 2:
            problem = replace(problem, weight=0.2)
        elif k == 3:
            network.layers[0].skip.weight.data.mul_(1.5)  # which torch does not count as a change
        elif k == 4:
            problem.fidelity.y.mul_(0.9)
            problem.operator.values[..., :3, :3] = 1 - problem.operator.values[..., :3, :3]
        elif k == 5:
            problem = replace(problem, box=(0, 0.9))
        else:
            problem = with_other_data(problem, 0.05)
    for solution, x, duals in kept:  # later solves do not write into earlier solutions
        assert torch.equal(solution.x, x)
        assert all(torch.equal(solution.duals[name], v) for name, v in duals.items())
    output = network.output.data.clone()
    for wrong, error in ((-1.0, "nonnegative"), (math.nan, "not finite")):
        network.output.data[0] = wrong
        with pytest.raises(ValueError, match=error):
            solve(problem)
        network.output.data.copy_(output)
    assert_plain(solve(problem, stop=STOP), problem)


@every_path
def test_problems_are_not_kept_alive(backend, solve):
    problem = of(backend)
    for _ in range(3):
        solve(problem)
    alive = weakref.ref(problem.regularizer), weakref.ref(problem.fidelity.y)
    del problem
    gc.collect()
    assert [each() for each in alive] == [None, None]


@every_path
def test_limits_control_c_and_callbacks(backend, solve):
    """A state that is returned is the one that was seen last, whatever was launched beyond it."""
    problem, seen = of(backend), []
    endless = cl.StopWhen(gap=0.0, max_iterations=10**6)

    def interrupt(progress):
        if progress.iteration == 20:
            signal.raise_signal(signal.SIGINT)

    def stop_soon(progress):
        seen.append(progress.x.clone())
        return len(seen) == 3

    for _ in range(BACKENDS[backend].solves):
        seen.clear()
        interrupted = solve(problem, callback=interrupt, stop=endless)
        stopped = solve(problem, callback=stop_soon, stop=endless)
        limited = solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=37))
        timed = solve(problem, stop=replace(endless, seconds=0.2, check_every=10**6))
    count = problem.batch_size
    assert interrupted.status == (cl.Status.INTERRUPTED,) * count
    assert interrupted.iterations.tolist() == stopped.iterations.tolist() == [20] * count
    assert stopped.status == (cl.Status.STOPPED,) * count
    assert torch.equal(stopped.state.x, seen[-1])
    # A gap of 0 is out of reach, which single precision notices first.
    early = {cl.Status.PRECISION_LIMIT} if problem.fidelity.y.dtype is torch.float32 else set()
    assert set(limited.status) <= {cl.Status.ITERATION_LIMIT, *early}
    assert set(timed.status) <= {cl.Status.TIME_LIMIT, *early}
    assert early or limited.iterations.tolist() == [37] * count
    assert timed.seconds < 10
    for solution in (interrupted, stopped, limited, timed):
        assert torch.isfinite(solution.x).all()
        assert (solution.lower_bound <= solution.objective).all()
        certificate = cl.certify(problem, solution.x, solution.duals)
        torch.testing.assert_close(certificate.objective, solution.objective, rtol=1e-9, atol=0)


@every_path
def test_continued_solves(backend, solve):
    """From the state of a solution, from its image, and images that are solved at the start."""
    problem = of(backend)
    first = solve(problem, stop=cl.StopWhen(gap=1e-3))
    for start in (first.state, first.x):
        again = solve(problem, stop=cl.StopWhen(gap=5e-4), start=start)
        assert set(again.status) == {cl.Status.CONVERGED}
        assert (again.objective <= first.objective * (1 + 5e-4)).all()
    start = problem.initial_image()
    start[0] = solve(problem, stop=cl.StopWhen(gap=1e-5)).x[0]
    other = solve(problem, start=start, stop=cl.StopWhen(gap=1e-3))
    assert int(other.iterations[0]) == 0
    assert torch.equal(other.x[0], start[0]) or float(other.gap[0]) <= 1e-3


@every_path
def test_images_outside_the_box_have_no_objective(backend, solve):
    """Nor have those with a NaN a certificate, also at a pixel that nobody sees."""
    problem = of(backend)
    x = solve(problem).x
    i, j = (problem.operator.values.reshape(12, 16) == 0).nonzero()[0].tolist()
    for value in (1.5, -0.1):
        outside = x.clone()
        outside[0, 0, i, j] = value
        certificate = cl.certify(problem, outside)
        assert math.isinf(float(certificate.gap[0]))
        assert certificate.guarantee[0] is cl.Guarantee.NONE
        assert certificate.gap[1:].isfinite().all()
    outside[0, 0, i, j] = math.nan
    with pytest.raises(ValueError, match="is nan at index"):
        cl.certify(problem, outside)


@pytest.mark.slow
@every_path
def test_threads_do_not_mix_their_problems(backend, solve):
    problems = [with_other_data(of(backend), 0.1 * k) for k in range(4)]
    expected = [solve(problem) for problem in problems]
    errors = []

    def work(k):
        try:
            for _ in range(4):
                found = solve(problems[k])
                torch.testing.assert_close(found.x, expected[k].x, rtol=0, atol=1e-5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_images_of_a_batch_do_not_mind_each_other(name):
    problem, stop = made(name), cl.StopWhen(gap=CASES[name].gap, max_iterations=1000)
    together = cl.solve(problem, stop=stop)
    for i in range(problem.batch_size):
        alone = cl.solve(problem.select(torch.tensor([i])), stop=stop)
        assert alone.status[0] is together.status[i]
        count = int(together.iterations[i])  # rounding tells after hundreds of them
        assert abs(int(alone.iterations) - count) <= count // 20
        torch.testing.assert_close(alone.x[0], together.x[i], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(alone.lower_bound[0], together.lower_bound[i], rtol=1e-4, atol=0)


FAILURES = {
    "a compiler": KernelsUnavailable("Failed to find C compiler"),
    "a mistake": RuntimeError("a mistake of ours"),
}


@pytest.mark.skipif(not COMPILER, reason="needs g++")
@pytest.mark.parametrize("failure", [slow("a compiler"), "a mistake"])
def test_kernels_that_do_not_run_give_way_with_a_warning_and_mistakes_do_not(failure, monkeypatch):
    problem = of("kernels")
    broken_kernels(monkeypatch, FAILURES[failure])
    if failure == "a mistake":
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            cl.solve(problem)
        return
    with pytest.warns(UserWarning, match="plain path is taken: Failed to find C compiler"):
        assert_plain(cl.solve(problem, stop=STOP), problem)
