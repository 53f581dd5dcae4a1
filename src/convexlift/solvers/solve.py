"""``solve``: problems in, images with certified gaps out, with gradients if they are wanted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem, require_problem
from convexlift.solvers.autograd import attach_gradients, refuse_gradients
from convexlift.solvers.hypergradients import Hypergradient
from convexlift.solvers.ledger import Callback
from convexlift.solvers.loop import run
from convexlift.solvers.method import Method, State
from convexlift.solvers.solution import Solution, StopWhen


def solve(
    problem: VariationalProblem,
    *,
    method: Method | None = None,
    stop: StopWhen | None = None,
    start: Tensor | State | None = None,
    callback: Callback | None = None,
    differentiable: bool = False,
    hypergradient: Hypergradient | None = None,
) -> Solution:
    """Solve a batch of problems, each to its own certified gap.

    Ctrl-C, like every other way to end, returns the best images so far. Objective, lower bound and
    gap are recomputed at the end in double precision with rounding accounted for, whatever the
    precision of the problem. Problems on a device without double precision (MPS) are solved on the
    CPU; ``x`` returns to the device, the rest of the solution stays on the CPU.

    With ``differentiable``, ``solution.x`` carries gradients to everything in the problem that
    requires them: data, backgrounds and weights of the fidelity, tensors of the operator, the
    weight of R, the parameters of the network, and through them those of a guide. (The box, noise
    levels and angles of scanners cannot require gradients.) No other number of the solution carries
    gradients, and ``x`` can be differentiated once. ``backward`` uses the formula of a
    ``Hypergradient``, which holds at the exact solution: its error shrinks with the square root of
    the gap, and ``stop=StopWhen(gap=1e-6)`` is a good choice. Images that did not reach
    their tolerance cause a RuntimeWarning. Without the flag, a tensor that requires gradients is an
    error, except for parameters of the network, which require them in every module, and under
    ``torch.no_grad()``.

    Args:
        problem: the problem to solve.
        method: ``PDHG()``, ``PDHG(steps=PaperSteps(c))``, ``Subgradient(step)``, ``NMAPG()`` or
            ``LBFGS()``; by default ``suitable_method(problem)``, which needs no tuning.
        stop: when to stop; by default at a relative gap of 1e-3.
        start: initial images, or the ``state`` of an earlier solution to continue from.
        callback: called with a ``Progress`` at every check; its time is not counted.
        differentiable: whether ``solution.x`` carries gradients.
        hypergradient: how to differentiate: ``Implicit(...)`` for smooth networks,
            ``ValueFunction(...)`` for networks with kinks; by default the one that suits.
    """
    require_problem(problem)
    if (here := problem.with_double()) is not problem:
        start = start.cpu() if isinstance(start, Tensor) else start
        options = {"method": method, "stop": stop, "start": start, "callback": callback}
        gradients = {"differentiable": differentiable, "hypergradient": hypergradient}
        solution = solve(here, **options, **gradients)  # type: ignore[arg-type]
        return replace(solution, x=solution.x.to(problem.fidelity.y.device))
    if hypergradient is not None and not isinstance(hypergradient, Hypergradient):
        raise TypeError(
            "hypergradient must be cl.Implicit(), cl.ValueFunction(), cl.Unrolled(steps) or "
            f"cl.JacobianFree(), got {hypergradient!r}"
        )
    if hypergradient is not None and not differentiable:
        raise ValueError("hypergradient=... is for differentiable=True; write both, or neither")
    find = partial(run, method=method, stop=stop, start=start, callback=callback)
    if differentiable and torch.is_grad_enabled():  # else there are none, as of any operation
        return attach_gradients(problem, find, hypergradient)
    refuse_gradients(problem)
    return find(problem)
