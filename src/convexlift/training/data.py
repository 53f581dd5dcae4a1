"""Batches as a pure function of (seed, step, position).

The images are visited along an endless concatenation of permutations, one for each epoch; the batch
at ``step`` is its slice [step B, (step + 1) B). Sample k is cropped and turned by random numbers
that depend on (seed, step, k) alone. No state is kept between batches: a resumed run sees the same
samples as an uninterrupted one, and rank r of n processes, which takes the positions r, r + n, ...,
sees its share of the batch of a single process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from convexlift.files.pictures import Plane, white
from convexlift.parts import require_at_least
from convexlift.training.image_sets import ImageSet, mix, permutation, size_text


@dataclass(frozen=True, eq=False)
class Batch:
    """Clean images with their positions in the run, which may determine their noise."""

    clean: Tensor  # (B, C, H, W), float32
    indices: Tensor  # (B,), index of each image in the set
    positions: Tensor  # (B,), position in the batch of all ranks together
    step: int
    seed: int
    fixed: bool = False  # whether an image has the same noise in every epoch

    def generators(
        self, device: torch.device | str = "cpu", stream: int = 0
    ) -> list[torch.Generator]:
        """Generators of the samples, from (seed, step, position, stream) or (seed, image, stream).

        Streams serve independent purposes, such as a mask and the noise. PyTorch's CPU generator
        uses 32 bits of the seed; generators of different devices give different numbers.
        """
        if self.fixed:
            seeds = [mix("fixed noise", self.seed, i, stream) for i in self.indices.tolist()]
        else:
            places = self.positions.tolist()
            seeds = [mix("noise", self.seed, self.step, k, stream) for k in places]
        return [torch.Generator(device).manual_seed(seed) for seed in seeds]


@dataclass(frozen=True, eq=False)
class BatchSampler:
    """Batches of crops or whole images, each a pure function of its step.

    Args:
        images: the set to draw from.
        batch_size: number of samples of all ranks together.
        crop: the side of square crops at random positions; None for whole images of one size.
        flips: mirror left and right at random.
        rotations: apply a random one of the 8 symmetries of the square (which include mirroring).
        seed: the seed of all random choices.
        fixed: take the same crop of an image, turned the same way and with the same noise, in
            every epoch: a finite training set, whose reconstructions can be warm-started.
    """

    images: ImageSet
    batch_size: int
    crop: int | None = None
    flips: bool = False
    rotations: bool = False
    seed: int = 0
    fixed: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size)
        if self.crop is None:
            size = self.images.size(0)
            self.images.require_size(size)
            if self.rotations and size[-2] != size[-1]:
                raise ValueError(
                    f"images of {size_text(size)} cannot be rotated into a batch; "
                    "take square crops, or write rotations=False"
                )
            return
        if self.crop < 1:
            raise ValueError(f"crop must be at least 1, or None for whole images; got {self.crop}")
        self.images.require_at_least(self._size())

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that show every image; the last one may reach into the next epoch."""
        return -(-len(self.images) // self.batch_size)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The samples at positions rank, rank + world, ... of the batch at ``step``."""
        require_at_least(0, step=step)
        if world < 1 or not 0 <= rank < world:
            raise ValueError(f"rank must lie between 0 and world - 1, got rank {rank} of {world}")
        if self.batch_size % world:
            raise ValueError(
                f"{world} processes cannot share a batch of {self.batch_size} evenly; "
                f"write batch_size={-(-self.batch_size // world) * world}"
            )
        positions = range(rank, self.batch_size, world)
        indices = [self._index(step * self.batch_size + k) for k in positions]
        shape = (len(positions), self.images.channels, *self._size())
        pixels = np.empty(shape, dtype=np.float32)
        for sample, k, i in zip(pixels, positions, indices, strict=True):
            purpose = (
                ("fixed sample", self.seed, i) if self.fixed else ("sample", self.seed, step, k)
            )
            sample[:] = self._view(self.images.planes[i], mix(*purpose))
        whites = [white(self.images.planes[i]) for i in indices]
        pixels /= np.asarray(whites, dtype=np.float32).reshape(-1, 1, 1, 1)
        return Batch(
            clean=torch.from_numpy(pixels),
            indices=torch.tensor(indices, dtype=torch.long),
            positions=torch.tensor(positions, dtype=torch.long),
            step=step,
            seed=self.seed,
            fixed=self.fixed,
        )

    def _index(self, place: int) -> int:
        epoch, place = divmod(place, len(self.images))
        return int(permutation(len(self.images), mix("epoch", self.seed, epoch))[place])

    def _size(self) -> tuple[int, int]:
        return self.images.size(0) if self.crop is None else (self.crop, self.crop)

    def _view(self, plane: Plane, chance: int) -> Plane:
        """The turned crop of one sample, as a view.

        The mixed-radix digits of ``chance`` are its top, its left and its symmetry.
        """
        height, width = self._size()
        chance, top = divmod(chance, plane.shape[-2] - height + 1)
        chance, left = divmod(chance, plane.shape[-1] - width + 1)
        view = plane[..., top : top + height, left : left + width]
        if (self.flips or self.rotations) and chance & 1:
            view = view[..., ::-1]
        if self.rotations:
            view = view[..., ::-1, :] if chance & 2 else view
            view = view.swapaxes(-1, -2) if chance & 4 else view
        return view
