"""CUDA kernels for certain filters, compiled at run time by the NVRTC that torch loads.

They are several times as fast as those of Triton and torch, which remain for what is missing here:
several channels, pooled layers, large filters, GPUs before Ampere, and machines that cannot compile
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WARPS = 4
"""Warps of a program, one below the other."""
BLOCK = (32, WARPS, 1)
TILE, LOW_TILE = (4 * WARPS, 32), (2 * WARPS, 32)
"""Rows and columns of a program, whose threads handle the 4 or 2 pixels of a column."""
FEW = 256
"""Tiles that leave a large GPU idle, where twice as many low ones are faster (measured)."""
ITERATION = ("primal_step", "dual_step", "moved_anchor", "counted", "rebalanced")
"""Kernels of iterations and restarts."""
NAMES = (*ITERATION, "one_pass", "gathered", "tangent")
FILES = ("tiles.cu", "matrices.cu", "first_layer.cu", "gathered.cu", "dual_step.cu", "one_pass.cu",
         "restart_rules.cu")  # fmt: skip
"""Texts, of which each may use what is in those before it."""
LARGEST_FILTER = 49
"""The most taps whose windows fit into registers."""
LARGEST = 2**31
"""Limit on the numbers of a layer, which are indexed with 32 bits."""


def spill_for(tile: Sequence[int], kernel: Sequence[int]) -> int:
    """Numbers of a tile with its margins, in which programs leave V* p."""
    return math.prod(side + k - 1 for side, k in zip(tile, kernel, strict=True))


def gather(gathered: Any, spill: Tensor, tile: Sequence[int], c: Tensor, boundary: int) -> None:
    """Launch ``gathered``: c = V* p, (B, 1, H, W), from the sums of all tiles."""
    batch, _, *size = c.shape
    tiles = math.prod(-(-n // side) for n, side in zip(size, tile, strict=True))
    gathered(grid=(tiles, batch, 1), block=BLOCK, args=[spill, c, boundary, *size])


def tile_for(size: Sequence[int], images: int) -> tuple[int, int]:
    """Rows and columns of a program, for images of this size."""
    tiles = images * math.prod(-(-n // side) for n, side in zip(size, TILE, strict=True))
    return LOW_TILE if tiles < FEW else TILE


@cache
def compiled(
    name: str,
    device: torch.device,
    filters: torch.Size,
    *,
    tile: tuple[int, int],
    coarse: int,
    biased: bool,
    aligned: bool,
    pool: int = 0,
    coded: bool = False,
) -> Any:
    """A kernel on a device, or None where there is none.

    Args:
        name: one of ``NAMES``.
        device: on which it will be launched.
        filters: shape of the filters, (channels, 1, rows, columns).
        tile: rows and columns of a program (``tile_for``).
        coarse: side of the blocks of pixels that share their multipliers; 0 if all pixels do.
        biased: whether every pixel has its own bias.
        aligned: whether the width of the images is a multiple of 4.
        pool: side of the blocks of pixels whose sums ``one_pass`` gives, a power of 2; or 0.
        coded: whether v and the anchor are slopes in 16 bits (``problems.packed_slopes``).
    """
    _, channels, *sides = filters
    known = channels == 1 and len(sides) == 2 and sides[0] * sides[1] <= LARGEST_FILTER
    if device.type != "cuda" or torch.version.cuda is None or not known:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):  # matrix units without TF32
        return None
    text = source(
        filters, tile=tile, coarse=coarse, biased=biased, aligned=aligned, pool=pool, coded=coded
    )
    return module(device, text, NAMES).get(name)


@cache
def module(device: torch.device, text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The kernels of a text, by name; none, and a warning, where they cannot be compiled.

    These functions of torch are private so far, and may change: then there are none, too.
    """
    try:
        from torch.cuda._utils import _cuda_load_module, _nvrtc_compile

        with torch.cuda.device(device):
            kind = torch.cuda.get_device_capability(), torch.version.cuda
            key = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()
            binary = _cached(key, lambda: _nvrtc_compile(text, names[0])[0])
            kernels: Any = _cuda_load_module(binary, list(names))
            return dict(kernels)
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError) as error:
        warnings.warn(f"CUDA kernels cannot be compiled, slower ones run: {error}", stacklevel=2)
        return {}


def _cached(key: str, compile: Callable[[], bytes]) -> bytes:
    """A compiled text, from a file in the user's cache if it was compiled before."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "convexlift")
    path = folder / f"{key}.cubin"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    binary = compile()
    with contextlib.suppress(OSError):  # a folder that cannot be written
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(binary)
        os.replace(file.name, path)
    return binary


@cache
def source(
    filters: torch.Size,
    *,
    tile: tuple[int, int],
    coarse: int,
    biased: bool,
    aligned: bool,
    pool: int = 0,
    coded: bool = False,
) -> str:
    """The text to compile."""
    channels, _, rows, columns = filters
    macros = {
        "WARPS": WARPS, "PIXELS": tile[0] // WARPS, "CHANNELS": channels, "KERNEL_HEIGHT": rows,
        "KERNEL_WIDTH": columns, "COARSE": coarse, "BIASED": int(biased),
        "ALIGNED": int(aligned), "POOL": pool, "CODED": int(coded), "NUMBER": "float",
    }  # fmt: skip
    return assembled(macros, *FILES)


def assembled(macros: Mapping[str, object], *files: str) -> str:
    """Texts after their macros; as C, since some versions of torch put this before a text."""
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return 'extern "C" {\n' + defined + "".join(map(_text, files)) + "}\n"


@cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
