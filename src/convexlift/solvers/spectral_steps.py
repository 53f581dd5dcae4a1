"""Step sizes for x that depend on the frequency: a metric for tomography.

The ray transform amplifies low frequencies |xi| far more than high ones, A* A ~ 1/|xi|, while
filters of mean zero amplify high ones. A single step is too short for nearly all frequencies. With
H_i >= K_i* K_i diagonal in Fourier space, for every row i of K that acts on x,

    T = SAFETY (sum_i sigma_i n_i H_i)^-1

satisfies ||S^(1/2) K T^(1/2)|| < 1 for each frequency, like the scalar rule of ``Coupling.tau``. A
proximal map in this metric does not act pixel by pixel, so the box is dualised too.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from convexlift.operators.linear import LinearOperator, lanczos_norm
from convexlift.operators.spectral import SpectralFilter, energies, filtered
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.coupling import SAFETY, Coupling
from convexlift.solvers.method import Choice
from convexlift.tensors import Blocks, expand_per_image, sum_per_image

MARGIN = 1.05
"""Safety factor: filtered spectra are flat, where estimates converge slowly."""
PATCH = 48
"""Side of the patch on which H is scaled: boundary effects do not depend on the image size."""


class FourierSteps(Blocks):
    """T: one number per image (B,) for most blocks, a spectrum (B, 1, H, W//2 + 1) for x."""

    __slots__ = ()

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """T u, for u with the same blocks."""
        assert isinstance(other, Blocks)
        return Blocks(
            {
                name: filtered(part, self[name])
                if self[name].ndim > 1
                else expand_per_image(self[name], part) * part
                for name, part in other.items()
            }
        )


class FourierCoupling(Coupling):
    """H_i for the rows that act on x, and numbers n_i ||K_ij||^2 for the other blocks."""

    recent = relaxed = True
    scalar = False
    choice = Choice(
        "steps",
        "one for each frequency of x",
        "ray transforms favour low ones: A* A ~ 1/|xi|",
    )

    def __init__(self, saddle: SaddlePointProblem, like: Tensor) -> None:
        _, height, width = saddle.K.shapes["x"]
        self.spectra = {
            v: len(row) * majorant(row["x"], height, width, like)
            for v, row in saddle.K.rows.items()
            if "x" in row
        }
        self.weights = {
            v: {
                name: float(self.spectra[v].mean())  # for moves of unknown frequency
                if name == "x"
                else len(row) * K.norm(saddle.K.shapes[name]) ** 2
                for name, K in row.items()
            }
            for v, row in saddle.K.rows.items()
        }

    @staticmethod
    def applies(problem: VariationalProblem) -> bool:
        """Whether A is a ray transform, and the network acts on x by convolutions or TV."""
        on_image = [layer.operators[0] for layer in problem.network.layers if 0 in layer.operators]
        return problem.operator.invertible and all(
            K.symbol(1, 1, problem.fidelity.y) is not None for K in on_image
        )

    def in_double(self) -> FourierCoupling:
        """With spectra in double precision."""
        made = copy(self)
        made.spectra = {v: spectrum.double() for v, spectrum in self.spectra.items()}
        return made

    def tau(self, sigma: Blocks) -> Blocks:
        """SAFETY (sum_i sigma_i n_i H_i)^-1 for x; numbers for the other blocks."""
        steps = dict(super().tau(sigma))
        parts = [sigma[v][:, None, None, None] * s for v, s in self.spectra.items()]
        steps["x"] = SAFETY / torch.stack(parts).sum(0)
        return FourierSteps(steps)

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """sqrt(sum_j <du_j, n_i H_ij du_j>) for every row i."""
        moved = energies(u["x"] - other["x"])
        others = Blocks({name: part for name, part in u.items() if name != "x"})
        sizes = dict(others.distances(other))
        reach = {}
        for v, row in self.weights.items():
            squares = [weight * sizes[name] ** 2 for name, weight in row.items() if name != "x"]
            if v in self.spectra:
                squares.append(sum_per_image(self.spectra[v] * moved).to(moved.dtype))
            reach[v] = torch.stack(squares).sum(0).sqrt()
        return Blocks(reach)

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """<du_j, T_j^-1 du_j> for every block j."""
        rest = Blocks({name: part for name, part in du.items() if name != "x"})
        image = sum_per_image(energies(du["x"]) / tau["x"])
        return Blocks({"x": image, **super().squared_lengths(rest, tau)})

    def whitened_moves(self, du: Blocks, tau: Blocks) -> Iterator[Tensor]:
        """T^(-1/2) du."""
        rest = Blocks({name: part for name, part in du.items() if name != "x"})
        yield filtered(du["x"], tau["x"].rsqrt())
        yield from super().whitened_moves(rest, tau)


def majorant(K: LinearOperator, height: int, width: int, like: Tensor) -> Tensor:
    """The spectrum (H, W//2 + 1) of an H >= K* K, for images of one channel."""
    symbol = K.symbol(height, width, like)
    assert symbol is not None
    if K.symbol_bounds:
        return symbol
    patch = K.patch(PATCH)
    if patch is not K:
        return _scale(patch, like) * symbol
    if K not in _SCALES:
        _SCALES[K] = _scale(K, like)
    return _SCALES[K] * symbol


_SCALES: WeakKeyDictionary[LinearOperator, float] = WeakKeyDictionary()
"""Scales of scanners: costly (many products with A), and shared by all data of one scanner."""


def _scale(K: LinearOperator, like: Tensor) -> float:
    """The least c with K* K <= c H, H the symbol of K, times a small safety margin."""
    assert K.input_shape is not None
    shape = K.input_shape
    symbol = K.symbol(shape[-2], shape[-1], like)
    assert symbol is not None
    whitened = K @ SpectralFilter(symbol.rsqrt(), shape[-1])
    return (MARGIN * lanczos_norm(whitened, shape)) ** 2
