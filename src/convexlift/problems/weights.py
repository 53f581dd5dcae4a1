"""The regularization weight of a problem."""

from __future__ import annotations

import math

from torch import Tensor

from convexlift.tensors import Scalar, require_eager


def checked_weight(weight: object) -> Scalar:
    """gamma > 0 as a number; a tensor that requires gradients stays one, without dimensions."""
    if isinstance(weight, Tensor):
        require_eager([weight])
    if isinstance(weight, Tensor) and weight.numel() != 1:
        raise TypeError(
            f"weight must be one number for the whole batch, got a tensor of shape "
            f"{tuple(weight.shape)}; state one problem for each weight"
        )
    try:
        number = float(weight.detach() if isinstance(weight, Tensor) else weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"weight must be a number, got {weight!r}") from None
    if isinstance(weight, str):
        raise TypeError(f"weight must be a number, got the text {weight!r}")
    if not 0 < number < math.inf:
        raise ValueError(f"weight must be positive and finite, got weight={number}")
    return weight.reshape(()) if isinstance(weight, Tensor) and weight.requires_grad else number
