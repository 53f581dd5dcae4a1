"""Rules of restarted PDHG: when to restart, and how far to extrapolate.

The measure of progress is the fixed-point residual ||w - P(w)|| of w = (u, v), where P is one
PDHG step and

    ||(du, dv)||^2 = sum_j ||du_j||^2 / tau_j + sum_i ||dv_i||^2 / sigma_i.

The metric of PDHG has the additional term -2 <dv, K du>; without it, no product with K is needed.
All rules are per image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Choice
from convexlift.solvers.primal_dual import halpern

Array = npt.NDArray[Any]

SUFFICIENT = 0.2
"""Restart when the residual is below this fraction of its value at the last restart (cuPDLPx)."""
NECESSARY = 0.8
"""Restart when the residual is below this fraction and has started to rise again."""
LONG = 0.5
"""Restart when the inner iterations are this fraction of all (cuPDLPx: 0.36; measured here)."""
RELAXED_AT_FIRST, IN_LAYERS, WITH_KINKS_IN_DATA = 160, 100, 20
"""Relaxed iterations at the start: R with kinks, several layers, data with kinks as well."""
FIRST = 5
"""Iterations before the first restart, which corrects the guessed step sizes."""
LAST = 10**9
"""Nothing is rebalanced after as many iterations."""
TEST_EVERY = 5
"""Iterations between tests for a restart."""
RELAXATION = 1.9
"""Relaxation factor: 1 gives P itself, 2 is the limit of convergence."""


@dataclass(frozen=True, eq=False)
class RestartMemory:
    """State of the rules: one number per image, (B,), on the CPU wherever the images are.

    Attributes:
        inner: iterations since the last restart.
        total: all iterations.
        restart_next: whether the next iteration is a restart.
        residual_at_restart: the residual in the first iteration after the last restart.
        residual_at_test: the residual at the last test.
    """

    inner: Tensor
    total: Tensor
    restart_next: Tensor
    residual_at_restart: Tensor
    residual_at_test: Tensor

    @staticmethod
    def at_start(batch: int) -> RestartMemory:
        """The state before the first iteration."""
        count = torch.zeros(batch, dtype=torch.long)
        infinite = torch.full((batch,), math.inf, dtype=torch.float64)
        return RestartMemory(count, count, count > 0, infinite, infinite)

    @staticmethod
    def unpacked(numbers: Tensor) -> RestartMemory:
        """From one row for each field, as ``packed`` gives them."""
        inner, total, restart, at_restart, at_test = numbers.double().unbind()
        return RestartMemory(inner.long(), total.long(), restart > 0, at_restart, at_test)

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The fields, in this order."""
        return tuple(getattr(self, each.name) for each in fields(self))

    def packed(self) -> Tensor:
        """One row in double precision for each field, (5, B)."""
        return torch.stack([each.double() for each in self.rows])

    def following(self, active: Tensor) -> RestartMemory:
        """Images that are not active follow the first that is, and ask for no decisions."""
        first = active.to(torch.uint8).argmax()
        return RestartMemory(*(torch.where(active, row, row[first]) for row in self.rows))


class ArrivingMemory(RestartMemory):
    """The state after iterations whose restarts a GPU decides: all but ``total`` is on its way.

    Iterations can be launched without the rest, which is waited for when it is read.
    """

    def __init__(self, total: Tensor, wait: Callable[[], Tensor]) -> None:
        """``wait`` gives the numbers of ``packed``."""
        vars(self).update(total=total, _wait=wait)

    @cached_property
    def _arrived(self) -> RestartMemory:
        wait: Callable[[], Tensor] = vars(self)["_wait"]
        return RestartMemory.unpacked(wait())

    @cached_property
    def inner(self) -> Tensor:
        """Waits."""
        return self._arrived.inner

    @cached_property
    def restart_next(self) -> Tensor:
        """Waits."""
        return self._arrived.restart_next

    @cached_property
    def residual_at_restart(self) -> Tensor:
        """Waits."""
        return self._arrived.residual_at_restart

    @cached_property
    def residual_at_test(self) -> Tensor:
        """Waits."""
        return self._arrived.residual_at_test


class RestartRules:
    """The rules for one problem: in NumPy on the host, and on tensors inside graphs of a GPU.

    reflected Halpern:  w <- (k+1)/(k+2) (2 P(w) - w) + 1/(k+2) anchor
    relaxation:         w <- w + 1.9 (P(w) - w)
    restart:            w <- P(w), with new steps

    The Halpern iteration suits problems like linear programs, where P circles a solution for a long
    time. Relaxation is faster where R is smooth, and at first where it has kinks, or several layers
    and a fidelity with kinks. Behind operators, where that has dual variables of its own, these
    circle too. Extrapolation damps the circles: extrapolated iterations are always relaxed.
    """

    def __init__(
        self,
        problem: VariationalProblem,
        *,
        relaxed: bool = False,
        extrapolated: bool = False,
        growth: float | None = None,
    ) -> None:
        """``relaxed``: no Halpern iterations, unless a fidelity with kinks is behind an operator.

        ``extrapolated``: none at all, since every few iterations are combined (``anderson``).
        ``growth``: of the times at which relaxed iterations restart.
        """
        *below, last = problem.network.layers
        self._smooth_data = problem.fidelity.smooth
        one = RELAXED_AT_FIRST if self._smooth_data else WITH_KINKS_IN_DATA
        first = math.inf if relaxed else IN_LAYERS if below else one
        simple = self._smooth_data or problem.operator.diagonal is not None
        self._smooth = problem.smooth or (simple and not below and last.activation.smooth)
        self.relaxed = math.inf if self._smooth or extrapolated else first if simple else 0
        self.extrapolated, self._asked = extrapolated, relaxed
        self.times = times_to_rebalance(growth or 2.0)
        if extrapolated and growth is None:  # which makes up for what a restart costs
            self.times = np.union1d(self.times, 3 * self.times)  # 5, 10, 15, 20, 30, 40, 60, ...
        self.due = {*self.times.tolist(), self.relaxed}  # as ``_relaxed_restart_due`` says

    @property
    def choice(self) -> Choice:
        """The rule for this problem and its reason, for ``explain``."""
        relaxation, halpern = f"relaxation by {RELAXATION}", "reflected Halpern"
        if self.relaxed == math.inf:
            chosen, why = relaxation, "the regularizer is smooth"
            if not self._smooth:
                why = "iterations are extrapolated, which suits kinks too"
                if self._asked and self._smooth_data:
                    why = "the data term is smooth, and steps of frequencies are long"
        elif self.relaxed:
            chosen = f"{relaxation} for {self.relaxed:.0f} iterations, then {halpern}"
            why = f"the {'regularizer' if self._smooth_data else 'data term'} has kinks"
        else:
            chosen, why = halpern, "the data term has kinks behind an operator: a linear program"
        return Choice("acceleration", chosen, why)

    def mix(self, memory: RestartMemory, count: int = 1) -> Array:
        """(a, b, e) of the next iterations, (3, count, B): next w is a P(w) + b w + e anchor.

        Columns after the first are for images whose first iteration is not a restart.
        """
        mixed = np.stack(self.coefficients(memory.inner.numpy(), memory.total.numpy(), count))
        mixed[:, 0] = np.where(memory.restart_next.numpy(), [[1.0], [0.0], [0.0]], mixed[:, 0])
        return mixed

    def coefficients(self, inner: Any, total: Any, count: int) -> tuple[Any, Any, Any]:
        """(a, b, e) of iterations that are not restarts, (count, B) each: arrays or tensors."""
        k, relaxed = _ahead(inner, 0, count), _ahead(total, 0, count) < self.relaxed
        choose, (a, b, e) = _library(k).where, halpern(k)
        return (
            choose(relaxed, RELAXATION, a),
            choose(relaxed, 1 - RELAXATION, b),
            choose(relaxed, 0.0, e),
        )

    def tested(self, memory: RestartMemory, count: int = 1) -> Array:
        """Whether a restart may be decided after each of the next iterations, (count, B)."""
        inner, total = (_ahead(n.numpy(), 1, count) for n in (memory.inner, memory.total))
        tested: Array = self._tested(inner, total)
        return tested

    def _tested(self, inner: Any, total: Any) -> Any:
        halpern = (inner == 1) | (total % TEST_EVERY == 0)
        due = self._relaxed_restart_due(total)
        return _library(total).where(total <= self.relaxed, due, halpern)

    def measured(self, memory: RestartMemory, count: int = 1) -> bool:
        """Whether a decision after ``count`` iterations needs the residual of the last one.

        Relaxed iterations restart at fixed times.
        """
        free = memory.total.numpy() + count > self.relaxed
        return bool((self.tested(memory, count)[-1] & free).any())

    def until_decision(self, memory: RestartMemory, limit: int) -> int:
        """Number of iterations, at most ``limit``, until one is a restart or is tested."""
        if memory.restart_next.numpy().any():
            return 1
        tested = self.tested(memory, limit).any(1)
        return int(tested.argmax()) + 1 if tested.any() else limit

    def counted(self, memory: RestartMemory, r: Tensor | None, count: int = 1) -> RestartMemory:
        """The state after ``count`` iterations; only the last may be a restart or be tested.

        r is the residual of the last one, needed if it is ``measured``.
        """
        numbers = tuple(row.numpy() for row in memory.rows)
        after = self._counted(numbers, None if r is None else r.numpy(), count)
        return RestartMemory(*map(torch.from_numpy, after))

    def counted_there(self, memory: RestartMemory, r: Tensor | None, count: int) -> RestartMemory:
        """As ``counted``, for numbers on any device."""
        return RestartMemory(*self._counted(memory.rows, r, count))

    def relaxed_plan(self, total: int, due: bool, limit: int) -> tuple[list[bool], bool]:
        """Which of the next groups of ``TEST_EVERY`` relaxed iterations begin with a restart.

        From ``total`` iterations on, with a restart if ``due``, for at most ``limit`` iterations.
        And whether the iteration after them is a restart.
        """
        plan: list[bool] = []
        while len(plan) * TEST_EVERY < limit and total < self.relaxed:
            plan.append(due)
            total += TEST_EVERY
            due = total in self.due
        return plan, due

    def relaxed_on(self, memory: RestartMemory, plan: list[bool], due: bool) -> RestartMemory:
        """The state after a ``relaxed_plan``, the same for all images."""
        count = TEST_EVERY * len(plan)
        inner = memory.inner + count
        if any(plan):
            since = plan[::-1].index(True) + 1
            inner = torch.full_like(inner, TEST_EVERY * since - 1)
        residuals = memory.residual_at_restart, memory.residual_at_test
        next_one = torch.full_like(memory.restart_next, due)
        return RestartMemory(inner, memory.total + count, next_one, *residuals)

    def _counted(self, numbers: tuple[Any, ...], r: Any, count: int) -> tuple[Any, ...]:
        inner, total, restart, at_restart, at_test = numbers
        choose = _library(total).where
        inner, total = choose(restart, 0, inner + count), total + count
        tested, relaxed = self._tested(inner, total), total <= self.relaxed
        restart = tested & relaxed
        if r is not None:
            first = inner == 1
            due = ~first & should_restart(r, at_test, at_restart, inner, total)
            restart = tested & (relaxed | due)
            at_restart, at_test = choose(first, r, at_restart), choose(tested, r, at_test)
        return inner, total, restart, at_restart, at_test

    def _relaxed_restart_due(self, total: Any) -> Any:
        """Relaxed iterations restart at fixed times, and when Halpern iterations take over."""
        if isinstance(total, Tensor):  # of Halpern iterations, the only ones counted on a device
            return total == self.relaxed
        following = self.times[np.searchsorted(self.times, total)]  # LAST is beyond every total
        return (following == total) | (total == self.relaxed)


def _library(numbers: Any) -> Any:
    """NumPy for arrays, on the host, and torch for tensors, on a GPU."""
    return torch if isinstance(numbers, Tensor) else np


def _ahead(numbers: Any, first: int, count: int) -> Any:
    """Numbers (B,) of the iterations that follow: plus first, first + 1, ...; (count, B)."""
    place = {"device": numbers.device} if isinstance(numbers, Tensor) else {}
    return numbers + _library(numbers).arange(first, first + count, **place)[:, None]


def should_restart(current: Any, previous: Any, at_restart: Any, inner: Any, total: Any) -> Any:
    """Whether to restart, per image, from the residuals now, at the last test and restart."""
    first = total == FIRST
    sufficient = (current <= SUFFICIENT * at_restart) & (at_restart > 0)  # 0: already solved
    necessary = (current <= NECESSARY * at_restart) & (current > previous)
    long = (inner >= LONG * total) & (total > FIRST)
    return first | sufficient | necessary | long


@cache
def times_to_rebalance(growth: float) -> Array:
    """Iterations after which relaxed iterations are rebalanced, multiples of 5.

    After 5, 10, 20, 40, ... with a growth of 2, after 5, 10, 15, 25, 40, 60, 90, ... with 1.5.
    """
    times = [FIRST]
    while times[-1] < LAST:
        times.append(FIRST * math.ceil(growth * times[-1] / FIRST))
    return np.array(times)
