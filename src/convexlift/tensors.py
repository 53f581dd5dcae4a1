"""Tensor tools: records that move together, block vectors, sums per image.

The first dimension of every tensor in the library counts the images of a batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import fields, replace
from functools import cache, cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from convexlift.decisions import decided

CHUNK = 2**18
"""Numbers of a difference computed at a time."""
LARGEST_NUMBER = 1e40
"""Problems hold no larger ones: a product of six of them is still finite in double precision, and
what underflows stays far below ``claims.UNDERFLOW`` when it is multiplied with them."""
Batch = TypeVar("Batch")
Shape = tuple[int, ...]
"""The shape of one image or one layer, without the batch dimension."""
Scalar = float | Tensor
"""A number, or a tensor of one number that requires gradients."""
Requirement = tuple[Scalar, str]
"""Numbers that must not be negative, and the error if one is: {:g} is its value, {} its index."""


def expand_per_image(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, ..., 1) so that it multiplies ``like`` image by image."""
    return values.reshape(-1, *([1] * (like.ndim - 1)))


def converted(values: Tensor, like: Tensor) -> Tensor:
    """values.to(like); one number on a CPU without a transfer, for which a GPU would wait."""
    if values.ndim == 0 and values.device != like.device:
        return like.new_full((), float(values))
    return values.to(like)


def fits(shape: Shape, target: Shape) -> bool:
    """Whether a tensor of ``shape`` broadcasts to ``target`` without enlarging it."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(padded) == len(target) and all(
        n in (1, m) for n, m in zip(padded, target, strict=True)
    )


def unrepeated(tensor: Tensor) -> Tensor:
    """One of the entries that an expanded tensor repeats."""
    if all(tensor.stride()):
        return tensor
    return tensor[tuple(slice(None if stride else 1) for stride in tensor.stride())]


def sum_per_image(values: Tensor) -> Tensor:
    """Sum over all dimensions but the batch, (B, ...) -> (B,), accumulated in float64.

    The last digits of objectives and gaps decide when a solver stops. On a CPU, rows are summed in
    their own precision first, pairwise: as accurate as the values, and four times as fast.
    """
    rows = values.sum(-1) if values.ndim > 2 and values.device.type == "cpu" else values
    return rows.flatten(1).sum(1, dtype=torch.float64)


def channel_extent(values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each channel, (B, C) both."""
    flat = values.reshape(*values.shape[:2], -1)  # aminmax(dim=2) takes ten times as long on a CPU
    return flat.amin(2), flat.amax(2)


def are_close(left: Tensor, right: Tensor, tolerance: float) -> bool:
    """||left - right|| <= tolerance ||right||."""
    difference, size = torch.linalg.vector_norm(left - right), torch.linalg.vector_norm(right)
    return bool(difference <= tolerance * size)


def first_non_finite(values: Tensor) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity, or None."""
    if not (bad := ~torch.isfinite(values)).any():
        return None
    return tuple(int(i) for i in bad.nonzero()[0])


def require_numbers(
    named: Iterable[tuple[str, Scalar]],
    requirements: Iterable[Requirement],
    largest: float = LARGEST_NUMBER,
) -> None:
    """Raise ValueError for numbers that are NaN, too large, or against a requirement, by name.

    Infinite numbers that are no tensors are allowed: they are ends of intervals. A GPU is asked
    once, whether everything is fine.
    """
    named, requirements = list(named), list(requirements)
    tensors = [values.detach() for _, values in named if isinstance(values, Tensor)]
    floats = [values for _, values in named if not isinstance(values, Tensor)]
    numbers: list[Scalar] = [largest - abs(each) for each in floats if math.isfinite(each)]
    numbers += [largest - _total_size(tensors), *(_least(values) for values, _ in requirements)]
    if not decided(_any_below_zero(numbers)):
        return
    for name, values in named:
        if isinstance(values, Tensor) and (place := first_non_finite(values)) is not None:
            raise ValueError(f"{name} is not finite at {place}; it needs finite numbers")
        flat = torch.as_tensor(values).detach().flatten()
        too_large = flat[(flat.abs() > largest) & flat.isfinite()]
        if too_large.numel():
            raise ValueError(
                f"{name} holds {float(too_large[0]):g}; rescale the problem so that no number "
                f"exceeds {largest:g}"
            )
    for values, fault in requirements:
        each = torch.as_tensor(values).detach()
        if (wrong := ~(each >= 0)).any():  # also for NaN
            place = tuple(int(i) for i in wrong.nonzero()[0])
            raise ValueError(fault.format(float(each[place]), f" at index {place}" * bool(place)))


def _least(values: Tensor | float) -> Tensor | float:
    return values.detach().amin() if isinstance(values, Tensor) else values


def _total_size(tensors: list[Tensor]) -> Tensor | float:
    """The sum of all sizes, infinite unless all are finite, or if they are of several kinds."""
    tensors = [each for each in tensors if each.numel()]
    if len({(each.device, each.dtype) for each in tensors}) > 1:
        return math.inf
    return torch.stack(torch._foreach_norm(tensors, 1)).sum() if tensors else 0.0


def _any_below_zero(numbers: list[Tensor | float]) -> Tensor:
    """Whether a number is negative or NaN, or they are on several devices; without waiting."""
    there = [number for number in numbers if isinstance(number, Tensor)]
    here = [number for number in numbers if not isinstance(number, Tensor)]
    if not all(number >= 0 for number in here) or len({each.device for each in there}) > 1:
        return torch.tensor(True)
    return ~(torch.stack(there) >= 0).all() if there else torch.tensor(False)


def plain_number(value: Any, name: str) -> float:
    """float(value); ValueError for a tensor that requires gradients, which it would lose."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"{name} is a plain number, and cannot receive the gradients that it requires; write "
            f"float({name}.detach())"
        )
    return float(value)


def is_own(part: object) -> bool:
    """Whether an object computes by this library's formulas: its class is ours, and not foreign."""
    ours = type(part).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and not getattr(part, "foreign", False)


def foreign_parts(value: Any) -> Iterator[object]:
    """The records and activations in an object, itself included, whose classes users wrote."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from foreign_parts(item)
    elif isinstance(value, dict):
        yield from foreign_parts(list(value.values()))
    elif hasattr(value, "__dict__") and not isinstance(value, Tensor | nn.Module | type):
        if not is_own(value):
            yield value
        elif isinstance(value, TensorRecord) or hasattr(value, "__dataclass_fields__"):
            yield from foreign_parts(list(vars(value).values()))


def named_weights(module: nn.Module, *, buffers: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Weights as forward passes read them: through their parametrizations, if there are any."""
    for prefix, part in module.named_modules():
        if "parametrizations" not in prefix.split("."):
            own = [*part.named_parameters(recurse=False)]
            own += part.named_buffers(recurse=False) if buffers else []
            own += [(name, getattr(part, name)) for name in getattr(part, "parametrizations", ())]
            yield from ((f"{prefix}.{name}" if prefix else name, weight) for name, weight in own)


def named_numbers(value: Any, name: str) -> Iterator[tuple[str, Scalar]]:
    """The floating-point numbers in a record, its parts and its attributes."""
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{key}", part) for key, part in named_weights(value))
        for key, part in value.named_modules():  # numbers in an activation
            yield from named_numbers(getattr(part, "activation", None), f"{name}.{key}.activation")
    elif isinstance(value, tuple | dict):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_numbers(part, f"{name}[{key}]")
    elif isinstance(value, TensorRecord) or hasattr(value, "__dataclass_fields__"):
        for key, part in vars(value).items():
            if isinstance(part, Tensor) or not key.startswith("_"):
                yield from named_numbers(part, f"{name}.{key}")


class TensorRecord:
    """An object made of tensors (and other records) that move together.

    ``to`` and ``detach`` return a new object with every tensor, record, module, tuple and
    dictionary among the attributes converted; cached properties are recomputed.
    """

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The record on another device or in another precision (integers keep theirs)."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        return self._map(move)

    def detach(self) -> Self:
        """The record without its autograd graph; self if there is none."""
        if not any(tensor.requires_grad for tensor in self.tensors()):
            return self
        return self._map(Tensor.detach)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The record with a function applied to every tensor."""
        return self._map(function)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor in the record, depth first."""
        for name, value in vars(self).items():
            if name not in self._cached_names():
                yield from _tensors_in(value)

    def __repr__(self) -> str:
        described = (
            f"{name}={tuple(value.shape) if isinstance(value, Tensor) else repr(value)}"
            for name, value in vars(self).items()
            if not name.startswith("_")
        )
        return f"{type(self).__name__}({', '.join(described)})"

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        other = copy.copy(self)
        cached = self._cached_names()
        for name, value in vars(self).items():
            if name in cached:
                other.__dict__.pop(name)
            else:
                object.__setattr__(other, name, _convert(value, function))
        return other

    @classmethod
    @cache
    def _cached_names(cls) -> frozenset[str]:
        return frozenset(
            name
            for base in cls.__mro__
            for name, attribute in vars(base).items()
            if isinstance(attribute, cached_property)
        )


def _convert(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, TensorRecord):
        return value._map(function)
    if isinstance(value, nn.Module):
        # `_apply` works in place, and the module may be in use elsewhere. Only leaves of an
        # autograd graph can be copied; others (torch.func.functional_call) lose theirs.
        made = [t for t in (*value.parameters(), *value.buffers()) if not t.is_leaf]
        copied = copy.deepcopy(value, {id(t): t.detach() for t in made})
        return copied._apply(function)  # type: ignore[no-untyped-call]
    if isinstance(value, tuple):
        return tuple(_convert(item, function) for item in value)
    if isinstance(value, dict):
        return {key: _convert(item, function) for key, item in value.items()}
    if isinstance(value, Blocks):
        return Blocks({name: function(part) for name, part in value.items()})
    return value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, TensorRecord):
        yield from value.tensors()
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        yield from _tensors_in(tuple(value.values()))


class Blocks(Mapping[str, Tensor]):
    """A vector with named blocks, u = (x, z_1, ..., z_{L-1}), with the arithmetic of vectors.

    Multiplying by a number scales everything; by a tensor of shape (B,), each image; by
    another ``Blocks`` whose parts have shape (B,), each block of each image, as the diagonal
    step-size matrices T and S do.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        self._parts = dict(parts)

    def __getitem__(self, name: str) -> Tensor:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    # Those of a mapping in general ask for one block after another, several times as slowly.
    def values(self) -> ValuesView[Tensor]:
        """The blocks."""
        return self._parts.values()

    def items(self) -> ItemsView[str, Tensor]:
        """Names and blocks."""
        return self._parts.items()

    def __add__(self, other: Blocks) -> Blocks:
        return Blocks({name: part + other[name] for name, part in self.items()})

    def __sub__(self, other: Blocks) -> Blocks:
        return Blocks({name: part - other[name] for name, part in self.items()})

    def __mul__(self, factor: float | Tensor | Blocks) -> Blocks:
        if isinstance(factor, Blocks):
            return Blocks({name: _per_block(factor[name], part) for name, part in self.items()})
        if isinstance(factor, Tensor):
            return Blocks({n: expand_per_image(factor, p) * p for n, p in self.items()})
        return Blocks({name: factor * part for name, part in self.items()})

    __rmul__ = __mul__

    def __truediv__(self, other: Blocks) -> Blocks:
        """Quotients, block by block; every block is (B,)."""
        return Blocks({name: part / other[name] for name, part in self.items()})

    def dot(self, other: Blocks) -> Blocks:
        """Inner products block by block and image by image; each block becomes (B,)."""
        return Blocks({name: sum_per_image(part * other[name]) for name, part in self.items()})

    def step(self, name: str, like: Tensor) -> Tensor:
        """The step sizes (B,) of a block, to multiply a tensor of this block with."""
        return expand_per_image(self[name], like)

    def squares(self) -> Blocks:
        """Squared norms block by block and image by image; each block becomes (B,)."""
        return Blocks({name: _square(part) for name, part in self.items()})

    def norms(self) -> Blocks:
        """Euclidean norms block by block and image by image; each block becomes (B,)."""
        return Blocks({n: torch.linalg.vector_norm(p.flatten(1), dim=1) for n, p in self.items()})

    def distances(self, other: Blocks) -> Blocks:
        """Norms of the difference, image by image and in parts, since it may be large."""
        return Blocks({name: _distance(part, other[name]) for name, part in self.items()})

    @property
    def device(self) -> torch.device:
        """The device of all blocks."""
        return next(iter(self.values())).device

    def to(self, device: torch.device) -> Blocks:
        """Blocks of one shape on another device, in one transfer."""
        if device == self.device:
            return self
        together = torch.stack(list(self.values())).to(device)
        return Blocks(dict(zip(self, together, strict=True)))

    def to_dtype(self, dtype: torch.dtype) -> Blocks:
        """The blocks in another precision."""
        return Blocks({name: part.to(dtype) for name, part in self.items()})

    def total(self) -> Tensor:
        """The sum of all blocks, which must have one shape."""
        return torch.stack(list(self.values())).sum(0)

    def where(self, mask: Tensor, other: Blocks) -> Blocks:
        """This vector for the images where ``mask`` (B,) is true, the other for the rest."""
        masks = {n: expand_per_image(mask.to(p.device), p) for n, p in self.items()}
        return type(self)({n: torch.where(masks[n], p, other[n]) for n, p in self.items()})


def _square(part: Tensor) -> Tensor:
    """||part||^2 for each image, without storing the squares."""
    rows = torch.linalg.vector_norm(part, dim=-1) if part.ndim > 2 else part
    return sum_per_image(rows * rows)


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """||left - right|| for each image; on a CPU, without storing the whole difference."""
    count = max(1, left.numel() // CHUNK) if left.device.type == "cpu" else 1
    parts = zip(left.chunk(count, 1), right.chunk(count, 1), strict=True)
    norms = [torch.linalg.vector_norm((a - b).flatten(1), dim=1) for a, b in parts]
    total: Tensor = norms[0] if count == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return total


def _per_block(left: Tensor, right: Tensor) -> Tensor:
    """The product, where either factor may be one number per image."""
    if left.ndim > right.ndim:
        left, right = right, left
    return expand_per_image(left, right) * right if left.ndim == 1 else left * right


def choose_images(mask: Tensor, chosen: Any, other: Any) -> Any:
    """Per image: ``chosen`` where ``mask`` (B,) is true, else ``other``.

    Works on tensors with a batch dimension, on ``Blocks``, on tuples of them, and on solver states
    (dataclasses) made of these. If all images choose the same, it is returned without a copy;
    otherwise values that are None or of another type in ``other`` are taken from ``chosen``.
    """
    if chosen is other or other is None or decided(mask.all()):
        return chosen
    if not decided(mask.any()):
        return other
    return _choose(mask, chosen, other)


def _choose(mask: Tensor, chosen: Any, other: Any) -> Any:
    if chosen is other or other is None:
        return chosen
    if isinstance(chosen, Blocks):
        return chosen.where(mask, other)
    if isinstance(chosen, Tensor) and chosen.ndim > 0:
        return torch.where(expand_per_image(mask.to(chosen.device), chosen), chosen, other)
    if isinstance(chosen, tuple):
        return tuple(_choose(mask, c, o) for c, o in zip(chosen, other, strict=True))
    if hasattr(chosen, "__dataclass_fields__"):
        result = copy.copy(chosen)
        for name in chosen.__dataclass_fields__:
            value = _choose(mask, getattr(chosen, name), getattr(other, name))
            object.__setattr__(result, name, value)
        return result
    return chosen


def select_images(record: Batch, images: slice, **others: Any) -> Batch:
    """Some images of a batch: the rows of all tensors, ``Blocks`` and tuples of a dataclass.

    Args:
        record: its tensors have the batch dimension, its tuples one entry for each image.
        images: the rows.
        others: values of fields that must not be cut, such as records of other sizes.
    """

    def rows(value: Any) -> Any:
        if isinstance(value, Blocks):
            return Blocks({name: part[images] for name, part in value.items()})
        return value[images] if isinstance(value, Tensor | tuple) else value

    names = [each.name for each in fields(record) if each.name not in others]  # type: ignore[arg-type]
    kept = {name: rows(getattr(record, name)) for name in names}
    return replace(record, **kept, **others)  # type: ignore[type-var]


def join_images(records: Sequence[Batch], **others: Any) -> Batch:
    """The images of several batches as one: the inverse of ``select_images``.

    Fields that are neither tensors, ``Blocks`` nor tuples, and that ``others`` does not name, are
    taken from the first record.
    """
    first = records[0]
    if len(records) == 1:  # without a copy: dual variables are large
        return replace(first, **others)  # type: ignore[type-var]

    def joined(values: list[Any]) -> Any:
        if isinstance(values[0], Blocks):
            return Blocks({name: torch.cat([v[name] for v in values]) for name in values[0]})
        if isinstance(values[0], Tensor):
            return torch.cat(values)
        return sum(values, ()) if isinstance(values[0], tuple) else values[0]

    names = [each.name for each in fields(first) if each.name not in others]  # type: ignore[arg-type]
    whole = {name: joined([getattr(record, name) for record in records]) for name in names}
    return replace(first, **whole, **others)  # type: ignore[type-var]


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
