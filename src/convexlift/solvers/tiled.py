"""The dual half of a PDHG iteration, strip of rows by strip of rows.

For problems with one layer and a convolution K, all that is large is v. One pass over it,

    v <- prox_{f*}(w + sigma K x_bar),    w <- a v + b w + e anchor,    c <- K* w,

done on strips that stay in a processor's cache, reads and writes w once instead of a dozen times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import LastLayerTerm
from convexlift.operators.convolution import ConvolutionOperator
from convexlift.problems.saddle import SaddlePointProblem
from convexlift.tensors import expand_per_image

STRIP = 2**19
"""Numbers of v in a strip (2 MB)."""
WORTHWHILE = 2**17
"""Problems with fewer are done in one go."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The pass for one problem, image by image."""

    name: str
    operator: ConvolutionOperator
    term: LastLayerTerm

    @staticmethod
    def of(saddle: SaddlePointProblem) -> Sweep | None:
        """For one convolution of stride 1 on the CPU, if large enough to pay; else None."""
        if len(saddle.f) != 1 or len(saddle.K.shapes) != 1:
            return None
        ((name,), term), *_ = saddle.f
        (only,) = saddle.K.rows[name].values()
        operator = only.convolution
        if (
            not isinstance(term, LastLayerTerm)
            or operator is None
            or operator.weight.device.type != "cpu"
        ):
            return None
        channels, height, width = operator.output_shape(saddle.K.shapes["x"])
        return Sweep(name, operator, term) if channels * height * width >= WORTHWHILE else None

    def adjoint(self, w: Tensor) -> Tensor:
        """c = K* w."""
        return self.operator.adjoint(w)

    def __call__(
        self,
        x_bar: Tensor,
        w: Tensor,
        sigma: Tensor,
        mix: tuple[Tensor, Tensor, Tensor],
        anchor: Tensor,
        v: Tensor | None,
        measure: bool,
    ) -> tuple[Tensor, Tensor]:
        """K* w and, if asked for, ||v - w||^2 for the old w, (B,).

        Args:
            x_bar: the extrapolated images.
            w: the dual iterates, changed in place.
            sigma: their steps, (B,).
            mix: (a, b, e), each (B,).
            anchor: the dual part of the anchor, not looked at where e = 0.
            v: where to write v, or None.
            measure: whether to compute the norms.
        """
        padded = self.operator.padded(x_bar)
        c = torch.zeros_like(padded)
        moved = w.new_zeros(w.shape[0], dtype=torch.float64)
        for i in range(w.shape[0]):
            one = slice(i, i + 1)
            a, b, e = (float(part[i]) for part in mix)
            for strip, halo in self._strips(w):
                here = w[one, :, strip]
                new = self._prox(padded[one, :, halo], here, sigma[one], strip)
                if v is not None:
                    v[one, :, strip] = new
                if measure:
                    moved[i] += (new - here).square().sum(dtype=torch.float64)
                here.copy_(new) if b == 0 else here.mul_(b).add_(new, alpha=a)
                if e:
                    here.add_(anchor[one, :, strip], alpha=e)
                c[one, :, halo] += self.operator.adjoint_on_padded(here)
        return self.operator.folded(c), moved

    def _strips(self, w: Tensor) -> Iterator[tuple[slice, slice]]:
        """Rows of v, and those of the padded image that they depend on."""
        _, channels, height, width = w.shape
        rows, margin = max(16, STRIP // (channels * width)), self.operator.margin[0]
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            yield slice(top, bottom), slice(top, bottom + 2 * margin)

    def _prox(self, x_bar: Tensor, w: Tensor, sigma: Tensor, strip: slice) -> Tensor:
        """prox_{f*}(w + sigma K x_bar) on one strip."""
        bias = None if self.term.bias is None else self.term.bias.flatten()
        y = F.conv2d(x_bar, self.operator.weight, bias).add_(w, alpha=1 / float(sigma))
        weights = self.term.weights
        if weights.shape[-2] != 1:
            weights = weights[..., strip, :]
        return self.term.activation.scaled_slope(y, weights, expand_per_image(sigma, y))
