"""``train``: the one training loop, for every objective.

A step is a pure function of the weights, the optimiser's state and the step's number: batch,
noise and masks are drawn from (seed, step, position). Hence a run that is killed and resumed, or
split over several processes, takes the same steps as an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.parts import require_at_least
from convexlift.training import processes
from convexlift.training.data import Batch, BatchSampler
from convexlift.training.initialization import subtract_means_
from convexlift.training.objectives import Loss, Objective
from convexlift.training.run_files import (
    Checkpoint,
    Row,
    RunLog,
    check_identity,
    identity,
    load_checkpoint,
    restore_optimiser,
    restoring,
    save_checkpoint,
)
from convexlift.training.validation import Score, Validation

CHECKPOINT = "checkpoint.pt"
VALIDATED = ("psnr", "ssim", "weight")
"""Log columns filled in by a validation."""


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the optimiser and the training loop.

    Args:
        steps: number of optimiser steps.
        learning_rate: Adam's learning rate.
        relative: multiply the learning rate of each tensor by the root mean square of its
            entries at the start, so that all tensors change by the same fraction per step.
        betas: Adam's decay rates.
        epsilon: Adam's epsilon, added to the root mean square of gradients; scales with the loss.
        schedule: ``constant``, or ``cosine`` down to zero at the end.
        decay: factor on the learning rate after each epoch.
        warm_up: steps over which the learning rate rises linearly.
        clip: largest norm of the gradient, or None.
        zero_mean: keep the filters on the image at mean zero.
        validate_every: steps between validations.
        validate_start: whether to validate the initial network.
        checkpoint_every: steps between checkpoints.
        patience: validations without improvement after which to stop, or None.
        mixed_precision: compute the loss in bfloat16 where the objective allows it.
    """

    steps: int
    learning_rate: float = 1e-3
    relative: bool = False
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    schedule: Literal["constant", "cosine"] = "constant"
    decay: float = 1.0
    warm_up: int = 0
    clip: float | None = None
    zero_mean: bool = False
    validate_every: int = 100
    validate_start: bool = True
    checkpoint_every: int = 100
    patience: int | None = None
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        every = {"validate_every": self.validate_every, "checkpoint_every": self.checkpoint_every}
        require_at_least(1, steps=self.steps, **every)
        require_at_least(0, warm_up=self.warm_up)
        for name in ("learning_rate", "epsilon", "decay", "clip"):
            value = getattr(self, name)
            if not (value is None or 0 < value < math.inf):
                raise ValueError(f"{name} must be positive, got {value}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie between 0 and 1, got {self.betas}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 or None, got {self.patience}")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"schedule must be 'constant' or 'cosine', got {self.schedule!r}")

    def rate(self, step: int, epoch: int = 0) -> float:
        """The factor on the learning rate at a step."""
        rise = min(1.0, (step + 1) / (self.warm_up + 1)) * self.decay**epoch
        if self.schedule == "constant":
            return rise
        return rise * (1 + math.cos(math.pi * step / self.steps)) / 2


@dataclass(frozen=True, eq=False)
class StepReport:
    """The state after a step, for callbacks; ``score`` is set only after a validation."""

    step: int
    steps: int
    row: Row
    score: Score | None


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a training.

    Attributes:
        network: the network with the weights of the best validation (the last ones without any).
        score: the score of the best validation, or None.
        step: number of the step of the best validation.
        rows: the log.
        interrupted: whether Ctrl-C or SIGTERM ended it before its last step; it can be resumed
            from the checkpoint.
        seconds: training time, including the time before a resumption.
    """

    network: InputConvexNetwork
    score: dict[str, float] | None
    step: int
    rows: list[Row]
    interrupted: bool
    seconds: float

    @property
    def skipped(self) -> int:
        """The number of steps that were not taken because their gradient was not ``usable``."""
        return sum(not step_taken(row) for row in self.rows)


StepCallback = Callable[[StepReport], object]


def train(
    network: InputConvexNetwork,
    objective: Objective,
    batches: BatchSampler,
    options: TrainingOptions,
    *,
    validation: Validation | None = None,
    folder: Path | None = None,
    resume: bool = False,
    callback: StepCallback | None = None,
) -> Trained:
    """Minimise the objective over the weights of the network, in place.

    Inside a process group (torchrun) every process calls it with the same arguments; batches
    are split between processes, and gradients averaged.

    Args:
        network: the network, trained on its own device and in its own precision.
        objective: the loss.
        batches: the sampler of clean images.
        options: the options of the optimiser and the schedule.
        validation: measures PSNR and SSIM at intervals; the best weights are kept.
        folder: the folder of log and checkpoint; None writes nothing.
        resume: continue from the checkpoint in the folder, if there is one.
        callback: called after each step with a ``StepReport``.
    """
    run = _TrainingRun(network, objective, batches, options, validation, folder, callback)
    if resume and folder is not None and (folder / CHECKPOINT).exists():
        run.restore(folder / CHECKPOINT)
    with processes.stop_signals() as signals, RunLog(run.files, run.columns, run.rows) as run.log:
        if run.step == 0 and validation is not None and options.validate_start:
            run.validate({"step": 0.0})
        while run.step < options.steps and not run.patience_is_over():
            row = run.advance()
            due = run.step % options.validate_every == 0 or run.step == options.steps
            if validation is not None and due:
                run.validate(row)
            else:
                run.record(row)
            signals.check()
            stopping = processes.any_process(signals.wanted, run.device)
            ending = stopping or run.step == options.steps or run.patience_is_over()
            if ending or run.step % options.checkpoint_every == 0:
                run.save()
            if stopping:
                break
    done = run.step >= options.steps or run.patience_is_over()
    return run.result(interrupted=not done)


def step_taken(row: Row) -> bool:
    """Whether a step of the log changed the weights: not if its gradient was not ``usable``."""
    return row.get("learning_rate") != 0


class _TrainingRun:
    """The state of a training between two steps."""

    log: RunLog

    def __init__(
        self,
        network: InputConvexNetwork,
        objective: Objective,
        batches: BatchSampler,
        options: TrainingOptions,
        validation: Validation | None,
        folder: Path | None,
        callback: StepCallback | None,
    ) -> None:
        if options.mixed_precision and not objective.mixed_precision_allowed:
            raise ValueError(
                f"{type(objective).__name__} needs full precision for its reconstructions; "
                "write mixed_precision=False"
            )
        self.network, self.objective, self.batches = network, objective, batches
        self.options, self.validation, self.callback = options, validation, callback
        self.device = next(network.parameters()).device
        objective.to(self.device)
        self.process = processes.this_process()
        # Images that do not fit the network or each other raise an error before any work.
        first = batches.batch(0, self.process.rank, self.process.world)
        network.require_fit(tuple(first.clean.shape[1:]))
        self.files = folder if self.process.first else None
        self.module = _LossModule(network, objective, options.mixed_precision)
        self.parallel: nn.Module = self.module
        if self.process.world > 1:
            self.parallel = DistributedDataParallel(self.module)
        self.optimiser = _adam(self.module, options)
        self.step, self.started = 0, time.perf_counter()
        self.rows: list[Row] = []
        self.best: dict[str, Any] | None = None
        self.weight: float | None = None  # the weight of the last validation
        self.columns = ("step", "loss", "learning_rate", *objective.metric_names, *VALIDATED)
        shapes = {name: str(tuple(t.shape)) for name, t in network.state_dict().items()}
        self.identity = identity(
            options=options,
            objective=objective.settings(),
            batches=batches,
            validation=validation,
            network={**shapes, "image_size": network.image_size},
        )

    def advance(self) -> Row:
        """One step of the optimiser; returns the row for the log."""
        rate = self.options.rate(self.step, self.step // self.batches.steps_per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = group["base_lr"] * rate
        batch = self.batches.batch(self.step, self.process.rank, self.process.world)
        batch = replace(batch, clean=batch.clean.to(next(self.network.parameters())))
        self.optimiser.zero_grad(set_to_none=True)
        self.objective.prepare(self.network, self.batches, self.step)
        self.parallel(batch).backward()
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        numbers = {"loss": self.module.last.value, **self.module.last.metrics}
        # DistributedDataParallel has averaged the gradients: their norm is the same everywhere.
        length, *values = processes.means([norm, *numbers.values()])
        if not math.isfinite(length):
            raise FloatingPointError(
                f"the gradient is {length} at step {self.step + 1}; "
                "lower the learning rate, or set clip=..."
            )
        if self.options.clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.options.clip, norm)
        if processes.any_process(not self.module.last.usable, self.device):
            rate = 0.0  # logged for a step that was not taken
        else:
            self.optimiser.step()
            self.network.project_()
            if self.options.zero_mean:
                subtract_means_(self.network)
        self.step += 1
        return {
            "step": float(self.step),
            "learning_rate": self.options.learning_rate * rate,
            **dict(zip(numbers, values, strict=True)),
        }

    def validate(self, row: Row) -> None:
        """Reconstruct the held-out images, and keep the weights if they are the best so far."""
        assert self.validation is not None
        score = self.validation(self.network, self.weight)
        self.weight = score.weight
        row = {**row, **score.summary()}
        self.record(row, score)
        if self.best is None or row["psnr"] > self.best["psnr"]:
            self.best = {
                **{name: row[name] for name in VALIDATED},
                "step": self.step,
                "network": _copied(self.network.state_dict()),
                "objective": _copied(dict(self.objective.named_parameters())),
                "misses": 0,
            }
        else:
            self.best["misses"] += 1

    def patience_is_over(self) -> bool:
        """Whether too many validations have passed without improvement."""
        patience = self.options.patience
        return patience is not None and self.best is not None and self.best["misses"] >= patience

    def record(self, row: Row, score: Score | None = None) -> None:
        """Add a row to the log, and call the callback."""
        self.log.add(row)
        if self.callback is not None:
            self.callback(StepReport(self.step, self.options.steps, row, score))

    def save(self) -> None:
        """Write the checkpoint, in the first process only."""
        if self.files is not None:
            checkpoint = Checkpoint(
                step=self.step,
                network=self.network.state_dict(),
                objective=self.objective.state_dict(),
                optimiser=self.optimiser.state_dict(),
                best=self.best,
                rows=self.log.rows,
                identity=self.identity,
                weight=self.weight,
                generator=torch.get_rng_state(),
                seconds=self.seconds(),
            )
            save_checkpoint(self.files / CHECKPOINT, checkpoint)

    def restore(self, path: Path) -> None:
        """Restore the state of a checkpoint."""
        checkpoint = load_checkpoint(path)
        check_identity(path, checkpoint.identity, self.identity)
        with restoring(path):
            self.network.load_state_dict(checkpoint.network)
            self.objective.load_state_dict(checkpoint.objective)
            restore_optimiser(self.optimiser, checkpoint.optimiser)
            torch.set_rng_state(checkpoint.generator)
        self.step, self.best, self.rows = checkpoint.step, checkpoint.best, checkpoint.rows
        self.weight = checkpoint.weight
        self.started = time.perf_counter() - checkpoint.seconds

    def seconds(self) -> float:
        """Training time in seconds, without pauses between interruption and resumption."""
        return time.perf_counter() - self.started

    def result(self, *, interrupted: bool) -> Trained:
        """The result, with the best weights in the network."""
        score, step = None, self.step
        if self.best is not None:
            self.network.load_state_dict(self.best["network"])
            self.objective.load_state_dict(self.best["objective"], strict=False)
            score, step = {name: self.best[name] for name in VALIDATED}, self.best["step"]
        return Trained(self.network, score, step, self.log.rows, interrupted, self.seconds())


class _LossModule(nn.Module):
    """Network and objective as one module, for DistributedDataParallel."""

    last: Loss

    def __init__(
        self, network: InputConvexNetwork, objective: Objective, mixed_precision: bool
    ) -> None:
        super().__init__()
        self.network, self.objective = network, objective
        self.mixed_precision = mixed_precision

    def forward(self, batch: Batch) -> Tensor:
        """The surrogate; the whole loss is kept in ``last``."""
        kind = batch.clean.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.mixed_precision):
            self.last = self.objective(self.network, batch)
        # Parameters that this batch does not use get a zero gradient, alike in all processes.
        unmoved = sum(p.sum() for p in self.parameters() if p.requires_grad)
        return self.last.surrogate + 0.0 * unmoved


def _adam(module: nn.Module, options: TrainingOptions) -> torch.optim.Adam:
    """Adam with a single parameter group, which is fastest, or one group for each rate."""
    parameters = [p for p in module.parameters() if p.requires_grad and p.numel()]
    members = [[p] for p in parameters] if options.relative else [parameters]
    groups = []
    for group in members:
        base = options.learning_rate * (_size(group[0]) if options.relative else 1.0)
        # Kept in the optimiser's state, since a resumed run may start from other weights.
        groups.append({"params": group, "lr": base, "base_lr": base})
    return torch.optim.Adam(groups, betas=options.betas, eps=options.epsilon)


def _size(parameter: Tensor) -> float:
    """Root mean square of the entries; 0.01 if all are zero, as in initial biases."""
    return float(parameter.detach().square().mean().sqrt()) or 0.01


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
