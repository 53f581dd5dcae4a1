"""Tensors that hold numbers, and do not stand for others as in ``torch.func``."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def require_eager(tensors: Iterable[Tensor]) -> None:
    """Raise TypeError inside ``torch.func`` transforms and forward-mode differentiation."""
    for tensor in tensors:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if wrapped or torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise TypeError(
                "problems cannot be stated inside torch.func.vmap, grad or jvp: the first "
                "dimension of the data already counts independent problems, and gradients come "
                "from cl.solve(problem, differentiable=True) and backward()"
            )
