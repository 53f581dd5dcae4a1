"""Proven upper bounds on the largest eigenvalue of  V* diag(w) V,  w >= 0 one for each channel.

Lanczos' method estimates norms from below, which is no proof. Three bounds are:

- A zero-padded convolution is a piece of a circular one on a larger torus, whose eigenvalues are
  those of the matrices (F k)* diag(w) (F k), one for each frequency. A chain of convolutions has
  the product of the bounds of its links.
- The largest row sum of |V|* diag(w) |V|, for convolutions with any padding.
- lambda + |E| for a small matrix M with lambda I - M = L L^T + E: however inaccurate the Cholesky
  factor L is, L L^T has no negative eigenvalue.

The symbol of a whole chain, (F k_2 F k_1)* diag(w) (F k_2 F k_1), is no bound: between its links a
chain loses the values that leave the image, and they no longer cancel others. Shift to the right
and to the left, shift back, and subtract: the symbol is 0, but the first and last columns remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from convexlift.operators.convolution import ConvolutionOperator
from convexlift.operators.linear import LinearOperator
from convexlift.problems.rounding import UNIT, Rounded, gamma, largest, product
from convexlift.tensors import Shape

LARGEST_MATRIX = 1024
"""The largest number of pixels for which M is formed."""
CHUNK = 64
"""Unit images per batch."""


@torch.no_grad()
def largest_eigenvalue(V: LinearOperator, w: Tensor, shape: Shape) -> float:
    """An upper bound on the largest eigenvalue of V* diag(w) V; infinite if there is none."""
    links = V.steps(shape)
    on_torus = all(isinstance(link, ConvolutionOperator) and link.stride == 1 and
                   link.boundary in ("zero", "circular") for link, _ in links)  # fmt: skip
    bounds = [_product_of_links(links, w) if on_torus else math.inf]
    if (len(links) > 1 or math.isinf(bounds[0])) and math.prod(shape) <= LARGEST_MATRIX:
        bounds.append(_of_matrix(V, w, shape))
    if all(isinstance(link, ConvolutionOperator) for link, _ in links):
        bounds.append(_row_sums(links, w))
    return min(bounds)


def _row_sums(links: Sequence[tuple[LinearOperator, Shape]], w: Tensor) -> float:
    sizes = w.double().new_ones((1, links[0][1][0], 1, 1))
    for link, shape in links:
        sizes = link.magnitude(sizes, shape)
    sizes = sizes * w.double().reshape(1, -1, 1, 1)
    for link, shape in reversed(links):
        sizes = link.magnitude(sizes, shape, adjoint=True)
    return float(sizes.max()) * (1 + 1e-9)


def _product_of_links(links: Sequence[tuple[LinearOperator, Shape]], w: Tensor) -> float:
    bound = 1.0
    for i, (link, shape) in enumerate(links):
        assert isinstance(link, ConvolutionOperator)
        kernel = link.weight.detach().double()
        last = i == len(links) - 1
        factors = w.double().sqrt() if last else kernel.new_ones(len(kernel))
        pad = 0 if link.boundary == "circular" else 2 * (kernel.shape[-1] // 2)
        torus = [max(n + pad, kernel.shape[-1]) for n in shape[-2:]]
        if not pad and kernel.shape[-1] > min(shape[-2:]) > 1:
            return math.inf  # a kernel that wraps around
        bound *= _on_torus(kernel * factors[:, None, None, None], torus) * (1 + 1e-12)
    return bound


def _on_torus(kernel: Tensor, torus: Sequence[int]) -> float:
    """max over frequencies of the largest eigenvalue of (F k)* (F k)."""
    inputs, points = kernel.shape[1], math.prod(torus)
    gram = torch.zeros((torus[0], torus[1] // 2 + 1, inputs, inputs), dtype=torch.complex128)
    for one in kernel.cpu():  # filter by filter, since all spectra together are large
        f = torch.fft.rfft2(one, s=list(torus))
        gram += torch.einsum("cij,dij->ijcd", f.conj(), f)
    found = float(gram.real.max()) if inputs == 1 else float(torch.linalg.eigvalsh(gram).max())
    # A Fourier coefficient errs by a few log2(N) roundings of the norm of all of them at most.
    error = 16 * UNIT * math.log2(points + 1) * math.sqrt(points) * float(kernel.norm())
    # Squares may underflow, hence 1e-150.
    return (math.sqrt(max(found, 0.0) * (1 + 1e-12)) + error + 1e-150) ** 2


def _of_matrix(V: LinearOperator, w: Tensor, shape: Shape) -> float:
    """lambda + |E| for an approximate Cholesky factor of lambda I - M."""
    V, w = V.to(dtype=torch.float64, device="cpu"), w.double().cpu().reshape(1, -1, 1, 1)
    count = math.prod(shape)
    units = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
    rows, errors = [], []
    for unit in torch.split(units, CHUNK):
        a = product(V, Rounded.exact(unit), shape)
        scaled = w * a.value
        b = Rounded(scaled, w * largest(a.error) + gamma(2) * largest(scaled))
        column = product(V, b, shape, adjoint=True)
        rows.append(column.value.flatten(1))
        errors.append(float(column.error.max()))
    M = torch.cat(rows)
    M = (M + M.T) / 2
    top = float(torch.linalg.eigvalsh(M)[-1])
    level = top + 1e-9 * abs(top) + 1e-300
    A = level * torch.eye(count, dtype=torch.float64) - M
    L, failed = torch.linalg.cholesky_ex(A)
    if int(failed):
        return math.inf
    residual = (A - L @ L.T).abs().sum(1) + gamma(count + 4) * (L.abs() @ L.T.abs()).sum(1)
    rounding = count * (max(errors) + gamma(4) * float(M.abs().max())) + gamma(4) * level
    return (level + float(residual.max()) * (1 + 1e-9) + rounding * (1 + 1e-9)) * (1 + gamma(4))
