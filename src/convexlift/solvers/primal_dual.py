"""The primal-dual hybrid gradient method on the lifted problem (paper section 4).

u^{k+1}   = prox_g^T (u^k - T K* v^k)
u_bar     = 2 u^{k+1} - u^k
v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar),    i = 0, ..., L
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from convexlift.functionals.terms import Box
from convexlift.problems.lifting import lifted_start
from convexlift.problems.saddle import BOX_DUAL, DATA_DUAL, SaddlePointProblem, fitting_duals
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Choice, Solver, State
from convexlift.solvers.step_sizes import Coupling, PaperSteps
from convexlift.tensors import Blocks


def pdhg_update(
    saddle: SaddlePointProblem, u: Blocks, v: Blocks, tau: Blocks, sigma: Blocks
) -> tuple[Blocks, Blocks]:
    """One step of the paper's iteration, with theta = 1."""
    # u^{k+1} = prox_g^T (u^k - T K* v^k)
    u_next = saddle.prox_g(u - tau * saddle.K.adjoint(v), tau)
    # u_bar = u^{k+1} + theta (u^{k+1} - u^k)
    u_bar = 2 * u_next - u
    # v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar)
    v_next = saddle.prox_f_conjugate(v + sigma * saddle.K(u_bar), sigma)
    return u_next, v_next


@dataclass(frozen=True, eq=False)
class PDHGState:
    """u = (x, z_1, ...), v, and the step sizes of each block and image.

    ``box`` holds the bounds on the images if the box is dualised: u_x may then lie outside.
    """

    u: Blocks
    v: Blocks
    tau: Blocks
    sigma: Blocks
    box: Box | None = field(default=None, kw_only=True)

    @property
    def x(self) -> Tensor:
        """The images among the primal blocks."""
        return self.u["x"] if self.box is None else self.box.project(self.u["x"])

    @property
    def duals(self) -> Blocks:
        """All dual blocks."""
        return self.v


class FixedStepPDHG(Solver[State]):
    """The paper's algorithm, unchanged."""

    def __init__(
        self, problem: VariationalProblem, saddle: SaddlePointProblem, steps: PaperSteps
    ) -> None:
        self.problem, self.saddle, self.steps = problem, saddle, steps
        self.coupling = Coupling(saddle)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The paper's lift and steps."""
        steps = Choice("steps", str(self.steps), "fixed, as given; the paper's rule")
        return lift_choice(self.problem, self.saddle), steps

    def start(self, x: Tensor) -> PDHGState:
        """z by a forward pass, duals by a backward pass."""
        u, v = lifted_start(self.problem, self.saddle, x)
        sigma = self.steps.sigma(self.saddle, x)
        return PDHGState(u, v, self.coupling.tau(sigma), sigma)

    def resume(self, state: State) -> PDHGState | None:
        """Continue from u and v, with this solver's steps."""
        sigma = self.steps.sigma(self.saddle, state.x)
        if not isinstance(state, PDHGState) or not fits(state, self.saddle):
            duals = fitting_duals(self.problem.network, state.x, state.duals)
            if duals is None:
                return None
            u, v = lifted_start(self.problem, self.saddle, state.x, duals)
            return PDHGState(u, v, self.coupling.tau(sigma), sigma)
        return PDHGState(state.u, state.v, self.coupling.tau(sigma), sigma)

    def step(self, state: State) -> PDHGState:
        """The paper's iteration."""
        assert isinstance(state, PDHGState)
        u, v = pdhg_update(self.saddle, state.u, state.v, state.tau, state.sigma)
        return replace(state, u=u, v=v)


def fits(state: PDHGState, saddle: SaddlePointProblem) -> bool:
    """Whether a state has the blocks of this lift."""
    K = saddle.K
    rows = {
        name: operator.output_shape(K.shapes[source])
        for name, row in K.rows.items()
        for source, operator in row.items()
    }
    u, v = ({n: tuple(part.shape[1:]) for n, part in parts.items()} for parts in (state.u, state.v))
    return u == K.shapes and v == rows


def lift_choice(problem: VariationalProblem, saddle: SaddlePointProblem) -> Choice:
    """The blocks of a lift, and how the data term enters it."""
    data = f"{type(problem.fidelity).__name__} behind {type(problem.operator).__name__}"
    K = saddle.K
    if DATA_DUAL in K.rows:
        box = ", and the box," if BOX_DUAL in K.rows else ""
        why = f"{data}{box} enters by its conjugate (v0)"
    else:
        why = f"{data} enters by its closed-form prox"
    pooled = [names[1] for names, term in saddle.f if term.pooled]
    if pooled:
        why += f"; bounded after their pooling: {', '.join(pooled)}"
    return Choice("lift", f"u = ({', '.join(K.shapes)}), v = ({', '.join(K.rows)})", why)
