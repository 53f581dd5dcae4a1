"""Copies of several tensors in one call: launches cost a host more than small copies a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from convexlift.tensors import Blocks


def copy_all(held: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy the values of tensors into others of their shapes."""
    if held:
        torch._foreach_copy_(tuple(held), tuple(given))


def clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each tensor."""
    made = [torch.empty_like(tensor) for tensor in tensors]
    copy_all(made, tensors)
    return made


def copy_blocks(held: Sequence[Blocks], given: Sequence[Blocks]) -> None:
    """Copy the values of block vectors into others with the same blocks."""
    pairs = zip(held, given, strict=True)
    sources = [other[name] for parts, other in pairs for name in parts]
    copy_all([part for parts in held for part in parts.values()], sources)


def clone_blocks(*vectors: Blocks) -> Iterator[Blocks]:
    """A copy of each block vector."""
    made = iter(clones([part for parts in vectors for part in parts.values()]))
    return (Blocks({name: next(made) for name in parts}) for parts in vectors)
