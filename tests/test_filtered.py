"""Filtered back projection: scikit-image, ASTRA, and the values of a phantom."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import convexlift as cl
from convexlift.phantoms import ellipse_sinogram, shepp_logan

SIZE = 96
FILTERS = ("ram-lak", "shepp-logan", "cosine", "hann")
BEAMS = {
    "half turn": lambda: cl.ParallelBeam(SIZE, 150, 140, 2.0),
    "full turn": lambda: cl.ParallelBeam(SIZE, torch.arange(300) * 2 * math.pi / 300, 140, 2.0),
    "uneven angles": lambda: cl.ParallelBeam(
        SIZE, math.pi * torch.linspace(0, 1, 201)[:-1] ** 1.2, 140, 2.0
    ),
    "offset detector": lambda: cl.ParallelBeam(
        SIZE, 150, 160, 2.0, bin_width=2.2 / 140, detector_offset=0.1
    ),
    "oblong pixels": lambda: cl.ParallelBeam((SIZE, 2 * SIZE), 150, 140, 2.0),
    "flat fan": lambda: cl.FanBeam(SIZE, 300, 190, 3.0, 2.0, 2.0),
    "curved fan": lambda: cl.FanBeam(SIZE, 300, 190, 3.0, 2.0, 2.0, detector="curved"),
    "near flat fan": lambda: cl.FanBeam(SIZE, 300, 250, 1.8, 0.0, 2.0),
    "near curved fan": lambda: cl.FanBeam(SIZE, 300, 250, 1.8, 0.5, 2.0, detector="curved"),
}


def plateaus(image: torch.Tensor) -> torch.Tensor:
    """Pixels whose neighbourhood is flat."""
    highest, lowest = F.max_pool2d(image, 9, 1, 4), -F.max_pool2d(-image, 9, 1, 4)
    return (highest - lowest < 1e-9) & (image > 0.15)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("name", BEAMS)
def test_values_of_a_phantom_come_back(name, filter):
    beam = BEAMS[name]()
    clean = shepp_logan(SIZE)
    if beam.grid.width != SIZE:
        clean = clean.repeat_interleave(2, dim=-1)
    found = cl.fbp(beam, ellipse_sinogram(beam), filter)
    flat = plateaus(clean)
    assert int(flat.sum()) > 200
    assert float((found - clean)[flat].mean().abs()) < 0.002  # of 0.2: one percent
    assert float((found - clean)[flat].abs().mean()) < 0.01


@pytest.mark.parametrize("filter", FILTERS)
def test_it_is_scikit_images(filter):
    transform = pytest.importorskip("skimage.transform")
    size = 65
    beam = cl.ParallelBeam(size, 40, size, bin_width=1.0)
    sinogram = torch.randn(1, 1, 40, size)
    name = {"ram-lak": "ramp"}.get(filter, filter)
    theirs = transform.iradon(
        sinogram[0, 0].numpy().T, np.degrees(beam.exact_angles), filter_name=name, circle=False,
        output_size=size,
    )  # fmt: skip
    ours = cl.fbp(beam, sinogram, filter)[0, 0].numpy()
    x, y = beam.grid.centres()
    inside = np.hypot(x, y[:, None]) < size // 2 - 1  # what they make of the edge is another matter
    # Their Hann window is not quite periodic.
    tolerance = 0.02 if filter == "hann" else 1e-8
    error = np.abs(ours - theirs)[inside].max()
    assert error < tolerance * np.abs(theirs[inside]).max()


def test_multiples_batches_and_derivatives():
    beam = BEAMS["half turn"]()
    sinograms = torch.rand(2, 1, 150, 140)
    both = cl.fbp(beam, sinograms)
    torch.testing.assert_close(cl.fbp(10 * beam, 10 * sinograms), both)
    torch.testing.assert_close(cl.fbp(beam, sinograms[1:]), both[1:])
    assert cl.fbp(beam.to(dtype=torch.float32), sinograms.float()).dtype == torch.float32
    sinograms.requires_grad_()
    cl.fbp(beam, sinograms).sum().backward()
    assert torch.isfinite(sinograms.grad).all()


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("filter must be one of", lambda b: cl.fbp(b, torch.zeros(1, 1, 150, 140), "ramp")),
        ("expects sinograms", lambda b: cl.fbp(b, torch.zeros(1, 1, 140, 150))),
        ("not Identity", lambda b: cl.fbp(cl.Identity(), torch.zeros(1, 1, 150, 140))),
        (
            "angles all around",
            lambda b: cl.fbp(
                cl.FanBeam(8, torch.linspace(0, 3, 9), 7, 9.0, 1.0), torch.zeros(1, 1, 9, 7)
            ),
        ),
    ],
)
def test_errors(message, make):
    with pytest.raises(ValueError, match=message):
        make(BEAMS["half turn"]())
