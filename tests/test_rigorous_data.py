"""The data term of claims in a kernel: as the plain path, and true to the last digit.

On a GPU, or on the threads of a CPU.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from exact_proofs import exact
from host_kernels import COMPILER, DataKernel

import convexlift as cl
from convexlift.kernels import rigorous_pass
from convexlift.operators.imaging import Diagonal
from convexlift.problems.claims import data_term_above
from convexlift.problems.rigorous_bounds import infimum_below
from convexlift.problems.rigorous_data import RigorousData
from convexlift.problems.rounding import Rounded

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.skipif(not ON_GPU and COMPILER is None, reason="needs g++")
KERNEL = rigorous_pass.data_kernel if ON_GPU else DataKernel
FIDELITIES = {"squared": cl.SquaredL2, "absolute": lambda y: cl.L1(y, 0.7)}
OPERATORS = {
    "identity": cl.Identity(),
    "third": cl.Identity() * (1 / 3),
    "mask": cl.Mask(torch.rand(13, 50, generator=torch.Generator().manual_seed(0)) > 0.3),
    "images": Diagonal(torch.linspace(-2, 1, 2 * 650, dtype=torch.float64).reshape(2, 1, 13, 50)),
}
BOX = cl.Box(0.1, 1.0)


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    monkeypatch.setattr(rigorous_pass, "data_kernel", lambda *_: None)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("fidelity", FIDELITIES)
@torch.no_grad()
def test_as_the_plain_computation_and_exact_arithmetic(fidelity, operator, monkeypatch):
    torch.manual_seed(0)
    y, x = (torch.rand(2, 1, 13, 50, dtype=torch.float64) for _ in range(2))
    c, error = torch.randn_like(y), torch.tensor([1e-12, 0.05]).double().reshape(2, 1, 1, 1)
    y, x, c, error = (each.to(DEVICE) for each in (y, x, c, error))
    f, A = FIDELITIES[fidelity](y), OPERATORS[operator].to(device=DEVICE, dtype=torch.float64)
    above, below = data_term_above(f, A, x), infimum_below(f, A, BOX, Rounded(c, error))
    monkeypatch.setattr(rigorous_pass, "data_kernel", KERNEL)
    fused = RigorousData.of(f, A, x.shape)
    torch.testing.assert_close(data_term_above(f, A, x), above, rtol=1e-12, atol=0)
    found = fused.below(Rounded(c, error), BOX)
    torch.testing.assert_close(found, below, rtol=1e-12, atol=1e-12)
    d = A.diagonal.expand_as(x).cpu()
    for i in range(2):
        datum, slopes, pixels, factors = (exact(each[i].cpu()) for each in (y, c, x, d))
        reach, scale = Fraction(float(error[i])), Fraction(getattr(f, "scale", 1))

        def value(w, y, scale=scale):
            return (w - y) ** 2 / 2 if fidelity == "squared" else scale * abs(w - y)

        total = sum(map(value, (p * q for p, q in zip(pixels, factors, strict=True)), datum))
        assert total <= Fraction(float(fused.above(x)[i])) <= total * (1 + Fraction(1e-12))
        least = sum(
            min(
                value(a * t, b) + (s - reach) * t
                for t in candidates(a, b, s - reach, scale, fidelity)
            )
            for a, b, s in zip(factors, datum, slopes, strict=True)
        )
        assert Fraction(float(found[i])) <= least


def candidates(d, y, c, scale, fidelity) -> list[Fraction]:
    """Points among which f(d x) + c x is smallest in the box."""
    ends = [Fraction(BOX.lower), Fraction(BOX.upper)]
    if d == 0:
        return ends
    inside = (y - c / d) / d if fidelity == "squared" else y / d
    return [*ends, min(max(inside, ends[0]), ends[1])]


def test_what_it_does_not_take(monkeypatch):
    monkeypatch.setattr(rigorous_pass, "data_kernel", KERNEL)
    y = torch.rand(1, 1, 8, 8, dtype=torch.float64, device=DEVICE)
    blur = cl.Blur(torch.full((3, 3), 1 / 9, dtype=torch.float64)).to(device=DEVICE)
    mask = cl.Mask(torch.ones(8, 8)).to(device=DEVICE, dtype=torch.float64)
    shape = y.shape
    assert RigorousData.of(cl.SquaredL2(y), mask, shape)
    assert RigorousData.of(cl.SquaredL2(y), blur, shape) is None
    assert RigorousData.of(cl.SquaredL2(y), mask @ mask, shape) is None
    assert RigorousData.of(cl.KullbackLeibler(y, 1.0), mask, shape) is None
    assert RigorousData.of(cl.WeightedL2(y, 2.0), mask, shape) is None
