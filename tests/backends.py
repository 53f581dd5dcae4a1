"""The paths by which a problem may be solved, and the one place that knows how each is chosen.

Nothing else in the tests names what a path is made of. ``Backend.use`` takes one for the time of a
``MonkeyPatch``, and returns how to find out whether it did anything: paths that give way to the
plain one without a word would be compared with themselves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from host_kernels import COMPILER, DataKernel, HostKernel, RigorousKernel

import convexlift as cl
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.operators import convolution
from convexlift.problems import one_pass, packed_slopes, rigorous_regularizer, rigorous_strips
from convexlift.solvers import (
    cuda_graphs,
    extrapolated_iterations,
    fused_iterations,
    pdhg,
    recordings,
    replays,
    tiled_iterations,
)
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.kinds import kind_of
from convexlift.solvers.method import DoesNotApply
from convexlift.tensors import Blocks

ON_GPU = torch.cuda.is_available()
Counter = Callable[[], int]
"""How often something of a path has run so far."""


def plain(patch: pytest.MonkeyPatch) -> Counter:
    """Whole tensors, one operation after the other, without extrapolations."""
    for module in (tiled_iterations, one_pass):
        patch.setattr(module, "WORTHWHILE", 10**12)
    patch.setattr(extrapolated_iterations, "MEMORABLE", 0)
    patch.setattr(rigorous_strips.StripSums, "of", lambda *_: None)
    patch.setattr(first_layer, "compiled", lambda *_, **__: None)
    patch.setattr(rigorous_pass, "compiled", lambda *_, **__: None)
    patch.setattr(rigorous_pass, "data_kernel", lambda *_: None)
    patch.setattr(replays, "GRAPHS", None)
    return lambda: 1


def counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter:
    """Count the calls of a function."""
    calls, original = [], getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **more: calls.append(1) or original(*given, **more))
    return lambda: len(calls)


def extrapolated(patch: pytest.MonkeyPatch) -> Counter:
    """Anderson's extrapolations of relaxed iterations."""
    memorable = extrapolated_iterations.MEMORABLE
    plain(patch)
    patch.setattr(extrapolated_iterations, "MEMORABLE", memorable)
    return counted(patch, extrapolated_iterations.ExtrapolatedIterations, "iterate")


def strips(patch: pytest.MonkeyPatch) -> Counter:
    """Strips of a few rows, of which the last is shorter, and chunks of a few channels."""
    of = rigorous_strips.StripSums.of
    plain(patch)
    patch.setattr(rigorous_strips.StripSums, "of", of)
    for module, name, value in (
        (tiled_iterations, "WORTHWHILE", 1), (tiled_iterations, "STRIP", 1500),
        (one_pass, "WORTHWHILE", 1), (one_pass, "STRIP", 1), (one_pass, "CHUNK", 500),
        (convolution, "SHARES", 1), (convolution, "FEW_ROWS", 4), (convolution, "FOLDED", 9000),
        (rigorous_strips, "CACHED", 200), (rigorous_regularizer, "PART", 1),
    ):  # fmt: skip
        patch.setattr(module, name, value)
    return counted(patch, tiled_iterations.TiledIterations, "iterate")


def packed(patch: pytest.MonkeyPatch) -> Counter:
    """Strips, with dual variables of single images in 16 bits."""
    count = strips(patch)
    patch.setattr(tiled_iterations, "LARGE", 1)
    patch.setattr(tiled_iterations, "LARGE_ON_A_GPU", 1)
    patch.setattr(packed_slopes, "CACHED", 500)
    return count


def kernels(patch: pytest.MonkeyPatch, *, low_tiles: bool = False) -> Counter:
    """Kernels on the threads of a CPU: those of CUDA."""
    plain(patch)
    chosen, launches = pdhg.fastest_iterations, []

    def fastest(saddle: Any, coupling: Any) -> Any:
        with contextlib.suppress(DoesNotApply):
            return FusedIterations(saddle, coupling, interpreted=not ON_GPU), "kernels"
        return chosen(saddle, coupling)

    def launching(kind: Any) -> Any:
        def make(*given: Any, **options: Any) -> Any:
            kernel = kind(*given, **options)
            return lambda **launch: launches.append(1) or kernel(**launch)

        return make

    patch.setattr(pdhg, "fastest_iterations", fastest)
    patch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    patch.setattr(one_pass, "WORTHWHILE", 1)
    patch.setattr(first_layer, "FEW", 10**6 if low_tiles else 0)
    patch.setattr(first_layer, "compiled", launching(HostKernel))
    rigorous = launching(RigorousKernel)

    def supported(name: str, device: torch.device, filters: torch.Size, **options: Any) -> Any:
        """As on a GPU, where other filters have no kernels."""
        fits = rigorous_pass.supports(filters)
        return rigorous(name, device, filters, **options) if fits else None

    patch.setattr(rigorous_pass, "compiled", supported)
    patch.setattr(rigorous_pass, "data_kernel", launching(DataKernel))
    return lambda: len(launches)


def packed_kernels(patch: pytest.MonkeyPatch) -> Counter:
    """Kernels that read and write dual variables in 16 bits."""
    count = kernels(patch)
    for name in ("WORTHWHILE", "LARGE", "LARGE_ON_A_GPU"):
        patch.setattr(tiled_iterations, name, 1)
    patch.setattr(pdhg, "fastest_iterations", fused_iterations.fastest_iterations)
    return count


class Again(cuda_graphs.CudaGraphs):
    """Instead of a graph: the launches once more, into the same results."""

    captures = replayed = 0

    def room(self, device):
        return 2**40

    def stream(self, device):
        return 0

    def beside(self, device):
        return contextlib.nullcontext()

    def capture(self, launch):
        self.captures += 1
        results = launch()

        def compute():
            self.replayed += 1
            here = torch.device("cpu")
            both = zip(*(kind_of(each, here)[1] for each in (results, launch())), strict=True)
            for old, new in both:
                old.copy_(new)

        return results, compute


def captured(patch: pytest.MonkeyPatch) -> Counter:
    """Checks and claims that are captured once and replayed, as graphs are."""
    plain(patch)
    graphs = Again()
    patch.setattr(replays, "GRAPHS", graphs)
    patch.setattr(replays, "IDLE", recordings.IdleWorkshops())
    return lambda: graphs.replayed


def captured_kernels(patch: pytest.MonkeyPatch) -> Counter:
    """Both, which read each other's buffers; and iterations that run ahead of checks."""
    kernels(patch)
    graphs = Again()
    patch.setattr(replays, "GRAPHS", graphs)
    patch.setattr(replays, "IDLE", recordings.IdleWorkshops())
    patch.setattr(pdhg.RestartedPDHG, "runs_ahead", lambda self, state: True)
    return lambda: graphs.replayed


def broken_kernels(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Kernels whose launches fail."""

    def launched(*_: Any, **__: Any) -> None:
        raise error

    kernels(patch)
    patch.setattr(fused_iterations.Machine, "run", launched)
    patch.setattr(FusedIterations, "restarted", lambda *_: None)


def gpu(patch: pytest.MonkeyPatch, *, graphs: bool = False, fused: bool = False) -> Counter:
    """A real GPU: eager, with captured checks, or with all kernels."""
    patch.setattr(replays, "IDLE", recordings.IdleWorkshops())
    patch.setattr(fused_iterations, "IDLE", fused_iterations.IdleMachines())
    if fused:
        patch.setattr(one_pass, "WORTHWHILE", 1)
        return counted(patch, FusedIterations, "__init__")
    real = replays.GRAPHS
    plain(patch)
    patch.setattr(FusedIterations, "__init__", _refused)
    if graphs:
        patch.setattr(replays, "GRAPHS", real)
        return lambda: sum(len(each.recordings) for each in replays.IDLE.values())
    return lambda: 1


def _refused(*_: Any, **__: Any) -> None:
    raise DoesNotApply("the plain path is wanted")


@dataclass(frozen=True)
class Backend:
    """A path, and the problems that it takes.

    Attributes:
        use: take this path for the time of a patch; see the module.
        takes: a tag of the problems that it takes; of all of them if it is empty.
        leaves: a tag of problems that it leaves to the plain path.
        dtype: the precision of its problems.
        device: where they are.
        close: the largest distance of an image to that of the plain path after as many iterations,
            besides a multiple of what rounding does to the plain path.
        solves: how often a problem is solved until everything has been captured.
        alone: whether it takes single images only.
        most: iterations, which take long where threads of a GPU take turns.
        faster: whether it may need fewer iterations.
        missing: why it cannot run here.
    """

    use: Callable[[pytest.MonkeyPatch], Counter]
    takes: str = ""
    leaves: str = ""
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    close: float = 1e-9
    solves: int = 1
    alone: bool = False
    most: int = 1000
    faster: bool = False
    missing: str = ""

    def serves(self, tags: tuple[str, ...]) -> bool:
        """Whether something of it runs for a problem with these tags."""
        return (not self.takes or self.takes in tags) and self.leaves not in tags


SINGLE = torch.float32
COMPILED = "" if COMPILER and not ON_GPU else "needs g++, and no GPU"
BACKENDS = {
    "single precision": Backend(plain, "", dtype=SINGLE, close=1e-5),
    "extrapolated": Backend(extrapolated, close=math.inf, faster=True),
    "strips": Backend(strips, "convolution"),
    "packed strips": Backend(packed, "convolution", dtype=SINGLE, close=math.inf, alone=True),
    "captured": Backend(captured, leaves="uncaptured", solves=3),
    "kernels": Backend(
        kernels, "kernels", dtype=SINGLE, close=1e-5, most=6, alone=True, missing=COMPILED
    ),
    "low tiles": Backend(
        partial(kernels, low_tiles=True), "kernels", dtype=SINGLE, close=1e-5, most=40,
        missing=COMPILED,
    ),
    "packed kernels": Backend(
        packed_kernels, "kernels", dtype=SINGLE, close=math.inf, alone=True, most=6,
        missing=COMPILED,
    ),
    "captured kernels": Backend(
        captured_kernels, "kernels", dtype=SINGLE, close=1e-5, solves=3, most=6, alone=True,
        missing=COMPILED,
    ),
    **{
        f"GPU, {name}": Backend(
            partial(gpu, **options), takes, leaves, SINGLE, "cuda", 1e-5, solves,
            missing="" if ON_GPU else "needs a GPU",
        )
        for name, takes, leaves, solves, options in (
            ("eager", "", "", 1, {}), ("captured", "", "uncaptured", 3, {"graphs": True}),
            ("fused", "kernels", "", 3, {"fused": True}),
        )
    },
}  # fmt: skip


def step_norm(problem: cl.VariationalProblem, iterations: int) -> float:
    """||S^(1/2) K T^(1/2)|| of automatic PDHG after so many iterations, from dense matrices."""
    solver = cl.PDHG()._adaptive(problem)
    state = solver.advance(solver.start(problem.initial_image()), iterations)
    K, names = solver.saddle.K, list(solver.saddle.K.shapes)
    sizes = [math.prod(K.shapes[name]) for name in names]

    def blocks(rows: torch.Tensor) -> Blocks:
        parts = zip(names, rows.split(sizes, 1), strict=True)
        return Blocks({name: part.reshape(-1, *K.shapes[name]) for name, part in parts})

    unit = blocks(torch.eye(sum(sizes), dtype=torch.float64))
    tau = state.tau
    moved = Blocks({name: part.clone() for name, part in (tau * unit).items()})
    T = torch.cat([moved[name].flatten(1) for name in names], 1)
    steps, metric = solver.coupling.dual_steps(state.sigma), 0.0
    for name, part in K(unit).items():
        scaled = (steps.step(name, part) * part).flatten(1)
        metric = metric + part.flatten(1) @ scaled.T
    half = torch.linalg.cholesky((T + T.T) / 2)
    return float(torch.linalg.eigvalsh(half.T @ metric @ half).max().sqrt())
