"""Imaging tasks: from a clean image to data, and the data term for each kind of data.

Each task is a frozen record. ``measure`` draws the noise of every image from its own generator, so
that a sample does not depend on the batch it is in.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from convexlift.functionals.data_terms import L1, KullbackLeibler, SquaredL2
from convexlift.functionals.fidelity import Fidelity
from convexlift.functionals.terms import Box
from convexlift.images import gaussian_noise, poisson_counts, random_mask, salt_and_pepper
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.imaging import Diagonal, Mask
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.operators.tomography.beams import PAPER_BACKGROUND, paper_scanner
from convexlift.operators.tomography.filtered_backprojection import FILTERS, Filter, fbp
from convexlift.problems.guesses import fill_from_neighbours
from convexlift.problems.variational import VariationalProblem
from convexlift.tensors import Scalar, Shape, TensorRecord

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class Measurement(TensorRecord):
    """Data of a batch of images: everything a problem needs except regularizer and weight.

    Attributes:
        fidelity: D with the data y.
        operator: A.
        box: bounds on the images.
        picture: the data as an image A^+ y, the input of the adversarial critic.
        noise: the standard deviation of the data, if known, for regularizers that read the data;
            one number, or one for each image.
    """

    fidelity: Fidelity
    operator: LinearOperator
    box: Bounds | None
    picture: Tensor
    noise: float | Tensor | None = None

    def problem(self, regularizer: InputConvexNetwork, weight: Scalar) -> VariationalProblem:
        """min_x D(A x, y) + weight R(x) over the box."""
        return VariationalProblem(
            fidelity=self.fidelity,
            operator=self.operator,
            regularizer=regularizer,
            weight=weight,
            box=self.box,
            noise=self.noise if regularizer.reads_data else None,
        )

    def __len__(self) -> int:
        """Number of images."""
        return len(self.fidelity.y)

    @property
    def image_shape(self) -> Shape:
        """(C, H, W) of the unknown images."""
        return self.operator.input_shape or tuple(self.fidelity.y.shape[1:])

    def select(self, images: slice) -> Measurement:
        """The data of some images; for all of them, the same object with its operator's caches."""
        rows = torch.arange(len(self))[images]
        if len(rows) == len(self):
            return self
        operator = self.operator.select(rows)
        if operator is None:
            raise ValueError(f"{type(self.operator).__name__} cannot be split into single images")
        return replace(
            self, fidelity=self.fidelity.select(rows), operator=operator,
            picture=self.picture[images],
            noise=self.noise[images] if isinstance(self.noise, Tensor) else self.noise,
        )  # fmt: skip

    def joinable(self, other: Measurement) -> bool:
        """Whether both can be parts of one problem: data of one kind behind a diagonal operator."""

        def kind(data: Measurement) -> tuple[object, ...]:
            return type(data.fidelity), type(data.operator), data.image_shape, data.box

        # Weights and backgrounds of single data are tensors, which ``join`` does not handle.
        only_data = sum(1 for _ in self.fidelity.tensors()) == 1
        return kind(self) == kind(other) and only_data and self.operator.diagonal is not None

    @staticmethod
    def join(parts: Sequence[Measurement]) -> Measurement:
        """The data of several batches as one; each must be ``joinable`` to the first."""
        if len(parts) == 1:
            return parts[0]
        fidelity, operator = copy.copy(parts[0].fidelity), parts[0].operator
        fidelity.y = torch.cat([part.fidelity.y for part in parts])
        diagonal = operator.diagonal
        if diagonal is not None and (diagonal.ndim or float(diagonal) != 1):
            diagonals = [part.operator(torch.ones_like(part.fidelity.y)) for part in parts]
            operator = Diagonal(torch.cat(diagonals))
        picture = torch.cat([part.picture for part in parts])
        return Measurement(fidelity, operator, parts[0].box, picture, _joined_noise(parts))


def _joined_noise(parts: Sequence[Measurement]) -> float | Tensor | None:
    """One number if it is the same for all images, None if it is not known for all."""
    levels: list[float] = []
    for part in parts:
        if part.noise is None:
            return None
        levels += torch.as_tensor(part.noise, dtype=torch.float64).expand(len(part)).tolist()
    return levels[0] if len(set(levels)) == 1 else torch.tensor(levels, dtype=torch.float64)


class Task(ABC):
    """A kind of image degradation."""

    name: ClassVar[str]

    @abstractmethod
    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """Data of a batch of clean images, with one generator for each."""


@dataclass(frozen=True)
class SaltAndPepper(Task):
    """A fraction of the pixels becomes 0 or 1; the data term is scale ||x - y||_1.

    Paper section 5.1, where ``scale`` is lambda = 0.02 and the network has the weight 1.
    """

    name: ClassVar[str] = "salt-and-pepper"
    fraction: float = 0.25
    scale: float = 1.0
    box: Bounds | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        _require_range(self, "fraction", 1)
        if not 0 < self.scale < math.inf:
            raise ValueError(f"SaltAndPepper needs scale > 0, got scale={self.scale}")

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The images with salt-and-pepper noise."""
        noisy = _each(clean, generators, lambda x, g: salt_and_pepper(x, self.fraction, g))
        return Measurement(L1(noisy, self.scale), Identity(), self.box, noisy)


@dataclass(frozen=True)
class GaussianDenoising(Task):
    """y = x + sigma n with standard normal n; the data term is 1/2 ||x - y||^2.

    Args:
        sigma: the standard deviation.
        up_to: if given, each batch has its own deviation, drawn between sigma and this: for
            training regularizers that read the noise level.
        box: bounds on the images.
    """

    name: ClassVar[str] = "gaussian-denoising"
    sigma: float = 0.1
    box: Bounds | None = (0.0, 1.0)
    up_to: float | None = None

    def __post_init__(self) -> None:
        _require_range(self, "sigma")
        if self.up_to is not None and not self.sigma < self.up_to < math.inf:
            raise ValueError(f"GaussianDenoising needs up_to > sigma, got up_to={self.up_to}")

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The images with Gaussian noise."""
        sigma = self.sigma
        if self.up_to is not None:
            share = torch.rand((), generator=generators[0], device=generators[0].device)
            sigma += float(share) * (self.up_to - sigma)
        noisy = _each(clean, generators, lambda x, g: gaussian_noise(x, sigma, g))
        return Measurement(SquaredL2(noisy), Identity(), self.box, noisy, sigma)


@dataclass(frozen=True, eq=False)
class Inpainting(Task):
    """y = m (x + noise n): missing pixels and Gaussian noise on the others; 1/2 ||m x - y||^2.

    Args:
        missing: fraction of missing pixels, if masks are drawn at random.
        noise: standard deviation of the noise on the seen pixels.
        mask: one mask (H, W) for all images instead of random ones.
        fill: values of missing pixels in the picture: ``zero``; ``noise`` alone, as the authors'
            critic sees them; or the mean of the seen ``neighbours``.
        box: bounds on the images.
        clamp: bounds on the picture; the authors' critic sees pictures between 0 and 1.
    """

    name: ClassVar[str] = "inpainting"
    missing: float = 0.3
    noise: float = 0.03
    mask: Tensor | None = None
    fill: Literal["zero", "noise", "neighbours"] = "neighbours"
    box: Bounds | None = (0.0, 1.0)
    clamp: Bounds | None = None

    def __post_init__(self) -> None:
        _require_range(self, "missing", 1)
        _require_range(self, "noise")
        fills = ("zero", "noise", "neighbours")
        if self.fill not in fills:
            raise ValueError(f"Inpainting needs fill to be one of {fills}, got {self.fill!r}")
        Box.of(self.clamp)  # raises if the bounds are empty
        if self.mask is not None and self.mask.ndim != 2:
            raise ValueError(
                f"Inpainting takes one mask (H, W) for all images, got {tuple(self.mask.shape)}"
            )

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """The seen pixels with noise, and the picture with the missing ones filled in."""
        if self.mask is None:
            mask = _each(clean, generators, lambda x, g: random_mask(x, self.missing, g))
        else:
            if self.mask.shape[-2:] != clean.shape[-2:]:
                sizes = (f"{x.shape[-2]} x {x.shape[-1]}" for x in (self.mask, clean))
                raise ValueError(
                    "the mask is {}, but the images are {}; give a mask of their size, or take "
                    "crops of its size".format(*sizes)
                )
            mask = self.mask.to(clean).expand(clean.shape[0], 1, -1, -1)
        noisy = _each(clean, generators, lambda x, g: gaussian_noise(x, self.noise, g))
        data = picture = mask * noisy
        if self.fill == "neighbours":
            picture = fill_from_neighbours(data, mask)
        elif self.fill == "noise":
            picture = noisy - (1 - mask) * clean
        picture = Box.of(self.clamp).project(picture)
        return Measurement(SquaredL2(data), Mask(mask), self.box, picture, self.noise)


@dataclass(frozen=True, eq=False)
class SparseViewCT(Task):
    """y ~ Poisson(A x + r): counts behind a scanner A; the data term is Kullback-Leibler's.

    Paper section 5.2, whose scanner and background are the defaults. The picture is a filtered
    back projection of y - r.

    Args:
        scanner: A, a ``ParallelBeam``, a ``FanBeam`` of a full turn, or a multiple of one.
        background: r, the expected counts without an object; positive.
        filter: the filter of the filtered back projection.
        box: bounds on the images. Without an upper bound, the certificate covers needlessly large
            images, and takes more iterations to become small.
        clamp: bounds on the picture; the authors' pictures are between 0 and 1.
    """

    name: ClassVar[str] = "ct"
    scanner: LinearOperator = field(default_factory=paper_scanner)
    background: float = PAPER_BACKGROUND
    filter: Filter = "hann"
    box: Bounds | None = (0.0, None)
    clamp: Bounds | None = None

    def __post_init__(self) -> None:
        if not 0 < self.background < math.inf:
            raise ValueError(f"SparseViewCT needs background > 0, got {self.background}")
        if not self.scanner.invertible:
            raise ValueError(
                "SparseViewCT needs a ParallelBeam, a FanBeam of a full turn, or a multiple of "
                f"one, got {self.scanner!r}"
            )
        if self.filter not in FILTERS:
            raise ValueError(f"filter must be one of {FILTERS}, got {self.filter!r}")
        Box.of(self.clamp)  # raises if the bounds are empty

    def measure(self, clean: Tensor, generators: Sequence[torch.Generator]) -> Measurement:
        """Counts, and their filtered back projection."""
        A = _at(self.scanner, clean.device, clean.dtype)
        if tuple(clean.shape[1:]) != A.input_shape:
            raise ValueError(
                f"the scanner takes images of {A.input_shape}, but these are "
                f"{tuple(clean.shape[1:])}; give SparseViewCT(scanner=...) for their size"
            )
        mean = (A(clean) + self.background).clamp_min(0)
        y = _each(mean, generators, poisson_counts)
        picture = Box.of(self.clamp).project(fbp(A, y - self.background, self.filter))
        return Measurement(KullbackLeibler(y, self.background), A, self.box, picture)


_MOVED: WeakKeyDictionary[LinearOperator, dict[object, LinearOperator]] = WeakKeyDictionary()


def _at(scanner: LinearOperator, device: torch.device, dtype: torch.dtype) -> LinearOperator:
    """The scanner on another device, cached, so that weights and norm are computed once."""
    places = _MOVED.setdefault(scanner, {})
    if (device, dtype) not in places:
        places[device, dtype] = scanner.to(device=device, dtype=dtype)
    return places[device, dtype]


TASKS: dict[str, type[Task]] = {
    task.name: task for task in (SaltAndPepper, GaussianDenoising, Inpainting, SparseViewCT)
}
"""Tasks by name."""


def _require_range(task: Task, name: str, most: float = math.inf) -> None:
    """Raise unless a parameter is finite, not negative and at most ``most``."""
    value = getattr(task, name)
    if not (0 <= value <= most and value < math.inf):
        wanted = f"{name} >= 0" if most == math.inf else f"0 <= {name} <= {most:g}"
        raise ValueError(f"{type(task).__name__} needs {wanted}, got {name}={value}")


def _each(
    clean: Tensor,
    generators: Sequence[torch.Generator],
    degrade: Callable[[Tensor, torch.Generator], Tensor],
) -> Tensor:
    if isinstance(generators, torch.Generator):
        raise TypeError("give a list of generators, one per image: [generator] for a single one")
    if len(generators) != clean.shape[0]:
        raise ValueError(f"{clean.shape[0]} images need as many generators, got {len(generators)}")
    return torch.cat([degrade(clean[i : i + 1], g) for i, g in enumerate(generators)])
