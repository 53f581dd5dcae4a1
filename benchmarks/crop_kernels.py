"""Filters on small crops without boundary: V x is the convolution of the interior.

Dual variables are stored with a margin of zeros as wide as the filters reach, so that the adjoint
needs no conditions: p is (B, K, H + S - 1, W + S - 1) for crops (B, C, H, W), and ``interior(p)``
is what V x gives. On a GPU these are Triton kernels, several times as fast as cuDNN at this size;
on a CPU, torch's convolutions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

PIXELS = {1: 128, 3: 256}
"""Pixels of a program of the adjoint, for grey and colour."""


class Reading(NamedTuple):
    """What a guide read: weights and, perhaps, biases of h(V x + b), both like V x."""

    weights: Tensor
    biases: Tensor | None = None

    def held(self) -> Reading:
        """Without gradients, for kernels."""
        return Reading(*(None if t is None else t.detach().contiguous() for t in self))

    def add_biases(self, responses: Tensor) -> Tensor:
        """V x + b."""
        return responses if self.biases is None else responses + self.biases


def with_margin(filters: Tensor, like: Tensor) -> Tensor:
    """Zeros for the dual variables of crops like these."""
    batch, _, height, width = like.shape
    count, _, size, _ = filters.shape
    return like.new_zeros(batch, count, height + size - 1, width + size - 1)


def interior(p: Tensor, size: int) -> Tensor:
    """p without its margin."""
    m = size - 1
    return p[..., m:-m, m:-m]


def add_adjoint(filters: Tensor, p: Tensor, x: Tensor, factor: float) -> Tensor:
    """x + factor V* p."""
    count, channels, size, _ = filters.shape
    if not x.is_cuda:
        return x + factor * F.conv_transpose2d(interior(p, size), filters)
    x = x.contiguous()
    batch, _, height, width = x.shape
    out = torch.empty_like(x)
    pixels = PIXELS[channels]
    grid = (triton.cdiv(height * width, pixels), batch)
    _adjoint[grid](x, p, filters, out, factor, height, width, channels, count, size, pixels)
    return out


def weigh(filters: Tensor, x: Tensor, factors: Tensor, p: Tensor) -> None:
    """p = factors V x."""
    if x.is_cuda:
        _launch(filters, x, Reading(factors), factors, 0.0, p, p, 0.0, False)
    else:
        interior(p, filters.shape[-1]).copy_(factors * F.conv2d(x, filters))


def dual_step(
    filters: Tensor, x: Tensor, read: Reading, delta: float, sigma: Tensor, ahead: Tensor,
    p: Tensor, momentum: float,
) -> None:  # fmt: skip
    """p = prox(ahead + sigma (V x + b)) of the conjugate of <weights, h>, h Huber's; in place.

    Then ahead = p + momentum (p - old p).
    """
    if x.is_cuda:
        _launch(filters, x, read, sigma, delta, ahead, p, momentum, True)
        return
    size, weights = filters.shape[-1], read.weights
    start, old = interior(ahead, size), interior(p, size).clone()
    response = read.add_biases(F.conv2d(x, filters))
    raised = (start + sigma * response) / (1 + sigma * delta / weights)
    new = torch.maximum(torch.minimum(raised, weights), -weights)
    interior(p, size).copy_(new)
    start.copy_(new + momentum * (new - old))


def primal_step(
    x: Tensor, back: Tensor, y: Tensor, seen: Tensor, tau: Tensor, relaxation: float, robust: bool
) -> tuple[Tensor, Tensor]:
    """new = prox(x - tau back) of ||. - y||_1 or 1/2 ||seen (. - y)||^2, and 2 new - x.

    Then x += relaxation (new - x), in place.
    """
    assert x.is_contiguous()
    new, beyond = torch.empty_like(x), torch.empty_like(x)
    if x.is_cuda:
        back, y, seen = (t.contiguous() for t in (back, y, seen))
        grid = (triton.cdiv(x.numel(), 256),)
        _primal[grid](
            x, back, y, seen, tau, new, beyond, relaxation, x.numel(), robust, 256
        )  # fmt: skip
        return new, beyond
    ahead = x - tau * back
    if robust:
        new = y + (ahead - y).sign() * ((ahead - y).abs() - tau).clamp_min(0)
    else:
        new = (ahead + tau * seen * y) / (1 + tau * seen)
    beyond = 2 * new - x
    x += relaxation * (new - x)
    return new, beyond


def _launch(
    filters: Tensor, x: Tensor, read: Reading, sigma: Tensor, delta: float, ahead: Tensor,
    p: Tensor, momentum: float, step: bool,
) -> None:  # fmt: skip
    x, weights = x.contiguous(), read.weights.contiguous()
    biases = weights if read.biases is None else read.biases.contiguous()
    count, channels, size, _ = filters.shape
    batch, _, height, width = x.shape
    grid = (triton.cdiv((height - size + 1) * (width - size + 1), 64), batch)
    _forward[grid](
        x, filters, weights, biases, sigma, ahead, p, delta, momentum, height, width, channels,
        count, triton.next_power_of_2(count), size, 64, step, read.biases is not None,
    )  # fmt: skip


@triton.jit
def _adjoint(
    x, p, filters, out, factor, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1)
    pixel = tl.program_id(0) * P + tl.arange(0, P)
    here = pixel < H * W
    wide: tl.constexpr = W + S - 1
    plane: tl.constexpr = (H + S - 1) * wide
    corner = p + image * K * plane + (pixel // W + S - 1) * wide + pixel % W + S - 1
    first = tl.zeros((P,), tl.float32)
    second = tl.zeros((P,), tl.float32)
    third = tl.zeros((P,), tl.float32)
    for k in range(K):
        for tap in tl.static_range(S * S):
            z = tl.load(corner + k * plane - tap // S * wide - tap % S, mask=here, other=0.0)
            f = filters + k * C * S * S + tap
            first += z * tl.load(f)
            if C == 3:
                second += z * tl.load(f + S * S)
                third += z * tl.load(f + 2 * S * S)
    at = image * C * H * W + pixel
    tl.store(out + at, tl.load(x + at, mask=here) + factor * first, mask=here)
    if C == 3:
        at += H * W
        tl.store(out + at, tl.load(x + at, mask=here) + factor * second, mask=here)
        at += H * W
        tl.store(out + at, tl.load(x + at, mask=here) + factor * third, mask=here)


@triton.jit
def _forward(
    x, filters, weights, biases, sigma, ahead, p, delta, momentum, H: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, S: tl.constexpr,
    P: tl.constexpr, STEP: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1)
    high: tl.constexpr = H - S + 1
    wide: tl.constexpr = W - S + 1
    pixel = tl.program_id(0) * P + tl.arange(0, P)
    here = pixel < high * wide
    i = pixel // wide
    j = pixel % wide
    k = tl.arange(0, KP)
    total = tl.zeros((KP, P), tl.float32)
    for c in tl.static_range(C):
        for tap in tl.static_range(S * S):
            z = tl.load(
                x + ((image * C + c) * H + i + tap // S) * W + j + tap % S, mask=here, other=0.0
            )
            f = tl.load(filters + (k * C + c) * S * S + tap, mask=k < K, other=0.0)
            total += z[None, :] * f[:, None]
    both = here[None, :] & (k < K)[:, None]
    inner = (image * K + k)[:, None] * high * wide + pixel[None, :]
    w = tl.load(weights + inner, both, 1.0)
    if BIASED:
        total += tl.load(biases + inner, both, 0.0)
    row: tl.constexpr = W + S - 1
    at = (image * K + k)[:, None] * (H + S - 1) * row + ((i + S - 1) * row + j + S - 1)[None, :]
    if STEP:
        s = tl.load(sigma)
        new = (tl.load(ahead + at, both, 0.0) + s * total) / (1 + s * delta / w)
        new = tl.minimum(tl.maximum(new, -w), w)
        old = tl.load(p + at, both, 0.0)
        tl.store(p + at, new, both)
        tl.store(ahead + at, new + momentum * (new - old), both)
    else:
        tl.store(p + at, w * total, both)


@triton.jit
def _primal(
    x, back, y, seen, tau, new, beyond, relaxation, count, ROBUST: tl.constexpr, P: tl.constexpr
):
    at = tl.program_id(0) * P + tl.arange(0, P)
    here = at < count
    before = tl.load(x + at, here)
    data = tl.load(y + at, here)
    t = tl.load(tau)
    ahead = before - t * tl.load(back + at, here)
    if ROBUST:
        far = ahead - data
        z = data + tl.maximum(far - t, 0.0) - tl.maximum(-far - t, 0.0)
    else:
        m = t * tl.load(seen + at, here)
        z = (ahead + m * data) / (1 + m)
    tl.store(new + at, z, here)
    tl.store(beyond + at, 2 * z - before, here)
    tl.store(x + at, before + relaxation * (z - before), here)
