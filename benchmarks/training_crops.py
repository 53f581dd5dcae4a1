"""Crops of pictures to train on, with noise, missing pixels or impulses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.problems.guesses import IMPULSE, median_of_neighbours
from convexlift.training import ImageSet

LOWEST, HIGHEST = 2 / 255, 75 / 255
BATCH, CROP = 12, 96


class Data(NamedTuple):
    """What a task makes of clean crops x, and what the guide sees."""

    x: Tensor
    y: Tensor
    picture: Tensor
    noise: Tensor
    seen: Tensor
    """1 where the picture holds data, (B, 1, H, W)."""


class Crops:
    """Random crops of 8-bit pictures, and of others for missing pixels and impulses."""

    def __init__(self, pictures: Tensor, others: Tensor) -> None:
        self.pictures, self.others = pictures, others

    def gaussian(self) -> Data:
        """Noise of all levels; one crop in 32 is no photograph."""
        x = self.crops(self.pictures)
        x[0] = torch.where(torch.rand((), device=x.device) < 0.5, self.drawing(x[0]), x[0])
        noise = LOWEST + (HIGHEST - LOWEST) * self.uniform(x)
        y = x + noise * torch.randn_like(x)
        return Data(x, y, y, noise, torch.ones_like(x[:, :1]))

    def missing(self) -> Data:
        """Single pixels are missing, or small connected holes; the others have noise."""
        x = self.crops(self.others)
        noise = 0.01 + 0.05 * self.uniform(x)
        field = torch.randn_like(x[:, :1])
        connected = 3 * F.avg_pool2d(field, 3, 1, 1)
        fraction = 0.1 + 0.4 * self.uniform(x)
        mixed = torch.where(self.uniform(x) < 0.3, connected, field)
        seen = (mixed > torch.special.ndtri(fraction)).to(x)
        y = seen * (x + noise * torch.randn_like(x))
        return Data(x, y, filled(y, seen), noise, seen)

    def impulses(self) -> Data:
        """Values become 0 or 1."""
        x = self.crops(self.others)
        hit = torch.rand_like(x) < 0.1 + 0.3 * self.uniform(x)
        y = torch.where(hit, (torch.rand_like(x) < 0.5).to(x), x)
        medians = median_of_neighbours(y)
        clean = (y - medians).abs() <= IMPULSE
        noise = torch.full_like(x[:, :1, :1, :1], UNSTATED_NOISE)
        seen = clean.to(x).amin(1, keepdim=True)
        return Data(x, y, torch.where(clean, y, medians), noise, seen)

    def crops(self, pictures: Tensor) -> Tensor:
        """Clean crops, turned and mirrored."""
        count, channels, height, width = pictures.shape
        device = pictures.device
        place = {"size": (BATCH, 1, 1, 1), "device": device}
        side = torch.arange(CROP, device=device)  # made there: a graph cannot copy from the host
        rows = torch.randint(height - CROP + 1, **place) + side[:, None]
        columns = torch.randint(width - CROP + 1, **place) + side
        every = torch.arange(channels, device=device)[:, None, None]
        x = pictures[torch.randint(count, **place), every, rows, columns].float() / 255
        for turned in (x.flip(-1), x.flip(-2), x.transpose(-1, -2)):
            x = torch.where(torch.rand(**place) < 0.5, turned, x)
        return x.contiguous()  # the last may have left columns one after another

    def drawing(self, photograph: Tensor) -> Tensor:
        """Tiles of 2 x 2 or 4 x 4 pixels, bars, outlines or a dithered photograph, in two colours.

        A regularizer that saw photographs only takes them for noise.
        """
        place = {"device": photograph.device}
        tiles = [
            (torch.rand(1, n, n, **place) < 0.5).repeat(1, CROP // n, CROP // n) for n in (2, 4)
        ]
        side, angle = torch.arange(CROP, **place), math.pi * torch.rand((), **place)
        way = angle.cos() * side[:, None] + angle.sin() * side
        bars = (way / (2 + 10 * torch.rand((), **place))).remainder(1.0)[None] < 0.5
        grey = photograph.mean(0, keepdim=True)
        every = torch.stack([*tiles, bars, grey < grey.mean(), grey < torch.rand_like(grey)])
        shape = every.index_select(0, torch.randint(5, (1,), **place))[0]
        one, other = torch.rand(2, len(photograph), 1, 1, **place)
        return torch.where(shape, one, other)

    def uniform(self, like: Tensor) -> Tensor:
        """One number for each crop."""
        return torch.rand_like(like[:, :1, :1, :1])


def filled(y: Tensor, seen: Tensor) -> Tensor:
    """Missing pixels by means of their neighbours; three rounds, since a graph cannot ask."""
    for _ in range(3):
        count, total = (F.avg_pool2d(t, 5, 1, 2, divisor_override=1) for t in (seen, seen * y))
        y = torch.where(seen > 0, y, total / count.clamp_min(1))
        seen = torch.maximum(seen, (count > 0).to(seen))
    return y


def read(folders: Sequence[Path], colour: bool) -> tuple[Tensor, Tensor]:
    """Training and held-out pictures, 8-bit, cut into pieces of the size of the smallest."""
    sets = [ImageSet.from_folder(folder, colour=colour) for folder in folders]
    sizes = [images.size(i) for images in sets for i in range(len(images))]
    height, width = (min(f(size) for size in sizes) for f in (min, max))
    pieces: dict[bool, list[Tensor]] = {False: [], True: []}
    for images in sets:
        for i in range(len(images)):
            picture = (255 * images[i]).round().to(torch.uint8)
            picture = picture if picture.shape[1] <= picture.shape[2] else picture.mT
            for top in range(0, picture.shape[1] - height + 1, height):
                for left in range(0, picture.shape[2] - width + 1, width):
                    piece = picture[:, top : top + height, left : left + width]
                    pieces[i % 13 == 6].append(piece)
    return torch.stack(pieces[False]), torch.stack(pieces[True])


def read_both(
    folder: Path, others: Sequence[Path] | None, colour: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """What ``read`` gives for a folder, and for others or the same; on the GPU."""
    first = [part.cuda() for part in read([folder], colour)]
    return first, [part.cuda() for part in read(others, colour)] if others else first
