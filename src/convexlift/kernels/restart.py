"""A restart reads and writes each number once: distances from two points, and a new anchor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def moved_anchor(
    new, origin, anchor, squares, restarts, size, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """anchor <- new, and sums of (new - origin)^2 and (new - anchor)^2 for the old anchor.

    For images that restart; a program handles ROUNDS * BLOCK of the ``size`` numbers of an image.
    """
    image = tl.program_id(1)
    if tl.load(restarts + image) == 0:
        return
    begin = image.to(tl.int64) * size
    first = tl.program_id(0) * ROUNDS * BLOCK
    far, near = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for k in range(ROUNDS):
        here = first + k * BLOCK + tl.arange(0, BLOCK)
        inside = here < size
        v = tl.load(new + begin + here, mask=inside, other=0.0)
        whole = v - tl.load(origin + begin + here, mask=inside, other=0.0)
        recent = v - tl.load(anchor + begin + here, mask=inside, other=0.0)
        far += whole * whole
        near += recent * recent
        tl.store(anchor + begin + here, v, mask=inside)
    place = squares + (image * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(place, tl.sum(far))
    tl.store(place + 1, tl.sum(near))
