"""Bilevel learning: weights whose reconstructions are near the ground truth.

    min_theta  mean_i 1/2 ||x_i(theta) - truth_i||^2,   x_i(theta) = argmin_x J_i(x, theta)

or, where tasks of different difficulty are to count alike, the mean of the negative PSNR,
10 log10 of the mean squared errors. The paper prints y_i for the ground truth. The
regularization weight of the first task is absorbed by the network; further tasks learn theirs
relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Method
from convexlift.solvers.solve import solve
from convexlift.solvers.stopping import StopWhen
from convexlift.tasks import Task
from convexlift.tensors import expand_per_image
from convexlift.training.data import Batch
from convexlift.training.distributed import gather
from convexlift.training.hypergradients import Hypergradient, suitable_hypergradient
from convexlift.training.objectives import Loss, Objective

NO_ERROR = 1e-8
"""Mean squared errors count as this (80 dB) at least: the logarithm of none is minus infinity."""
LOWER_LEVEL = StopWhen(gap=1e-3, max_iterations=100)
"""Accurate enough for a gradient, and cheap from a warm start."""


class Bilevel(Objective):
    """The loss of bilevel learning; a step takes one of the tasks, in turn.

    Args:
        tasks: one or more, with the weights R starts with in each.
        hypergradient: how to differentiate the reconstructions; by default what suits the
            network (``suitable_hypergradient``).
        method: of the lower level; ``cl.PDHG()`` unless given.
        stop: of the lower level: the certified gap says when a reconstruction is good enough.
        warm_starts: how many training images there are, to start each from its last
            reconstruction; 0 for none. Only for batches whose samples do not change
            (``BatchSampler(..., fixed=True)``).
        decibels: minimise the mean negative PSNR instead of the mean squared error.
    """

    metric_names = ("train_psnr", "gap", "iterations")

    def __init__(
        self,
        tasks: Sequence[tuple[Task, float]],
        *,
        hypergradient: Hypergradient | None = None,
        method: Method | None = None,
        stop: StopWhen = LOWER_LEVEL,
        warm_starts: int = 0,
        decibels: bool = False,
    ) -> None:
        super().__init__()
        if not tasks:
            raise ValueError("Bilevel needs at least one task with its weight")
        for task, weight in tasks:
            if not 0 < weight < math.inf:
                raise ValueError(f"{task.name} needs a weight > 0, got {weight}")
        if warm_starts < 0:
            raise ValueError(f"warm_starts counts training images, got {warm_starts}")
        self.tasks = tuple(task for task, _ in tasks)
        self.hypergradient = hypergradient
        self.method = method
        self.stop = stop
        self.decibels = decibels
        logarithms = torch.tensor([math.log(weight) for _, weight in tasks])
        # The first task's weight stays: scaling R is as good.
        self.register_buffer("first_log_weight", logarithms[:1])
        self.other_log_weights = nn.Parameter(logarithms[1:])
        self.warm_starts = warm_starts
        self._first_weights = tuple(weight for _, weight in tasks)
        self._images: dict[int, Tensor] = {}

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each task, as learned so far; the second of a name is "name 2"."""
        found: dict[str, float] = {}
        values = self._log_weights().detach().exp().tolist()
        for i, (task, value) in enumerate(zip(self.tasks, values, strict=True)):
            number = [other.name for other in self.tasks[: i + 1]].count(task.name)
            found[task.name if number == 1 else f"{task.name} {number}"] = value
        return found

    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """Solve the lower level, then differentiate through it."""
        self._check_warm_starts(batch)
        turn = batch.step % len(self.tasks)
        task = self.tasks[turn]
        measurement = task.measure(batch.clean, batch.generators(batch.clean.device))
        weight = self._log_weights()[turn].exp()
        problem = measurement.problem(network, float(weight.detach()))
        start = self._start(turn, batch, problem)
        solution = solve(problem, method=self.method, stop=self.stop, start=start)
        self._remember(turn, batch, solution.x)
        strategy = self.hypergradient or suitable_hypergradient(network)
        surrogate = strategy.surrogate(problem, solution, batch.clean, weight)
        error = (solution.x - batch.clean).square().flatten(1).mean(1).clamp_min(NO_ERROR)
        half_squares = surrogate / batch.clean[0].numel()
        metrics = {
            "train_psnr": -10 * error.log10().mean(),
            "gap": solution.gap.mean(),
            "iterations": solution.iterations.to(torch.float64).mean(),
        }
        if self.decibels:
            chain = 20 / math.log(10) / error
            return Loss((chain * half_squares).mean(), -metrics["train_psnr"], metrics)
        return Loss(half_squares.mean(), error.mean() / 2, metrics)

    def settings(self) -> dict[str, Any]:
        """See ``Objective``."""
        names = ("tasks", "hypergradient", "method", "stop", "warm_starts", "decibels")
        return {
            **super().settings(),
            **{name: getattr(self, name) for name in names},
            "weights": self._first_weights,
        }

    def _log_weights(self) -> Tensor:
        first = self.first_log_weight
        assert isinstance(first, Tensor)
        return torch.cat([first, self.other_log_weights])

    def _check_warm_starts(self, batch: Batch) -> None:
        if not self.warm_starts:
            return
        if not batch.fixed:
            raise ValueError(
                "warm starts need samples that do not change: write BatchSampler(..., fixed=True), "
                "or Bilevel(..., warm_starts=0)"
            )
        if (last := int(batch.indices.max())) >= self.warm_starts:
            raise ValueError(
                f"image {last} of the training set has no place among {self.warm_starts} warm "
                "starts; write warm_starts=len(images)"
            )

    def _start(self, turn: int, batch: Batch, problem: VariationalProblem) -> Tensor | None:
        """The last reconstructions; images that are met for the first time start afresh."""
        images = self._images.get(turn)
        if images is None:
            return None
        last = images[batch.indices.to(images.device)].to(batch.clean)
        known = torch.isfinite(last).flatten(1).all(1)
        return torch.where(expand_per_image(known, last), last, problem.initial_image())

    def _remember(self, turn: int, batch: Batch, x: Tensor) -> None:
        if not self.warm_starts:
            return
        indices, latest = gather(batch.indices.to(x.device)), gather(x)
        if turn not in self._images:
            shape = (self.warm_starts, *x.shape[1:])
            self._images[turn] = torch.full(shape, math.nan, dtype=torch.float16, device=x.device)
        self._images[turn][indices] = latest.to(torch.float16)

    def get_extra_state(self) -> dict[str, Tensor]:
        """The warm starts, for checkpoints: without them a resumed run would differ."""
        return {str(turn): images.cpu() for turn, images in self._images.items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """See ``get_extra_state``."""
        device = self.other_log_weights.device
        self._images = {int(turn): images.to(device) for turn, images in state.items()}
