"""The primal-dual hybrid gradient method on the lifted problem (paper section 4).

u^{k+1}   = prox_g^T (u^k - T K* v^k)
u_bar     = 2 u^{k+1} - u^k
v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar),    i = 0, ..., L

It converges if the step sizes T and S satisfy ||S^(1/2) K T^(1/2)|| < 1 (``coupling``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from convexlift.functionals.terms import Box, LastLayerTerm, PooledEpigraphTerm
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.network_duals import (
    BOX_DUAL,
    DATA_DUAL,
    dual_names,
    feasible_duals,
    fitting_duals,
    made_feasible,
    primal_name,
)
from convexlift.problems.one_pass import OnePass
from convexlift.problems.packed_slopes import CODES, feasible
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.coupling import Coupling
from convexlift.solvers.method import Choice, Solver, State
from convexlift.solvers.recordings import Pending
from convexlift.solvers.replays import Replays
from convexlift.tensors import Blocks


def pdhg_update(
    saddle: SaddlePointProblem, u: Blocks, v: Blocks, tau: Blocks, sigma: Blocks
) -> tuple[Blocks, Blocks]:
    """One step of the paper's iteration, with theta = 1."""
    # u^{k+1} = prox_g^T (u^k - T K* v^k)
    u_next = saddle.prox_g(u - tau * saddle.force(v), tau)
    # u_bar = u^{k+1} + theta (u^{k+1} - u^k)
    u_bar = 2 * u_next - u
    # v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u_bar)
    v_next = saddle.prox_f_conjugate(v + sigma * saddle.K(u_bar), sigma)
    return u_next, v_next


@dataclass(frozen=True, eq=False)
class PDHGState:
    """u = (x, z_1, ...), v, and the step sizes of each block and image.

    ``box`` holds the bounds on the images if the box is dualised: u_x may then lie outside.
    ``dtype`` is the precision of the problem, if iterations have another one.
    """

    u: Blocks
    v: Blocks
    tau: Blocks
    sigma: Blocks
    box: Box | None = field(default=None, kw_only=True)
    dtype: torch.dtype | None = field(default=None, kw_only=True)

    @property
    def x(self) -> Tensor:
        """The images among the primal blocks."""
        x = self.u["x"] if self.dtype is None else self.u["x"].to(self.dtype)
        return x if self.box is None else self.box.project(x)

    @property
    def duals(self) -> Blocks:
        """All dual blocks."""
        return self.v if self.dtype is None else self.v.to_dtype(self.dtype)

    def fits(self, saddle: SaddlePointProblem) -> bool:
        """Whether the state has the blocks of this lift."""
        u, v = ({n: tuple(p.shape[1:]) for n, p in parts.items()} for parts in (self.u, self.v))
        return u == saddle.K.shapes and v == saddle.K.row_shapes()


@dataclass(frozen=True)
class PaperSteps:
    """sigma_i = c_i / ||K_i||^2, the paper's rule with its hyperparameters c.

    ||K_i|| is the norm of the row with the layer's maps, ||V_{i-1}|| or ||W_{i-1}||; both dual
    blocks of an epigraph share sigma_i. tau_j follows.

    Args:
        c: (c_1, ..., c_L), preceded by c_0 where the fidelity is dualised. The paper uses
            (0.01, 0.001) for inpainting, (500, 100, 0.1) for CT, (500, 100, 5, 0.5, 0.1) for
            CT with the deeper network.
        as_released: start the duals as the authors' scripts do, and update them first as there
            (``released_duals``). The paper prints neither. By default the duals come from a
            backward pass (``lifted_start``), which saves most of the first iterations.
    """

    c: tuple[float, ...]
    as_released: bool = False

    def __post_init__(self) -> None:
        if not self.c or not all(0 < value < math.inf for value in self.c):
            raise ValueError(f"PaperSteps needs positive numbers c, got {self.c}")

    @property
    def tuned(self) -> str:
        """The numbers c, briefly."""
        return f"c = ({', '.join(f'{c:.3g}' for c in self.c)})"

    def sigma(self, saddle: SaddlePointProblem, like: Tensor) -> Blocks:
        """One number for each dual block and image."""
        if len(self.c) != len(saddle.f):
            needed = ", ".join(f"c_{rows[0][1]}" for rows, _ in saddle.f)
            raise ValueError(
                f"this problem needs {len(saddle.f)} step-size parameters c = ({needed}), "
                f"got {len(self.c)}: {self.c}"
            )
        squared = saddle.K.squared_norms()
        ones = like.new_ones(like.shape[0])
        sigma: dict[str, Tensor] = {}
        for c, (names, _) in zip(self.c, saddle.f, strict=True):
            norm = sum(squared[names[0]].values())
            for name in names:
                sigma[name] = (c / norm) * ones
        return Blocks(sigma)


@dataclass(frozen=True)
class AdaptiveSteps:
    """Steps that need no tuning: balanced at the start, and again at every restart.

    Between restarts, iterations are relaxed and extrapolated; in large problems with kinks, they
    are reflected Halpern iterations, pulled back towards the last restart. The rules come from the
    linear-programming codes PDLP and cuPDLPx; with an L1 fidelity and (leaky) ReLUs the problem
    *is* a linear program.
    """

    tuned = "nothing to tune"


StateT = TypeVar("StateT", bound=PDHGState)


class PDHGSolver(Solver[StateT]):
    """PDHG on one lift of a problem."""

    def __init__(
        self, problem: VariationalProblem, saddle: SaddlePointProblem, coupling: Coupling
    ) -> None:
        self.problem, self.saddle, self.coupling = problem, saddle, coupling

    @abstractmethod
    def start(self, x: Tensor, duals: Blocks | None = None) -> StateT:
        """The lifted start at images x (``lifted_start``), with first step sizes."""

    def launched_start(
        self, calls: Replays, *, headless: bool = False
    ) -> tuple[StateT, Pending] | None:
        """The state at the initial image, in one call that may be replayed, if there is one.

        ``headless``: this solver is for the problem without its last layer. Then there is a number:
        whether all units of that layer are on. More of them are for ``note_usefulness``.
        """
        return None

    def note_usefulness(self, *useful: Tensor) -> None:
        """Take over the images for which attempts are useful, if the start computed them."""

    def started(self, found: Any) -> StateT:
        """The state from what that call found."""
        raise NotImplementedError

    @abstractmethod
    def _restarted(self, state: PDHGState) -> StateT:
        """A first state at (u, v) of a state with the same blocks."""

    def resume(self, state: State) -> StateT | None:
        """Continue from (u, v), or from the duals of another lift if these fit the network."""
        if isinstance(state, PDHGState) and state.fits(self.saddle):
            dtype = self.problem.fidelity.y.dtype
            u, sigma = state.u.to_dtype(dtype), state.sigma.to_dtype(dtype)
            v = self._known(state.v, u["x"])
            return self._restarted(replace(state, u=u, v=v, sigma=sigma))
        duals = fitting_duals(self.problem.network, state.x, state.duals)
        return None if duals is None else self.start(state.x, duals)

    def _known(self, v: Blocks, x: Tensor) -> Blocks:
        """Dual variables as numbers, of a state that may have them packed, with images x."""
        packed = {
            names[0]: term
            for names, term in self.saddle.f
            if isinstance(term, LastLayerTerm) and v[names[0]].dtype is CODES
        }
        numbers = {n: feasible(term.activation, v[n], term.weights) for n, term in packed.items()}
        return Blocks({**v, **numbers}).to_dtype(x.dtype)


class FixedStepPDHG(PDHGSolver[PDHGState]):
    """The paper's algorithm in its printed order: u^{k+1} first, then v^{k+1}.

    The authors' scripts update the duals first. These are the same iterates u^k, from a start
    whose duals are half an iteration further: v <- prox_{f*}^S (v + S K u).
    """

    def __init__(
        self, problem: VariationalProblem, saddle: SaddlePointProblem, steps: PaperSteps
    ) -> None:
        super().__init__(problem, saddle, Coupling(saddle))
        self.steps = steps

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The paper's lift and steps."""
        steps = Choice("steps", str(self.steps), "fixed, as given; the paper's rule")
        return lift_choice(self.problem, self.saddle), steps

    def start(self, x: Tensor, duals: Blocks | None = None) -> PDHGState:
        """z by a forward pass, duals by a backward pass, or as in the authors' scripts."""
        state = self._at(*lifted_start(self.problem, self.saddle, x, duals))
        if not self.steps.as_released or duals is not None:
            return state
        v, sigma = released_duals(self.problem, self.saddle, x), state.sigma
        v = self.saddle.prox_f_conjugate(v + sigma * self.saddle.K(state.u), sigma)
        return replace(state, v=v)

    def _restarted(self, state: PDHGState) -> PDHGState:
        return self._at(state.u, state.v)

    def _at(self, u: Blocks, v: Blocks) -> PDHGState:
        sigma = self.steps.sigma(self.saddle, u["x"])
        return PDHGState(u, v, self.coupling.tau(sigma), sigma)

    def step(self, state: PDHGState) -> PDHGState:
        """The paper's iteration."""
        u, v = pdhg_update(self.saddle, state.u, state.v, state.tau, state.sigma)
        return replace(state, u=u, v=v)


def halpern(k: Any) -> tuple[Any, Any, Any]:
    """(a, b, e) of a reflected Halpern iteration, the k-th after a restart."""
    kept = (k + 1.0) / (k + 2.0)
    return 2 * kept, -kept, 1 - kept


def lifted_start(
    problem: VariationalProblem,
    saddle: SaddlePointProblem,
    x: Tensor,
    duals: Blocks | None = None,
    *,
    packed: bool = False,
) -> tuple[Blocks, Blocks]:
    """Primal blocks by a forward pass from the image x, dual blocks by one backward pass.

    The duals belong to the tangent at x: p_i = h_i'(a_i) t_i for v_{i,1}, -t_i for v_{i,2}
    (the sum of t_i over a block, where layer i was lifted after its pooling),
    and f'(A x) for a dualised fidelity, so that a good image starts with good duals. Or p_i
    comes from the ``duals`` of an earlier solution by any method, made feasible. The tangent of a
    network that has one large layer can be ``packed``.
    """
    count = len(problem.network.layers)
    one_pass = OnePass.of(problem.network)
    u = {"x": x}
    v = {}
    if count == 1 and one_pass is not None and duals is None:
        v[dual_names(1, 1)[0]] = one_pass.tangent(problem.weight, x, packed=packed)
    elif count == 1 and duals is not None:  # nothing else is needed, and layers are large
        (name,) = dual_names(1, 1)
        v[name] = feasible_duals(problem.network, problem.weight, x, duals)[name]
    else:
        layers = problem.network.hidden(x)
        if duals is None:
            backward = problem.network.tangent(problem.weight, x, layers.a)
        else:
            backward = made_feasible(problem.network, problem.weight, x, duals)
        for i in range(1, count + 1):
            names = dual_names(i, count)
            v[names[0]] = backward.p[i - 1]
            if i < count:
                u[primal_name(i)] = layers.z[i - 1]
                v[names[1]] = -backward.t[i - 1]
    for names, term in saddle.f:
        if isinstance(term, PooledEpigraphTerm):
            (block,) = saddle.K.rows[names[1]]
            u[block] = term.block_means(u[block])
            v[names[1]] = term.size**2 * term.block_means(v[names[1]])
    if DATA_DUAL in saddle.K.rows:
        # An image outside the domain of D has no slope: start at 0 there.
        slope = problem.fidelity.gradient(problem.operator(x)).nan_to_num(0.0, 0.0, 0.0)
        known = None if duals is None else duals.get(DATA_DUAL)
        if known is not None and known.shape == slope.shape:  # else of another scanner
            slope = known
        v[DATA_DUAL] = problem.fidelity.clip_to_conjugate_domain(slope)
    if BOX_DUAL in saddle.K.rows:  # the part of the force that pushes against the box
        v[BOX_DUAL] = torch.zeros_like(x)
        force = saddle.K.adjoint(Blocks(v))["x"]
        v[BOX_DUAL] = problem.bounds.pressure(x, -force)
    return Blocks(u), Blocks({name: v[name] for name in saddle.K.rows})


def released_duals(problem: VariationalProblem, saddle: SaddlePointProblem, x: Tensor) -> Blocks:
    """The first duals of the authors' scripts (github.com/hsw43/icnn_primal_dual).

    v_1 = ... = v_{L-1} = 0, and v_L = weight W_L on the units with a_L > 0, else 0. The data term's
    v_0, if it is dualised, is D'(A x) / ||A||: ``example_ct.py`` keeps v_0 in units of ||A||, and
    starts it at D'(A x) without converting it.
    """
    network = problem.network
    a = network.hidden(x).a[-1]
    if network.layers[-1].activation.group > 1:
        raise ValueError(
            "PaperSteps(as_released=True) is for last layers of ReLUs, not of "
            f"{network.layers[-1].activation}; leave as_released out"
        )
    last = dual_names(len(network.layers), len(network.layers))[0]
    v = {name: x.new_zeros(len(x), *shape) for name, shape in saddle.K.row_shapes().items()}
    v[last] = torch.where(a > 0, problem.weight * network.output, 0.0)
    if DATA_DUAL in v:
        slope = problem.fidelity.gradient(problem.operator(x))
        norm = sum(saddle.K.squared_norms()[DATA_DUAL].values()) ** 0.5
        v[DATA_DUAL] = problem.fidelity.clip_to_conjugate_domain(slope / norm)
    return Blocks(v)


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
