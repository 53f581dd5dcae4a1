"""Proven bounds on the largest eigenvalue of  M = V* diag(w) V  for chains of convolutions.

A chain of stride 1 that reaches over r pixels couples pixels at most 2 r rows and columns apart, in
a way that depends only on edges within r pixels. So M of any image has the entries of M of an image
of 6 r + 1 pixels a side, and ordered row by row it is a band matrix. For a level above the largest
eigenvalue, lambda I - M = L L^T + E with a Cholesky factor L in the same band. However inaccurate L
is, L L^T has no negative eigenvalue, so that M has none above lambda + |E|.

The factor is computed a few columns (P; C) at a time, and never stored: L_1 L_1^T = P,
X = C L_1^-T, and S - X X^T is left of the following columns. E is P - L_1 L_1^T and C - X L_1^T, as
they turn out, plus the rounding of S - X X^T, a sum of products: at most
gamma_n (|S| + |X| |X|^T), in any order (Higham, Accuracy and Stability, section 3.5).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from convexlift.operators.convolution import ConvolutionOperator
from convexlift.operators.lanczos import lanczos_norm
from convexlift.operators.linear import Composition, LinearOperator
from convexlift.problems.rounding import UNIT, Rounded, gamma, product
from convexlift.tensors import Shape

MOST_WORK = 1e13
"""Multiplications and additions of the largest factorisation: 512 x 512 pixels, for three
convolutions of 5 x 5; 321 x 481 pixels take 2.3e12."""
PANEL = 256
"""The number of unknowns eliminated at once, unless a row of pixels has more."""
STEPS = 30
"""Steps of Lanczos' method, which estimates the level."""
SPARE = 32.0
"""Factor on the error bound, so that a checker with larger error bounds proves the same."""
KNOWN = 16
"""The number of bounds kept in memory."""


T = TypeVar("T")


class Level(NamedTuple):
    """lambda, and lambda + |E|: no eigenvalue of M is larger."""

    level: float
    bound: float


_LOCK = threading.Lock()
_BOUNDS: dict[bytes, tuple[float, Level | None]] = {}
_ESTIMATES: dict[bytes, float] = {}


@dataclass(frozen=True, eq=False)
class BandMatrix:
    """M of images of this shape, row by row; pixels are coupled over twice the reach.

    Attributes:
        entries: M of a small image, (rows, channels, columns, rows, channels, columns).
        error: a bound on the sum of the errors of the entries in a row of M.
    """

    entries: Tensor
    error: float
    shape: Shape
    reach: int
    _middle: dict[int, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows of pixels."""
        return self.shape[1]

    @property
    def n(self) -> int:
        """The number of unknowns in a row of pixels."""
        return self.shape[0] * self.shape[2]

    @property
    def band(self) -> int:
        """The number of rows over which pixels are coupled."""
        return min(2 * self.reach, self.rows - 1)

    def block(self, i: int, j: int) -> Tensor:
        """The entries between rows i >= j of pixels, (n, n)."""
        row = _place(j, self.rows, self.reach)
        if self.rows <= 6 * self.reach + 1 or row != 3 * self.reach:
            return self._block(row, i - j)
        if i - j not in self._middle:  # most rows share their entries
            self._middle[i - j] = self._block(row, i - j)
        return self._middle[i - j]

    def columns(self, first: int, count: int, reach: int, level: float) -> Tensor:
        """level I - M in the columns of these rows of pixels, from the diagonal downwards."""
        count, below = min(count, self.rows - first), min(reach, self.rows - first)
        found = self.entries.new_zeros((below, self.n, count, self.n))
        for j in range(count):
            for i in range(min(below, j + self.band + 1)):
                low, high = sorted((i, j))
                block = self.block(first + high, first + low)
                found[i, :, j] = -(block if i >= j else block.T)
        found = found.reshape(below * self.n, count * self.n)
        found.diagonal().add_(level)
        return found

    def _block(self, row: int, apart: int) -> Tensor:
        channels, _, width = self.shape
        found = self.entries.new_zeros((channels, width, channels, width))
        small = self.entries[row + apart, :, :, row]
        to = torch.arange(width, device=found.device)
        places = [_place(column, width, self.reach) for column in range(width)]
        known, far = torch.tensor(places, device=found.device), min(2 * self.reach, width - 1)
        for b in range(-far, far + 1):
            inside = (to + b >= 0) & (to + b < width)
            at, source = to[inside], known[inside]
            found[:, at + b, :, at] = small[:, source + b, :, source]
        return found.reshape(self.n, self.n)


def _place(index: int, count: int, reach: int) -> int:
    """The row of the small image that sees the edges as this row does."""
    size = 6 * reach + 1
    if count <= size or index < 3 * reach:
        return index
    return max(3 * reach, index - (count - size))


def reach_of(V: LinearOperator, shape: Shape) -> int | None:
    """The radius in pixels of a chain of convolutions; None if M has no band."""
    total = 0
    for link, _ in V.steps(shape):
        if not isinstance(link, ConvolutionOperator) or link.stride != 1 or len(shape) != 3:
            return None
        if link.boundary == "circular":
            return None
        total += link.weight.shape[-1] // 2
    return total


def work(shape: Shape, reach: int) -> float:
    """The approximate number of multiplications and additions of a factorisation."""
    short, long = sorted(shape[1:])
    return float(long * (shape[0] * short) ** 3 * max(1, min(2 * reach, long)) ** 2)


@torch.no_grad()
def band_matrix(V: LinearOperator, w: Tensor, shape: Shape) -> BandMatrix:
    """M, from its entries for a small image."""
    reach = reach_of(V, shape)
    assert reach is not None
    height, width = (min(size, 6 * reach + 1) for size in shape[1:])
    small = (shape[0], height, width)
    links = []
    for link, (channels, *_) in V.steps(shape):
        assert isinstance(link, ConvolutionOperator)
        kernel = link.weight.detach().double()
        links.append(ConvolutionOperator(kernel, (channels, height, width), 1, link.boundary))
    M, error = _gram(Composition(tuple(reversed(links))), w, small, reach)
    near = shape[0] * math.prod(min(4 * reach + 1, size) for size in shape[1:])
    entries = M
    if shape[1] < shape[2]:  # the band is narrower across
        entries, shape = entries.permute(2, 1, 0, 5, 4, 3), (shape[0], shape[2], shape[1])
    return BandMatrix(entries, near * error, shape, reach)


def _gram(V: LinearOperator, w: Tensor, shape: Shape, reach: int) -> tuple[Tensor, float]:
    """M as (rows, channels, columns, rows, channels, columns), and the error of its entries.

    V acts on combs of pixels that are too far apart to meet: (2 reach + 1)^2 images hold all of V.
    """
    channels, height, width = shape
    s, root = 2 * reach + 1, w.double().sqrt().reshape(1, -1, 1, 1)
    combs = root.new_zeros((channels, s, s, *shape))
    for c, a, b in itertools.product(range(channels), range(s), range(s)):
        combs[c, a, b, c, a::s, b::s] = 1
    seen_by = product(V, Rounded.exact(combs.flatten(0, 2)), shape)
    U = (root * seen_by.value).reshape(channels, s, s, -1, height, width)
    error = float((root * seen_by.error).max()) + gamma(4) * float(U.abs().max())
    at = torch.arange(width, device=w.device)
    near = (at[:, None] - at).abs() <= reach
    M = U.new_zeros((height, channels, width, height, channels, width))
    for row in range(height):
        low, high = max(0, row - reach), min(height, row + reach + 1)
        seen = U[:, torch.arange(low, high) % s][:, :, at % s, :, row]  # c, rows, columns, f, out
        seen = (seen * near[:, None]).permute(1, 0, 2, 3, 4).flatten(0, 2).flatten(1)
        part = (seen @ seen.T).reshape(high - low, channels, width, high - low, channels, width)
        M[low:high, :, :, low:high] += part
    lengths = U.abs().sum((3, 4, 5)).max(), U.square().sum((3, 4, 5)).max()
    count = U.shape[3] * s**2
    slack = 2 * error * float(lengths[0]) + count * error**2 + gamma(count + s) * float(lengths[1])
    return M, slack * (1 + 1e-9) + 1e-300  # squares may underflow


@torch.no_grad()
def eigenvalue_below(matrix: BandMatrix, level: float) -> float:
    """lambda + |E| with lambda I - M = L L^T + E; infinite if the factorisation fails."""
    step = max(1, min(matrix.band, PANEL // matrix.n))
    size, reach = step * matrix.n, -(-matrix.band // step)  # size of a panel, panels in the band
    columns: dict[int, Tensor] = {}
    beside = below = 0.0  # sums of |E| over rows
    count = -(-matrix.rows // step)
    for k in range(count):
        for j in range(k, min(k + reach + 1, count)):
            if j not in columns:
                columns[j] = matrix.columns(j * step, step, (reach + 1) * step, level)
        panel = columns.pop(k)
        P, C = panel[: panel.shape[1]], panel[panel.shape[1] :]
        L, failed = torch.linalg.cholesky_ex(P)
        if int(failed):
            return math.inf
        X = torch.linalg.solve_triangular(L, C.T, upper=False).T.contiguous()
        rest = (C - X @ L.T).abs_()
        here = float(((P - L @ L.T).abs().sum(1) + rest.sum(0)).max())
        there = float(rest.sum(1).max()) if len(rest) else 0.0
        if not math.isfinite(here + there):
            return math.inf
        beside, below = max(beside, here), max(below, there)
        for i, j in enumerate(range(k + 1, min(k + reach + 1, count))):
            mine = X[i * size :]
            columns[j][: len(mine)].addmm_(mine, X[i * size : (i + 1) * size].T, alpha=-1)
    # (L L^T)_ii = lambda - M_ii - E_ii bounds the entries of |L| |L|^T and of S.
    residual = beside + reach * below
    entry = abs(level) + float(matrix.entries.abs().max()) + residual
    wide = (2 * reach + 1) * size  # the entries of a row of E, each updated and compared
    rounding = (reach + 2) * wide * gamma(size + 4) * 4 * entry
    return (level + (residual + rounding + matrix.error) * (1 + 1e-9)) * (1 + 8 * UNIT)


@torch.no_grad()
def estimate(V: LinearOperator, w: Tensor, shape: Shape) -> float:
    """The largest eigenvalue of M from below, by Lanczos' method.

    It starts at the frequency that V amplifies most in the middle of an image, under half a period
    of sines: nearly the eigenvector, unless the edges cause the largest eigenvalue.
    """
    single = V.to(dtype=torch.float32)  # an estimate may be rough
    scaled = [link for link, _ in single.steps(shape)]
    last = scaled[-1]
    assert isinstance(last, ConvolutionOperator)
    kernel = last.weight.detach() * w.to(last.weight).sqrt().reshape(-1, 1, 1, 1)
    scaled[-1] = ConvolutionOperator(kernel, single.steps(shape)[-1][1], 1, last.boundary)
    operator = Composition(tuple(reversed(scaled)))
    return lanczos_norm(operator, shape, STEPS, 0.0, _wave(operator, shape)) ** 2


def _wave(V: LinearOperator, shape: Shape) -> Tensor:
    """The frequency that V amplifies most, fading towards the edges."""
    _, height, width = shape
    point = torch.zeros((1, *shape))
    point[..., height // 2, width // 2] = 1
    spectrum = torch.fft.fft2(V(point.to(next(iter(V.tensors())))).double()).abs().square().sum(1)
    row, column = divmod(int(spectrum.argmax()), width)
    i, j = torch.arange(height)[:, None], torch.arange(width)
    wave = torch.cos(2 * math.pi * (row * i / height + column * j / width))
    fading = torch.sin(math.pi * (i + 0.5) / height) * torch.sin(math.pi * (j + 0.5) / width)
    return (wave * fading).expand(1, *shape)


@torch.no_grad()
def factored_bound(
    V: LinearOperator, w: Tensor, shape: Shape, ceiling: float, slack: float
) -> Level | None:
    """A bound on the largest eigenvalue of M that is at most the ceiling, plus its slack.

    None if no such bound is found, M has no band, or the factorisation would take too long. Bounds
    are cached for equal filters.
    """
    reach, scale = reach_of(V, shape), float(w.max())
    if reach is None or not scale > 0 or work(shape, reach) > MOST_WORK:
        return None
    w, ceiling = (w / scale).double(), ceiling / scale
    filters = _digest(V, w, shape)
    if (below := _ESTIMATES.get(filters)) is None:
        below = _remember(_ESTIMATES, filters, estimate(V, w, shape))
    if below >= ceiling * (1 + slack):
        return None
    asked, found = _BOUNDS.get(filters, (math.nan, None))
    # A bound for another ceiling will do if it leaves about as much room.
    if asked != ceiling and not (found and ceiling - found.bound >= 0.4 * (ceiling - below)):
        found = _factored(V, w, shape, below, ceiling)
        _remember(_BOUNDS, filters, (ceiling, found))
    if found is None:
        return None
    return Level(found.level * scale, found.bound * scale * (1 + 2 * UNIT))


def _remember(known: dict[bytes, T], key: bytes, value: T) -> T:
    with _LOCK:
        known[key] = value
        if len(known) > KNOWN:
            known.pop(next(iter(known)))
    return value


def _digest(V: LinearOperator, w: Tensor, shape: Shape) -> bytes:
    found = hashlib.blake2b(repr(shape).encode() + w.cpu().numpy().tobytes())
    for link, _ in V.steps(shape):
        assert isinstance(link, ConvolutionOperator)
        kernel = link.weight.detach().double().cpu()
        found.update(repr((kernel.shape, link.boundary)).encode() + kernel.numpy().tobytes())
    return found.digest()


def _factored(
    V: LinearOperator, w: Tensor, shape: Shape, below: float, ceiling: float
) -> Level | None:
    matrix = band_matrix(V, w, shape)
    # The first level lies barely above the estimate; the second allows for an estimate too low.
    room = ceiling - below
    for level in (below + min(1e-3 * below, max(0.5 * room, 1e-5 * below)),
                  below + max(0.9 * room, 1e-4 * below)):  # fmt: skip
        if math.isfinite(bound := eigenvalue_below(matrix, level)):
            return Level(level, level + SPARE * (bound - level))
    return None
