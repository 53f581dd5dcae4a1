"""Linear physics of deepinv as operators."""

from __future__ import annotations

import copy
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

BOUNDARIES: dict[str, Boundary] = {
    "circular": "circular", "reflect": "reflect", "replicate": "replicate",
    "zeros": "zero", "constant": "zero",
}  # fmt: skip
"""Our names of deepinv's paddings; ``valid`` has none."""


class PhysicsOperator(ForeignOperator):
    """A and A* of a deepinv ``LinearPhysics``; noise and sensor are left out.

    Data of stacked physics, a ``TensorList``, become one vector for each image, and complex data
    get a last dimension of two (see ``as_data``). The norm is computed here, by Lanczos' method.

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
        self.shapes = tuple(tuple(part.shape[1:]) for part in _parts(probe))
        self.complex = any(part.is_complex() for part in _parts(probe))
        super().__init__(tuple(image_shape), tuple(as_data(probe).shape[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return as_data(self.physics.A(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """A* y."""
        if len(self.shapes) > 1:
            sizes = [torch.Size(shape).numel() for shape in self.shapes]
            parts = zip(torch.split(y, sizes, dim=1), self.shapes, strict=True)
            y = TensorList([part.reshape(-1, *shape) for part, shape in parts])
        elif self.complex:
            y = torch.view_as_complex(y)
        x: Tensor = self.physics.A_adjoint(y)
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

    Denoising, inpainting and blurs become operators of this library, which have closed-form
    proximal maps and proof files, wherever these give the same data as the physics; every other
    physics becomes a ``PhysicsOperator``.
    """
    require_linear(physics)
    data, place = as_data(y), _like(physics)
    with torch.no_grad():
        parts = [_placed(part, place) for part in _parts(y)]
        back = physics.A_adjoint(TensorList(parts) if isinstance(y, TensorList) else parts[0])
        shape = tuple(back.shape[1:])
        own = _own(physics)
        if own is not None:
            own = own.to(dtype=back.dtype, device=back.device)
            probe = torch.randn(back.shape, generator=torch.Generator().manual_seed(0)).to(back)
            if are_close(own(probe), physics.A(probe), 1e-5):
                return own.to(dtype=data.dtype, device=data.device)
    return PhysicsOperator(physics, shape).to(dtype=data.dtype, device=data.device)


def require_linear(physics: object) -> None:
    """Raise TypeError for anything but linear physics."""
    if not isinstance(physics, LinearPhysics):
        raise TypeError(
            "certificates need a linear forward operator: give a deepinv LinearPhysics, "
            f"got {type(physics).__name__}"
        )


def _own(physics: LinearPhysics) -> LinearOperator | None:
    """An operator of this library that may be the same."""
    if isinstance(physics, Inpainting):
        return Diagonal(physics.mask.detach())
    if isinstance(physics, Denoising):
        return Identity()
    if isinstance(physics, deepinv.physics.Blur | deepinv.physics.BlurFFT):
        boundary = BOUNDARIES.get(getattr(physics, "padding", "circular"))
        kernel = physics.filter
        if boundary and kernel is not None and all(n % 2 for n in kernel.shape[2:]):
            return Blur(kernel[0, 0].detach(), boundary)
    return None


def _modules(physics: Any) -> Iterator[Any]:
    """All modules; stacked and composed physics keep theirs in a plain list."""
    for module in physics.modules():
        yield module
        listed = vars(module).get("physics_list")
        for each in listed if isinstance(listed, list | tuple) else ():
            yield from _modules(each)


def _tensors(physics: Any) -> Iterator[Tensor]:
    for module in _modules(physics):
        yield from (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _like(physics: Any) -> Tensor:
    """A tensor with the precision and the device of the physics."""
    return next(filter(Tensor.is_floating_point, _tensors(physics)), torch.zeros(()))


def _placed(y: Tensor, like: Tensor) -> Tensor:
    return y.to(device=like.device, dtype=like.dtype.to_complex() if y.is_complex() else like.dtype)


def _parts(y: Any) -> list[Tensor]:
    return list(y) if isinstance(y, TensorList) else [y]
