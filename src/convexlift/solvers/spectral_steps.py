"""Steps for x that differ with the frequency: the metric of problems in tomography.

The ray transform sees low frequencies |w| far better than high ones, A* A ~ 1/|w|, and filters of
mean zero see high ones better. One step for all of them is too short for nearly all. With
H_i >= K_i* K_i diagonal in Fourier space, for every row i of K that acts on x,

    T = SAFETY (sum_i sigma_i n_i H_i)^-1

satisfies ||S^(1/2) K T^(1/2)|| < 1 like the scalar rule of ``step_sizes``, for each frequency. A
proximal map in such a metric is not one of each pixel alone, so that the box is dualised too.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from convexlift.operators.convolution import ConvolutionOperator, DifferenceOperator
from convexlift.operators.linear import Identity, LinearOperator, power_iteration
from convexlift.operators.spectral import SpectralFilter, energies, filtered, frequencies
from convexlift.operators.tomography.filtered_backprojection import invertible
from convexlift.problems.saddle import SaddlePointProblem
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.method import Choice
from convexlift.solvers.step_sizes import SAFETY, Coupling
from convexlift.tensors import Blocks, expand_per_image, sum_per_image

POWER_STEPS = 80
RAY_STEPS = 40
MARGIN = 1.05
"""Spectra are flat once they are filtered, and power iteration slow: what it misses, at most."""
FLOOR = 5e-2
"""Where filters see nothing, H is this fraction of its maximum."""
PATCH = 48
"""Boundaries, which H must cover too, are as bad for small images as for large ones."""
LARGEST_KERNEL = 11
"""Boundaries reach as far as kernels do, and H knows of none: large ones are left to one step."""


class FourierSteps(Blocks):
    """T: numbers (B,) for most blocks, and for x a spectrum (B, 1, H, W//2 + 1)."""

    __slots__ = ()

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """T u, where u has the blocks."""
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

    recent = True
    scalar = False
    choice = Choice(
        "steps",
        "one for each frequency of x",
        "ray transforms favour low ones: A* A ~ 1/|w|",
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
                name: float(self.spectra[v].mean())  # for moves of which nothing is known
                if name == "x"
                else len(row) * K.norm(saddle.K.shapes[name]) ** 2
                for name, K in row.items()
            }
            for v, row in saddle.K.rows.items()
        }

    @staticmethod
    def applies(problem: VariationalProblem) -> bool:
        """For ray transforms, and networks that see the image through convolutions, and TV."""
        on_image = [layer.operators[0] for layer in problem.network.layers if 0 in layer.operators]
        return invertible(problem.operator) and all(
            isinstance(K, DifferenceOperator)
            or (isinstance(K, ConvolutionOperator) and _is_local(K))
            for K in on_image
        )

    def tau(self, sigma: Blocks) -> Blocks:
        """See the module; numbers for blocks other than x."""
        steps = dict(super().tau(sigma))
        parts = [_per_frequency(sigma[v]) * s for v, s in self.spectra.items()]
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
        return Blocks(
            {
                "x": sum_per_image(energies(du["x"]) / tau["x"]),
                **super().squared_lengths(rest, tau),
            }
        )


def majorant(K: LinearOperator, height: int, width: int, like: Tensor) -> Tensor:
    """The spectrum (H, W//2 + 1) of an H >= K* K, for images of one channel."""
    if isinstance(K, Identity):
        return torch.ones((height, width // 2 + 1), dtype=like.dtype, device=like.device)
    if isinstance(K, ConvolutionOperator):
        size = min(PATCH, height), min(PATCH, width)
        patch = ConvolutionOperator(K.weight, (1, *size), K.stride, K.boundary)
        scale = _scale(patch, _response(K, *size), POWER_STEPS)
        return scale * _response(K, height, width)
    if isinstance(K, DifferenceOperator):  # on the torus there are more of them, hence H >= K* K
        rows, columns = _symbol(height, like)[:, None], _symbol(width, like)[: width // 2 + 1]
        return rows + columns + FLOOR * 8
    return _of_rays(K, height, width, like.dtype, like.device)


def _symbol(size: int, like: Tensor) -> Tensor:
    """That of D* D, 2 - 2 cos(2 pi w), for differences D of neighbours in a ring."""
    w = torch.fft.fftfreq(size, dtype=like.dtype, device=like.device)
    return 2 - 2 * torch.cos(2 * torch.pi * w)


_SCALES: WeakKeyDictionary[LinearOperator, float] = WeakKeyDictionary()
"""Of scanners: many products with A, and the same for all data of one."""


def _of_rays(
    K: LinearOperator, height: int, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """1/|w|, up to the lowest frequency of the image."""
    lowest = 0.5 / max(height, width)
    spectrum = 1 / (frequencies(height, width, dtype, device) + lowest)
    if K not in _SCALES:
        _SCALES[K] = _scale(K, spectrum, RAY_STEPS)
    return _SCALES[K] * spectrum


def _is_local(K: ConvolutionOperator) -> bool:
    """Whether H of this convolution can be trusted: see ``LARGEST_KERNEL``."""
    assert K.input_shape is not None
    side = max(K.weight.shape[-2:])
    small = side <= min(LARGEST_KERNEL, *K.input_shape[-2:])
    return K.stride == 1 and small and bool(K.weight.any())


def _response(K: ConvolutionOperator, height: int, width: int) -> Tensor:
    """sum_c |F k_c|^2, nowhere near zero."""
    squares: Tensor = torch.fft.rfft2(K.weight, s=(height, width)).abs().square().sum((0, 1))
    return squares + FLOOR * squares.max()


def _scale(K: LinearOperator, spectrum: Tensor, steps: int) -> float:
    """The least number c with K* K <= c H for the H of the spectrum, or a little more."""
    shape = K.input_shape
    assert shape is not None
    whitened = K @ SpectralFilter(spectrum.rsqrt(), shape[-1])
    return (MARGIN * power_iteration(whitened, shape, steps)) ** 2


def _per_frequency(sigma: Tensor) -> Tensor:
    return sigma[:, None, None, None]
