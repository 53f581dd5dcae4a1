"""The first step sizes of PDHG, from the expected sizes of dual blocks and moves of primal ones.

    sigma_i = ||v_i|| / reach_i,    reach_i^2 = sum_j n_i ||K_ij||^2 ||du_j||^2,

the balance that restarts look for as well (``Coupling.balanced_sigma``). For w J in place of an
objective J, sizes and sigma are w times as large and tau is 1/w times as large, so that the images
of all iterations are the same: there are no absolute sizes of dual variables here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convexlift.functionals.terms import LastLayerTerm
from convexlift.problems.lifting import SaddlePointProblem
from convexlift.problems.network_duals import BOX_DUAL, DATA_DUAL
from convexlift.problems.packed_slopes import CODES, squares
from convexlift.solvers.coupling import Coupling
from convexlift.tensors import Blocks

FIRST_MOVE = 0.05
"""Guessed move of a pixel from the first image to the solution, for an ordinary range of pixels."""
ORDINARY = (0.1, 10.0)
"""Ranges of the first image's pixels that count as 1; smaller and larger ones scale the guess."""
ALIVE = 1e-3
"""Least slope of a layer, and least part of a move it passes on."""
PRESSURE = 0.1
"""Expected part of the first force on the image that the box will have to resist (measured)."""


def first_sigma(saddle: SaddlePointProblem, coupling: Coupling, u: Blocks, v: Blocks) -> Blocks:
    """Steps (B,) balanced for the sizes of the first duals and a small move of the images.

    Rows that do not move, and duals without a size, do not determine sigma: they get the geometric
    mean of the other steps.
    """
    reach = coupling.reach(expected_moves(coupling, u))
    target = coupling.balanced_sigma(reach, expected_sizes(saddle, coupling, v))
    values = torch.stack(list(target.values()))
    usable = torch.isfinite(values) & (values > 0)
    logarithms = torch.where(usable, values, 1.0).log()
    mean = (logarithms.sum(0) / usable.sum(0).clamp_min(1)).exp()  # 1 if there are none
    return Blocks(dict(zip(target, torch.where(usable, values, mean), strict=True)))


def expected_moves(coupling: Coupling, u: Blocks) -> Blocks:
    """The expected moves of primal blocks, (B,) each, x first and z_i after it.

    The size of a nearly dead layer, z_i = 1e-38 say, is uninformative: z_i moves with a_i.
    """
    moves: dict[str, Tensor] = {}
    for name, size in u.norms().items():
        if name == "x":  # a move of every pixel, for images of any scale
            flat = u[name].flatten(1)
            spread = flat.amax(1) - flat.amin(1)
            unit = torch.where(spread > 0, spread / spread.clamp(*ORDINARY), 1.0)
            size = unit * flat.shape[1] ** 0.5
        moves[name] = FIRST_MOVE * size
        row = coupling.weights.get(f"v{name[1:]},1", {})
        for source in row.keys() & moves.keys() - {name}:
            with_a = ALIVE * moves[source] * torch.as_tensor(row[source]).to(size).sqrt()
            moves[name] = torch.maximum(moves[name], with_a)
    return Blocks(moves)


def expected_sizes(saddle: SaddlePointProblem, coupling: Coupling, v: Blocks) -> Blocks:
    """The expected sizes of dual blocks, (B,) each: at least the sizes of the first ones.

    An image that fits the data has v_0 = 0, but at the solution A* v_0 balances the force of R. An
    image inside the box has v_x = 0, but the force that moves it will press it against the box.
    Slopes of a layer that is nearly dead are no measure either: v_{i,1} = h' t, v_{i,2} = -t, and
    v_L = h' t for the last layer, of weights t, which may be packed.
    """
    plain = Blocks({name: part for name, part in v.items() if part.dtype is not CODES})
    sizes = {n: part.sqrt().to(v[n]) for n, part in coupling.dual_squares(plain).items()}
    for (name, *second), term in saddle.f:
        if second:
            sizes[name] = torch.maximum(sizes[name], ALIVE * sizes[second[0]])
        elif isinstance(term, LastLayerTerm):
            if name not in plain:
                found = squares(term.activation, v[name], term.weights)
                sizes[name] = found.sqrt().to(term.weights)
            t = term.activation.spread(term.weights)
            alike = v[name][0].numel() / t[0].numel()  # units that share a weight
            steepest = (alike * coupling.dual_squares(Blocks({name: t}))[name]).sqrt()
            sizes[name] = torch.maximum(sizes[name], ALIVE * steepest.to(t))

    def force(*left_out: str) -> Tensor:
        """||K* v|| at x, without some of the duals."""
        others = Blocks({n: 0 * part if n in left_out else part for n, part in v.items()})
        return saddle.K.adjoint(others).norms()["x"]

    if DATA_DUAL in v:
        balance = force(DATA_DUAL) / coupling.weights[DATA_DUAL]["x"] ** 0.5
        sizes[DATA_DUAL] = torch.maximum(sizes[DATA_DUAL], balance)
    if BOX_DUAL in v:
        sizes[BOX_DUAL] = torch.maximum(sizes[BOX_DUAL], PRESSURE * force(BOX_DUAL))
    return Blocks(sizes)
