"""Joseph's integrals along rays and their transpose, with weights computed on the fly.

A program of ``project`` handles a block of neighbouring rays, step by step:

    y_k = length_k sum_i (1 - f) x[i, j] + f x[i, j + 1],    start_k + slope_k i = j + f

The transpose is a gather, so that no program adds to what another one writes, and results do not
depend on the order of programs. A program handles a tile of pixels and, for each angle, finds the
rays that pass by: pixel (i, j) receives max(0, 1 - |c - j|) length y from the rays whose crossing
c of row i is less than a pixel away. Indices of parallel rays are an affine function of the pixel
(``backproject_parallel``), and those of a fan a quotient of two (``backproject_fans``); others are
found by bisection (``backproject_runs``).

Images and sinograms come in groups of GROUP images, interleaved at each pixel or ray: weights are
computed once for the group, and loads are as wide as the hardware's. Crossings are computed in
double precision throughout: single precision is off by 3e-5 pixels at the end of a row of 512.
"""

from __future__ import annotations

import triton
import triton.language as tl

SHIFT = tl.constexpr(1.5 * 2.0**20)
"""Added in double precision to a number up to 2^19, it leaves 32 bits for the fraction."""
SHIFT_BITS = tl.constexpr(0x41380000)
"""The upper 32 bits of SHIFT; their difference to those of a sum is the integer part."""
UNIT = tl.constexpr(2.0**-32)
ROUND = tl.constexpr(1.5 * 2.0**23)
"""Added in single precision to a number up to 2^22, it leaves no bits for the fraction."""
ROUND_BITS = tl.constexpr(0x4B400000)
"""The bits of ROUND; their difference to those of a sum is the nearest integer."""


@triton.jit
def project(
    images, start, slope, length, ray, first, last, turned, sinograms,
    height, width, rays, batch,
    GROUP: tl.constexpr, RAYS: tl.constexpr, PARTS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Integrals along a block of rays for a group of images.

    ``images`` is (2, groups, height * width, GROUP): the images, and the same with rows and columns
    exchanged. For each block, ``turned`` selects one of the two, and ``first`` and ``last`` delimit
    its steps. ``sinograms`` is (batch, rays); ``ray`` is an index into it, or -1 for none.
    The steps of a ray are shared by PARTS lanes.
    """
    block, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    lane, image = tl.arange(0, PARTS * RAYS), tl.arange(0, GROUP)
    k = block * RAYS + lane % RAYS
    by_columns = tl.load(turned + block)
    size = tl.where(by_columns != 0, height, width)
    which = (by_columns * groups + group).to(tl.int64)
    pixels = images + which * height * width * GROUP + image[None, :]
    kind = images.dtype.element_ty
    begin, end = tl.load(first + block), tl.load(last + block)
    count = tl.cdiv(end - begin, PARTS)
    row = begin + lane // RAYS * count
    step = row.to(tl.float64)  # converting at each step would take longer
    c_0, c_i = _shifted(tl.load(start + k), kind), tl.load(slope + k)
    total = tl.zeros((PARTS * RAYS, GROUP), kind)
    done = 0
    while done < count:
        for _ in tl.static_range(UNROLL):
            j, f = _split(c_0 + c_i * step, kind)
            at = pixels + ((row * size + j) * GROUP)[:, None]
            # One comparison: Triton's interpreter makes no mask of a vector & a scalar.
            real = row < tl.where(done < count, end, 0)
            left = tl.load(at, mask=(real & _within(j, size))[:, None], other=0.0)
            right = tl.load(at + GROUP, mask=(real & _within(j + 1, size))[:, None], other=0.0)
            total += (1 - f)[:, None] * left
            total += f[:, None] * right
            step += 1.0
            row += 1
            done += 1
    if PARTS > 1:
        total = tl.sum(tl.reshape(total, (PARTS, RAYS, GROUP)), axis=0)
    k = block * RAYS + tl.arange(0, RAYS)
    total *= tl.load(length + k)[:, None]
    at = tl.load(ray + k)
    number = group * GROUP + image
    places = number.to(tl.int64)[None, :] * rays + at[:, None]
    tl.store(sinograms + places, total, mask=(at >= 0)[:, None] & (number < batch)[None, :])


@triton.jit
def backproject_parallel(
    sinograms, turn, gap, images,
    height, width, angles, bins, batch,
    GROUP: tl.constexpr, MOST: tl.constexpr, UNROLL: tl.constexpr,
    TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Contributions of parallel rays with values length y to a tile of pixels of a group of images.

    At an angle, bin b passes pixel (i, j) at a distance of gap |a_0 i + a_1 j + a_2 + 1/gap - b|
    pixels; ``turn`` is (angles, 3). No pixel has more than MOST bins of an angle within a pixel's
    distance. Tables are padded to a multiple of UNROLL angles. ``sinograms`` is (groups,
    angles * bins, GROUP), ``images`` (batch, height, width).
    """
    group, image = tl.program_id(1), tl.arange(0, GROUP)
    i, j = _tile(width, TILE_HEIGHT, TILE_WIDTH)
    row, column = i.to(tl.float64), j.to(tl.float64)
    values = sinograms + group.to(tl.int64) * angles * bins * GROUP + image[None, :]
    kind = sinograms.dtype.element_ty
    total = tl.zeros((TILE_HEIGHT * TILE_WIDTH, GROUP), kind)
    angle = 0
    while angle < angles:
        for _ in tl.static_range(UNROLL):
            a = turn + angle * 3
            a_2 = _shifted(tl.load(a + 2), kind)
            # The last bin too far away on one side
            before, f = _split(tl.load(a) * row + (tl.load(a + 1) * column + a_2), kind)
            at = values + ((angle * bins + before) * GROUP)[:, None]
            distance = tl.load(gap + angle)
            for k in tl.static_range(1, MOST + 1):
                weight = 1 - tl.abs(distance * (k - f) - 1)
                near = (weight > 0) & _within(before + k, bins)
                y = tl.load(at + k * GROUP, mask=near[:, None], other=0.0)
                total += tl.where(near, weight, 0.0)[:, None] * y
            angle += 1
    _store_tile(images, total, i, j, group * GROUP + image, height, width, batch)


@triton.jit
def backproject_fans(
    sinograms, guess, line, offsets, places, entries, bounds, images,
    height, width, rays, batch, tall, broad,
    GROUP: tl.constexpr, ENTRY: tl.constexpr, AT_ONCE: tl.constexpr,
    TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """``backproject_parallel`` for fans, with the tables of FanRuns.

    A lane has 2 x 2 pixels: two next to each other on a line, a row or a column, share their rays.
    A region has ``tall`` rows of ``broad`` tiles.
    """
    group, image = tl.program_id(1), tl.arange(0, GROUP)
    i, j = _tile(tl.cdiv(width, 2), TILE_HEIGHT // 2, TILE_WIDTH // 2)
    i, j = 2 * i, 2 * j
    # Lanes beyond the image have the place of its last pixel: no denominator is zero there.
    row, column = tl.minimum(i, height - 1), tl.minimum(j, width - 1)
    values = sinograms + group.to(tl.int64) * rays * GROUP + image[None, :]
    a = tl.zeros((TILE_HEIGHT * TILE_WIDTH // 4, GROUP), sinograms.dtype.element_ty)
    b, c, d = a, a, a  # a and b are on a row, c and d below
    across = tl.cdiv(width, TILE_WIDTH)
    down, right = tl.program_id(0) // across // tall, tl.program_id(0) % across // broad
    at = bounds + (down * tl.cdiv(across, broad) + right) * 3
    begin, middle, end = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    a, b, c, d = _of_fans(
        a, b, c, d, values, row, column, guess, line, offsets, places, entries,
        begin, middle, GROUP, ENTRY, AT_ONCE,
    )  # fmt: skip
    a, c, b, d = _of_fans(
        a, c, b, d, values, column, row, guess, line, offsets, places, entries,
        middle, end, GROUP, ENTRY, AT_ONCE,
    )  # fmt: skip
    number = group * GROUP + image
    _store_tile(images, a, i, j, number, height, width, batch)
    _store_tile(images, b, i, j + 1, number, height, width, batch)
    _store_tile(images, c, i + 1, j, number, height, width, batch)
    _store_tile(images, d, i + 1, j + 1, number, height, width, batch)


@triton.jit
def _of_fans(
    a, b, c, d, values, step, across, guess, line, offsets, places, entries, entry, end,
    GROUP: tl.constexpr, ENTRY: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add the rays of some entries to pixels a, b of a line, and c, d beside them on the next."""
    x, y = step.to(tl.float32), across.to(tl.float32)
    step, across = step.to(tl.float64), across.to(tl.float64)
    # Tables are loaded an entry ahead, since there are too few warps to wait for them.
    this, following = tl.load(entries + entry), tl.load(entries + entry + 1)
    place, g_0, g_1, g_2, start, slope, origin, growth = _run(this, guess, line, places, ENTRY)
    while entry < end:
        number, latest = _two(this, tl.uint32)
        first, where = _two(place, tl.int32)
        more, latest = (number % ENTRY).to(tl.int32), latest.to(tl.int32)
        at, ray = values + (first + more) * GROUP, offsets + where + more
        t_0, t_1 = _two(g_0, tl.float32)
        t_2, b_0 = _two(g_1, tl.float32)
        b_1, b_2 = _two(g_2, tl.float32)
        top, bottom = t_0 * x + (t_1 * y + t_2), b_0 * x + (b_1 * y + b_2)
        apart, scale = start + slope * step - across, origin + growth * step
        next_top, next_bottom, next_apart, next_scale = (
            top + t_0, bottom + b_0, apart + slope, scale + growth
        )  # fmt: skip
        entry += 1
        this, following = following, tl.load(entries + entry + 1)
        place, g_0, g_1, g_2, start, slope, origin, growth = _run(this, guess, line, places, ENTRY)
        a, b = _of_rays(a, b, at, ray, latest, top, bottom, apart, scale, GROUP, AT_ONCE)
        c, d = _of_rays(
            c, d, at, ray, latest, next_top, next_bottom, next_apart, next_scale, GROUP, AT_ONCE
        )
    return a, b, c, d


@triton.jit
def _run(entry, guess, line, places, ENTRY: tl.constexpr):
    """What tables have about the run of an entry, pairs of numbers not yet split."""
    number, _ = _two(entry, tl.uint32)  # whose division is a shift
    run = (number // ENTRY).to(tl.int32)
    near, exact = guess + run * 3, line + run * 4
    return (
        tl.load(places + run), tl.load(near), tl.load(near + 1), tl.load(near + 2),
        tl.load(exact), tl.load(exact + 1), tl.load(exact + 2), tl.load(exact + 3),
    )  # fmt: skip


@triton.jit
def _of_rays(
    a, b, at, ray, latest, top, bottom, apart, scale, GROUP: tl.constexpr, AT_ONCE: tl.constexpr
):
    """Add AT_ONCE rays, the first being the nearest integer to top / bottom, to pixels of a line.

    Those that are not near have the weight 0.
    """
    root = tl.rsqrt(bottom)  # one instruction, which a division is not
    k = (top * root * root + ROUND).to(tl.int32, bitcast=True) - ROUND_BITS
    k = tl.maximum(tl.minimum(k, latest), 0)
    at, ray = at + (k * GROUP)[:, None], ray + k
    for n in tl.static_range(AT_ONCE):
        values = tl.load(at + n * GROUP)
        distance = (apart + scale * tl.load(ray + n)).to(values.dtype)
        a += tl.maximum(1 - tl.abs(distance), 0.0)[:, None] * values
        b += tl.maximum(1 - tl.abs(distance - 1), 0.0)[:, None] * values
    return a, b


@triton.jit
def _two(both, kind: tl.constexpr):
    """Two numbers of 32 bits that were loaded at once."""
    first, second = both.to(tl.int32), (both >> 32).to(tl.int32)
    return first.to(kind, bitcast=True), second.to(kind, bitcast=True)


@triton.jit
def backproject_runs(
    sinograms, start, slope, runs, images,
    height, width, rays, run_count, batch,
    GROUP: tl.constexpr, HALVINGS: tl.constexpr,
    TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """``backproject_parallel`` for rays in runs: neighbours that do not cross inside the image.

    ``runs`` is (run_count, 4): the first ray, the number of rays, whether they go by columns, and
    the largest number of them within a pixel's distance. 2^HALVINGS exceeds all counts. ``start``
    and ``slope`` are (rays,), ``sinograms`` is (groups, rays, GROUP).
    """
    group, image = tl.program_id(1), tl.arange(0, GROUP)
    i, j = _tile(width, TILE_HEIGHT, TILE_WIDTH)
    row, column = i.to(tl.float64), j.to(tl.float64)
    values = sinograms + group.to(tl.int64) * rays * GROUP + image[None, :]
    kind = sinograms.dtype.element_ty
    total = tl.zeros((TILE_HEIGHT * TILE_WIDTH, GROUP), kind)
    run = 0
    while run < run_count:
        ray, count = tl.load(runs + run * 4), tl.load(runs + run * 4 + 1)
        by_columns = tl.load(runs + run * 4 + 2) != 0
        step, across = tl.where(by_columns, column, row), tl.where(by_columns, row, column)
        end = ray + count - 1
        c_first = tl.load(start + ray) + tl.load(slope + ray) * step
        c_last = tl.load(start + end) + tl.load(slope + end) * step
        # Count so that crossings increase; bisect for the first one beyond the previous pixel.
        origin = tl.where(c_last >= c_first, ray, end)
        sign = tl.where(c_last >= c_first, 1, -1)
        low, high = tl.zeros(i.shape, tl.int32), tl.zeros(i.shape, tl.int32) + count
        for _ in range(HALVINGS):
            middle = (low + high) // 2
            searching = low < high
            at = tl.where(searching, origin + sign * middle, ray)
            beyond = tl.load(start + at) + tl.load(slope + at) * step > across - 1
            high = tl.where(searching & beyond, middle, high)
            low = tl.where(searching & ~beyond, middle + 1, low)
        most, k = tl.load(runs + run * 4 + 3), 0
        while k < most:
            known = low + k < count
            at = tl.where(known, origin + sign * (low + k), ray)
            c = tl.load(start + at) + tl.load(slope + at) * step
            weight = 1 - tl.abs(c - across)
            near = known & (weight > 0)
            y = tl.load(values + (at * GROUP)[:, None], mask=near[:, None], other=0.0)
            total += tl.where(near, weight, 0.0).to(kind)[:, None] * y
            k += 1
        run += 1
    _store_tile(images, total, i, j, group * GROUP + image, height, width, batch)


@triton.jit
def _shifted(c, kind: tl.constexpr):
    """c as ``_split`` expects it in a sum: shifted for single precision."""
    return c if kind == tl.float64 else c + SHIFT


@triton.jit
def _split(c, kind: tl.constexpr):
    """floor(c) and c - floor(c), the latter from 32 bits in single precision."""
    if kind == tl.float64:
        whole = tl.floor(c)
        return whole.to(tl.int32), c - whole
    else:  # bit operations, since conversions of double precision are slow
        bits = c.to(tl.int64, bitcast=True)
        fraction = bits.to(tl.uint32).to(tl.float32) * UNIT
        return (bits >> 32).to(tl.int32) - SHIFT_BITS, fraction


@triton.jit
def _quotient(a, b, kind: tl.constexpr):
    """a / b in double precision, with 14 digits for images in single precision."""
    if kind == tl.float64:
        return a / b
    else:  # one step of Newton's method, since divisions of double precision are slow
        inverse = (1 / b.to(tl.float32)).to(tl.float64)
        return a * (inverse * (2 - b * inverse))


@triton.jit
def _within(j, size):
    """0 <= j < size in one comparison."""
    return j.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def _tile(width, TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr):
    """Rows and columns of the pixels of a program's tile."""
    across, pixel = tl.cdiv(width, TILE_WIDTH), tl.arange(0, TILE_HEIGHT * TILE_WIDTH)
    i = tl.program_id(0) // across * TILE_HEIGHT + pixel // TILE_WIDTH
    j = tl.program_id(0) % across * TILE_WIDTH + pixel % TILE_WIDTH
    return i, j


@triton.jit
def _store_tile(images, total, i, j, number, height, width, batch):
    """Store pixels (i, j) of the images with these numbers."""
    inside = ((i < height) & (j < width))[:, None] & (number < batch)[None, :]
    place = number.to(tl.int64)[None, :] * height * width + (i * width + j)[:, None]
    tl.store(images + place, total, mask=inside)
