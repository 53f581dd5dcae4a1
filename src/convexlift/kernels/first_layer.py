"""``first_layer.cu`` for certain filters, compiled at run time by the NVRTC that torch loads.

Several times as fast as the kernels of Triton and torch, which remain for what is missing here:
several channels, pooled layers, large filters, and machines where it cannot be compiled.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import torch

WARPS, PIXELS = 4, 4
"""Warps of a program, one below the other, and the pixels of a column that a thread handles."""
TILE = (WARPS * PIXELS, 32)
"""Rows and columns of a program."""
BLOCK = (32, WARPS, 1)
LARGEST_FILTER = 49
"""The most taps whose windows fit into registers."""
LARGEST = 2**31
"""Limit on the numbers of a layer, which are indexed with 32 bits."""


@cache
def compiled(
    name: str, device: torch.device, filters: torch.Size, *, coarse: int, biased: bool
) -> Any:
    """A kernel on a device, or None where there is none.

    Args:
        name: ``dual_step`` or ``one_pass``.
        device: on which it will be launched.
        filters: shape of the filters, (channels, 1, rows, columns).
        coarse: side of the blocks of pixels that share their multipliers; 0 if all pixels do.
        biased: whether every pixel has its own bias.
    """
    _, channels, *sides = filters
    known = channels == 1 and len(sides) == 2 and sides[0] * sides[1] <= LARGEST_FILTER
    if device.type != "cuda" or torch.version.cuda is None or not known:
        return None
    try:
        with torch.cuda.device(device):
            # Private so far, but documented; other versions may lack it, or a CUDA toolkit.
            return torch.cuda._compile_kernel(source(filters, coarse, biased), name)
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError):
        return None


def source(filters: torch.Size, coarse: int, biased: bool) -> str:
    """The text to compile."""
    channels, _, rows, columns = filters
    macros = {
        "WARPS": WARPS, "PIXELS": PIXELS, "CHANNELS": channels, "KERNEL_HEIGHT": rows,
        "KERNEL_WIDTH": columns, "COARSE": coarse, "BIASED": int(biased),
    }  # fmt: skip
    text = resources.files(__package__).joinpath("first_layer.cu").read_text(encoding="utf-8")
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + text
