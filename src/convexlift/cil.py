"""Adapters for CIL: regularizers as its functions, and its operators as ours.

Uses ``direct`` and ``adjoint`` of operators with ``out``, ``as_array``, ``fill`` and ``copy`` of
containers, ``allocate`` and ``shape`` of geometries, as they are in CIL 24 and its successors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convexlift.networks.icnn import InputConvexNetwork
from convexlift.operators.foreign import ForeignOperator, linear
from convexlift.proximal_map import ProximalMap, images_in

try:
    from cil.optimisation.functions import Function
except ImportError as error:
    raise ImportError(
        "adapters to CIL need CIL 24 or newer, which is installed with conda and not with pip: "
        "see its documentation, ccpi.ac.uk/cil"
    ) from error


class RegularizerFunction(Function):  # type: ignore[misc, unused-ignore]
    """R as a CIL ``Function``, for FISTA, ISTA and PDHG; ``alpha * R`` is its multiple.

    The images are (H, W), (channels, H, W), or for networks of one channel (slices, H, W), where R
    is the sum over slices. Values are read in place; results are written to ``out`` if it is given.
    As a smooth part, f, it needs a ``step_size`` or a constant that you know: ``function.L = 40``.

    Args:
        regularizer: R, an input-convex network or ``cl.TotalVariation()``.
        accuracy: largest distance of a proximal point to the exact one, relative to the norm of
            each image; ``function.proximal_map.error`` has the certified distances.
        max_iterations: limit for one proximal map.
    """

    def __init__(
        self, regularizer: InputConvexNetwork, *, accuracy: float = 1e-3, max_iterations: int = 5000
    ) -> None:
        super().__init__()
        self.proximal_map = ProximalMap(
            regularizer, accuracy=accuracy, max_iterations=max_iterations
        )

    def __call__(self, x: Any) -> float:
        """R(x)."""
        with torch.no_grad():
            return float(self.proximal_map.value(self._images(x)).sum(dtype=torch.float64))

    def gradient(self, x: Any, out: Any = None) -> Any:
        """The gradient of R, or a subgradient at kinks."""
        return _filled(out, x, self.proximal_map.subgradient(self._images(x)))

    def proximal(self, x: Any, tau: float, out: Any = None) -> Any:
        """argmin_u  1/2 ||u - x||^2 + tau R(u), for one number tau."""
        if getattr(tau, "shape", ()) not in ((), (1,)):
            raise ValueError(
                "RegularizerFunction takes one number tau, and these are step sizes for each "
                "pixel; leave out the preconditioner"
            )
        return _filled(out, x, self.proximal_map(self._images(x), float(tau)))

    def convex_conjugate(self, x: Any) -> float:
        """NaN: R* has no closed form, so PDHG shows its primal objective, and no gap."""
        return float("nan")

    def _images(self, x: Any) -> Tensor:
        return images_in(_array(x), self.proximal_map.regularizer.in_channels)


class ContainerOperator(ForeignOperator):
    """A CIL ``LinearOperator`` on tensors; its adjoint is examined when a problem is stated.

    Images of a batch are processed one by one, in two containers that are reused: an image is
    copied into one, the operator writes to the other, and that is copied into the result.
    CIL computes in single precision: data should be float32, and ``terms`` keeps the certified gap
    from being dominated by rounding.

    Args:
        operator: A, with a domain of (H, W) or (channels, H, W).
        nonnegative: see ``ForeignOperator``; true for ray transforms.
        terms: see ``ForeignOperator``; a ray of a CT scan crosses at most about 2 (H + W) pixels.
    """

    def __init__(
        self, operator: Any, *, nonnegative: bool = False, terms: int | None = None
    ) -> None:
        domain, data = operator.domain_geometry(), operator.range_geometry()
        if not operator.is_linear():
            raise TypeError(
                f"certificates need a linear operator, and {type(operator).__name__} is not one"
            )
        self._image, self._data = domain.allocate(0), data.allocate(0)
        # The shape of a block counts its containers, and would look like that of an image.
        image, shape = _array(self._image).shape, _array(self._data).shape
        if len(image) not in (2, 3):
            raise ValueError(f"images are (H, W) or (channels, H, W), and the domain is {image}")
        image, shape = (each if len(each) != 2 else (1, *each) for each in (image, shape))
        super().__init__(image, shape, nonnegative=nonnegative, terms=terms)
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return linear(self.apply, x, False)

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        return linear(self.apply, y, True)

    def apply(self, values: Tensor, transposed: bool) -> Tensor:
        """A x, or A* y, of each image."""
        source, target, call = self._image, self._data, self.operator.direct
        if transposed:
            source, target, call = target, source, self.operator.adjoint
        dtype = torch.from_numpy(target.as_array()).dtype
        results = torch.empty((len(values), *target.shape), dtype=dtype)
        for image, result in zip(values.detach().cpu(), results, strict=True):
            array = source.as_array()
            source.fill(image.numpy().reshape(array.shape).astype(array.dtype, copy=False))
            call(source, out=target)
            result.copy_(torch.from_numpy(target.as_array()))
        shape = self.input_shape if transposed else self.data_shape
        assert shape is not None
        return results.reshape(-1, *shape).to(values.device)


def _array(container: Any) -> Any:
    if not hasattr(container, "as_array"):
        raise TypeError(
            "images and data are one container each, and this is a block of several "
            f"({type(container).__name__}); use the operators and functions in it one by one"
        )
    return container.as_array()


def _filled(out: Any, like: Any, result: Tensor) -> Any:
    target = like.copy() if out is None else out
    array = target.as_array()
    target.fill(result.detach().numpy().reshape(array.shape).astype(array.dtype, copy=False))
    return target
