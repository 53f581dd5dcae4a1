"""Options of the tasks, prepared images, and reconstructions with their proof and record.

    image -> noise -> weight -> problem -> solution -> record

A ``Reconstructor`` has the options of one task. It prepares images (reads them, estimates their
noise, chooses the weight) and solves the prepared ones.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from convexlift.descriptions import Described, Description
from convexlift.images import psnr, ssim
from convexlift.json_values import finite
from convexlift.models.files import names, pair, sheet
from convexlift.models.store import load
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.problems.claims import Guarantee, in_words, relative_gap
from convexlift.problems.variational import VariationalProblem
from convexlift.reconstruction import weight as weights
from convexlift.reconstruction.contents import PICTURES, InputError, is_path
from convexlift.reconstruction.noise import Noise
from convexlift.reconstruction.options import Options
from convexlift.reconstruction.solution import (
    Callback,
    PiecewiseSolver,
    select_solution,
    stated,
    suited,
)
from convexlift.reconstruction.sources import Source
from convexlift.reconstruction.weight import Weight, WeightChoice
from convexlift.solvers.named_methods import METHODS
from convexlift.solvers.solution import Solution, StopWhen
from convexlift.tasks import Measurement


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstructor(Options, ABC):
    """Prepares and solves images with the options of a task."""

    positive: ClassVar[tuple[str, ...]] = ("strength",)
    search: ClassVar[StopWhen] = weights.SEARCH
    quiet: ClassVar[tuple[str, ...]] = ("batch", "gap_map", "weight_map")
    """Options that records leave out: results do not depend on them."""
    division: ClassVar[Any] = "auto"
    """The division of large images; see ``PiecewiseSolver``."""
    suffixes: ClassVar[Any] = PICTURES  # endings of inputs

    def __post_init__(self) -> None:
        self.require("tolerance", self.tolerance >= 0, "a relative gap from 0 on, such as 1e-3")
        self.require("max_iterations", self.max_iterations >= 0, "a whole number from 0 on")
        limited = self.time_limit is None or self.time_limit > 0
        self.require("time_limit", limited, "a number of seconds > 0", "; leave it out for none")
        counted = isinstance(self.batch, int) and self.batch >= 1
        self.require("batch", self.batch == "auto" or counted, "auto or a whole number from 1 on")
        for name in self.positive:
            value, default = getattr(self, name), getattr(type(self), name)
            number = isinstance(value, Real | Tensor | np.ndarray) and not isinstance(value, bool)
            fine = bool(0 < value < math.inf) if number else value is None is default
            self.require(name, fine, "a number > 0", " (text)" * isinstance(value, str))
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise InputError(f"there is no method {self.method!r}; choose one of {known}")
        if self.weight is not None:
            object.__setattr__(self, "weight", weights.checked_weight(self.weight))
        if isinstance(self.weight, float) and self.strength != 1:
            raise InputError(
                "--strength multiplies the weight that a rule finds, and --weight states it: leave "
                f"out --strength and write --weight {self.weight * self.strength:g}, or leave out "
                "--weight"
            )
        if is_path(self.truth) and not Path(self.truth).exists():
            raise InputError(f"there is no truth {self.truth}; check the name")

    def require(self, option: str, holds: bool, wanted: str, advice: str = "") -> None:
        """Raise ``InputError`` with the value of an option unless it ``holds``."""
        if not holds:
            value = getattr(self, option)
            shown = f"{value:g}" if isinstance(value, float) else value
            raise InputError(f"--{option.replace('_', '-')} is {wanted}, got {shown}{advice}")

    @abstractmethod
    def prepare(
        self, image: Any, solver: PiecewiseSolver | None = None, target: Path | None = None
    ) -> PreparedImage:
        """Read an image, estimate its noise, and choose a weight, which the solver may search.

        Raises ``InputError`` if the file ``target`` could not hold the result.
        """

    @abstractmethod
    def reads(self, paths: Sequence[Path]) -> list[Path]:
        """Files that are read in addition to these images."""

    @abstractmethod
    def check(self, sources: Sequence[Source]) -> None:
        """Raise ``InputError`` for options that cannot work, as far as that is cheap to see.

        Broken files are not reported here: in a run, each fails on its own.
        """

    def solver(self) -> PiecewiseSolver:
        """The solver of these options, with the network on its device."""
        stop = StopWhen(gap=self.tolerance, max_iterations=self.max_iterations,
                        seconds=self.time_limit, check_every=self.check_every)  # fmt: skip
        batch = None if self.batch == "auto" else self.batch
        network, colour = copy.deepcopy((self.network, self.colour))
        for each in filter(None, (network, colour)):
            each.to(self.place)
        return PiecewiseSolver(network, self.place, stop, self.method, batch,
                               colour=colour, tiles=self.division)  # fmt: skip

    def solve(
        self,
        images: Sequence[PreparedImage],
        solver: PiecewiseSolver | None = None,
        progress: Callback | None = None,
        *,
        keep_duals: bool = True,
    ) -> list[Reconstruction]:
        """Solve prepared images as one batch; each must be ``joinable`` to the first.

        ``progress`` is called at every check; it returns ``True`` to stop with the best images so
        far. The proof needs the dual variables, which ``keep_duals`` keeps.
        """
        solver = self.solver() if solver is None else solver
        first = images[0]
        data = Measurement.join([image.data for image in images])
        solution, gap_map = solver.solve(
            data, first.weight.value, progress, gap_map=self.gap_map, keep_duals=keep_duals,
            spent=max(image.weight.seconds for image in images),
        )  # fmt: skip
        found, begin = [], 0
        settings = self.settings()
        for image in images:
            rows = slice(begin, begin + len(image.data))
            begin = rows.stop
            own = solution
            # The proof of several pieces has the first piece's problem, of a batch that of all.
            if solution.proof.problem.batch_size < len(data) or len(images) > 1:
                problem = self.problem(image) if keep_duals else solution.proof.problem
                own = select_solution(solution, rows, problem)
            found.append(Reconstruction(
                **vars(image), x=image.restored(own.x.cpu()), solution=own,
                gap_map=None if gap_map is None else gap_map[rows],
                record=record_of(image, own, settings) | {"files_at_once": len(images)},
            ))  # fmt: skip
        return found

    def problem(self, image: PreparedImage) -> VariationalProblem:
        """The problem of a prepared image, on the CPU."""
        network = suited(image.data, self.network, self.colour)
        return stated(image.data, network, image.weight.value, self.method)

    def settings(self) -> dict[str, Any]:
        """All options of the command line, and others that were given, as plain values."""
        given: dict[str, Any] = {"task": self.task, "sha256": self.sha256, "time_limit": None}
        for option in fields(self):
            value = getattr(self, option.name)
            unused = option.name in self.python_only and value == option.default
            if option.name not in self.quiet and value is not None and not unused:
                given[option.name] = _plain(value)
        given |= {"weight": str(self.rule).removesuffix(".0"), "device": str(self.place)}
        if self._twin is not None:
            given["sha256_colour"] = sheet(self._twin).sha256
        return given

    @property
    def saved(self) -> list[Path]:
        """The files of a regularizer that the user saved."""
        given = self.regularizer
        return [file for file in pair(given) if file.is_file()] if is_path(given) else []

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
            network = copy.deepcopy(self.regularizer)
        else:
            network = TotalVariation() if self.regularizer == "tv" else load(self.regularizer)
        if self.weight_map and "output" not in getattr(network, "reads", ()):
            raise InputError(
                f"--weight-map shows the weights that a regularizer reads off the data, and "
                f"{_plain(self.regularizer)} does not read them; leave it out"
            )
        return network.to(device="cpu", dtype=torch.float32)

    @cached_property
    def colour(self) -> InputConvexNetwork | None:
        """The regularizer for pictures in colour: itself, or the shipped one called NAME-colour."""
        if self.network.in_channels == 3:
            return self.network
        return None if self._twin is None else load(self._twin)

    @property
    def _twin(self) -> str | None:
        """The shipped regularizer for pictures in colour that belongs to one for grey pictures."""
        twin = f"{self.regularizer}-colour"
        return twin if isinstance(self.regularizer, str) and twin in names() else None

    @cached_property
    def sha256(self) -> str | None:
        """The digest of the weights: of the regularizer's file, or of a network given in Python."""
        if isinstance(self.regularizer, InputConvexNetwork):
            tensors = self.network.state_dict().values()
            return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()
        if self.regularizer == "tv":
            return None
        return sheet(self.regularizer).sha256

    def choose_weight(
        self, data: Measurement, task: str, noise: Noise | None, solver: PiecewiseSolver
    ) -> Weight:
        """The weight by the rule, times the strength."""
        chosen = weights.choose_weight(self.rule, data, task, noise, solver, self.search)
        return replace(chosen, value=float(self.strength) * chosen.value)


def _plain(value: Any) -> Any:
    """An option as a JSON value."""
    if isinstance(value, Tensor | np.ndarray):
        return f"array of shape {tuple(value.shape)}"
    if isinstance(value, InputConvexNetwork):
        return type(value).__name__
    plain = isinstance(value, bool | int | float | str | tuple | list)
    return value if plain else str(value)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedImage:
    """An image or a scan, ready to be solved.

    Attributes:
        name: the name of the file, or "the image".
        data: data term, operator and bounds.
        weight: the weight of the regularizer, and its origin.
        noise: estimated or given; None for scans whose rays differ in their noise.
        restored: maps planes of the solution to the numbers and the shape of the input.
        write: writes planes of the solution to a file.
        compared: maps planes of the solution to those of the truth.
        given: the data as planes, to compare with; None for a measured sinogram.
        truth: the clean planes, (planes, 1, H, W), if they are known.
        about: further facts for the record.
        notes: remarks for the user.
    """

    name: str
    data: Measurement = field(repr=False)
    weight: Weight
    noise: Noise | None
    restored: Callable[[Tensor], Tensor] = field(repr=False)
    write: Callable[[Tensor, Path], None] = field(repr=False)
    compared: Callable[[Tensor], Tensor] = field(default=lambda x: x, repr=False)
    given: Tensor | None = field(default=None, repr=False)
    truth: Tensor | None = field(default=None, repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def joinable(self, other: PreparedImage) -> bool:
        """Whether both can be solved as one batch."""
        alike = self.weight.value == other.weight.value and self.data.noise == other.data.noise
        return alike and self.data.joinable(other.data)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reconstruction(Described, PreparedImage):
    """A reconstructed image with its proof, and the attributes of its ``PreparedImage``.

    Attributes:
        x: the image, in the numbers and the shape of the input. For a file: (H, W), or (planes, H,
            W) for colours and pages; CT in HU if pixels have a size in mm.
        solution: objective, lower bound, gap, status, history, dual variables and ``proof`` of
            every plane; its ``x`` are the planes (planes, 1, H, W) on the scale of the regularizer.
        gap_map: the part of every pixel in the gap, (planes, 1, H, W), if requested.
        record: everything as plain values: ``convexlift reconstruct --json`` writes the same.
    """

    x: Tensor
    solution: Solution
    gap_map: Tensor | None = None
    record: dict[str, Any]

    @property
    def weight_map(self) -> Tensor | None:
        """The strength of smoothing at each pixel, (planes, 1, H, W); see ``cl.Solution``."""
        return self.solution.weight_map

    @property
    def problem(self) -> VariationalProblem:
        """The problem that was solved."""
        return self.solution.proof.problem

    def _description(self, *, figures: bool) -> Description:
        found = self.solution._description(figures=figures)
        facts = {} if self.noise is None else {"noise": str(self.noise)}
        facts |= {"weight": f"{self.weight.value:.3g}", **found.facts}
        return replace(found, title=self.name + found.title.removeprefix("Solution"), facts=facts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the image, atomically: a file like the input, in the format of the name's ending.

        Arrays become NPY or TIFF; files keep bit depth, alpha channel and metadata.
        """
        self.write(self.solution.x, Path(path))
        return Path(path)


def version() -> str:
    """The version of the package, which is set after its modules are imported."""
    number: str = sys.modules["convexlift"].__version__
    return number


def record_of(
    prepared: PreparedImage, solution: Solution, settings: dict[str, Any]
) -> dict[str, Any]:
    """Objective, bound and gap of the image and of each of its planes, with all settings.

    Planes are problems of their own: the objective of the image is their sum, and so is its bound.
    """
    columns = {
        "objective": solution.objective.tolist(),
        # Rounding can put a bound above its objective, which is then as good a bound.
        "lower_bound": torch.minimum(solution.lower_bound, solution.objective).tolist(),
        "gap": solution.gap.tolist(),
        "status": [each.name for each in solution.status],
        "guarantee": [each.name for each in solution.guarantee],
        "iterations": solution.iterations.tolist(),
    }
    objective, bound = (torch.tensor(columns[name], dtype=torch.float64).sum()
                        for name in ("objective", "lower_bound"))  # fmt: skip
    noise, guarantee = prepared.noise, _summary(columns["guarantee"])
    gap = finite(float(relative_gap(objective, bound)))
    premise = solution.proof.problem.regularizer.premise
    return {
        "input": prepared.name,
        "output": None,
        "size": list(solution.x.shape[-2:]),
        "status": _summary(columns["status"]),
        "guarantee": guarantee,
        "meaning": dict(zip(columns["guarantee"], solution.meaning, strict=True))[guarantee],
        "in_words": ": ".join(in_words(gap, Guarantee[guarantee], premise)),
        "objective": float(objective),
        "lower_bound": finite(float(bound)),
        "gap": gap,
        "iterations": max(columns["iterations"]),
        "seconds": round(solution.seconds, 4),
        "weight": prepared.weight.to_json(),
        "noise": None if noise is None else noise.to_json(),
        **_quality(prepared, prepared.compared(solution.x.cpu())),
        **prepared.about,
        "planes": [
            {name: finite(value) for name, value in zip(columns, plane, strict=True)}
            for plane in zip(*columns.values(), strict=True)
        ],
        "version": version(),
        "settings": settings,
    } | ({"notes": list(prepared.notes)} if prepared.notes else {})


def _quality(prepared: PreparedImage, x: Tensor) -> dict[str, Any]:
    if prepared.truth is None:
        return {}
    truth, given = prepared.truth.float(), prepared.given
    x = x.reshape(truth.shape) if x.numel() == truth.numel() else x  # colours as planes
    quality: dict[str, Any] = {}
    for suffix, image in (("", x), ("_before", given)):
        if image is not None and image.shape == truth.shape:
            quality[f"psnr{suffix}"] = finite(joint_psnr(image, truth))
            quality[f"ssim{suffix}"] = finite(float(ssim(image.float(), truth).mean()))
    return quality


def joint_psnr(x: Tensor, truth: Tensor) -> float:
    """The PSNR of all planes together, in dB."""
    return float(psnr(x.cpu().reshape(1, -1), truth.reshape(1, -1)))


def _summary(words: list[str]) -> str:
    """The status common to all planes, or the first that is not the best."""
    return next((word for word in words if word not in ("CONVERGED", "GLOBAL")), words[0])
