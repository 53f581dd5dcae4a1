"""Linear physics of deepinv as operators."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import deepinv
import torch
from deepinv.physics import Denoising, Inpainting, LinearPhysics
from deepinv.utils import TensorList
from torch import Tensor

from convexlift.operators.convolution import Boundary
from convexlift.operators.foreign import ForeignOperator
from convexlift.operators.imaging import Blur, Diagonal
from convexlift.operators.linear import Identity, LinearOperator
from convexlift.tensors import Shape, are_close

BOUNDARIES: dict[str, Boundary] = {"zeros": "zero", "constant": "zero"}
BOUNDARIES |= {"circular": "circular", "reflect": "reflect", "replicate": "replicate"}
"""Our names of deepinv's paddings; ``valid`` has none."""


class PhysicsOperator(ForeignOperator):
    """A and A* of a deepinv ``LinearPhysics``; noise and sensor are left out.

    Data of stacked physics, a ``TensorList``, become one vector for each image, and complex data
    get a last dimension of two (see ``as_data``).

    Args:
        physics: A. It is not changed: a copy is made where another precision is needed.
        image_shape: (channels, height, width) of the images; MRI has two channels, real and
            imaginary part.
    """

    def __init__(self, physics: LinearPhysics, image_shape: Shape) -> None:
        require_linear(physics)
        self.physics = physics
        with torch.no_grad():
            probe = physics.A(_like(physics).new_zeros((1, *image_shape)))
        self.kinds = [(tuple(part.shape[1:]), part.is_complex()) for part in _parts(probe)]
        self.listed = isinstance(probe, TensorList)
        super().__init__(tuple(image_shape), tuple(as_data(probe).shape[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return as_data(self.physics.A(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        sizes = [math.prod(shape) * (1 + pairs) for shape, pairs in self.kinds]
        parts, flat = [], torch.split(y.flatten(1), sizes, dim=1)
        for part, (shape, pairs) in zip(flat, self.kinds, strict=True):
            whole = part.reshape(-1, *shape, *([2] * pairs))
            parts.append(torch.view_as_complex(whole.contiguous()) if pairs else whole)
        x: Tensor = self.physics.A_adjoint(TensorList(parts) if self.listed else parts[0])
        return x

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("_norms", None)
        if any(function(tensor) is not tensor for tensor in self.tensors()):
            # deepcopy does not copy the random generators of physics, and clone does.
            other.physics = self.physics.clone()
            for module in _modules(other.physics):
                module._apply(function)
                # Tomography keeps its precision in an attribute, and the adjoint of the original.
                if isinstance(known := vars(module).get("dtype"), torch.dtype):
                    module.dtype = function(torch.empty((), dtype=known)).dtype
                if "_auto_grad_adjoint_fn" in vars(module):
                    module._auto_grad_adjoint_fn = None
        return other

    def tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers of the physics."""
        yield from _tensors(self.physics)


def as_data(y: Any) -> Tensor:
    """Data as one real tensor: the parts of a ``TensorList`` as one vector for each image."""
    parts = [torch.view_as_real(p) if p.is_complex() else p for p in _parts(y)]
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)


def as_operator(physics: LinearPhysics, y: Any) -> LinearOperator:
    """A as an operator on images with data like y, in the precision and on the device of y.

    Denoising, inpainting and blurs become operators of this library, with proof files, where these
    give the same data as the physics; everything else becomes a ``PhysicsOperator``.
    """
    require_linear(physics)
    data, place, operator = as_data(y), _like(physics), _own(physics)
    with torch.no_grad():
        parts = [_placed(part, place) for part in _parts(y)]
        back = physics.A_adjoint(TensorList(parts) if isinstance(y, TensorList) else parts[0])
        if operator is not None:
            probe = torch.randn(back.shape, generator=torch.Generator().manual_seed(0)).to(back)
            same = operator.to(dtype=back.dtype, device=back.device)(probe)
            operator = operator if are_close(same, physics.A(probe), 1e-5) else None
    operator = operator or PhysicsOperator(physics, tuple(back.shape[1:]))
    return operator.to(dtype=data.dtype, device=data.device)


def require_linear(physics: object) -> None:
    """Raise TypeError for anything but linear physics."""
    if not isinstance(physics, LinearPhysics):
        raise TypeError(f"proofs need a deepinv LinearPhysics, got {type(physics).__name__}")


def _own(physics: LinearPhysics) -> LinearOperator | None:
    """An operator of this library that may be the same."""
    if isinstance(physics, Inpainting):
        return Diagonal(physics.mask)
    if isinstance(physics, Denoising):
        return Identity()
    if isinstance(physics, deepinv.physics.Blur | deepinv.physics.BlurFFT):
        boundary = BOUNDARIES.get(getattr(physics, "padding", "circular"))
        kernel = physics.filter
        if boundary and kernel is not None and all(n % 2 for n in kernel.shape[2:]):
            return Blur(kernel[0, 0], boundary)
    return None


def _modules(physics: Any) -> Iterator[Any]:
    """All modules; stacked and composed physics keep theirs in a plain list."""
    for module in physics.modules():
        yield module
        for each in vars(module).get("physics_list", ()):
            yield from _modules(each)


def _tensors(physics: Any) -> Iterator[Tensor]:
    for module in _modules(physics):
        yield from (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _like(physics: Any) -> Tensor:
    return next(filter(Tensor.is_floating_point, _tensors(physics)), torch.zeros(()))


def _placed(y: Tensor, like: Tensor) -> Tensor:
    return y.to(device=like.device, dtype=like.dtype.to_complex() if y.is_complex() else like.dtype)


def _parts(y: Any) -> list[Tensor]:
    return list(y) if isinstance(y, TensorList) else [y]
