"""The one loop of the library: advance, check, stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from convexlift.precision import full_precision
from convexlift.problems.claims import InBoth
from convexlift.problems.variational import VariationalProblem, checked_image, require_problem
from convexlift.solvers.gradient_methods import LBFGS
from convexlift.solvers.ledger import Callback, Ledger
from convexlift.solvers.matrix_steps import has_matrix
from convexlift.solvers.method import Choice, Method, Solver, State
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.recordings import Pending
from convexlift.solvers.replays import Replays
from convexlift.solvers.saturated_head import SaturatedHead
from convexlift.solvers.solution import Solution, Status, StopWhen

ALIKE = 1.001
"""Largest ratio of curvatures of data that hold all pixels alike."""
ROUND = 5
"""The fewest iterations between checks of an attempt at a proof; fewer would not get anywhere."""


def run(
    problem: VariationalProblem,
    *,
    method: Method | None = None,
    stop: StopWhen | None = None,
    start: Tensor | State | None = None,
    callback: Callback | None = None,
    rigorous: bool = True,
) -> Solution:
    """``solve`` without gradients, and with gaps that need not be ``rigorous``."""
    require_problem(problem)
    stop = StopWhen() if stop is None else stop
    if not isinstance(stop, StopWhen):
        raise TypeError(
            f"stop must be a cl.StopWhen, for example cl.StopWhen(gap=1e-3); got {stop!r}"
        )
    problem.require_sound_operator()
    problem = problem.detach()
    with torch.no_grad(), full_precision(), Replays(InBoth(problem)) as replays:
        with replays.opened(launch=start is None):
            if not replays.is_open:  # else it is part of the call that has been launched
                problem.require_sound_numbers()  # weights may have changed since the last one
            given, method = method, _chosen_method(problem, method)[0]
            if stop.gradient is not None:
                _require_gradient(problem)
            solver = method.solver(problem)
        # Only the ledger references the first state, which is large, so that it can be freed.
        first = _first_state(replays, solver, start)
        if replays.is_open:  # in vain
            problem.require_sound_numbers()
        ledger = Ledger(replays, first, stop, callback, rigorous=rigorous)
        del first
        fallback = PDHG() if given is None and _may_stall(problem, method) else None
        _iterate(ledger, solver, stop, fallback)
        del solver  # with its iterate, which is large
        return ledger.solution()


solve_roughly = partial(run, rigorous=False)
"""``solve`` with gaps in the precision of the problem, which guarantee nothing.

For the lower level of bilevel learning, where rigorous claims would take a tenth of the time.
"""


@dataclass(frozen=True)
class Explanation:
    """How a problem is solved: one line for each decision, with its reason."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        width = max(len(choice.about) for choice in self.choices)
        return "\n".join(
            f"{choice.about:{width}}  {choice.chosen}\n{'':{width}}  ({choice.why})"
            for choice in self.choices
        )


def explain(problem: VariationalProblem, *, method: Method | None = None) -> Explanation:
    """Method, lift, steps and implementation that ``solve`` would use, with reasons; printable.

    Operator norms are computed, as ``solve`` does before its first iteration.
    """
    require_problem(problem)
    problem = problem.with_double()
    method, why = _chosen_method(problem, method)
    with torch.no_grad(), full_precision():
        choices = [Choice("method", str(method), why), *method.solver(problem).choices]
    if premise := problem.regularizer.premise:
        claim = f"{premise}no image has an objective below the bound"
        choices.append(Choice("certificate", claim, "the regularizer reads the data"))
    return Explanation(tuple(choices))


def suitable_method(problem: VariationalProblem) -> Method:
    """``LBFGS()`` for most smooth problems with several layers, else ``PDHG()``.

    Lifted layers need many iterations to become consistent, and smooth problems need no lift. But
    ``PDHG()`` is faster with one layer; with two, if all units of the second are on, or if data
    hold some pixels better than others, where L-BFGS may stall; and with more, for small problems
    behind operators, where a matrix of steps makes layers consistent at once.
    """
    return _chosen_method(problem, None)[0]


def _chosen_method(problem: VariationalProblem, method: Method | None) -> tuple[Method, str]:
    """The method to use, and why."""
    if isinstance(method, Method):
        return method, "given"
    if method is not None:
        raise TypeError(
            f"method must be cl.PDHG(), cl.LBFGS(), cl.NMAPG() or cl.Subgradient(step), "
            f"got {method!r}"
        )
    if not problem.smooth:
        return PDHG(), "the problem has kinks, which the lift handles by projections"
    if len(problem.network.layers) > 2:
        with torch.no_grad():
            if has_matrix(problem):
                return PDHG(), "smooth and deep, but small behind an operator: a matrix of steps"
        why = "three or more layers, all smooth: lifted layers would converge slowly"
        then = "; PDHG follows if gaps stall" if _may_stall(problem, LBFGS()) else ""
        return LBFGS(), why + then
    with torch.no_grad():
        if len(problem.network.layers) == 2 and _held_alike(problem) and not _saturated(problem):
            return LBFGS(), "two smooth layers, and data that hold all pixels alike: no lift needed"
    return PDHG(), "smooth, but with one or two layers the lift is as fast and cheaper"


def _held_alike(problem: VariationalProblem) -> bool:
    """Whether data are quadratic, with the same curvature at all pixels."""
    k, d = problem.fidelity.curvature, problem.operator.diagonal
    if k is None or d is None:
        return False
    curvatures = k * d.square() if isinstance(k, Tensor) else d.square()  # up to a factor
    least, greatest = torch.stack(curvatures.aminmax()).tolist()
    return bool(least > 0 and greatest <= ALIKE * least)


def _saturated(problem: VariationalProblem) -> bool:
    """Whether PDHG would start without the last layer, all of whose units are on."""
    head = SaturatedHead.of(problem)
    if head is None:
        return False
    return bool(head.holds(problem.initial_image()).all())


def _may_stall(problem: VariationalProblem, method: Method) -> bool:
    """Whether L-BFGS is the default for data that hold some pixels much better than others.

    Its line search may also end at the edge of the domain of count data. Behind other operators
    PDHG would be too slow to help, except for count data.
    """
    if not isinstance(method, LBFGS) or _held_alike(problem):
        return False
    counts = math.isfinite(problem.fidelity.conjugate_domain[1])
    return counts or problem.operator.diagonal is not None


def _iterate(
    ledger: Ledger, solver: Solver[State], stop: StopWhen, fallback: Method | None = None
) -> None:
    """Iterate until all images have ended; with the ``fallback``, once, if their gaps stall."""
    iteration, state = 0, ledger.state
    try:
        judging = ledger.judging(iteration, state, solver.mirrors)
        ahead = _ahead(ledger, solver, stop, iteration, state, judging)
        state = solver.settled(state)
        if state is not ledger.state:
            judging = ahead = None
            ledger.begin(state)
        wanted = ledger.check(iteration, state, judging)
        ahead = ahead if ledger.active.all() else None  # not of images that have ended
        while ledger.active.any() and wanted:
            if iteration == stop.max_iterations:
                ledger.end(Status.ITERATION_LIMIT)
            elif stop.seconds is not None and ledger.clock.seconds() >= stop.seconds:
                if iteration % stop.check_every:
                    ledger.check(iteration, state)
                ledger.end(Status.TIME_LIMIT)
            else:
                count = _at_once(ledger, solver, stop, iteration)
                state = _advanced(ledger, solver, state, count) if ahead is None else ahead
                iteration, ahead = iteration + count, None
                ledger.iterations.masked_fill_(ledger.active, iteration)
                if iteration % stop.check_every == 0 or iteration == stop.max_iterations:
                    checked = state
                    judging = ledger.judging(iteration, state, solver.mirrors)
                    ledger.plan(partial(_provable, ledger, solver, stop, iteration, state))
                    ahead = _ahead(ledger, solver, stop, iteration, state, judging)
                    wanted = ledger.check(iteration, state, judging)
                    state = solver.reconsider(state, ledger.saturated)
                    doubtful = ledger.forecast.doubtful(ledger.running, wary=solver.wary)
                    if fallback is not None and any(ledger.forecast.stalled(ledger.running)):
                        solver, fallback = fallback.solver(ledger.problem), None
                        state = solver.start(ledger.x)
                    elif doubtful and (precise := solver.more_precise(state)) is not None:
                        solver, state = precise
                        ledger.forecast.forget_attempts()
                    if state is not checked:
                        ahead = None  # of another state
        ledger.end(Status.STOPPED)
    except KeyboardInterrupt:
        if not ledger.history:  # perhaps before the start has told whether the network is convex
            ledger.problem.require_sound_numbers()
        if not ledger.history or ledger.history[-1].iteration != iteration:
            ledger.check(iteration, state, silent=True)
        ledger.end(Status.INTERRUPTED)
    ledger.state = solver.finished(ledger.state)


def _advanced(ledger: Ledger, solver: Solver[State], state: State, count: int) -> State:
    """The state after a few iterations; for images that try for a proof, after that attempt."""
    active, trying = ledger.active.clone(), ledger.trying
    if trying is None or not bool((trying & active).any()):
        return solver.advance(state, count, active)
    return solver.proving(state, count, trying & active, active)


def _ahead(
    ledger: Ledger,
    solver: Solver[State],
    stop: StopWhen,
    iteration: int,
    state: State,
    judging: Pending | None,
) -> State | None:
    """The state after the next iterations, launched before the numbers of a check have arrived.

    So a GPU works while the host waits and thinks. None where this is no use, or likely in vain.
    If this check is expected to be the last one, the claim that follows is launched. Images of a
    batch that end at this check have moved on by then: their claims, made before, stay the same.
    """
    if not solver.runs_ahead(state):
        return None
    converged = not ledger.forecast.expects_more(ledger.running)
    if converged or iteration == stop.max_iterations:
        ledger.claim_early(judging, converged=converged)
        return None
    if stop.seconds is not None:
        return None
    return _advanced(ledger, solver, state, _at_once(ledger, solver, stop, iteration))


def _at_once(ledger: Ledger, solver: Solver[State], stop: StopWhen, iteration: int) -> int:
    """Number of iterations before the next check, limited by the remaining time."""
    to_check = stop.check_every - iteration % stop.check_every
    if ledger.trying is not None:
        return to_check  # an attempt is one call
    count = min(solver.block, to_check, stop.max_iterations - iteration)
    if stop.seconds is None or count == 1:
        return count
    if iteration == 0:
        return 1  # to measure the pace
    pace = ledger.clock.seconds() / iteration
    return max(1, int(min(count, (stop.seconds - ledger.clock.seconds()) / pace)))


def _provable(
    ledger: Ledger, solver: Solver[State], stop: StopWhen, iteration: int, state: State
) -> list[bool]:
    """The images that may try for a proof in the next round, if that is long enough and fits."""
    count, limit = stop.check_every, stop.seconds
    late = limit is not None and ledger.clock.seconds() * (1 + count / iteration) > limit
    if late or stop.gap is None or count < ROUND or iteration + count > stop.max_iterations:
        return [False] * len(ledger.active)
    return solver.provable(state)


def _require_gradient(problem: VariationalProblem) -> None:
    """Raise ValueError unless the objective has a gradient, which vanishes at the minimum."""
    if not problem.smooth:
        obstacle = "the data term or an activation has kinks"
    elif not problem.bounds.is_everything:
        obstacle = "the gradient need not vanish at the bounds of a box"
    else:
        return
    raise ValueError(
        f"StopWhen(gradient=...) needs a smooth problem without a box, and here {obstacle}; write "
        "StopWhen(gap=...)"
    )


def _first_state(replays: Replays, solver: Solver[State], start: Tensor | State | None) -> State:
    problem = replays.both.problem
    if start is None:
        return solver.first(replays)
    y, shape = problem.fidelity.y, (problem.batch_size, *problem.image_shape)
    if hasattr(start, "x") and not isinstance(start, Tensor):
        x = start.x
        alike = (tuple(x.shape), x.dtype, x.device) == (shape, y.dtype, y.device)
        resumed = solver.resume(start) if alike else None
        if resumed is not None:
            return resumed
        start = x  # of another method: its images are still a good start
    x = checked_image(problem, start, "start")
    return solver.start(problem.bounds.project(x.to(y)))
