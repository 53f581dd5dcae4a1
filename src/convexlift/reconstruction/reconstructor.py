"""``cl.reconstruct``: from an image or a file to a reconstruction with its proof and record.

    image -> noise -> weight -> problem -> solution -> record

A ``Reconstructor`` has the options of one task. It prepares images (reads them, estimates their
noise, chooses the weight) and solves what it prepared.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from convexlift.models.files import sheet
from convexlift.models.store import load
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.variational import VariationalProblem
from convexlift.reconstruction.contents import ImageLike, InputError, is_path
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.result import PreparedImage, Reconstruction, record_of
from convexlift.reconstruction.solution import Callback, PiecewiseSolver, select_solution, stated
from convexlift.reconstruction.sources import Source
from convexlift.reconstruction.weight import (
    SEARCH,
    Weight,
    WeightChoice,
    checked_weight,
    choose_weight,
)
from convexlift.solvers.named_methods import METHODS
from convexlift.solvers.solution import StopWhen
from convexlift.tasks import Bounds, Measurement

MethodName = Literal["default", "paper", "nmapg", "lbfgs", "sm-c", "sm-d"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstructor(ABC):
    """Options of all tasks; the command line has them as well.

    Args:
        regularizer: a name (convexlift models), the path of a saved one, or ``tv``.
        weight: a number, or a rule. ``card``: of the regularizer's card, scaled to the noise.
            ``auto``: chosen by prediction of held-out data. ``discrepancy``: whose residual is as
            large as the noise.
        strength: a factor of that weight.
        tolerance: certified relative gap to stop at.
        time_limit: seconds for each file, or batch of files: half of them at most for its weight.
        max_iterations: iterations for each file.
        check_every: iterations between two checks, at which ``progress`` is called.
        method: how to solve; those with step sizes try some for a few iterations.
        device: where to compute; ``auto`` takes a GPU if there is one.
        batch: images of one size solved at once: ``auto``, as many as fit, or a number.
        gap_map: whether to compute where the gap is.
        box: bounds on the image, on the scale of the regularizer, in place of the task's own.
        truth: the clean image, or a folder of them with the inputs' names; gives PSNR.
        max_megapixels: largest file to read, in millions of numbers over all pages and channels;
            unless given, 500, and less for short files, which cannot hold so many.
    """

    regularizer: str | os.PathLike[str] | InputConvexNetwork = "photo-any-size"
    weight: WeightChoice | None = "card"
    strength: float = 1.0
    tolerance: float = 1e-3
    time_limit: float | None = None
    max_iterations: int = 2000
    check_every: int = 10
    method: MethodName = "default"
    device: str | torch.device = "auto"
    batch: int | Literal["auto"] = "auto"
    gap_map: bool = False
    box: Bounds | None = None
    truth: ImageLike | None = None
    max_megapixels: float | None = None

    task: ClassVar[str]
    positive: ClassVar[tuple[str, ...]] = ("strength", "max_megapixels")
    search: ClassVar[StopWhen] = SEARCH
    quiet: ClassVar[tuple[str, ...]] = ("batch", "gap_map", "max_megapixels")
    """Options that records leave out: results do not depend on them."""
    python_only: ClassVar[tuple[str, ...]] = ("strength", "check_every", "box")
    """Options that the command line does not have; records leave out their defaults."""

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:
            raise InputError(
                f"--tolerance is a relative gap from 0 on, such as 1e-3, got {self.tolerance:g}"
            )
        if self.max_iterations < 0:
            raise InputError(
                f"--max-iterations is a whole number from 0 on, got {self.max_iterations}"
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(
                f"--time-limit is a number of seconds > 0, got {self.time_limit:g}; leave it out "
                "for none"
            )
        if self.method not in METHODS:
            raise InputError(
                f"there is no method {self.method!r}; choose one of {', '.join(METHODS)}"
            )
        if self.batch != "auto" and not (isinstance(self.batch, int) and self.batch >= 1):
            raise InputError(f"--batch is auto or a whole number from 1 on, got {self.batch}")
        if self.weight is not None:
            object.__setattr__(self, "weight", checked_weight(self.weight))
        for name in self.positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"--{name.replace('_', '-')} is a number > 0, got {value:g}")
        if is_path(self.truth) and not Path(self.truth).exists():
            raise InputError(f"there is no truth {self.truth}; check the name")

    @abstractmethod
    def prepare(
        self, image: Any, solver: PiecewiseSolver | None = None, target: Path | None = None
    ) -> PreparedImage:
        """Read an image, estimate its noise, and choose a weight.

        Args:
            image: as ``cl.reconstruct`` takes it.
            solver: to search the weight with.
            target: the file of the result, if there is one: it must be able to hold it.
        """

    @abstractmethod
    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """Files besides these images that are read for them."""

    @abstractmethod
    def check(self, sources: Sequence[Source]) -> None:
        """Raise ``InputError`` for what is wrong with a whole run, as far as it is cheap to see.

        Files that are broken are none of that: they fail on their own.
        """

    def solver(self) -> PiecewiseSolver:
        """The solver of these options, with the network on its device."""
        stop = StopWhen(
            gap=self.tolerance, max_iterations=self.max_iterations, seconds=self.time_limit,
            check_every=self.check_every,
        )  # fmt: skip
        batch = None if self.batch == "auto" else self.batch
        network = copy.deepcopy(self.network).to(self.place)
        return PiecewiseSolver(network, self.place, stop, self.method, batch)

    def solve(
        self,
        images: Sequence[PreparedImage],
        solver: PiecewiseSolver | None = None,
        progress: Callback | None = None,
        *,
        keep_duals: bool = True,
    ) -> list[Reconstruction]:
        """Solve prepared images, of which each is ``joinable`` to the first.

        Args:
            images: one, or several to be solved as one batch.
            solver: of these options.
            progress: called at every check; return ``True`` to stop with the best images so far.
            keep_duals: whether to keep dual variables, which the proof needs.
        """
        solver = self.solver() if solver is None else solver
        first = images[0]
        data = Measurement.join([image.data for image in images])
        solution, gap_map = solver.solve(
            data, first.weight.value, progress, gap_map=self.gap_map, keep_duals=keep_duals,
            spent=max(image.weight.seconds for image in images),
        )  # fmt: skip
        found, begin = [], 0
        settings = self.settings() | {"files_at_once": len(images)}
        for image in images:
            rows = slice(begin, begin + len(image.data))
            begin = rows.stop
            own = solution
            if solution.proof.problem.batch_size < len(data) or len(images) > 1:
                problem = self.problem(image) if keep_duals else solution.proof.problem
                own = select_solution(solution, rows, problem)
            own_map = None if gap_map is None else gap_map[rows]
            found.append(
                Reconstruction(
                    **vars(image), x=image.restored(own.x.cpu()), solution=own, gap_map=own_map,
                    record=record_of(image, own, settings),
                )
            )  # fmt: skip
        return found

    def problem(self, image: PreparedImage) -> VariationalProblem:
        """The problem of a prepared image, on the CPU."""
        return stated(image.data, self.network, image.weight.value, self.method)

    def settings(self) -> dict[str, Any]:
        """The options as plain values: those of the command line, and others that were given."""
        given: dict[str, Any] = {"task": self.task, "sha256": self.sha256, "time_limit": None}
        for option in fields(self):
            value = getattr(self, option.name)
            unused = option.name in self.python_only and value == option.default
            if option.name not in self.quiet and value is not None and not unused:
                given[option.name] = _plain(value)
        given |= {"weight": str(self.rule).removesuffix(".0"), "device": str(self.place)}
        return given | {"version": sys.modules["convexlift"].__version__}  # set after imports

    @property
    def rule(self) -> WeightChoice:
        """The weight, or the rule that chooses it."""
        return "card" if self.weight is None else self.weight

    @cached_property
    def place(self) -> torch.device:
        """The device."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            torch.zeros(0, device=self.device)
            return torch.device(self.device)
        except (RuntimeError, AssertionError):
            raise InputError(
                f"there is no device {str(self.device)!r} here; use --device cpu or auto"
            ) from None

    @cached_property
    def network(self) -> InputConvexNetwork:
        """The regularizer, on the CPU."""
        if isinstance(self.regularizer, InputConvexNetwork):
            return copy.deepcopy(self.regularizer).to(device="cpu", dtype=torch.float32)
        return TotalVariation() if self.regularizer == "tv" else load(self.regularizer)

    @cached_property
    def sha256(self) -> str | None:
        """The digest of the weights, if the regularizer has a file."""
        if self.regularizer == "tv" or isinstance(self.regularizer, InputConvexNetwork):
            return None
        return sheet(self.regularizer).sha256

    def choose_weight(
        self, data: Measurement, task: str, noise: Noise | None, solver: PiecewiseSolver
    ) -> Weight:
        """By the rule, times the strength."""
        chosen = choose_weight(self.rule, data, task, noise, solver, self.search)
        return replace(chosen, value=self.strength * chosen.value)


def _plain(value: Any) -> Any:
    """An option as JSON has it."""
    if isinstance(value, Tensor | np.ndarray):
        return f"array of shape {tuple(value.shape)}"
    if isinstance(value, InputConvexNetwork):
        return type(value).__name__
    plain = isinstance(value, bool | int | float | str | tuple | list)
    return value if plain else str(value)
