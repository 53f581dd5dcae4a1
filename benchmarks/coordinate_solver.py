"""SPDHG on the lifted problem: dual blocks take turns, drawn at random.

    u^{k+1}    = prox_g^T (u^k - T zbar^k)
    v_i^{k+1}  = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u^{k+1})  for one i, drawn with probability p_i
    z^{k+1}    = z^k + K_i* (v_i^{k+1} - v_i^k)
    zbar^{k+1} = z^{k+1} + (1/p_i) K_i* (v_i^{k+1} - v_i^k)

Chambolle, Ehrhardt, Richtarik and Schoenlieb, SIAM Journal on Optimization 28 (2018), with serial
sampling. It converges if ||S_i^(1/2) K_i T^(1/2)||^2 < p_i for every block i; the largest such S_i
is taken. Blocks are subsets of angles, groups of filters, and layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import convexlift as cl
from convexlift.functionals.terms import DualFidelityTerm, DualTerm, LastLayerTerm
from convexlift.operators.lanczos import lanczos_norm
from convexlift.operators.spectral import SpectralFilter
from convexlift.problems.lifting import SaddlePointProblem, lift
from convexlift.problems.network_duals import DATA_DUAL
from convexlift.solvers.coupling import SAFETY
from convexlift.solvers.method import Method, Solver
from convexlift.solvers.primal_dual import lifted_start
from convexlift.solvers.spectral_steps import MARGIN, FourierSteps
from convexlift.tensors import Blocks


@dataclass(frozen=True, eq=False)
class Part:
    """A block of dual variables: its rows of K, its term, its place in the whole, its cost."""

    rows: dict[str, dict[str, cl.LinearOperator]]
    term: DualTerm
    place: tuple[Any, ...]
    cost: dict[str, float]

    def forward(self, u: Blocks) -> Blocks:
        """K_i u."""
        return Blocks({v: sum(K(u[name]) for name, K in row.items())
                       for v, row in self.rows.items()})  # fmt: skip

    def adjoint(self, v: Blocks) -> dict[str, Tensor]:
        """K_i* v, in the primal blocks that it reaches."""
        return {name: K.adjoint(v[dual]) for dual, row in self.rows.items()
                for name, K in row.items()}  # fmt: skip

    def prox(self, v: Blocks, sigma: Blocks) -> Blocks:
        """prox_{f_i*}^{S_i} (v)."""
        values, steps = zip(*((v[n], sigma.step(n, v[n])) for n in self.rows), strict=True)
        return Blocks(dict(zip(self.rows, self.term.conjugate_prox(values, steps), strict=True)))

    def steps(self, tau: Blocks, shapes: dict[str, Any], p: float) -> Blocks:
        """The largest S_i for T: sigma_i sum_j ||K_ij T_j^(1/2)||^2 = SAFETY p_i."""

        def square(K: cl.LinearOperator, name: str) -> Tensor:
            step = tau[name]
            if step.ndim == 1:
                return step * K.norm(shapes[name]) ** 2
            whitened = K @ SpectralFilter(step[0, 0].sqrt(), shapes[name][-1])
            return step.new_tensor([(MARGIN * lanczos_norm(whitened, shapes[name])) ** 2])

        return Blocks({v: SAFETY * p / sum(square(K, name) for name, K in row.items())
                       for v, row in self.rows.items()})  # fmt: skip


class Channels(cl.LinearOperator):
    """Some channels of an image."""

    def __init__(self, count: int, some: slice) -> None:
        self.count, self.some = count, some

    def forward(self, x: Tensor) -> Tensor:
        """The channels."""
        return x[:, self.some]

    def adjoint(self, y: Tensor) -> Tensor:
        """Zeros in all others."""
        x = y.new_zeros((len(y), self.count, *y.shape[2:]))
        x[:, self.some] = y
        return x


def parts_of(
    problem: cl.VariationalProblem, saddle: SaddlePointProblem, subsets: int, groups: int
) -> Iterator[Part]:
    """The data by interleaved subsets of angles, the filters by groups, and all else as it is."""
    for names, term in saddle.f:
        rows = {name: saddle.K.rows[name] for name in names}
        first = rows[names[0]].get("x")
        if names == (DATA_DUAL,):
            beam, y = problem.operator.operator, problem.fidelity.y
            for j in range(subsets):
                some = (..., slice(j, None, subsets), slice(None))
                seen = cl.ParallelBeam((beam.grid.height, beam.grid.width),
                                       list(beam.exact_angles[j::subsets]), len(beam.bins),
                                       (beam.grid.height * beam.grid.pixel_height,
                                        beam.grid.width * beam.grid.pixel_width),
                                       bin_width=beam.bin_width)  # fmt: skip
                A = {DATA_DUAL: {"x": problem.operator.factor * seen}}
                fidelity = cl.KullbackLeibler(y[some], problem.fidelity.background)
                yield Part(A, DualFidelityTerm(fidelity), some, {"A": 1 / subsets})
        elif first is not None and first.convolution is not None:
            count = first.convolution.weight.shape[0]
            for j in range(groups):
                some = slice(j * count // groups, (j + 1) * count // groups)
                group = {names[0]: {"x": first.convolution.some_channels(some)}}
                group |= {n: {"z1": Channels(count, some)} for n in names[1:]}
                cut = {"bias": None if term.bias is None else term.bias[:, some]}
                if isinstance(term, LastLayerTerm):
                    cut["weights"] = term.weights[:, some]
                yield Part(group, replace(term, **cut), (slice(None), some), {"V": 1 / groups})
        else:
            yield Part(rows, term, (slice(None),), {})


@dataclass(frozen=True, eq=False)
class CoordinateState:
    """u^k, the blocks v_i^k, z^k = K* v^k, zbar^k, and the parts they belong to."""

    u: Blocks
    v: tuple[Blocks, ...]
    z: Blocks
    z_bar: Blocks
    parts: list[Part]
    whole: Blocks
    box: Any

    @property
    def x(self) -> Tensor:
        """The images."""
        return self.box.project(self.u["x"])

    @property
    def duals(self) -> Blocks:
        """All blocks together."""
        joined = {name: torch.empty_like(part) for name, part in self.whole.items()}
        for part, v in zip(self.parts, self.v, strict=True):
            for name, values in v.items():
                joined[name][part.place] = values
        return Blocks(joined)


class CoordinateSolver(Solver[CoordinateState]):
    """SPDHG with serial sampling."""

    def __init__(self, problem: cl.VariationalProblem, method: Coordinates) -> None:
        self.problem, self.method = problem, method
        self.saddle = lift(problem, dualise_box=method.spectrum is not None)
        self.parts = list(parts_of(problem, self.saddle, method.subsets, method.groups))
        self.tau = method.primal_steps(self.saddle, problem.fidelity.y)
        self.p = [1 / len(self.parts)] * len(self.parts)
        self.sigma = [part.steps(self.tau, self.saddle.K.shapes, p)
                      for part, p in zip(self.parts, self.p, strict=True)]  # fmt: skip
        self.generator = torch.Generator().manual_seed(method.seed)

    def start(self, x: Tensor) -> CoordinateState:
        """The start of PDHG: duals by a backward pass."""
        u, v = lifted_start(self.problem, self.saddle, x)
        z = self.saddle.K.adjoint(v)
        pieces = tuple(Blocks({n: v[n][part.place] for n in part.rows}) for part in self.parts)
        return CoordinateState(u, pieces, z, z, self.parts, v, self.problem.bounds)

    def resume(self, state: Any) -> None:
        """Nothing to resume from."""

    def step(self, state: CoordinateState) -> CoordinateState:
        """One draw."""
        i = int(torch.multinomial(torch.tensor(self.p), 1, generator=self.generator))
        K, sigma, v = self.parts[i], self.sigma[i], state.v[i]
        # u^{k+1} = prox_g^T (u^k - T zbar^k)
        u = self.saddle.prox_g(state.u - self.tau * state.z_bar, self.tau)
        # v_i^{k+1} = prox_{f_i*}^{S_i} (v_i^k + S_i K_i u^{k+1})
        v_next = K.prox(v + sigma * K.forward(u), sigma)
        # z^{k+1} = z^k + K_i* (v_i^{k+1} - v_i^k)
        change = K.adjoint(v_next - v)
        z = Blocks({**state.z, **{n: state.z[n] + d for n, d in change.items()}})
        # zbar^{k+1} = z^{k+1} + (1/p_i) K_i* (v_i^{k+1} - v_i^k)
        z_bar = Blocks({**z, **{n: z[n] + d / self.p[i] for n, d in change.items()}})
        for name, share in K.cost.items():
            self.method.passes[name] += share
        pieces = (*state.v[:i], v_next, *state.v[i + 1 :])
        return replace(state, u=u, v=pieces, z=z, z_bar=z_bar)


@dataclass(eq=False)
class Coordinates(Method):
    """Options: T (or a factor of the spectrum given), and into how many blocks to divide K."""

    tau: tuple[float, ...]
    subsets: int = 1
    groups: int = 1
    spectrum: Tensor | None = None
    seed: int = 0
    passes: dict[str, float] = field(default_factory=lambda: {"A": 0.0, "V": 0.0})

    def primal_steps(self, saddle: SaddlePointProblem, like: Tensor) -> Blocks:
        """T."""
        names = list(saddle.K.shapes)
        if self.spectrum is not None:
            return FourierSteps({"x": self.tau[0] * self.spectrum})
        return Blocks({n: like.new_tensor([t]) for n, t in zip(names, self.tau, strict=True)})

    def solver(self, problem: cl.VariationalProblem) -> CoordinateSolver:
        """For one image."""
        return CoordinateSolver(problem, self)
