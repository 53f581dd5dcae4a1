"""Rigorous claims about images and dual variables that lie on an edge, where rounding decides.

Two edges make a claim worthless though the numbers behind it are good:

    D(A x) < inf      count data have a domain; an image on its boundary may be outside,
    A* v + c >= 0     a one-sided box asks for this; a slope of about 0 may be negative.

An image goes a little inwards, towards another image. Dual variables get a clearance from the
edge that is larger than all bounds of rounding errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from convexlift.problems.certificate import CLEARANCE
from convexlift.problems.claims import InBoth, Proved, proved
from convexlift.problems.minorant import better_image
from convexlift.problems.packed_slopes import CODES
from convexlift.problems.repairs import ROUNDING, repaired
from convexlift.solvers.replays import Replays
from convexlift.tensors import Blocks, choose_images

INWARDS = (1e-12, 1e-6, 1e-3, 1.0)
"""Fractions of a move to a simpler image, tried if rounding puts an image outside the domain."""


def claimed(
    both: InBoth, x: Tensor, witness: Blocks, tolerance: float, improve: bool
) -> tuple[tuple[Tensor, Proved], tuple[Tensor, ...]]:
    """``proved`` about x; to ``improve``, about the image of the dual variables if it is better."""
    x = better_image(both.problem, x, witness) if improve else x
    found, numbers = proved(both, x, witness, tolerance)
    return (x, found), numbers


def confirmed(
    replays: Replays,
    first: tuple[Tensor, Proved, tuple[Tensor, ...]],
    witness: Blocks,
    tolerance: float,
    places: Callable[[], tuple[Tensor, ...]],
) -> tuple[Tensor, Proved, tuple[Tensor, ...]]:
    """The images of a claim, which may have moved, and what ``proved`` says about them.

    ``first`` is the same for the images as they were; ``places`` gives images inside the domain of
    the data term, towards which images may move.
    """
    problem, (x, found, numbers) = replays.both.problem, first
    best, fine = x, numbers[0].isfinite()
    for share, place in () if bool(fine.all()) else itertools.product(INWARDS, places()):
        moved = problem.bounds.project(best + share * (place - best))
        x = choose_images(fine, x, moved)
        found, numbers = replays(proved, x, witness, tolerance)
        if bool((fine := numbers[0].isfinite()).all()):
            break
    _, _, gap, near, proven = numbers
    short = (gap > tolerance) & ((near > 0) | ~(proven > 0)) & fine
    packed = any(part.dtype is CODES for part in witness.values())
    if not problem.bounds.is_one_sided or packed or not bool(short.any()):
        return x, found, numbers
    clear, _ = replays(cleared, x, witness)
    others = replays(proved, x, clear, tolerance)
    better = short & (others[1][2] < gap)
    # One more call rather than a mixture of two: claims are made of tensors that fit each other.
    if bool(better.all()):
        return x, *others
    if bool(better.any()):
        found, numbers = replays(proved, x, choose_images(better, clear, witness), tolerance)
    return x, found, numbers


def cleared(both: InBoth, x: Tensor, witness: Blocks) -> tuple[Blocks, tuple[Tensor, ...]]:
    """Dual variables repaired with a clearance from rounding errors; no numbers."""
    double, dtype = both.double, both.problem.fidelity.y.dtype
    clearance = max(CLEARANCE, ROUNDING * torch.finfo(dtype).eps)
    precise = Blocks({name: part.to(torch.float64) for name, part in witness.items()})
    return repaired(double, double.evaluate(x.double()), precise, clearance), ()
