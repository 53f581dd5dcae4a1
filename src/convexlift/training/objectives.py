"""Training losses: adversarial regularization and bilevel learning.

**Adversarial regularization** trains a critic that tells clean images from damaged ones,

    mean R(clean) - mean R(damaged) + penalty E[(||grad R|| - 1)_+^2]        (eq. AR_loss)

with the gradient taken on lines between clean and damaged images. The damaged images are made from
the data as A^+ y (Lunz et al. 2018; Mukherjee et al. 2020 with convex networks).

**Bilevel learning** finds weights whose reconstructions are near the ground truth,

    min_theta  mean_i 1/2 ||x_i(theta) - truth_i||^2,   x_i(theta) = argmin_x J_i(x, theta)

or minimises the mean negative PSNR, 10 log10 of the mean squared errors, so that tasks of different
difficulty have equal influence. The paper prints y_i for the ground truth. The network absorbs the
regularization weight of the first task; the weights of further tasks are learned relative to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from convexlift.networks.bound_network import gradient, steepness
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.solvers.hypergradients import (
    Hypergradient,
    JacobianFree,
    suitable_hypergradient,
)
from convexlift.solvers.loop import solve_roughly
from convexlift.solvers.method import Method
from convexlift.solvers.solution import StopWhen
from convexlift.tasks import Task
from convexlift.tensors import expand_per_image
from convexlift.training.data import Batch, BatchSampler
from convexlift.training.image_sets import ImageSet
from convexlift.training.processes import gather

NO_ERROR = 1e-8
"""Lower limit on the mean squared error (80 dB), since the logarithm of 0 is infinite."""
LOWER_LEVEL = StopWhen(gap=1e-3, max_iterations=100)
"""Accurate enough for a gradient, and cheap from a warm start."""
STEEPNESS_EVERY = 5
"""Steps between the authors' measurements of ||grad R||."""


@dataclass(frozen=True, eq=False)
class Loss:
    """A number to differentiate, and numbers to show.

    ``value`` is the loss to report; ``backward`` is called on ``surrogate``, whose gradient is the
    gradient of the loss. They are equal unless reconstructions are differentiated. If the gradient
    is not ``usable``, this is reported and no step is taken.
    """

    surrogate: Tensor
    value: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    usable: bool = True


class Objective(nn.Module, ABC):
    """The loss of a network on a batch of clean images.

    Parameters and buffers of an objective (such as learned weights or warm starts) are trained
    and checkpointed with the network.

    Attributes:
        mixed_precision_allowed: whether it may be computed in bfloat16.
        metric_names: keys of ``Loss.metrics``.
        setting_names: the attributes that must be equal when a run is resumed.
    """

    mixed_precision_allowed: bool = False
    metric_names: tuple[str, ...] = ()
    setting_names: tuple[str, ...] = ()

    def prepare(self, network: InputConvexNetwork, batches: BatchSampler, step: int) -> None:
        """Called before each step."""

    @abstractmethod
    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """The loss; ``batch.clean`` is on the network's device."""

    def settings(self) -> dict[str, Any]:
        """Class and arguments by name: a run can be resumed only with equal settings."""
        kind = {"kind": type(self).__name__}
        return kind | {name: getattr(self, name) for name in self.setting_names}


class Adversarial(Objective):
    """The loss of adversarial regularization.

    Args:
        task: makes damaged images from clean ones; None if they are given.
        penalty: lambda_GP.
        paired: whether a line joins a clean image to its own damaged version, or to another
            image's.
        damaged: images that replace the task's, one for each training image and of its size, for
            batches of whole images that are not mirrored.
    """

    mixed_precision_allowed = True
    metric_names = ("distance", "steepness")
    setting_names = ("task", "penalty", "paired", "damaged")

    def __init__(
        self, task: Task | None, penalty: float = 5.0, *, paired: bool = True,
        damaged: ImageSet | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if (task is None) == (damaged is None):
            raise ValueError("Adversarial needs a task that damages images, or damaged images")
        if not 0 <= penalty < math.inf:
            raise ValueError(f"Adversarial needs penalty >= 0, got {penalty}")
        self.task, self.penalty, self.paired, self.damaged = task, penalty, paired, damaged

    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """Eq. AR_loss, with the distance and the mean slope as metrics."""
        clean = batch.clean
        damaged = self._damage(batch)
        partner = damaged if self.paired else _previous(damaged, batch)
        places = [
            torch.rand((), generator=generator, device=clean.device)
            # Positions on the lines are new in every epoch, even if the noise is not.
            for generator in replace(batch, fixed=False).generators(clean.device, stream=1)
        ]
        s = expand_per_image(torch.stack(places), clean)
        between = s * clean + (1 - s) * partner

        slope = gradient(network.bind(tuple(clean.shape[1:]), detach=False), between)
        steepness = slope.flatten(1).norm(dim=1)
        excess = (steepness - 1).clamp_min(0).square().mean()
        on_damaged, on_clean = network(torch.cat([damaged, clean])).chunk(2)
        distance = (on_damaged - on_clean).mean()
        loss = self.penalty * excess - distance
        metrics = {"distance": distance.detach(), "steepness": steepness.detach().mean()}
        return Loss(loss, loss.detach(), metrics)

    def _damage(self, batch: Batch) -> Tensor:
        clean = batch.clean
        if self.task is not None:
            return self.task.measure(clean, batch.generators(clean.device)).picture
        assert self.damaged is not None
        if (last := int(batch.indices.max())) >= len(self.damaged):
            raise ValueError(
                f"image {last} of the training set has no damaged version: there are "
                f"{len(self.damaged)}; give one for each, in the same order"
            )
        pictures = torch.stack([self.damaged[i] for i in batch.indices.tolist()]).to(clean)
        if pictures.shape != clean.shape:
            raise ValueError(
                f"damaged images of {tuple(pictures.shape[1:])} do not match clean ones of "
                f"{tuple(clean.shape[1:])}"
            )
        return pictures


def _previous(damaged: Tensor, batch: Batch) -> Tensor:
    """The damaged image one position earlier in the batch of all processes together."""
    everyone, places = gather(damaged), gather(batch.positions.to(damaged.device))
    in_order = everyone[places.argsort()]
    return in_order[(batch.positions.to(damaged.device) - 1) % len(in_order)]


class Bilevel(Objective):
    """The loss of bilevel learning; steps take the tasks in turn.

    Args:
        tasks: one or more, each with its initial weight for R.
        turns: the numbers of the tasks in the order of the steps, repeated; by default one task
            after the other.
        learn_weights: whether the weights of further tasks are learned, or keep their values.
        hypergradient: the derivative of the reconstructions; by default
            ``suitable_hypergradient(problem)``.
        method: the method of the lower level; by default the one that suits the problem.
        stop: the stopping criterion of the lower level.
        warm_starts: number of training images, to start each from its last reconstruction; 0 for
            none. Only for batches whose samples do not change (``BatchSampler(..., fixed=True)``).
        decibels: minimise the mean negative PSNR instead of the mean squared error.
        strict: take no step from a batch in which an image missed the gap of ``stop``: the formulas
            of hypergradients hold at solutions only.
        from_picture: start at the data as an image, instead of at a better guess.
    """

    metric_names = ("train_psnr", "gap", "iterations")
    setting_names = (
        "tasks", "hypergradient", "method", "stop", "warm_starts", "decibels", "strict", "turns",
        "learn_weights", "from_picture",
    )  # fmt: skip

    def __init__(
        self,
        tasks: Sequence[tuple[Task, float]],
        *,
        turns: Sequence[int] | None = None,
        learn_weights: bool = True,
        hypergradient: Hypergradient | None = None,
        method: Method | None = None,
        stop: StopWhen = LOWER_LEVEL,
        warm_starts: int = 0,
        decibels: bool = False,
        strict: bool = False,
        from_picture: bool = False,
    ) -> None:
        super().__init__()
        if not tasks:
            raise ValueError("Bilevel needs at least one task with its weight")
        for task, weight in tasks:
            if not 0 < weight < math.inf:
                raise ValueError(f"{task.name} needs a weight > 0, got {weight}")
        if warm_starts < 0:
            raise ValueError(f"warm_starts must be a number of training images, got {warm_starts}")
        self.tasks = tuple(task for task, _ in tasks)
        self.turns = tuple(range(len(tasks)) if turns is None else turns)
        if set(self.turns) != set(range(len(tasks))):
            raise ValueError(
                f"turns must contain every number from 0 to {len(tasks) - 1}, got {self.turns}"
            )
        self.learn_weights = learn_weights
        self.hypergradient, self.method, self.stop = hypergradient, method, stop
        self.decibels, self.warm_starts, self.strict = decibels, warm_starts, strict
        self.from_picture = from_picture
        # Logarithms keep the weights positive, whatever step the optimiser takes.
        logarithms = torch.tensor([math.log(weight) for _, weight in tasks])
        # The first task's weight is fixed: scaling R has the same effect.
        self.register_buffer("first_log_weight", logarithms[:1])
        self.other_log_weights = nn.Parameter(logarithms[1:], requires_grad=learn_weights)
        self._first_weights = tuple(weight for _, weight in tasks)
        self._images: dict[int, Tensor] = {}
        self._steepness: float | None = None

    def prepare(self, network: InputConvexNetwork, batches: BatchSampler, step: int) -> None:
        """Measure the largest ||grad R|| of a batch every fifth step, if hypergradients need it."""
        if self.hypergradient != JacobianFree(None) or (self._steepness and step % STEEPNESS_EVERY):
            return
        bound = network.bind(tuple(batches.batch(0).clean.shape[1:]))
        self._steepness = max(
            steepness(bound, batches.batch(k).clean.to(network.output))
            for k in range(batches.steps_per_epoch)
        )
        if not self._steepness:
            raise FloatingPointError(
                f"R is flat at all training images before step {step + 1}, and the step size "
                "1 / ||grad R|| infinite; take another seed, or JacobianFree(step=1.0)"
            )

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each task, as learned so far; a second task of one name is "name 2"."""
        found: dict[str, float] = {}
        values = self._log_weights().detach().exp().tolist()
        for i, (task, value) in enumerate(zip(self.tasks, values, strict=True)):
            number = [other.name for other in self.tasks[: i + 1]].count(task.name)
            found[task.name if number == 1 else f"{task.name} {number}"] = value
        return found

    def forward(self, network: InputConvexNetwork, batch: Batch) -> Loss:
        """Solve the lower level, then differentiate through it."""
        self._check_warm_starts(batch)
        turn = self.turns[batch.step % len(self.turns)]
        task = self.tasks[turn]
        measurement = task.measure(batch.clean, batch.generators(batch.clean.device))
        weight = self._log_weights()[turn].exp()
        problem = measurement.problem(network, weight)
        first = measurement.picture if self.from_picture else problem.initial_image()
        start = self._start(turn, batch, first)
        solution = solve_roughly(problem, method=self.method, stop=self.stop, start=start)
        self._remember(turn, batch, solution.x)
        strategy = self.hypergradient or suitable_hypergradient(problem)
        if isinstance(strategy, JacobianFree) and strategy.step is None and self._steepness:
            strategy = JacobianFree(1 / self._steepness)
        surrogate = strategy.surrogate(problem, solution, batch.clean)
        error = (solution.x - batch.clean).square().flatten(1).mean(1).clamp_min(NO_ERROR)
        half_squares = surrogate / batch.clean[0].numel()
        metrics = {
            "train_psnr": -10 * error.log10().mean(),
            "gap": solution.gap.mean(),
            "iterations": solution.iterations.to(torch.float64).mean(),
        }
        solved = self.stop.gap is None or bool((solution.gap <= self.stop.gap).all())
        usable = solved or not self.strict
        if self.decibels:
            chain = 20 / math.log(10) / error  # derivative of 10 log10(error) in error / 2
            return Loss((chain * half_squares).mean(), -metrics["train_psnr"], metrics, usable)
        return Loss(half_squares.mean(), error.mean() / 2, metrics, usable)

    def settings(self) -> dict[str, Any]:
        """The settings of every objective, and the initial weights of the tasks."""
        return super().settings() | {"weights": self._first_weights}

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

    def _start(self, turn: int, batch: Batch, first: Tensor) -> Tensor:
        """The last reconstructions, or ``first`` for images without one."""
        images = self._images.get(turn)
        if images is None:
            return first
        last = images[batch.indices.to(images.device)].to(batch.clean)
        known = torch.isfinite(last).flatten(1).all(1)
        return torch.where(expand_per_image(known, last), last, first)

    def _remember(self, turn: int, batch: Batch, x: Tensor) -> None:
        if not self.warm_starts:
            return
        indices, latest = gather(batch.indices.to(x.device)), gather(x)
        if turn not in self._images:
            shape = (self.warm_starts, *x.shape[1:])
            # Half precision: a start need not be accurate, and all images stay in memory.
            self._images[turn] = torch.full(shape, math.nan, dtype=torch.float16, device=x.device)
        self._images[turn][indices] = latest.to(torch.float16)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Warm starts and steepness, for checkpoints: without them a resumed run would differ."""
        state = {str(turn): images.cpu() for turn, images in self._images.items()}
        if self._steepness is not None:
            state["steepness"] = torch.tensor(self._steepness, dtype=torch.float64)
        return state

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        state = dict(state)
        self._steepness = float(state.pop("steepness")) if "steepness" in state else None
        device = self.other_log_weights.device
        self._images = {int(turn): images.to(device) for turn, images in state.items()}
