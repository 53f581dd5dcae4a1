"""One PDHG iteration of a convolutional layer, in two kernels.

    u     = prox_{tau g}(w_u - tau c),            c = V* w_v
    x_bar = 2 u - w_u,                            w_u <- a u + b w_u + e anchor_u
    v     = prox_{sigma f*}(w_v + sigma V x_bar), w_v <- a v + b w_v + e anchor_v

``primal_step`` computes the first two lines, ``dual_step`` the third, reading and writing w_v once.
V is a convolution with stride 1 of images with one channel. In ``dual_step`` a program holds the
preactivations of a tile of pixels. V on the tile is the product of its patches with the filters;
V* is the product of w_v with the filters, which gives the contribution of each tap for each pixel,
summed over the tile and a margin around it (``spill``). Up to four tiles overlap in a pixel, and
``primal_step`` adds their contributions: no program adds to what another one writes, and results
do not depend on the order in which programs run. x_bar is stored with its margins, as V reads it.

The derivative of the activation is a ramp (``networks.activations.Ramp``). Its multipliers t are
given, or follow from the epigraph of its mean over the tile (``functionals.terms``).

The numbers of an iteration and image (tau, sigma, sigma_mean, a, b, e, ...) are a row of a table;
tau = sigma = 0 leaves an image as it is.
``clock`` holds the row's index twice: ``primal_step`` reads the first entry and writes the second,
``dual_step`` reads the second and writes the first, so that a captured graph of both advances from
row to row by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_FIDELITY, SQUARED_L2, L1, KULLBACK_LEIBLER = (tl.constexpr(n) for n in range(4))
TAU, SIGMA, SIGMA_MEAN, MIX_NEW, MIX_OLD, MIX_ANCHOR = (tl.constexpr(n) for n in range(6))
PASSES = tl.constexpr(60)
"""Enough for bisection in single precision; Newton's method takes a few."""
EPS = tl.constexpr(2.0**-23)
TINY = tl.constexpr(1e-37)


@triton.jit
def primal_step(
    spill, more, x, anchor, u, x_bar, moved,  # changing
    y, diagonal, background, target, copies_of_rows, copies_of_columns,  # fixed
    table, clock,
    scale, pull, lower, upper,
    height, width,
    FIDELITY: tl.constexpr, PULLED: tl.constexpr, MORE: tl.constexpr, OBSERVED: tl.constexpr,
    COLUMNS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr,
    COPIES: tl.constexpr, TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """The primal half of an iteration; a program handles one tile of an image.

    ``copies_of_rows`` (COPIES, height) and ``copies_of_columns`` give the positions of a pixel in
    the padded image: first itself, then its copies in the margins, -1 for none. With MORE, ``more``
    is the contribution of other rows of K to c.
    """
    image, programs = tl.program_id(1), tl.num_programs(0)
    batch = tl.num_programs(1)
    row = tl.load(clock)
    if (tl.program_id(0) == 0) & (image == 0):
        tl.store(clock + 1, row)
    numbers = table + (row * batch + image) * COLUMNS
    tau = tl.load(numbers + TAU)
    if tau == 0:
        return
    a, b, e = tl.load(numbers + MIX_NEW), tl.load(numbers + MIX_OLD), tl.load(numbers + MIX_ANCHOR)

    down, across = tl.cdiv(height, TILE_HEIGHT), tl.cdiv(width, TILE_WIDTH)
    tile_i, tile_j = tl.program_id(0) // across, tl.program_id(0) % across
    pixel = tl.arange(0, TILE_HEIGHT * TILE_WIDTH)
    i, j = tile_i * TILE_HEIGHT + pixel // TILE_WIDTH, tile_j * TILE_WIDTH + pixel % TILE_WIDTH
    inside = (i < height) & (j < width)
    at_edge = (tile_i == 0) | (tile_j == 0) | (tile_i >= down - 2) | (tile_j >= across - 2)
    here = image.to(tl.int64) * (height * width) + i * width + j
    spilt: tl.constexpr = (TILE_HEIGHT + KERNEL_HEIGHT - 1) * (TILE_WIDTH + KERNEL_WIDTH - 1)
    of_image = spill + image.to(tl.int64) * programs * spilt

    # c = V* w: the spill of all tiles on the pixel, and on its copies in the margins
    c = _spilt_on(
        of_image, i + KERNEL_HEIGHT // 2, j + KERNEL_WIDTH // 2, inside, down, across,
        KERNEL_HEIGHT, KERNEL_WIDTH, TILE_HEIGHT, TILE_WIDTH,
    )  # fmt: skip
    if (COPIES > 1) & at_edge:
        for copy in range(1, COPIES * COPIES):
            top = tl.load(copies_of_rows + (copy // COPIES) * height + i, mask=inside, other=-1)
            left = tl.load(copies_of_columns + (copy % COPIES) * width + j, mask=inside, other=-1)
            exists = (top >= 0) & (left >= 0)
            c += _spilt_on(
                of_image, top, left, exists, down, across,
                KERNEL_HEIGHT, KERNEL_WIDTH, TILE_HEIGHT, TILE_WIDTH,
            )  # fmt: skip

    if MORE:
        c += tl.load(more + here, mask=inside, other=0.0)
    w = tl.load(x + here, mask=inside, other=0.0)
    free = w - tau * c
    d = tl.load(diagonal + here, mask=inside, other=0.0)
    safe = tl.where(d != 0, d, 1.0)
    z, step = safe * free, tau * safe * safe
    data = tl.load(y + here, mask=inside, other=0.0)
    if PULLED:
        shrink = 1 + step * pull
        z = (z + step * pull * tl.load(target + here, mask=inside, other=0.0)) / shrink
        step = step / shrink
    if FIDELITY == SQUARED_L2:
        z = (z + step * data) / (1 + step)
    elif FIDELITY == L1:
        z = tl.minimum(tl.maximum(data, z - scale * step), z + scale * step)
    elif FIDELITY == KULLBACK_LEIBLER:
        r = tl.load(background + here, mask=inside, other=1.0)
        shifted = z + r - step
        root = tl.sqrt(shifted * shifted + 4 * step * data)
        flipped = 2 * step * data / tl.maximum(root - shifted, TINY)
        z = tl.where(shifted >= 0, (shifted + root) / 2, flipped) - r
    new = tl.where(d != 0, z / safe, free)
    boxed = tl.minimum(tl.maximum(new, lower), upper)
    new = tl.where(new == new, boxed, new)  # keep NaN visible instead of clipping it to the box

    following = a * new + b * w
    if e != 0:
        following += e * tl.load(anchor + here, mask=inside, other=0.0)
    tl.store(x + here, following, mask=inside)
    if OBSERVED:
        tl.store(u + here, new, mask=inside)
        difference = tl.where(inside, new - w, 0.0)
        tl.store(moved + image * programs + tl.program_id(0), tl.sum(difference * difference))

    # x_bar, and its copies in the margins
    stride = width + KERNEL_WIDTH - 1
    bar = x_bar + image.to(tl.int64) * (height + KERNEL_HEIGHT - 1) * stride
    place = (i + KERNEL_HEIGHT // 2) * stride + j + KERNEL_WIDTH // 2
    tl.store(bar + place, 2 * new - w, mask=inside)
    if (COPIES > 1) & at_edge:
        for copy in range(1, COPIES * COPIES):
            top = tl.load(copies_of_rows + (copy // COPIES) * height + i, mask=inside, other=-1)
            left = tl.load(copies_of_columns + (copy % COPIES) * width + j, mask=inside, other=-1)
            tl.store(bar + top * stride + left, 2 * new - w, mask=(top >= 0) & (left >= 0))


@triton.jit
def _spilt_on(
    spill, top, left, exists, down, across,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr,
    TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum of the spill at positions of the padded image: of the tile there and those before it."""
    rows: tl.constexpr = TILE_HEIGHT + KERNEL_HEIGHT - 1
    columns: tl.constexpr = TILE_WIDTH + KERNEL_WIDTH - 1
    total = tl.zeros(top.shape, tl.float32)
    for before_i in tl.static_range(2):
        tile_i, row = top // TILE_HEIGHT - before_i, top % TILE_HEIGHT + before_i * TILE_HEIGHT
        seen_i = exists & (tile_i >= 0) & (tile_i < down) & (row < rows)
        for before_j in tl.static_range(2):
            tile_j = left // TILE_WIDTH - before_j
            column = left % TILE_WIDTH + before_j * TILE_WIDTH
            seen = seen_i & (tile_j >= 0) & (tile_j < across) & (column < columns)
            at = (tile_i * across + tile_j) * (rows * columns) + row * columns + column
            total += tl.load(spill + at, mask=seen, other=0.0)
    return total


@triton.jit
def dual_step(
    x_bar, w, anchor, v, spill, scratch, moved, mean,  # changing
    filters, bias, multipliers,  # fixed
    table, clock,
    low, high, left, ramp_width, offset,
    apart, bias_apart, height, width,
    STEP: tl.constexpr, BIASED: tl.constexpr, POOLED: tl.constexpr, COARSE: tl.constexpr,
    OBSERVED: tl.constexpr, FULL: tl.constexpr, COLUMNS: tl.constexpr,
    KERNEL_HEIGHT: tl.constexpr, KERNEL_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, TAPS: tl.constexpr,
    TILE_HEIGHT: tl.constexpr, TILE_WIDTH: tl.constexpr, SPILL: tl.constexpr,
):  # fmt: skip
    """The dual half of an iteration; a program handles one tile of an image, in all channels.

    ``filters`` is (2, ROOM, TAPS), the halves of ``_halves``, padded with zeros. ``multipliers``
    holds one number for each channel and block of COARSE x COARSE pixels (0: for each channel; 1:
    for each channel and pixel, ``apart`` numbers from image to image); with POOLED it receives the
    multipliers of the tiles, whose means must stay below ``mean``. ``bias`` has one number for each
    channel or, with BIASED, for each channel and pixel, ``bias_apart`` from image to image.
    SPILL is the size of the tile and its margin, rounded up to a power of two. With FULL, no tile
    or chunk reaches outside. Without STEP, only V* w is computed.
    """
    image, programs, batch = tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    row = tl.load(clock + 1)
    if STEP & (tl.program_id(0) == 0) & (image == 0):
        tl.store(clock, row + 1)
    numbers = table + (row * batch + image) * COLUMNS
    sigma = tl.load(numbers + SIGMA)
    if STEP & (sigma == 0):
        return
    a, b, e = tl.load(numbers + MIX_NEW), tl.load(numbers + MIX_OLD), tl.load(numbers + MIX_ANCHOR)

    across = tl.cdiv(width, TILE_WIDTH)
    tile_i, tile_j = tl.program_id(0) // across, tl.program_id(0) % across
    pixels: tl.constexpr = TILE_HEIGHT * TILE_WIDTH
    pixel, o = tl.arange(0, pixels), tl.arange(0, TAPS)
    i, j = tile_i * TILE_HEIGHT + pixel // TILE_WIDTH, tile_j * TILE_WIDTH + pixel % TILE_WIDTH
    inside = (i < height) & (j < width)
    size, place = height * width, i * width + j
    begin = image.to(tl.int64) * CHANNELS * size
    taps: tl.constexpr = KERNEL_HEIGHT * KERNEL_WIDTH
    stride = width + KERNEL_WIDTH - 1
    bar = x_bar + image.to(tl.int64) * (height + KERNEL_HEIGHT - 1) * stride
    tap = (o // KERNEL_WIDTH) * stride + o % KERNEL_WIDTH
    way = 0.0
    if STEP:
        known = inside[:, None] & (o < taps)[None, :]
        patches = tl.load(bar + (i * stride + j)[:, None] + tap[None, :], mask=known, other=0.0)
        patches_high, patches_low = _halves(patches)
    parts = tl.zeros((pixels, TAPS), tl.float32)
    for first in range(0, CHANNELS, CHUNK):
        channel = first + tl.arange(0, CHUNK)
        at = place[:, None] + channel[None, :] * size
        real = channel < CHANNELS
        used = inside[:, None] & real[None, :]
        if FULL:
            following = tl.load(w + begin + at)
        else:
            following = tl.load(w + begin + at, mask=used, other=0.0)
        if STEP:
            # q = w + sigma (V x_bar + bias)
            of_columns = filters + channel[None, :] * TAPS + o[:, None]
            response = _product(
                patches_high, patches_low, tl.load(of_columns), tl.load(of_columns + ROOM * TAPS),
                tl.zeros((pixels, CHUNK), tl.float32),
            )  # fmt: skip
            if BIASED:
                at_bias = image.to(tl.int64) * bias_apart + at
                response += tl.load(bias + at_bias, mask=used, other=0.0)
            else:
                response += tl.load(bias + channel, mask=real, other=0.0)[None, :]
            q = following + sigma * response
            if POOLED:
                block = (image * CHANNELS + channel) * programs + tl.program_id(0)
                mu = _mean_multiplier(
                    q / sigma, tl.load(mean + block, mask=real, other=0.0),
                    sigma, tl.load(numbers + SIGMA_MEAN),
                    low, high, left, ramp_width, offset, pixels,
                )  # fmt: skip
                tl.store(multipliers + block, mu, mask=real)
                t = (mu / pixels)[None, :]
            elif COARSE == 0:
                t = tl.load(multipliers + channel, mask=real, other=0.0)[None, :]
            elif COARSE == 1:
                t = tl.load(multipliers + image.to(tl.int64) * apart + at, mask=used, other=0.0)
            else:
                blocks = tl.cdiv(width, COARSE)
                block = (tile_i * TILE_HEIGHT // COARSE) * blocks + tile_j * TILE_WIDTH // COARSE
                block += channel * (tl.cdiv(height, COARSE) * blocks)
                t = tl.load(multipliers + block, mask=real, other=0.0)[None, :]
            # v = t times the slope at the proximal point
            flat = 1 / tl.maximum(sigma * ramp_width + t * (high - low), TINY)
            start = -(sigma * left + t * low) * flat
            rise = tl.minimum(tl.maximum(q * flat + start, 0.0), 1.0)
            new = t * low + t * (high - low) * rise
            if OBSERVED:
                tl.store(v + begin + at, new, mask=used)
                difference = tl.where(used, new - following, 0.0)
                way += tl.sum(difference * difference)
            following = a * new + b * following
            if e != 0:
                following += e * tl.load(anchor + begin + at, mask=used, other=0.0)
            if FULL:
                tl.store(w + begin + at, following)
            else:
                following = tl.where(used, following, 0.0)
                tl.store(w + begin + at, following, mask=used)
        of_rows = filters + channel[:, None] * TAPS + o[None, :]
        following_high, following_low = _halves(following)
        parts = _product(
            following_high, following_low, tl.load(of_rows), tl.load(of_rows + ROOM * TAPS), parts
        )
    if OBSERVED:
        tl.store(moved + image * programs + tl.program_id(0), way)

    # The taps of a tile are summed through memory; the data just written are still in a cache.
    program = image.to(tl.int64) * programs + tl.program_id(0)
    own = scratch + program * (taps * pixels)
    tl.store(own + pixel[:, None] + o[None, :] * pixels, parts, mask=(o < taps)[None, :])
    tl.debug_barrier()
    rows: tl.constexpr = TILE_HEIGHT + KERNEL_HEIGHT - 1
    columns: tl.constexpr = TILE_WIDTH + KERNEL_WIDTH - 1
    around = tl.arange(0, SPILL)
    c_i, c_j = around // columns, around % columns
    c = tl.zeros((SPILL,), tl.float32)
    for k in tl.static_range(taps):
        from_i, from_j = c_i - k // KERNEL_WIDTH, c_j - k % KERNEL_WIDTH
        seen = (from_i >= 0) & (from_i < TILE_HEIGHT) & (from_j >= 0) & (from_j < TILE_WIDTH)
        c += tl.load(own + k * pixels + from_i * TILE_WIDTH + from_j, mask=seen, other=0.0)
    tl.store(spill + program * (rows * columns) + around, c, mask=around < rows * columns)


@triton.jit
def _halves(x):
    """x = high + low, where TF32 matrix units (10 bits of mantissa) read high exactly."""
    high = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _product(a_high, a_low, b_high, b_low, total):
    """total + a b without the product of the low halves: accurate to single precision."""
    total = tl.dot(a_low, b_high, total, input_precision="tf32")
    total = tl.dot(a_high, b_low, total, input_precision="tf32")
    return tl.dot(a_high, b_high, total, input_precision="tf32")


@triton.jit
def _mean_multiplier(
    y, target, sigma, sigma_mean, low, high, left, ramp_width, offset, COUNT: tl.constexpr
):
    """The root mu >= 0 of phi, zero where phi(0) <= 0; each column of y is a block.

    phi(mu) = mean h(a) - target - mu/sigma_mean, where a = prox_{eta h}(y), eta = mu/(COUNT sigma).
    """
    per_eta, per_mean = 1 / (COUNT * sigma), 1 / sigma_mean
    top, steepness, height = _mean_at_prox(y, target * 0, low, high, left, ramp_width, offset)
    excess = top - target
    outside = excess > 0
    steepest = per_mean + per_eta * steepness
    scale = height + tl.abs(target)
    mu = tl.where(outside, excess / steepest, 0.0)
    below, above = target * 0, tl.where(outside, excess / per_mean, 0.0)
    running = tl.max(outside.to(tl.int32))
    passes = 0
    while (running > 0) & (passes < PASSES):
        value, rate, _ = _mean_at_prox(y, mu * per_eta, low, high, left, ramp_width, offset)
        phi = value - target - mu * per_mean
        below, above = tl.where(phi >= 0, mu, below), tl.where(phi >= 0, above, mu)
        newton = mu + phi / (per_mean + per_eta * rate)
        done = (tl.abs(phi) <= 4 * EPS * (scale + mu * steepest)) | (
            above - below <= 2 * EPS * above
        )
        # From pass 8 on, every other pass bisects.
        usable = (newton >= below) & (newton <= above) & (done | (passes < 8) | (passes % 2 == 0))
        newton = tl.where(usable, newton, (below + above) / 2)
        mu = tl.where(outside, newton, 0.0)
        running = tl.max((outside & ~done).to(tl.int32))
        passes += 1
    return mu


@triton.jit
def _mean_at_prox(y, eta, low, high, left, ramp_width, offset):
    """Column means of h(a), of -dh(a)/d eta and of |slope y|, for a = prox_{eta h}(y)."""
    flat = ramp_width + eta * (high - low)
    rise = (y - left - eta[None, :] * low) * (1 / tl.maximum(flat, TINY))[None, :]
    rise = tl.minimum(tl.maximum(rise, 0.0), 1.0)
    slope = low + (high - low) * rise
    a = y - eta[None, :] * slope
    bent = rise * (a - left) - rise * rise * (ramp_width / 2)
    value = low * a + (high - low) * bent + offset
    between = (rise > 0) & (rise < 1)
    softer = (ramp_width / tl.maximum(flat, TINY))[None, :]
    descent = slope * slope * tl.where(between, softer, 1.0)
    count = y.shape[0]
    size = tl.sum(tl.abs(slope * y), axis=0)
    return tl.sum(value, axis=0) / count, tl.sum(descent, axis=0) / count, size / count
