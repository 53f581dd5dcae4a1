"""The dual half of a PDHG iteration, strip of rows by strip of rows.

For problems with one layer and a convolution K, all that is large is v. One pass over it,

    v <- prox_{f*}(w + sigma K x_bar),    w <- a v + b w + e anchor,    c <- K* w,

done on strips that stay in a processor's cache, reads and writes w once instead of a dozen times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from convexlift.functionals.terms import LastLayerTerm
from convexlift.operators.convolution import ConvolutionOperator
from convexlift.problems.saddle import SaddlePointProblem

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
        (operator,) = saddle.K.rows[name].values()
        if (
            not isinstance(term, LastLayerTerm)
            or not isinstance(operator, ConvolutionOperator)
            or operator.stride != 1
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
        sigma: float,
        mix: tuple[float, float, float],
        anchor: Tensor,
        v: Tensor | None,
        measure: bool,
    ) -> tuple[Tensor, float]:
        """K* w and, if asked for, ||v - w||^2 of the old w, for one image.

        Args:
            x_bar: the extrapolated image, (1, C, H, W).
            w: the dual iterate, changed in place.
            sigma: its step.
            mix: (a, b, e).
            anchor: the dual part of the anchor, not looked at if e = 0.
            v: where to write v, or None.
            measure: whether to return the norm.
        """
        weight, bias = self.operator.weight, self.term.bias
        bias = None if bias is None else bias.flatten()
        padded = self._padded(x_bar)
        c = torch.zeros_like(padded)
        step = w.new_full((1, 1, 1, 1), sigma)
        rows, margin, height = self._rows(w), self.operator.margin[0], w.shape[-2]
        a, b, e = mix
        moved = 0.0
        for top in range(0, height, rows):
            strip = slice(top, min(top + rows, height))
            halo = slice(strip.start, strip.stop + 2 * margin)
            here = w[..., strip, :]
            y = F.conv2d(padded[..., halo, :], weight, bias).add_(here, alpha=1 / sigma)
            new = self.term.activation.scaled_slope(y, self._weights(strip, height), step)
            if v is not None:
                v[..., strip, :] = new
            if measure:
                moved += float((new - here).square().sum(dtype=torch.float64))
            here.mul_(b).add_(new, alpha=a) if b else here.copy_(new)
            if e:
                here.add_(anchor[..., strip, :], alpha=e)
            c[..., halo, :] += self.operator.adjoint_on_padded(here)
        return self._unpadded(c), moved

    def _rows(self, w: Tensor) -> int:
        return max(16, STRIP // (w.shape[1] * w.shape[-1]))

    def _weights(self, strip: slice, height: int) -> Tensor:
        weights = self.term.weights
        return weights[..., strip, :] if weights.shape[-2] == height else weights

    def _padded(self, x: Tensor) -> Tensor:
        rows, columns = self.operator.margin
        if self.operator.padding is None:
            return F.pad(x, (columns, columns, rows, rows))
        return self.operator.padding(x)

    def _unpadded(self, c: Tensor) -> Tensor:
        rows, columns = self.operator.margin
        if self.operator.padding is None:
            return c[..., rows : c.shape[-2] - rows, columns : c.shape[-1] - columns]
        return self.operator.padding.adjoint(c)
