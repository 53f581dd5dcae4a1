"""Copies of several tensors in one call: launches cost a host more than small copies a GPU.

And of numbers to the host, as parts of graphs (``Mailbox``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from convexlift.tensors import Blocks, unrepeated

LARGE, PART = 2**25, 2**20
"""From LARGE bytes on, tensors of at least PART bytes are copied one by one (measured).

One launch for several tensors saves time on the host, but copies fewer bytes per second.
"""


def copy_all(held: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy the values of tensors into others of their shapes."""
    sizes = [tensor.nbytes for tensor in held]
    if sum(sizes) < LARGE:
        if held:
            torch._foreach_copy_(tuple(held), tuple(given))
        return
    small = []
    for to, of, size in zip(held, given, sizes, strict=True):
        if size < PART:
            small.append((to, of))
        else:
            to.copy_(of)
    if small:
        torch._foreach_copy_([to for to, _ in small], [of for _, of in small])


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


class Copies:
    """Tensors of fixed addresses, to be filled with the values of others.

    Attributes:
        tensors: a copy for each of them, or the buffer that holds the same numbers; ``fill`` works
            without them, so that they may be dropped.
        nbytes: bytes of all of them, also of those that are not copied.
    """

    def __init__(self, tensors: list[Tensor], buffers: Sequence[Tensor | None] = ()) -> None:
        buffers = buffers or [None] * len(tensors)
        self._filled = [place for place, held in enumerate(buffers) if held is None]
        self._parts = [unrepeated(tensors[place].detach()).clone() for place in self._filled]
        made = iter(self._parts)
        self.tensors = [
            next(made).expand(tensor.shape) if held is None else held.detach()
            for tensor, held in zip(tensors, buffers, strict=True)
        ]
        self.nbytes = sum(part.nbytes for part in self._parts)
        self.nbytes += sum(held.nbytes for held in buffers if held is not None)

    def fill(self, tensors: list[Tensor]) -> None:
        """Copy the values of tensors of the same shapes."""
        copy_all(self._parts, [unrepeated(tensors[place]) for place in self._filled])

    @property
    def copied(self) -> bool:
        """Whether anything is copied."""
        return bool(self._parts)


class Mailbox:
    """A place on the host, in pinned memory, to which a graph sends its numbers.

    The graph is launched on the stream that is current now.
    """

    def __init__(self, like: Tensor) -> None:
        self.source = like.device
        self._host = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        self._arrived = torch.cuda.Event() if like.is_cuda else None  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream(like.device) if like.is_cuda else None
        self._expected: Letter | None = None

    def send(self, numbers: Tensor) -> None:
        """Part of the graph."""
        self._host.copy_(numbers, non_blocking=True)

    def empty(self) -> None:
        """Before each replay, which overwrites what nobody has read so far."""
        if self._expected is not None:
            self._expected.numbers  # noqa: B018

    def expected(self) -> Letter:
        """What was sent by all launches so far."""
        if self._arrived is not None:
            self._arrived.record(self._stream)  # looking up the current stream takes longer
        self._expected = Letter(self)
        return self._expected

    def wait(self) -> Tensor:
        """Wait for the letter that is expected, and not for what was launched later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        self._expected = None
        return self._host.clone()


class Letter:
    """The numbers of one replay."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @cached_property
    def numbers(self) -> Tensor:
        """Wait for them."""
        return self._mailbox.wait()
