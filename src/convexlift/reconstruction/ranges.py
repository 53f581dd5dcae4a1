"""The numbers of an image that are black and white.

Noise levels and PSNR refer to these numbers, so noise must not decide them. Integers have the range
of their type. Floats have one of a few nominal ranges, the first that holds the image: the 0.5 %
and 99.5 % quantiles of its numbers, minus the contribution of noise. Extremes are ignored: noise
and hot pixels can have any value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from convexlift.files.pictures import Picture, Range
from convexlift.reconstruction.noise import difference_level, spread

RangeChoice = Range | Literal["auto", "data"]

WHITES = {1.0: 0.5, 255.0: 0.05, 4095.0: 0.02, 65535.0: 0.02}
"""White in nominal ranges of floats, and the part of it by which ringing and grainy noise may
exceed the range. HU, which look like 12 bits, are far below 0."""
LEAST_SHARE, LITTLE = 1 / 4, 1 / 8
"""Floats whose largest numbers are below the first share of white have another range; integers that
use less than the second share of their type get a note."""
TAIL, NORMAL_TAIL = 0.005, 2.576
"""The quantiles of an image that count, and the quantile of a standard normal."""
MOST = 2**22
"""The most numbers examined; of more, evenly spread ones suffice."""
FAR = 0.75
"""Numbers this far beyond black or white, relative to their distance, get a note."""


@dataclass(frozen=True)
class NumberRange:
    """The numbers that become 0 and 1.

    Attributes:
        numbers: black and white.
        nominal: whether they are given or follow from the type: noise levels and PSNR need that.
        notes: remarks for the user on surprising ranges.
    """

    numbers: Range
    nominal: bool = True
    notes: tuple[str, ...] = ()


def number_range(picture: Picture, choice: RangeChoice) -> NumberRange:
    """The range that was chosen, or that follows from the rules of the module."""
    if isinstance(choice, tuple):
        return NumberRange(choice)
    stored = picture.stored
    finite = stored[np.isfinite(stored)] if stored.dtype.kind == "f" else stored.reshape(-1)
    if not finite.size:
        return NumberRange((0.0, 1.0))
    least, most = float(finite.min()), float(finite.max())
    if choice == "data":
        return NumberRange((least, most) if most > least else (least, least + 1))
    if stored.dtype.kind in "bu" or (stored.dtype.kind == "i" and least >= 0):
        return NumberRange(picture.full_range, notes=_unused(picture, finite))
    low, high = np.quantile(_some(finite), (TAIL, 1 - TAIL)).tolist()
    noise = NORMAL_TAIL * _noise(stored)
    middle = (low + high) / 2
    inner = min(low + noise, middle), max(high - noise, middle)
    whites = WHITES if stored.dtype.kind == "f" else {picture.full_range[1]: 0.02}
    for white, margin in whites.items():
        dark = white > 1 and inner[1] < LEAST_SHARE * white
        if -margin * white <= inner[0] and inner[1] <= (1 + margin) * white and not dark:
            return NumberRange((0.0, white), notes=_beyond(finite, (0.0, white)))
    # Hot pixels are left out; extremes that are not outliers are not cut off.
    reach = (high - low) / 4
    own = max(least, low - reach), min(most, high + reach)
    numbers = own if own[1] > own[0] else (least, least + 1)
    note = "its numbers from {:g} to {:g} were mapped to 0 ... 1 (--range)".format(*numbers)
    return NumberRange(numbers, False, (note, *_beyond(finite, numbers)))


def _noise(stored: NDArray[Any]) -> float:
    """The approximate standard deviation of the noise; 0 if it cannot be estimated."""
    planes = torch.from_numpy(stored.astype(np.float32))[:, None]
    planes = planes[spread(planes)]
    seen = torch.isfinite(planes)
    level = difference_level(planes.where(seen, torch.zeros(())), seen.to(planes))
    return level or 0.0


def _some(values: NDArray[Any]) -> NDArray[Any]:
    """Evenly spread numbers, if there are many."""
    return values[:: max(1, values.size // MOST)]


def _unused(picture: Picture, stored: NDArray[Any]) -> tuple[str, ...]:
    """A note on unused range: 12-bit cameras, for example, use a sixteenth of 16 bits."""
    if picture.stored.dtype.itemsize == 1:
        return ()
    white, high = picture.full_range[1], float(np.quantile(_some(stored), 1 - TAIL))
    if high >= LITTLE * white:
        return ()
    wanted = "0,4095" if high <= 4095 else "data"
    share = 100 * high / white
    return (f"it uses {share:.2g} % of its range only; --range {wanted} may do better",)


def _beyond(stored: NDArray[Any], numbers: Range) -> tuple[str, ...]:
    """A note on numbers far beyond the range, which the bounds on the image cut off."""
    low, high = numbers
    reach = FAR * (high - low)
    count = int(np.count_nonzero((stored < low - reach) | (stored > high + reach)))
    if not count:
        return ()
    return (
        f"numbers far beyond {low:g} ... {high:g} ({count} of them) are brought into the range; "
        "--range LOW,HIGH keeps them",
    )
