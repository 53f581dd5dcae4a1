"""Statements solved: in pieces that fit the memory, with a method by name, ended by Ctrl-C."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import ConvexLayer, InputConvexNetwork
from convexlift.problems.certificate import certify
from convexlift.problems.claims import Claim
from convexlift.problems.variational import VariationalProblem
from convexlift.proofs import Proof
from convexlift.reconstruction.interruption import Interruption
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.noise_models import Statement
from convexlift.reconstruction.weight_selection import (
    Weight,
    card_weight,
    discrepancy_weight,
    known_weights,
    predictive_weight,
)
from convexlift.solvers.method import Method
from convexlift.solvers.named_methods import METHODS
from convexlift.solvers.solution import Progress, Solution
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen

WeightChoice = float | Literal["card", "auto", "discrepancy"]
Watch = Callable[[Progress], None]

TRIAL_ITERATIONS = 20
"""Of each step size, where a method has some to choose from."""

SEARCH = StopWhen(gap=3e-3, max_iterations=150)
"""How accurate images are while a weight is searched."""

SEED = 7_305_118_642_907
"""Of the random numbers that split data. Noise that somebody simulated with the same seed would be
the same numbers, and the parts would not be independent: a number that nobody chooses."""

_BUFFERS = 8  # of the size of the network's layers, in the solver and the certificate
_IMAGES = 24  # of the size of images
_LARGEST_ON_A_CPU = 4  # planes: more at once are not faster there, and files are done later
_LARGEST_ON_A_GPU = 64


_SEARCH_SHARE = 0.5  # of the time limit, at most, for the search of a weight
_SHORTEST = 1e-3  # seconds: a limit that is spent still leaves one evaluation


class SearchEndedEarly(Exception):
    """Ctrl-C, or the end of its time, came while a weight was searched."""


@dataclass(frozen=True, eq=False)
class Solved:
    """Several images and their proofs, (B, ...) each."""

    x: Tensor
    objective: Tensor
    lower_bound: Tensor
    gap: Tensor
    status: tuple[str, ...]
    guarantee: tuple[str, ...]
    iterations: Tensor
    seconds: float
    gap_map: Tensor | None = None
    claim: Claim | None = None

    def part(self, rows: slice) -> Solved:
        """Some of the images."""
        return Solved(
            self.x[rows],
            self.objective[rows],
            self.lower_bound[rows],
            self.gap[rows],
            self.status[rows],
            self.guarantee[rows],
            self.iterations[rows],
            self.seconds,
            None if self.gap_map is None else self.gap_map[rows],
            None if self.claim is None else self.claim.part(rows),
        )


@dataclass(eq=False)
class Engine:
    """How statements are solved.

    Args:
        network: the regularizer, on the device.
        device: where to solve.
        stop: of each file; its seconds are for the search of a weight and all pieces together.
        method: a name in ``solvers.named_methods.METHODS``.
        weight: a number, or a rule.
        batch: images at once, or None for as many as fit.
        gap_map: whether maps of the gap are wanted.
        proof: whether proof files are wanted.
        seed: of the random numbers that split data.
        interruption: Ctrl-C.
        search: when solves stop while a weight is searched, but for the time.
    """

    network: InputConvexNetwork
    device: torch.device
    stop: StopWhen = field(default_factory=StopWhen)
    method: str = "default"
    weight: WeightChoice = "card"
    batch: int | None = None
    gap_map: bool = False
    proof: bool = False
    seed: int = SEED
    interruption: Interruption = field(default_factory=Interruption)
    search: StopWhen = SEARCH

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"there is no method {self.method!r}; choose of {', '.join(METHODS)}")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"a batch has at least 1 image, got {self.batch}")
        if isinstance(self.weight, float) and not 0 < self.weight < float("inf"):
            raise ValueError(f"a weight is a number > 0, got {self.weight:g}")

    def fitting(self, height: int, width: int) -> int:
        """How many images of this size to solve at once."""
        if self.batch is not None:
            return self.batch
        channels = sum(layer.channels for layer in _layers(self.network))
        each = 4 * height * width * (_BUFFERS * channels + _IMAGES)
        if self.device.type == "cuda":
            free, most = torch.cuda.mem_get_info(self.device)[0], _LARGEST_ON_A_GPU
        else:
            free, most = _free_memory(), _LARGEST_ON_A_CPU
        return max(1, min(most, int(free / 2) // each))

    def choose_weight(self, statement: Statement, task: str, noise: Noise | None) -> Weight:
        """By the rule that was asked for; ``auto`` where a card says nothing."""
        if isinstance(self.weight, int | float):
            return Weight(float(self.weight), "given")
        is_tv = isinstance(self.network, TotalVariation)
        known = card_weight(known_weights(self.network.card, is_tv), task, noise)
        if self.weight == "card" and known is not None:
            return Weight(known, "card")
        start = 1.0 if known is None else known
        seen: dict[float, float] = {}
        generator = torch.Generator().manual_seed(self.seed)
        # One weight serves all images, and some of them tell it as well as all of them.
        size = self.fitting(*_shape(statement)[-2:])
        some = slice(None, None, -(-len(statement.y) // size))
        there = (statement if some.step == 1 else statement.part(some)).to(self.device)
        warm: list[object] = [None]
        begin = time.perf_counter()
        limit = None if self.stop.seconds is None else _SEARCH_SHARE * self.stop.seconds

        def left() -> float | None:
            return None if limit is None else begin + limit - time.perf_counter()

        def image(of: Statement, weight: float) -> Tensor:
            seen[weight] = 0.0
            stop = _within(self.search, left())
            solution = self._solve(of.problem(self.network, weight), stop, warm[0], None)
            rest = left()
            if self.interruption.asked or (rest is not None and rest <= 0):
                raise SearchEndedEarly
            warm[0] = solution.state
            return solution.x

        try:
            if self.weight == "discrepancy":
                chosen = discrepancy_weight(there, start, image)
            else:
                chosen = predictive_weight(there, start, image, generator)
        except SearchEndedEarly:
            asked = self.interruption.asked
            note = (
                "interrupted while the weight was searched"
                if asked
                else "the time limit ended the search of the weight"
            )
            chosen = Weight(
                start, "discrepancy" if self.weight == "discrepancy" else "auto", (), note
            )
        return replace(chosen, seconds=time.perf_counter() - begin)

    def solve(
        self, statement: Statement, weight: float, watch: Watch | None = None, spent: float = 0.0
    ) -> Solved:
        """All images, in pieces that share the time; ``spent`` of it is gone already."""
        end = None if self.stop.seconds is None else time.perf_counter() + self.stop.seconds - spent
        size = self.fitting(*_shape(statement)[-2:])
        pieces: list[Solved] = []
        done = 0
        while done < len(statement.y):
            rows = slice(done, done + size)
            share = min(1.0, size / (len(statement.y) - done))
            stop = _within(self.stop, None if end is None else share * (end - time.perf_counter()))
            try:
                pieces.append(self._solve_piece(statement.part(rows), weight, stop, watch))
            except torch.cuda.OutOfMemoryError:
                if size == 1:
                    raise
                torch.cuda.empty_cache()
                size = max(1, size // 2)
                continue
            done = rows.stop
        return _together(pieces)

    def _solve_piece(
        self, statement: Statement, weight: float, stop: StopWhen, watch: Watch | None
    ) -> Solved:
        problem = statement.to(self.device).problem(self.network, weight)
        solution = self._solve(problem, stop, None, watch)
        gap_map = None
        if self.gap_map:
            gap_map = certify(self._stated(problem), solution.x, solution.duals).map.cpu()
        ended = "INTERRUPTED" if self.interruption.asked else None
        return Solved(
            solution.x.cpu(),
            solution.objective.double().cpu(),
            solution.lower_bound.double().cpu(),
            solution.gap.double().cpu(),
            tuple(
                s.name if s.name == "CONVERGED" or ended is None else ended for s in solution.status
            ),
            tuple(g.name for g in solution.guarantee),
            solution.iterations.cpu(),
            solution.seconds,
            gap_map,
            solution.proof.claim.to(device="cpu") if self.proof else None,
        )

    def proof_of(self, statement: Statement, weight: float, solved: Solved) -> Proof | None:
        """The proof of all images of a statement, if proofs are wanted."""
        if solved.claim is None:
            return None
        network = copy.deepcopy(self.network).cpu()
        stated = self._stated(statement.to(torch.device("cpu")).problem(network, weight))
        return Proof(stated, solved.claim)

    def _stated(self, problem: VariationalProblem) -> VariationalProblem:
        """Without the box, for methods that know none."""
        return problem if METHODS[self.method].bounded else replace(problem, box=None)

    def _solve(
        self, problem: VariationalProblem, stop: StopWhen, start: object, watch: Watch | None
    ) -> Solution:
        problem = self._stated(problem)
        only_evaluate = StopWhen(gap=stop.gap, max_iterations=0)
        if not self.interruption.asked:
            try:
                with self.interruption.during_a_solve():
                    begin = time.perf_counter()
                    method = self._method(problem, stop)
                    if stop.seconds is not None:
                        stop = _within(stop, begin + stop.seconds - time.perf_counter())
                    return solve(
                        problem,
                        method=method,
                        stop=stop,
                        start=start,  # type: ignore[arg-type]
                        callback=watch,
                    )
            except KeyboardInterrupt:  # before the first iteration
                self.interruption.asked = True
        return solve(problem, stop=only_evaluate)

    def _method(self, problem: VariationalProblem, stop: StopWhen) -> Method:
        """With the step sizes that do best in a few iterations, where there are some."""
        grid = METHODS[self.method].grid(problem, True)
        if len(grid) == 1:
            return grid[0]
        few = StopWhen(gap=None, max_iterations=TRIAL_ITERATIONS, check_every=TRIAL_ITERATIONS)
        few = _within(few, None if stop.seconds is None else stop.seconds / (2 * len(grid)))

        def reached(method: Method) -> float:
            value = float(solve(problem, method=method, stop=few).objective.sum())
            return value if value == value else float("inf")

        return min(grid, key=reached)


def _shape(statement: Statement) -> tuple[int, ...]:
    """Of an image."""
    return statement.measurement().operator.input_shape or tuple(statement.y.shape[1:])


def _within(stop: StopWhen, seconds: float | None) -> StopWhen:
    """The same with a time limit, if there is one."""
    return stop if seconds is None else replace(stop, seconds=max(_SHORTEST, seconds))


def _together(pieces: list[Solved]) -> Solved:
    def joined(name: str) -> Tensor:
        return torch.cat([getattr(piece, name) for piece in pieces])

    maps = None if pieces[0].gap_map is None else joined("gap_map")
    claims = [piece.claim for piece in pieces if piece.claim is not None]
    return Solved(
        joined("x"),
        joined("objective"),
        joined("lower_bound"),
        joined("gap"),
        tuple(s for piece in pieces for s in piece.status),
        tuple(g for piece in pieces for g in piece.guarantee),
        joined("iterations"),
        sum(piece.seconds for piece in pieces),
        maps,
        Claim.join(claims) if claims else None,
    )


def _layers(network: InputConvexNetwork) -> list[ConvexLayer]:
    return [layer for layer in network.layers if isinstance(layer, ConvexLayer)]


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 2**31
