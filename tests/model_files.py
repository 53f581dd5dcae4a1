"""A small model in its two files, for tests of saving and loading."""

from __future__ import annotations

from pathlib import Path

import torch
from zoo import network

import convexlift as cl
from convexlift.models.store import describe

CARD = cl.ModelCard(name="toy", summary="A toy.", task="denoising", weight=0.5)


def save_toy(folder: Path) -> tuple[cl.InputConvexNetwork, Path]:
    """A network and the path of its two files."""
    net = network("skips", cl.LeakyReLU(0.2))
    cl.save(net, folder / "toy", CARD)
    return net, folder / "toy"


def same(left: cl.InputConvexNetwork, right: cl.InputConvexNetwork) -> bool:
    """Whether nothing tells them apart: tensors, their names and precisions, architecture."""
    one, other = left.state_dict(), right.state_dict()
    return (
        list(one) == list(other)
        and all(torch.equal(one[n], other[n]) and one[n].dtype is other[n].dtype for n in one)
        and describe(left) == describe(right)
    )
