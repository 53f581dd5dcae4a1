"""Claims about images and dual variables on an edge, where rounding decides."""

from __future__ import annotations

import parts
import torch
from checked_proofs import confirm

import convexlift as cl
from convexlift.networks import Convolution
from convexlift.operators.imaging import Diagonal
from soak.random_problems import random_case


def test_slopes_of_about_zero_get_a_clearance(tmp_path):
    """Pixels that no ray meets, bounded on one side: their slopes are 0 up to rounding."""
    problem = random_case(5047, tame=True).problem
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=100))
    assert solution.status == (cl.Status.CONVERGED,) * 3
    assert solution.guarantee == (cl.Guarantee.GLOBAL,) * 3
    confirm(problem, solution.proof.claim, tmp_path / "x.proof")


def three_smooth_layers() -> cl.InputConvexNetwork:
    h = parts.Softplus(5.0)
    first = cl.ConvexLayer(h, channels=3, skip=Convolution(1, 3, 3))
    others = [
        cl.ConvexLayer(h, channels=3, previous=Convolution(3, 3, 3, nonnegative=True))
        for _ in range(2)
    ]
    network, draw = cl.InputConvexNetwork([first, *others]).double(), torch.Generator()
    with torch.no_grad():
        for part in network.parameters():
            part.copy_(torch.randn(part.shape, generator=draw.manual_seed(0)) / 3)
        network.output.fill_(1.0)
        network.project_()
    return network


def test_pdhg_takes_over_where_lbfgs_stalls():
    """Where d < 0 and counts need d x >= 0, x = 0: every line search ends at once."""
    draw = torch.Generator().manual_seed(0)
    d, x = (f(1, 1, 8, 8, generator=draw, dtype=torch.float64) for f in (torch.randn, torch.rand))
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler((d * x).clamp_min(0)), operator=Diagonal(d),
        regularizer=three_smooth_layers(), weight=0.05, box=(0, None),
    )  # fmt: skip
    assert "PDHG follows" in str(cl.explain(problem))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=150, check_every=2))
    assert solution.status == (cl.Status.CONVERGED,)
    alone = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-3, max_iterations=10))
    assert float(alone.gap) > 0.01  # a given method is used alone
