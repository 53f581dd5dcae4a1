"""The kind of an object: everything about it but the numbers in its tensors.

Two objects of one kind differ in their tensors only, which ``kind_of`` lists in the order in which
``rebuilt`` takes others in their place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, cached_property
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from convexlift.tensors import Blocks, is_own

PLAIN = (str, int, Enum, torch.dtype, torch.device, torch.Size, BuiltinFunctionType, type(None))
CONTAINERS = nn.ModuleList, nn.ModuleDict, nn.Sequential
BOOKKEEPING = (vars(nn.Module()).keys() | {"card"}) - {"_parameters", "_buffers", "_modules"}
"""Hooks and flags of modules, and what is written about a network: nothing that is computed."""
FEW = 16
"""Tensors elsewhere, on the CPU, with at most this many entries are described by their values."""


class Unfit(Exception):
    """An object with parts that are not the library's own, or of unknown types."""


def kind_of(value: Any, device: torch.device) -> tuple[tuple[Any, ...], list[Tensor]]:
    """A description that is equal for objects of one kind, and all tensors on the device."""
    words: list[Any] = []
    tensors: list[Tensor] = []
    _describe(value, device, words, tensors)
    return tuple(words), tensors


def _describe(value: Any, device: torch.device, words: list[Any], tensors: list[Tensor]) -> None:
    kind: Any = type(value)
    sort = _sort(kind)
    if sort is Sort.TENSOR:
        if value.layout is not torch.strided:
            raise Unfit("an unusual tensor")
        words += kind, value.shape, value.stride(), value.dtype
        if value.device == device:
            tensors.append(value)
        elif value.numel() <= FEW:
            words += value.flatten().tolist()
        else:
            raise Unfit("a tensor on another device")
    elif sort is Sort.FLOAT:
        words.append(repr(value))  # -0.0 is not 0.0, and 1.0 not 1
    elif sort is Sort.PLAIN or (kind is FunctionType and not value.__closure__):
        words += kind, value
    else:
        parts = _parts(value)
        words.append(kind)
        words += parts
        for part in parts.values():
            _describe(part, device, words, tensors)


class Sort(Enum):
    """How objects of a type are described."""

    TENSOR, FLOAT, PLAIN, SEQUENCE, MAPPING, OTHER = range(6)


@cache
def _sort(kind: type) -> Sort:
    if issubclass(kind, Tensor):
        if kind not in (Tensor, nn.Parameter):
            raise Unfit("an unusual tensor")
        return Sort.TENSOR
    if issubclass(kind, float):
        return Sort.FLOAT
    if issubclass(kind, PLAIN):
        return Sort.PLAIN
    if issubclass(kind, tuple | list):
        return Sort.SEQUENCE
    return Sort.MAPPING if issubclass(kind, dict | Blocks) else Sort.OTHER


def rebuilt(value: Any, tensors: Iterator[Tensor], device: torch.device) -> Any:
    """The object with other tensors in place of those on the device, and no cached properties."""
    if isinstance(value, nn.Parameter):
        return nn.Parameter(next(tensors), requires_grad=False)
    if isinstance(value, Tensor):
        return next(tensors) if value.device == device else value
    if isinstance(value, (float, *PLAIN, FunctionType)):
        return value
    parts = {name: rebuilt(part, tensors, device) for name, part in _parts(value).items()}
    if isinstance(value, tuple | list):
        return type(value)(parts.values())
    if isinstance(value, dict | Blocks):
        return type(value)(parts)
    other = copy.copy(value)
    for name in _dropped(type(value)):
        other.__dict__.pop(name, None)
    other.__dict__.update(parts)
    return other


def builder(value: Any, device: torch.device) -> Callable[[Iterator[Tensor]], Any]:
    """``rebuilt`` for one object and any tensors, several times as fast."""
    if isinstance(value, Tensor):
        return next if value.device == device else lambda _: value
    if isinstance(value, (float, *PLAIN, FunctionType)):
        return lambda _: value
    kind: Any = type(value)  # what is returned keeps no tensor of the object alive
    parts = [(name, builder(part, device)) for name, part in _parts(value).items()]
    if isinstance(value, tuple | list):
        return lambda tensors: kind([make(tensors) for _, make in parts])
    if isinstance(value, dict | Blocks):
        return lambda tensors: kind({name: make(tensors) for name, make in parts})
    bookkeeping = _hidden(kind) & BOOKKEEPING
    kept = {name: part for name, part in vars(value).items() if name in bookkeeping}

    def made(tensors: Iterator[Tensor]) -> Any:
        other = object.__new__(kind)
        other.__dict__.update(kept)
        other.__dict__.update((name, make(tensors)) for name, make in parts)
        return other

    return made


def _dropped(kind: type) -> frozenset[str]:
    """Cached properties."""
    return _hidden(kind) - BOOKKEEPING


_KNOWN: dict[type, bool] = {}
"""Whether objects of a class consist of their attributes: of the library's own, and containers."""


def _parts(value: Any) -> Mapping[Any, Any]:
    """What an object consists of, by name."""
    kind: Any = type(value)
    if (sort := _sort(kind)) is Sort.MAPPING:
        return value  # type: ignore[no-any-return]
    if sort is Sort.SEQUENCE:
        return dict(enumerate(value))
    if (known := _KNOWN.get(kind)) is None:
        ours = is_own(value) or kind in CONTAINERS
        known = _KNOWN[kind] = ours and hasattr(value, "__dict__")
    if not known:
        raise Unfit(f"a {kind.__name__}")
    hidden = _hidden(kind)
    return {name: part for name, part in vars(value).items() if name not in hidden}


@cache
def _hidden(kind: type) -> frozenset[str]:
    """Cached properties, and the bookkeeping of modules."""
    cached = {name for base in kind.__mro__ for name, attribute in vars(base).items()
              if isinstance(attribute, cached_property)}  # fmt: skip
    return frozenset(cached | (BOOKKEEPING if issubclass(kind, nn.Module) else set()))
