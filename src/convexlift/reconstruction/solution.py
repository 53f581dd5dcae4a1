"""Problems solved in pieces that fit into memory, within one time limit, with Ctrl-C handled."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from convexlift.networks.adaptive import AdaptiveNetwork
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.certificate import certify
from convexlift.problems.packed_slopes import can_be_packed
from convexlift.problems.variational import VariationalProblem
from convexlift.problems.windows import LargeProblem
from convexlift.proofs import Proof
from convexlift.reconstruction.contents import InputError
from convexlift.solvers.method import Method
from convexlift.solvers.named_methods import METHODS
from convexlift.solvers.solution import History, Progress, Solution, Status, StopWhen
from convexlift.solvers.solve import solve
from convexlift.solvers.tile_tasks import Tiles
from convexlift.solvers.tiled_iterations import least_packed
from convexlift.solvers.tiles import solve_tiles
from convexlift.tasks import Measurement
from convexlift.tensors import Blocks, join_images, select_images

Callback = Callable[[Progress], object]
"""Called at every check of the solver; return ``True`` to stop."""
TRIAL_ITERATIONS = 20
"""Iterations to try each step size, for methods with several to choose from."""

_BUFFERS = 8  # of the size of the network's layers, in the solver and the certificate
_PACKED_BUFFERS = 4  # the same where dual variables are packed (2.2 to 3.3 were measured)
_IMAGES = 24  # of the size of images
_GUIDE = 2  # channels of weights and guide for each output
_LARGEST_ON_A_CPU = 4  # planes: more at once are not faster there, and delay the first files
_LARGEST_ON_A_GPU = 64
_LARGEST_TILE_ON_A_GPU = 2048  # pixels: smaller ones do not keep it busy
SMALLEST_TILE = 128
"""The least side of a tile in pixels; smaller ones would be mostly margin."""
_SHORTEST = 1e-3  # seconds: after the limit, there is still time for one evaluation


class Interruption:
    """Whether Ctrl-C was pressed, or a callback asked to stop.

    While a solve runs, the signal raises KeyboardInterrupt, and ``solve`` returns its best iterate.
    Otherwise it is only recorded, so that a file is written completely. A second signal always
    raises KeyboardInterrupt.
    """

    status: Status | None = None
    _in_a_solve = False

    @contextlib.contextmanager
    def during_a_solve(self) -> Iterator[None]:
        """Let the signal end the block."""
        self._in_a_solve = True
        try:
            yield
        finally:
            self._in_a_solve = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[Interruption]:
        """Handle the signal in the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _note(self, kind: int, frame: object) -> None:
        again, self.status = self.status is Status.INTERRUPTED, Status.INTERRUPTED
        if again or self._in_a_solve:
            raise KeyboardInterrupt


@dataclass(eq=False)
class PiecewiseSolver:
    """A solver of problems of any number of images.

    Args:
        network: the regularizer, on the device.
        device: the device to solve on.
        stop: for each image or file; its seconds are for the weight and all pieces together.
        method: a name in ``solvers.named_methods.METHODS``.
        batch: images at once, or None for as many as fit.
        interruption: ends all iterations once it is set.
        colour: the regularizer for images of three channels, if there is one.
        tiles: the division of large images; ``auto`` depends on the memory, None means never.
    """

    network: InputConvexNetwork
    device: torch.device
    stop: StopWhen = field(default_factory=StopWhen)
    method: str = "default"
    batch: int | None = None
    interruption: Interruption = field(default_factory=Interruption)
    colour: InputConvexNetwork | None = None
    tiles: Tiles | Literal["auto"] | None = "auto"

    def network_for(self, data: Measurement) -> InputConvexNetwork:
        """The regularizer for images with as many channels as these."""
        return suited(data, self.network, self.colour)

    def fitting(self, data: Measurement) -> int:
        """The number of images of this size to solve at once."""
        if self.tiles_for(data) is not None:
            return 1
        if self.batch is not None:
            return self.batch
        most = _LARGEST_ON_A_GPU if self.device.type == "cuda" else _LARGEST_ON_A_CPU
        return max(1, min(most, int(self._free() / 2) // self._needed(data)))

    def tiles_for(self, data: Measurement, *, unpacked: bool = False) -> Tiles | None:
        """The division of images of this size; None if they are solved whole.

        ``unpacked``: all of their dual variables will be needed at once. Raises ``InputError`` for
        images that fit into memory neither whole nor in tiles.
        """
        if isinstance(self.tiles, Tiles):
            return self.tiles if max(data.image_shape[1:]) > self.tiles.size else None
        alone = self.batch in (None, 1) and not unpacked
        free, needed = self._free(), self._needed(data, alone=alone)
        if needed <= free / 2:
            return None
        network = self.network_for(data)
        obstacle = LargeProblem.obstacle(network, data.operator, 1)
        if self.method != "default":
            obstacle = "--method default"
        if self.tiles == "auto" and obstacle is None:
            side = math.sqrt(free / 4 / self._needed(data, 1)) - 2 * Tiles.overlap
            if side >= SMALLEST_TILE:
                largest = _LARGEST_TILE_ON_A_GPU if self.device.type == "cuda" else Tiles.size
                return Tiles(size=int(min(largest, side)) // 16 * 16)
        elif needed <= free:
            return None
        _, height, width = data.image_shape
        remedy = "Free memory, or make the image smaller."
        if self.tiles is None and obstacle is None:
            remedy = "Leave out --tiles off: in tiles, it takes less."
        elif obstacle is not None:
            remedy += f" Tiles, which take less, need {obstacle}."
        raise InputError(
            f"{height} x {width} pixels take about {needed / 1e9:.1f} GB here, and "
            f"{free / 1e9:.1f} GB are free. {remedy}"
        )

    def _needed(self, data: Measurement, pixels: int | None = None, *, alone: bool = False) -> int:
        """Bytes for one image of this kind; ``alone``, its dual variables may be packed."""
        planes, height, width = data.image_shape
        network, layers = self.network_for(data), self.network_for(data).layers
        channels = sum(layer.channels * layer.activation.group for layer in layers)
        pixels, buffers = pixels or height * width, _BUFFERS
        if isinstance(network, AdaptiveNetwork):  # weights for each pixel, and the guide's layers
            large = alone and pixels * channels >= least_packed(self.device)
            fits = self.method == "default" and data.operator.diagonal is not None
            # Networks with the same weights for all pixels may need steps for each channel.
            one = len(layers) == 1 and network.guide.reads_picture
            if large and fits and one and can_be_packed(layers[0].activation):
                buffers = _PACKED_BUFFERS
            channels += _GUIDE * network.guide.outputs
        return 4 * pixels * (buffers * channels + _IMAGES * planes)

    def _free(self) -> int:
        """Bytes of free memory on the device."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        return _free_memory()

    def here(self, data: Measurement) -> Measurement:
        """The data on the device; the same object, with its operator's caches, if already there."""
        there = data.fidelity.y.device.type == self.device.type
        return data if there else data.to(device=self.device)

    def solve(
        self,
        data: Measurement,
        weight: float,
        callback: Callback | None = None,
        *,
        spent: float = 0.0,
        gap_map: bool = False,
        keep_duals: bool = True,
    ) -> tuple[Solution, Tensor | None]:
        """All images, in pieces that share the time, and the map of their gap if requested.

        ``spent`` seconds of the time limit have already passed. A proof needs dual variables, which
        are as large as all layers of the network: ``keep_duals`` keeps them.
        """
        if gap_map and self.tiles_for(data, unpacked=True) is not None:
            raise InputError(
                "it is solved in tiles, and there are no gap maps of tiles; leave out --gap-map"
            )
        end = (self.stop.seconds or math.inf) + time.perf_counter() - spent
        size = self.fitting(data)
        solutions: list[Solution] = []
        maps: list[Tensor] = []
        done = 0
        while done < len(data):
            rows = slice(done, done + size)
            share = min(1.0, size / (len(data) - done))
            stop = within(self.stop, share * (end - time.perf_counter()))
            try:
                solution = self.solve_piece(data.select(rows), weight, stop, callback)
                if gap_map:
                    certificate = certify(solution.proof.problem, solution.x, solution.duals)
                    maps.append(certificate.map.cpu())
            except torch.cuda.OutOfMemoryError:
                if size == 1:
                    raise
                torch.cuda.empty_cache()
                size = max(1, size // 2)
                continue  # with the same images, in smaller pieces
            # Finished pieces must not occupy the memory that the next ones need.
            if not keep_duals or size < len(data):
                solution = _slim(solution, keep_duals, solutions[0] if solutions else solution)
            solutions.append(solution)
            done = rows.stop
        return join_solutions(solutions), torch.cat(maps) if maps else None

    def solve_piece(
        self, data: Measurement, weight: float, stop: StopWhen, callback: Callback | None
    ) -> Solution:
        """The solution of images that fit into memory, with the status of an interruption."""
        tiles = self.tiles_for(data)
        if tiles is not None:
            return self._solve_tiles(data, weight, tiles, stop, callback)
        problem = stated(self.here(data), self.network_for(data), weight, self.method)
        solution = self.solve_once(problem, stop, None, callback)
        ended = self.interruption.status
        if ended is None:
            return solution
        statuses = (s if s is Status.CONVERGED else ended for s in solution.status)
        return replace(solution, status=tuple(statuses))

    def _solve_tiles(
        self, data: Measurement, weight: float, tiles: Tiles, stop: StopWhen,
        callback: Callback | None,
    ) -> Solution:  # fmt: skip
        """One image in tiles; after Ctrl-C, the remaining tiles keep their start."""
        here, network = self.here(data), self.network_for(data)
        large = LargeProblem(
            fidelity=here.fidelity, operator=here.operator, regularizer=network, weight=weight,
            box=here.box, noise=here.noise if network.reads_data else None,
        )  # fmt: skip
        if self.interruption.status is not None:
            stop = replace(stop, max_iterations=0)
        with self.interruption.during_a_solve():
            solution = solve_tiles(large, tiles=tiles, stop=stop, callback=callback)
        for status in (Status.STOPPED, Status.INTERRUPTED):
            if status in solution.status:
                self.interruption.status = status
        return solution

    def solve_once(
        self,
        problem: VariationalProblem,
        stop: StopWhen,
        start: Any = None,
        callback: Callback | None = None,
    ) -> Solution:
        """One call of ``solve``; after an interruption, the start is only evaluated."""
        if self.interruption.status is None:
            try:
                with self.interruption.during_a_solve():
                    end = time.perf_counter() + (stop.seconds or math.inf)
                    method = self._method(problem, stop)
                    solution = solve(
                        problem,
                        method=method,
                        stop=within(stop, end - time.perf_counter()),
                        start=start,
                        callback=callback,
                    )
                for status in (Status.STOPPED, Status.INTERRUPTED):
                    if status in solution.status:
                        self.interruption.status = status
                return solution
            except KeyboardInterrupt:  # before the first iteration
                self.interruption.status = Status.INTERRUPTED
        return solve(problem, stop=StopWhen(gap=stop.gap, max_iterations=0))

    def _method(self, problem: VariationalProblem, stop: StopWhen) -> Method:
        """The method, with the step sizes that do best in a few iterations if there are several."""
        grid = METHODS[self.method].grid(problem, True)
        if len(grid) == 1:
            return grid[0]
        few = StopWhen(gap=None, max_iterations=TRIAL_ITERATIONS, check_every=TRIAL_ITERATIONS)
        few = within(few, (stop.seconds or math.inf) / (2 * len(grid)))

        def reached(method: Method) -> float:
            value = float(solve(problem, method=method, stop=few).objective.sum())
            return math.inf if math.isnan(value) else value  # ``min`` cannot compare NaN

        return min(grid, key=reached)


def suited(
    data: Measurement, network: InputConvexNetwork, colour: InputConvexNetwork | None
) -> InputConvexNetwork:
    """The regularizer for images in colour if there is one and the data are in colour."""
    return network if colour is None or colour.in_channels != data.image_shape[0] else colour


def stated(
    data: Measurement, network: InputConvexNetwork, weight: float, method: str
) -> VariationalProblem:
    """min_x D(A x, y) + weight R(x) over the box; without the box for methods that ignore it."""
    with torch.no_grad():  # else a guide keeps all of its layers
        problem = data.problem(network, weight)
    return problem if METHODS[method].bounded else replace(problem, box=None)


def within(stop: StopWhen, seconds: float) -> StopWhen:
    """The criteria with a time limit, unless it is infinite."""
    return stop if seconds == math.inf else replace(stop, seconds=max(_SHORTEST, seconds))


def select_solution(solution: Solution, images: slice, problem: VariationalProblem) -> Solution:
    """The solution of some images with their own problem, on the CPU, without a state."""
    solution = _slim(solution, keep_duals=True, first=solution)
    history = History([select_images(record, images) for record in solution.history])
    proof = Proof(problem, select_images(solution.proof.claim, images))
    return select_images(solution, images, history=history, state=None, proof=proof)


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The solutions of several pieces as one; a piece that ended keeps its last record.

    Its proof has the problem of the first piece only; ``select_solution`` inserts the whole one.
    """
    first, *others = solutions
    if not others:
        return first
    history = History()
    for i in range(max(len(each.history) for each in solutions)):
        records = [each.history[min(i, len(each.history) - 1)] for each in solutions]
        whole = join_images(records, iteration=max(record.iteration for record in records),
                            seconds=sum(record.seconds for record in records))  # fmt: skip
        history.records.append(whole)
    claim = join_images([each.proof.claim for each in solutions])
    return join_images(
        solutions, seconds=sum(each.seconds for each in solutions), history=history, state=None,
        proof=Proof(first.proof.problem, claim),
    )  # fmt: skip


def _slim(solution: Solution, keep_duals: bool, first: Solution) -> Solution:
    """The solution on the CPU without state, data and, unless ``keep_duals``, dual variables."""
    claim = solution.proof.claim
    if not keep_duals:
        claim = replace(claim, duals=Blocks({}), data_dual=None)
    claim, weights = claim.to(device="cpu"), solution.weight_map
    return replace(
        solution, x=claim.x, objective=claim.objective, lower_bound=claim.lower_bound,
        gap=claim.gap, iterations=solution.iterations.cpu(), duals=claim.duals, state=None,
        proof=Proof(first.proof.problem, claim),
        weight_map=None if weights is None else weights.cpu(),
    )  # fmt: skip


def _free_memory() -> int:
    """Bytes available to programs, including file caches, which the system gives up for them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return 2**31
