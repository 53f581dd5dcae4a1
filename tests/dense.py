"""Operators as matrices."""

from __future__ import annotations

import numpy as np
import torch

import convexlift as cl


def dense_matrix(operator: cl.LinearOperator, shape: tuple[int, ...]) -> np.ndarray:
    """The operator's matrix, column by column."""
    size = int(np.prod(shape))
    basis = torch.eye(size).reshape(size, *shape)
    columns = [operator(column[None]).flatten() for column in basis]
    return torch.stack(columns, dim=1).detach().numpy()
