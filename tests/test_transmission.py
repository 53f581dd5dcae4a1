"""Readings and line integrals: the law, its inverse, variances, and useless readings."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from strategies import floats
from torch import Tensor

import convexlift as cl
from convexlift.images import poisson_counts
from convexlift.phantoms import shepp_logan

BINS = 5
FLAT = torch.tensor([900.0, 1000.0, 1100.0, 1050.0, 950.0], dtype=torch.float64)
DARK = torch.tensor([90.0, 100.0, 110.0, 95.0, 105.0], dtype=torch.float64)


def draws(mean: float, count: int, seed: int = 0) -> Tensor:
    """Photons, (count, 1)."""
    means = torch.full((count, 1), mean, dtype=torch.float64)
    return poisson_counts(means, torch.Generator().manual_seed(seed))


@given(
    p=floats(-0.5, 7), beam=floats(1e4, 1e6), dark=floats(-5, 1e4),
    gain=floats(0.1, 10),
)  # fmt: skip
def test_the_integrals_of_the_expected_reading(p, beam, dark, gain):
    integrals = torch.full((1, 1, 3, BINS), p)
    reading = cl.expected_intensity(integrals, beam + dark, dark)
    assert float(reading[0, 0, 0, 0]) == pytest.approx(dark + beam * math.exp(-p))
    found = cl.line_integrals(reading, beam + dark, dark, gain=gain)
    torch.testing.assert_close(found.values, integrals, atol=1e-8, rtol=1e-8)
    photons = beam * math.exp(-p) / gain
    omega = photons**2 / (photons + max(dark, 0) / gain)
    torch.testing.assert_close(found.weights, torch.full_like(integrals, omega), rtol=1e-6, atol=0)


def test_the_expected_reading_can_be_differentiated():
    p = torch.rand(1, 1, 3, BINS, requires_grad=True)
    (slope,) = torch.autograd.grad(cl.expected_intensity(p, FLAT, DARK).sum(), p)
    torch.testing.assert_close(slope, -(FLAT - DARK) * torch.exp(-p.detach()))


def test_fields_may_be_numbers_bins_exposures_or_readings():
    reading = 200 + 600 * torch.rand(1, 1, 4, BINS)
    expected = cl.line_integrals(reading, FLAT, DARK)
    exposures = FLAT + torch.tensor([[-30.0], [10.0], [20.0]])
    angles = (1, 1, 4, BINS)
    for flat, dark in (
        (exposures, DARK), (exposures, torch.stack([DARK - 1, DARK + 1])),
        (FLAT.expand(angles), DARK), (FLAT, DARK.expand(angles)), (FLAT[None], DARK[None]),
    ):  # fmt: skip
        found = cl.line_integrals(reading, flat, dark)
        torch.testing.assert_close(found.values, expected.values)
        torch.testing.assert_close(found.weights, expected.weights)
    level = cl.line_integrals(reading, 1000, 100)
    torch.testing.assert_close(level.values, -torch.log((reading - 100) / 900))


def test_one_angle_may_have_a_field_of_its_own():
    reading = torch.full((1, 1, 2, BINS), 500.0)
    flat = torch.stack([FLAT, 2 * FLAT])[None, None]
    values = cl.line_integrals(reading, flat).values
    torch.testing.assert_close(values[0, 0, 1] - values[0, 0, 0], torch.full((BINS,), math.log(2)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.float32])
def test_readings_of_detectors_are_integers(dtype):
    reading = torch.tensor([[120, 200, 250], [130, 140, 150]]).to(dtype)
    found = cl.line_integrals(reading, 250.0, 100.0)
    assert found.values.shape == found.weights.shape == (1, 1, 2, 3)
    default = torch.get_default_dtype() if dtype != torch.float32 else dtype
    assert found.values.dtype == found.weights.dtype == default
    assert float(found.values[0, 0, 0, 1]) == pytest.approx(-math.log(100 / 150), rel=1e-6)
    assert found.to(dtype=torch.float32).weights.dtype == torch.float32


def test_weights_are_the_curvature_of_the_poisson_likelihood():
    """Twice by autograd, at its minimum p: -log Poisson(I; dark + (flat - dark) exp(-p))."""
    reading = torch.tensor([[150.0, 300.0, 700.0, 1000.0, 130.0]])
    found = cl.line_integrals(reading, FLAT, DARK)
    p = found.values.clone().requires_grad_()
    mean = cl.expected_intensity(p, FLAT, DARK)
    loss = torch.nn.functional.poisson_nll_loss(mean, reading[None, None], False, reduction="sum")
    (slope,) = torch.autograd.grad(loss, p, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), p)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-7, rtol=0)
    torch.testing.assert_close(found.weights, curvature, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.weights, found.fidelity().weights)


@pytest.mark.parametrize("p", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("gain", [1.0, 4.0])
@pytest.mark.parametrize("kind", ["photons alone", "dark counts", "electronic noise"])
def test_weights_are_inverse_variances(kind, gain, p):
    """Of simulated readings, within the few percent that 40,000 of them tell."""
    beam, count = 2e4, 40_000
    dark, variance = {"photons alone": 0.0, "dark counts": 300.0}.get(kind, 500.0) * gain, None
    if kind == "electronic noise":
        variance = (8 * gain) ** 2
        noise = torch.randn((count, 1), generator=torch.Generator().manual_seed(1))
        reading = dark + gain * draws(beam * math.exp(-p), count) + 8 * gain * noise
    else:
        reading = gain * draws(beam * math.exp(-p) + dark / gain, count)
    found = cl.line_integrals(reading, gain * beam + dark, dark, gain=gain, dark_variance=variance)
    assert float(found.values.mean()) == pytest.approx(p, abs=2e-3)
    assert float(found.values.var() * found.weights.mean()) == pytest.approx(1, abs=0.03)


def test_starved_dead_and_saturated_readings():
    """Below half a photon, a dead pixel, saturation: raised or left out, and counted."""
    flat = torch.tensor([1000.0, 1000.0, 1000.0, 100.0, 1000.0])
    reading = torch.tensor([[300.0, 100.0, 100.3, 250.0, 4095.0], [99.0, 50.0, 101.0, 90.0, 1e4]])
    with pytest.warns(UserWarning, match=(
        r"of 10 readings, 4 were below 0.5 photons and were raised to it; 2 are from dead pixels "
        r"\(flat <= dark\) and have weight 0; 2 are saturated and have weight 0"
    )) as caught:  # fmt: skip
        found = cl.line_integrals(reading, flat, 100.0, dark_variance=0.0, saturation=4095)
    assert caught[0].filename == __file__
    nearly_opaque = -math.log(0.5 / 900)
    values = [-math.log(2 / 9), nearly_opaque, nearly_opaque, 0, 0,
              nearly_opaque, nearly_opaque, -math.log(1 / 900), 0, 0]  # fmt: skip
    weights = [200.0, 0.5, 0.5, 0, 0, 0.5, 0.5, 1.0, 0, 0]
    torch.testing.assert_close(found.values.flatten(), torch.tensor(values))
    torch.testing.assert_close(found.weights.flatten(), torch.tensor(weights))
    with pytest.warns(
        UserWarning, match="of 6 readings, 5 were below 3 photons and were raised to it$"
    ):
        found = cl.line_integrals(reading[:, :3], 1000.0, 100.0, floor=3.0)
    assert float(found.values.max()) == pytest.approx(-math.log(3 / 900))


def test_transmissions_above_one_are_kept():
    found = cl.line_integrals(torch.tensor([[1100.0]]), 1000.0)
    assert float(found.values) == pytest.approx(-math.log(1.1))
    assert float(found.weights) == pytest.approx(1100)


def scan(
    photons: float, dark: float, *, size: int = 24
) -> tuple[cl.LinearOperator, Tensor, Tensor]:
    """A head of 20 cm with attenuations up to 0.4 / cm, behind a beam that is not even."""
    A = cl.ParallelBeam(size, 30, 35, extent=20.0)
    truth = 0.4 * shepp_logan(size)
    beam = photons * (1 + 0.3 * torch.cos(torch.linspace(-1.5, 1.5, 35)))
    beam[12] = 0.0  # a dead pixel
    return A, truth, dark + beam


def test_from_readings_to_a_certified_image():
    """Flat and dark fields of several exposures, photon noise, a dead pixel."""
    A, truth, flat = scan(5e3, 40.0)
    generator = torch.Generator().manual_seed(0)
    reading = poisson_counts(cl.expected_intensity(A(truth), flat, 40.0), generator)
    flats = poisson_counts(flat.expand(50, -1), generator)
    flats[:, 12] = 0
    darks = poisson_counts(torch.full((50, 35), 40.0), generator)
    with pytest.warns(UserWarning, match="30 are from dead pixels"):
        integrals = cl.line_integrals(reading, flats, darks)
    fidelity = integrals.fidelity()
    assert isinstance(fidelity, cl.WeightedL2)
    count = 30 * 34
    assert float(fidelity.value(A(truth))) == pytest.approx(count / 2, rel=4 / count**0.5)

    problem = cl.VariationalProblem(
        fidelity=fidelity, operator=A, regularizer=cl.TotalVariation(), weight=30.0, box=(0, None)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=3000))
    assert solution.status == (cl.Status.CONVERGED,)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert float(solution.gap) <= 1e-3
    error = float((solution.x - truth).norm() / truth.norm())
    assert error < 0.15
    checked = cl.certify(problem, solution.x, solution.duals)
    assert float(checked.gap) <= 1e-3
    assert float(problem.objective(truth)) >= float(checked.lower_bound)


def test_counts_and_their_data_term():
    y = torch.tensor([[[[0, 3], [7, 1]]]])
    counts = cl.Counts(y, 0.5)
    fidelity = counts.fidelity()
    assert isinstance(fidelity, cl.KullbackLeibler)
    assert fidelity.y.dtype == torch.get_default_dtype()
    assert torch.equal(fidelity.y, y.to(fidelity.y))
    assert float(fidelity.background) == 0.5
    w = torch.rand(y.shape) + 1
    likelihood = torch.distributions.Poisson(w + 0.5).log_prob(fidelity.y)
    best = torch.distributions.Poisson(fidelity.y).log_prob(fidelity.y)
    torch.testing.assert_close(fidelity.density(w), best - likelihood)
    assert counts.to(dtype=torch.float32).fidelity().y.dtype == torch.float32


def test_line_integrals_with_given_weights():
    p, omega = torch.rand(1, 1, 3, BINS), torch.rand(1, 1, 3, BINS)
    fidelity = cl.LineIntegrals(p, omega).fidelity()
    torch.testing.assert_close(fidelity.density(0 * p), omega * p**2 / 2)


READING = torch.full((2, BINS), 300.0, dtype=torch.float64)
WITH_NAN = torch.tensor([1.0, math.nan, 1.0, 1.0, 1.0], dtype=torch.float64)


def integrals(reading=READING, flat=FLAT, dark=0.0, **options):
    return cl.line_integrals(reading, flat, dark, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reading": [[1.0]]}, "the intensity must be a torch.Tensor, got list"),
        ({"reading": READING * WITH_NAN}, r"intensity must be finite, got nan at index \(0, 1\)"),
        ({"flat": FLAT * WITH_NAN}, r"flat must be finite, got nan at index \(1,\)"),
        ({"dark": math.nan}, "dark must be finite, got nan$"),
        ({"reading": READING[0]}, r"\(angles, bins\) or .* \(5,\)"),
        ({"reading": READING.expand(3, 2, BINS)}, r"must have the shape .* got \(3, 2, 5\)"),
        (
            {"flat": FLAT[:4]},
            r"flat of shape \(4,\) does not fit readings of \(1, 1, 2, 5\); give a",
        ),
        ({"dark": DARK.expand(1, 1, 3, BINS)}, r"dark of shape \(1, 1, 3, 5\) does not fit"),
        ({"flat": FLAT.expand(2, 2, BINS)}, r"does not fit .* one value for each reading"),
        ({"gain": 0}, "gain > 0, got gain=0"),
        ({"floor": math.nan}, "got floor=nan"),
        ({"saturation": math.nan}, "saturation"),
        ({"dark_variance": -1.0}, "needs dark_variance >= 0"),
        ({"flat": DARK, "dark": FLAT}, "no beam was measured"),
        ({"saturation": 300}, "all 10 readings are saturated or from dead pixels"),
    ],
)
def test_readings_that_cannot_be_are_refused(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        integrals(**changes)


@pytest.mark.parametrize(
    ("counts", "background", "message"),
    [
        ([1], 0.0, "counts must be a torch.Tensor, got list"),
        (torch.tensor([[1.0, 2.5]]), 0.0, r"integers, but they are 2.5 at .* cl.KullbackLeibler"),
        (torch.tensor([[1.0, math.nan]]), 0.0, r"got nan at index \(0"),
        (torch.tensor([[1, -2]]), 0.0, "needs counts, but .* -2"),
        (torch.tensor([[1, 2]]), -1.0, "background >= 0"),
    ],
)
def test_counts_are_checked(counts, background, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cl.Counts(counts, background)


def test_weights_of_line_integrals_are_checked():
    with pytest.raises(ValueError, match="needs finite weights >= 0, but they are -300"):
        cl.LineIntegrals(READING[None, None], -READING[None, None])
