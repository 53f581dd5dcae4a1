"""A check before a CUDA graph is captured: the host waits for nothing, and all inputs are known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from convexlift.solvers.kinds import Unfit


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations on known tensors and on results of others, none of which the host waits for."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = known[0].device
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch's compiler is imported, for seconds, to be told to keep out."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, or raise Unfit."""
        # Numbers on the CPU are constants, of the kind of the call.
        given = [each for each in _tensors((args, kwargs)) if each.device == self._device]
        tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if given and tags & set(function.tags):
            raise Unfit(f"{function} needs the host")
        if any(_address(each) not in self._known for each in given if each.ndim or each.is_cuda):
            raise Unfit(f"{function} reads a tensor from outside")
        results = function(*args, **(kwargs or {}))
        if function in MOVES and len({each.device for each in _tensors((args, results))}) > 1:
            raise Unfit(f"{function} moves numbers between devices")
        self._known.update(map(_address, _tensors(results)))
        return results


MOVES = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
"""Operations between devices."""


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor) and each.numel()]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
