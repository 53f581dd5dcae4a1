"""No number of a problem in double precision was ever rounded to another: against 50 digits.

torch makes tensors of Python numbers in its default precision, which is single for users. So it is
here, unlike in the other tests.
"""

from __future__ import annotations

from decimal import Decimal, getcontext

import pytest
import torch
from parts import FIDELITIES, ONE, ONE_BY_ONE, exact

import convexlift as cl
from convexlift.operators.imaging import Diagonal

getcontext().prec = 50
POINTS = [-3.7, -1.0, -0.3, -0.04, 0.0, 0.01, 0.07, 0.3, 0.9, 1.0, 2.6]
TOLERANCE = Decimal("1e-15")


@pytest.fixture(autouse=True)
def _single_precision_by_default(_double_precision):
    torch.set_default_dtype(torch.float32)


def agree(found: torch.Tensor, expected: list[Decimal], what: str) -> None:
    assert found.dtype == torch.float64, what
    for one, other in zip(found.flatten().tolist(), expected, strict=True):
        assert abs(exact(one) - other) <= TOLERANCE * max(ONE, abs(other)), what


@pytest.mark.parametrize("entry", ONE_BY_ONE, ids=lambda entry: str(entry.h))
def test_activations(entry):
    h, (value, slope, conjugate) = entry.h, entry.exact
    a = torch.tensor(POINTS, dtype=torch.float64)[:, None]
    agree(h.value(a), [value(exact(p)) for p in POINTS], "value")
    agree(h.derivative(a), [slope(exact(p)) for p in POINTS], "derivative")
    low, high = (max(h.slopes[0], -4.0), min(h.slopes[1], 4.0))
    slopes = [low + (high - low) * k / 7 for k in range(8)]
    slopes = [min(max(s, low), high) for s in slopes]
    s = torch.tensor(slopes, dtype=torch.float64)[:, None]
    agree(h.conjugate(s), [conjugate(exact(p)) for p in slopes], "conjugate")
    # y = a + eta h'(a) is the point whose proximal point is a, wherever h has no kink.
    eta = torch.full_like(a, 0.3)
    agree(h.prox(a + eta * h.derivative(a), eta)[a != 0], [exact(p) for p in POINTS if p], "prox")
    t = torch.full_like(a, 0.7)
    z, loss = h.value_and_loss(a, h.clip_to_slopes(0.6 * t, t), t)
    agree(z, [value(exact(p)) for p in POINTS], "value of value_and_loss")
    used = (h.clip_to_slopes(0.6 * t, t) / t).flatten().tolist()
    losses = [
        exact(0.7) * (value(exact(p)) + conjugate(exact(u)) - exact(u) * exact(p))
        for p, u in zip(POINTS, used, strict=True)
    ]
    agree(loss, losses, "loss of value_and_loss")
    if isinstance(h, cl.SmoothActivation):
        step = Decimal("1e-20")
        inside = [p for p in POINTS if abs(p) not in (0.0, 1.0)]  # where h'' does not jump
        curvature = [(slope(exact(p) + step) - slope(exact(p))) / step for p in inside]
        found = h.second_derivative(torch.tensor(inside, dtype=torch.float64))
        agree(found, curvature, "second derivative")


@pytest.mark.parametrize("name", [name for name in FIDELITIES if FIDELITIES[name].density])
def test_fidelities(name):
    entry = FIDELITIES[name]
    density, conjugate = entry.density, entry.conjugate
    data = [0.1, 0.7, 1.3, 2.9]
    y = torch.tensor([data], dtype=torch.float64)
    f = entry.make(y)
    w = y + 0.37
    expected = [density(exact(p), exact(d)) for p, d in zip(w[0].tolist(), data, strict=True)]
    agree(f.density(w), expected, "density")
    step = Decimal("1e-20")
    slopes = [
        (density(exact(p) + step, exact(d)) - density(exact(p), exact(d))) / step
        for p, d in zip(w[0].tolist(), data, strict=True)
    ]
    agree(f.gradient(w), slopes, "gradient")
    tau = torch.full_like(w, 0.3)
    agree(f.prox(w + tau * f.gradient(w), tau), [exact(p) for p in w[0].tolist()], "prox")
    if conjugate is not None:
        v = torch.full_like(y, 0.09)
        agree(f.conjugate(v), [conjugate(exact(0.09), exact(d)) for d in data], "conjugate")


def test_operators():
    x = torch.rand(1, 1, 5, 4, dtype=torch.float64)
    third = torch.full((5, 4), 1 / 3, dtype=torch.float64)
    scaled = [
        (0.1 * cl.Identity(), exact(0.1)),
        (0.3 * (0.7 * cl.Identity()), exact(0.3) * exact(0.7)),
        (0.1 * Diagonal(third), exact(0.1) * exact(1 / 3)),
        ((0.1 * cl.Identity()) @ Diagonal(third), exact(0.1) * exact(1 / 3)),
        (0.1 * cl.Identity() + 0.7 * cl.Identity(), exact(0.1) + exact(0.7)),
    ]
    for operator, factor in scaled:
        expected = [factor * exact(p) for p in x.flatten().tolist()]
        agree(operator(x), expected, "A x")
        agree(operator.adjoint(x), expected, "A* x")
        agree(operator.diagonal.to(x) * x, expected, "diagonal")


@pytest.mark.parametrize("boundary", ["zero", "circular", "reflect", "replicate"])
def test_blurs(boundary):
    kernel = torch.tensor([[0.1, 0.2, 0.1]], dtype=torch.float64) / 0.7
    blur = cl.Blur(kernel, boundary)
    x = torch.rand(1, 1, 1, 6, dtype=torch.float64)
    row = [exact(p) for p in x.flatten().tolist()]
    beyond = {
        "zero": (Decimal(0), Decimal(0)),
        "circular": (row[-1], row[0]),
        "reflect": (row[1], row[-2]),
        "replicate": (row[0], row[-1]),
    }[boundary]
    wide = [beyond[0], *row, beyond[1]]
    taps = [exact(p) for p in kernel.flatten().tolist()]
    expected = [sum(t * wide[i + j] for j, t in enumerate(taps)) for i in range(6)]
    agree(blur(x), expected, "blur")


@pytest.mark.parametrize("scanner", ["parallel", "fan"])
def test_scanners(scanner):
    """The same whatever the default precision is when they are made."""

    def make():
        if scanner == "parallel":
            return cl.ParallelBeam(image_size=7, angles=5, bins=9)
        return cl.FanBeam(7, 5, 9, source_distance=20.0, detector_distance=11.0)

    x = torch.rand(1, 1, 7, 7, dtype=torch.float64)
    usual = make()(x)
    torch.set_default_dtype(torch.float64)
    assert torch.equal(usual, make()(x))
