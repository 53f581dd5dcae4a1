"""PDHG as a method: with the paper's fixed steps, or with steps that need no tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from convexlift.problems.lifting import lift
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method, Solver
from convexlift.solvers.primal_dual import FixedStepPDHG
from convexlift.solvers.restarted import RestartedPDHG
from convexlift.solvers.saturated_head import SaturatedHead, SaturatedPDHG
from convexlift.solvers.spectral_steps import FourierCoupling
from convexlift.solvers.step_sizes import AdaptiveSteps, PaperSteps


@dataclass(frozen=True)
class PDHG(Method):
    """PDHG with the paper's fixed steps, or with steps that need no tuning (the default).

    Args:
        steps: ``PaperSteps(c)`` or ``AdaptiveSteps()``.
        dualise_fidelity: see ``lift``.
    """

    steps: PaperSteps | AdaptiveSteps = field(default_factory=AdaptiveSteps)
    dualise_fidelity: bool | None = None

    def solver(self, problem: VariationalProblem) -> Solver[Any]:
        """Lift the problem, without its last layer if that may be left out, and find the norms."""
        if isinstance(self.steps, PaperSteps):  # use the paper's lift as well
            saddle = lift(problem, dualise_fidelity=self.dualise_fidelity, pooled=False)
            return FixedStepPDHG(problem, saddle, self.steps)
        head = SaturatedHead.of(problem)
        if head is None:
            return self._adaptive(problem)
        without = self._adaptive(head.problem)
        return SaturatedPDHG(problem, head, without, lambda: self._adaptive(problem))

    def _adaptive(self, problem: VariationalProblem) -> RestartedPDHG:
        if self.dualise_fidelity is not False and FourierCoupling.applies(problem):
            saddle = lift(problem, dualise_box=True)
            return RestartedPDHG(problem, saddle, FourierCoupling(saddle, problem.fidelity.y))
        return RestartedPDHG(problem, lift(problem, dualise_fidelity=self.dualise_fidelity))
