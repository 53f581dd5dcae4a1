"""The noise that a picture had before it was saved as JPEG.

JPEG stores the luma Y = 0.299 R + 0.587 G + 0.114 B in blocks of 8 x 8 pixels, as coefficients of
the orthonormal cosine transform in steps of q_uv, which are in the file:

    k_uv = round(c_uv / q_uv).

White noise of deviation s has this deviation in every coefficient. Where s is small beside q_uv, it
is rounded away: decoded pixels have less noise than the picture had, and hardly any at high
frequencies. But the counts of k = 0, 1, 2, ... determine s. In a block without texture,

    P(|k| = j) ~ Phi((j + 1/2) q_uv / s) - Phi((j - 1/2) q_uv / s),

and s maximises the likelihood of all k at the frequencies u + v >= ``FIRST`` of the smoothest
blocks, which have the least energy at lower frequencies. Noise at different frequencies is
independent, so that choosing blocks by the lower ones does not bias the estimate from the higher.
Texture that fills the whole picture counts as noise.

Colours are stored at half the resolution and in larger steps: their noise is mostly gone, and the
three channels share the noise of luma. A regularizer for colours expects independent noise in the
channels; with deviation sigma, it has s = 0.668 sigma in luma. So its level is s / 0.668. A
regularizer for grey images sees one channel, whose noise is that of luma: its level is s, or that
of the decoded pixels where it is larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.files.pictures import LUMA
from convexlift.files.png_jpeg import luma_table
from convexlift.reconstruction.contents import Contents
from convexlift.reconstruction.noise import LEAST_SIGMA, Noise

SIDE, FIRST = 8, 6
"""The side of a block in pixels; the least u + v of a frequency that the estimate uses."""
SMOOTHEST, FEWEST, ENOUGH = 0.05, 60, 400
"""The share of the blocks that is used, their least number, and the least number of all blocks."""
MOST_BLOCKS = 2**15
"""The most blocks used; of more, evenly spread ones suffice."""
LARGEST = 24
"""Larger |k| count as this value."""

_GRID = torch.logspace(math.log10(0.25), math.log10(128), 100, dtype=torch.float64)


def before_compression(
    noise: Noise, contents: Contents, table: Sequence[int] | None, *, together: bool
) -> Noise:
    """The level before compression if the picture comes from JPEG and has noise, else ``noise``.

    For channels that are restored one by one, the level in each of them.

    Args:
        noise: the noise of the decoded pixels.
        contents: the picture.
        table: the quantization table of an array decoded from JPEG; files have their own.
        together: whether red, green and blue are one image.
    """
    stored = luma_table(contents.picture)
    if noise.kind != "gaussian" or not noise.estimated or contents.missing is not None:
        return noise
    if table is None and stored is not None:
        table, pixels = stored, torch.from_numpy(contents.picture.stored.astype("float64"))
        low, high = contents.numbers
    elif table is not None and len(contents.images) in (1, 3):
        pixels, low, high = 255 * contents.images[:, 0].double(), 0.0, 255.0
    else:
        return noise
    level = luma_deviation(pixels, table) / (high - low)
    single = contents.channels == 3 and not together
    if single:
        # Single channels have at least the noise of luma, or more where the colours kept theirs.
        level = max(level, noise.level)
    elif contents.channels == 3:
        level = level / math.hypot(*LUMA)
    if level <= LEAST_SIGMA:
        return noise
    return Noise("gaussian", level, before_jpeg=not single, jpeg_channels=single)


def luma_deviation(pixels: Tensor, table: Sequence[int]) -> float:
    """s of a picture (channels, H, W) with values from 0 to 255; 0 if none, or too few blocks."""
    y = (
        pixels[0]
        if len(pixels) == 1
        else torch.einsum("chw,c->hw", pixels, pixels.new_tensor(LUMA))
    )
    steps = torch.as_tensor(table, dtype=torch.float64).reshape(SIDE, SIDE)
    means, k = _coefficients(y, steps)
    u = torch.arange(SIDE)
    high = u[:, None] + u >= FIRST
    padding = _is_padding(k, means)
    usable = torch.ones_like(padding) if padding.double().mean() > 0.5 else ~padding
    means, k = (part.flatten(0, 1)[usable.flatten()] for part in (means, k))
    means, k = (part[:: 1 + len(part) // MOST_BLOCKS] for part in (means, k))
    energy = ((k * steps) ** 2)[:, ~high].sum(1)
    likelihoods = _likelihoods(steps[high])
    s, whole = 0.0, torch.ones(len(k), dtype=torch.bool)
    for _ in range(3):  # without blocks whose noise is clipped, which depends on s
        if int(whole.sum()) < ENOUGH:
            return s
        chosen = energy[whole].argsort()[: max(FEWEST, int(SMOOTHEST * int(whole.sum())))]
        counts = _counts(k[whole][chosen][:, high])
        s = _best((likelihoods * counts).sum((1, 2)))
        whole = (means > 2 * s) & (means < 255 - 2 * s)
    return s


def _coefficients(y: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Means (rows, columns) of whole blocks, and k (rows, columns, u, v) with k_00 = 0."""
    rows, columns = (side // SIDE for side in y.shape)
    blocks = y[: SIDE * rows, : SIDE * columns].reshape(rows, SIDE, columns, SIDE).transpose(1, 2)
    x, u = torch.arange(SIDE, dtype=y.dtype), torch.arange(SIDE, dtype=y.dtype)[:, None]
    cosines = torch.cos((2 * x + 1) * u * math.pi / (2 * SIDE)) / 2
    cosines[0] /= math.sqrt(2)
    k = torch.round(cosines @ blocks @ cosines.T / steps)
    k[..., 0, 0] = 0
    return blocks.mean((-2, -1)), k


def _is_padding(k: Tensor, means: Tensor) -> Tensor:
    """Blocks in a square of 2 x 2 that are constant and equal: bars and borders have no noise."""
    constant = (k == 0).all(-1).all(-1)
    if min(means.shape) < 2:  # no such square
        return torch.zeros_like(constant)
    values = torch.where(constant, means, math.nan)[None]
    highest, lowest = F.max_pool2d(values, 2, 1), -F.max_pool2d(-values, 2, 1)
    equal = (highest - lowest < 1).double()  # false where one of them is NaN
    return F.max_pool2d(F.pad(equal, (1, 1, 1, 1)), 2, 1)[0] > 0


def _likelihoods(steps: Tensor) -> Tensor:
    """log P(|k| = j) for every s of the grid, frequency, and j up to ``LARGEST``."""
    j = torch.arange(LARGEST + 1, dtype=torch.float64)
    scale = steps[:, None] / _GRID[:, None, None]
    below = torch.special.ndtr((j - 0.5) * scale)
    shares: Tensor = torch.special.ndtr((j + 0.5) * scale) - below
    return shares.clamp_min(1e-300).log()


def _counts(k: Tensor) -> Tensor:
    """The number of blocks with |k| = j, (frequencies, j)."""
    levels = k.abs().clamp_max(LARGEST)
    return torch.stack([(levels == j).sum(0) for j in range(LARGEST + 1)], -1).double()


def _best(sums: Tensor) -> float:
    """The s of the largest sum, interpolated by a parabola; 0 at the lower end of the grid."""
    at = int(sums.argmax())
    if at == 0:
        return 0.0
    if at == len(sums) - 1:
        return float(_GRID[at])
    before, here, after = (float(value) for value in sums[at - 1 : at + 2])
    bend = before - 2 * here + after
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return float(_GRID[at] * (_GRID[1] / _GRID[0]) ** shift)
