"""What a network computes on its way up, from an image, and on its way down, to it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The preactivations a_1..a_L and the layers z_1..z_L at some image."""

    a: tuple[Tensor, ...]
    z: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class BackwardPass:
    """Multipliers t_1..t_L, their slopes' products p_i = s_i t_i, and c = sum_i V_{i-1}* p_i.

    t_i has the shape of z_i, p_i and s_i that of a_i.

    With a_i(x) from a forward pass, and for every choice of slopes s_i in dom h_i*,

        weight R(x) = <c, x> + const + sum_i <t_i, h_i(a_i) + h_i*(s_i) - s_i a_i>,

    whose last sum is nonnegative: <c, x> + const is an affine minorant of weight R, and its
    tangent at x (c a subgradient) if s_i is a slope of h_i at a_i.
    """

    t: tuple[Tensor, ...]
    p: tuple[Tensor, ...]
    c: Tensor
