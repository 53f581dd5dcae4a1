"""Lower bounds on the data term hold for every slope within its rounding error."""

from __future__ import annotations

import math

import pytest
import torch

import convexlift as cl
from convexlift.operators.imaging import Diagonal
from convexlift.problems.rigorous_bounds import infimum_below
from convexlift.problems.rounding import Rounded

BOXES = [(0.0, 1.0), (0.2, math.inf), (-1.0, -0.1), (-1.0, 1.0), (-math.inf, math.inf)]


@pytest.mark.parametrize("ends", BOXES)
@pytest.mark.parametrize("fidelity", [cl.SquaredL2, cl.L1])
def test_infima_are_the_smallest_within_the_error(fidelity, ends):
    """Also in boxes of one sign, where only one end of the error's interval is looked at."""
    torch.manual_seed(0)
    y, d = torch.rand(1, 1, 8, 8), torch.randint(-1, 3, (1, 1, 8, 8))
    c, error = 0.5 * torch.randn_like(y), torch.full_like(y, 0.1)
    if math.inf in ends:  # so that all pixels are bounded
        c, d = c.abs() + 0.2, d.abs() + 1
    f, operator, box = fidelity(y), Diagonal(d.to(y)), cl.Box(*ends)
    below = infimum_below(f, operator, box, Rounded(c, error))
    within = [
        infimum_below(f, operator, box, Rounded.exact(c + share * error))
        for share in torch.linspace(-1, 1, 9)
    ]
    assert bool(torch.stack(within).isfinite().all()) or math.inf in ends
    assert all(bool(below <= each + 1e-12) for each in within)
    if ends == (0.0, 1.0):
        torch.testing.assert_close(below, within[0], rtol=1e-12, atol=0)
    elif ends == (-1.0, -0.1):
        torch.testing.assert_close(below, within[-1], rtol=1e-12, atol=0)
