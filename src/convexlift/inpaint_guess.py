"""Estimates of missing and noisy pixels from their neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.decisions import decided


def fill_from_neighbours(data: Tensor, mask: Tensor, size: int = 5) -> Tensor:
    """Replace missing pixels by the mean of the seen pixels around them.

    Pixels without a seen neighbour in size x size are filled in the next round, where the pixels
    filled so far count as seen.
    """
    if size < 3 or size % 2 == 0:
        raise ValueError(f"size must be odd and at least 3, got size={size}")
    shape, mask = data.shape, mask.expand_as(data)
    data, mask = (each.reshape(-1, *shape[-3:]) for each in (data, mask))  # slices of volumes
    image, seen = data * mask, mask
    while decided((seen == 0).any()):
        count = F.avg_pool2d(seen, size, 1, size // 2, divisor_override=1)
        total = F.avg_pool2d(image, size, 1, size // 2, divisor_override=1)
        reached = count > 0
        if not decided((reached & (seen == 0)).any()):
            break  # every pixel is missing
        mean = total / count.clamp_min(1)
        image = torch.where((seen == 0) & reached, mean, image)
        seen = torch.maximum(seen, reached.to(seen))
    return image.reshape(shape)


def median_of_neighbours(image: Tensor, size: int = 5) -> Tensor:
    """Replace each pixel by the median of size x size pixels around it, of fewer at the edges."""
    margin = size // 2
    padded = F.pad(image, (margin, margin, margin, margin), value=torch.nan)
    windows = padded.unfold(-2, size, 1).unfold(-2, size, 1)  # (..., H, W, size, size)
    strips = torch.split(windows, 64, dim=-4)  # a copy of all windows would take size^2 images
    return torch.cat([strip.flatten(-2).nanmedian(-1).values for strip in strips], dim=-2)
