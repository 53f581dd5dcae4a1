"""Step sizes for ray transforms with weighted data: by frequency and by place.

Photon weights omega differ by the contrast of a scan and more. A* omega A is then far from diagonal
in Fourier space, but nearly so after pixels are scaled by the weights of the rays that meet them
(Fessler and Rogers 1996, https://doi.org/10.1109/83.535846):

    A* D A <= kappa H kappa,    D = omega^POWER,    kappa^2 = A* D / A* 1,

with H diagonal in Fourier space, as in ``spectral_steps``. So  S_0 = sigma_0 D  for the data and

    T = SAFETY kappa^-1 (sum_i sigma_i H_i)^-1 kappa^-1

for the image. Box and filters get steps sigma_i kappa^2: in units of kappa x they are the identity,
and convolutions up to the change of kappa within a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import torch
from torch import Tensor

from convexlift.operators.imaging import Diagonal
from convexlift.operators.linear import LinearOperator, lanczos_norm
from convexlift.operators.spectral import SpectralFilter
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.network_duals import BOX_DUAL, DATA_DUAL, dual_names
from convexlift.problems.variational import VariationalProblem
from convexlift.solvers.matrix_steps import data_factors
from convexlift.solvers.method import Choice
from convexlift.solvers.scaled_steps import ScaledCoupling
from convexlift.solvers.spectral_steps import MARGIN, FourierCoupling, FourierSteps, majorant
from convexlift.tensors import Blocks, expand_per_image

POWER = 0.6
"""Of the weights (measured): with 1, the few rays of nearly no weight have too short steps."""
LEAST = 1e-3
"""The smallest kappa^2, relative to the largest."""
EVEN = 1.1
"""Ratio of the largest kappa^2 to the smallest up to which one number does for all pixels."""
FLOOR = 0.02
"""Added to H of the filters, relative to its maximum: they see a constant through kappa."""
PRODUCTS = 12
"""Products with K* K that determine the scale of H; spectra are flat, and more hardly change it."""
SCALE = "kappa"


class WeightedSteps(FourierSteps):
    """T, with kappa as another block."""

    __slots__ = ()

    def __mul__(self, other: float | Tensor | Blocks) -> Blocks:
        """T u = kappa^-1 F^-1 (t F (kappa^-1 u)) for the image."""
        assert isinstance(other, Blocks)
        kappa = self[SCALE]
        inner = super().__mul__(Blocks({**other, "x": other["x"] / kappa}))
        return Blocks({**inner, "x": inner["x"] / kappa})


class WeightedRays(ScaledCoupling, FourierCoupling):
    """H_i of all rows, which act on x alone, and kappa."""

    wary = True
    growth = 1.5  # the first steps may be far off
    choice = Choice(
        "steps",
        "one for each frequency of x, scaled pixel by pixel",
        "ray transforms favour low frequencies, and weights differ from ray to ray",
    )

    def __init__(
        self, saddle: SaddlePointProblem, problem: VariationalProblem, kappa_squared: Tensor
    ) -> None:
        y, (_, height, width) = problem.fidelity.y, problem.image_shape
        # In units in which the mean of kappa^2 is 1, so that the image has its own size.
        unit = expand_per_image(kappa_squared.flatten(1).mean(1), kappa_squared)
        self.kappa = (kappa_squared / unit).sqrt()
        (filters,) = dual_names(1, 1)
        self.factors = {
            DATA_DUAL: data_weights(problem) / unit,
            BOX_DUAL: self.kappa**2,
            filters: self.kappa**2,
        }
        self.spectra = {
            v: torch.ones(1, 1, height, width // 2 + 1).to(y)
            if v == BOX_DUAL
            else self._majorant(v, row["x"], height, width, y)
            for v, row in saddle.K.rows.items()
        }
        self.weights = {v: {"x": H.flatten(1).mean(1)} for v, H in self.spectra.items()}

    def _majorant(self, v: str, K: LinearOperator, height: int, width: int, like: Tensor) -> Tensor:
        """H >= kappa^-1 K* D K kappa^-1, image by image, from the symbol of K."""
        H = K.symbol(height, width, like) if v == DATA_DUAL else majorant(K, height, width, like)
        assert H is not None
        if v != DATA_DUAL:
            H = H + FLOOR * H.max()
        scales = []
        for D, kappa in zip(
            torch.split(self.factors[v], 1), torch.split(self.kappa, 1), strict=True
        ):
            scaled = Diagonal(D.sqrt()) @ K @ Diagonal(1 / kappa)
            whitened = scaled @ SpectralFilter(H.rsqrt(), width)
            scales.append((MARGIN * lanczos_norm(whitened, (1, height, width), PRODUCTS)) ** 2)
        return H * torch.tensor(scales).to(H)[:, None, None, None]

    @staticmethod
    def scale(problem: VariationalProblem) -> Tensor | None:
        """kappa^2, (B, 1, H, W), where the steps of ``FourierCoupling`` apply; None if it is even.

        For weighted data and networks of one layer, on the grid of the image.
        """
        y, A, layers = problem.fidelity.y, problem.operator, problem.network.layers
        if DATA_DUAL not in data_factors(problem) or not A.nonnegative or len(layers) > 1:
            return None
        if tuple(layers[0].shape[1:]) != problem.image_shape[1:]:
            return None
        length = A.adjoint(torch.ones_like(y))
        seen = length > LEAST * expand_per_image(length.flatten(1).amax(1), length)
        shares = torch.where(seen, A.adjoint(data_weights(problem)) / length, 0.0)
        largest = expand_per_image(shares.flatten(1).amax(1), shares)
        shares = torch.where(seen, torch.maximum(shares, LEAST * largest), largest)
        uneven = (largest > EVEN * expand_per_image(shares.flatten(1).amin(1), shares)).any()
        return shares if bool(uneven) else None

    def in_double(self) -> WeightedRays:
        """With everything in double precision."""
        made = copy(self)
        made.kappa = self.kappa.double()
        made.factors = {name: factor.double() for name, factor in self.factors.items()}
        made.spectra = {v: spectrum.double() for v, spectrum in self.spectra.items()}
        return made

    def tau(self, sigma: Blocks) -> Blocks:
        """SAFETY (sum_i sigma_i H_i)^-1, and kappa."""
        return WeightedSteps({**super().tau(sigma), SCALE: self.kappa})

    def way(self, u: Blocks, other: Blocks) -> Blocks:
        """sqrt(<kappa dx, H_i kappa dx>) for every row i."""
        return super().way(self._scaled(u), self._scaled(other))

    def squared_lengths(self, du: Blocks, tau: Blocks) -> Blocks:
        """<dx, T^-1 dx>."""
        return super().squared_lengths(self._scaled(du), tau)

    def whitened_moves(self, du: Blocks, tau: Blocks) -> Iterator[Tensor]:
        """(sum_i sigma_i H_i)^(1/2) kappa dx."""
        return super().whitened_moves(self._scaled(du), tau)

    def _scaled(self, u: Blocks) -> Blocks:
        return Blocks({"x": self.kappa * u["x"]})


def data_weights(problem: VariationalProblem) -> Tensor:
    """D, up to a factor for each image."""
    return data_factors(problem)[DATA_DUAL] ** POWER
