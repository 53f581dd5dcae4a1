"""How many numbers of a large array a device is given at once.

A CPU is fast on parts that fit its cache. A GPU is fast on anything large, since launches take
time there; but intermediate results of a whole array may not fit its memory.
"""

from __future__ import annotations

import torch

AT_ONCE = 32
"""Parts on a GPU are this many times as large as those that fit the cache of a CPU."""


def at_once(cached: int, device: torch.device) -> int:
    """As many numbers as are computed at once, if a CPU takes ``cached``."""
    return cached if device.type == "cpu" else AT_ONCE * cached
