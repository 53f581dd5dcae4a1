"""Volumes, windows and units: formulas and checks."""

from __future__ import annotations

import math

import numpy as np
import pydicom
import pytest
import torch
from pydicom.pixels import apply_windowing

from convexlift import scans


def test_water_and_air():
    hu = torch.tensor([-1000.0, 0.0, 1000.0])
    assert torch.equal(scans.hounsfield_to_attenuation(hu, 0.02), torch.tensor([0.0, 0.02, 0.04]))
    assert scans.attenuation_to_hounsfield(torch.zeros(1)).item() == -1000
    assert scans.hounsfield_to_attenuation(torch.zeros(1)).item() == pytest.approx(0.02059)


def test_the_unit_interval():
    ends = torch.tensor([-1024.0, 1500.0])
    assert scans.hounsfield_to_unit(ends).tolist() == [0, 1]
    assert scans.unit_to_hounsfield(torch.tensor([0.0, 1.0])).tolist() == ends.tolist()


def test_conversions_have_inverses():
    hu = torch.linspace(-3000, 5000, 997)
    there = scans.hounsfield_to_attenuation(hu, 0.0193)
    torch.testing.assert_close(scans.attenuation_to_hounsfield(there, 0.0193), hu)
    torch.testing.assert_close(scans.unit_to_hounsfield(scans.hounsfield_to_unit(hu)), hu)


@pytest.mark.parametrize("water", [0, -1.0, math.nan, math.inf])
def test_the_attenuation_of_water_is_positive(water):
    with pytest.raises(ValueError, match="water must be an attenuation in 1/mm"):
        scans.hounsfield_to_attenuation(torch.zeros(1), water)
    with pytest.raises(ValueError, match="water must be an attenuation in 1/mm"):
        scans.attenuation_to_hounsfield(torch.zeros(1), water)


@pytest.mark.parametrize("name", scans.WINDOWS)
def test_windows_agree_with_pydicom(name):
    window = scans.WINDOWS[name]
    hu = np.arange(-2000, 3000, dtype=np.float64)
    header = pydicom.Dataset()
    header.WindowCenter, header.WindowWidth = window.level, window.width
    header.VOILUTFunction = "LINEAR_EXACT"
    header.PhotometricInterpretation = "MONOCHROME2"
    header.BitsStored, header.PixelRepresentation = 16, 0
    header.RescaleSlope, header.RescaleIntercept = 1, 0
    expected = apply_windowing(hu, header) / 65535
    assert np.allclose(window.apply(torch.from_numpy(hu)).numpy(), expected, atol=1e-12)
    outside = ((hu < window.low) | (hu > window.high)).sum()
    assert window.clipped(torch.from_numpy(hu)) == outside


@pytest.mark.parametrize(("level", "width"), [(0, 0), (0, -1), (math.nan, 1), (0, math.inf)])
def test_windows_have_a_width(level, width):
    with pytest.raises(ValueError, match="a window needs"):
        scans.Window(level, width)


def test_places_of_pixels_and_slices():
    volume = scans.Volume(
        torch.zeros(2, 3, 4), (2.0, 0.5), ((0, 0, 1), (0, 0, 3)), orientation=(0, 1, 0, 0, 0, -1)
    )
    assert volume.normal == (-1, 0, 0)
    assert volume.extent == (6.0, 2.0)
    assert volume.images.shape == (2, 1, 3, 4)
    stacked = scans.Volume.stacked(torch.zeros(3, 2, 2), (1, 1), 2.5)
    assert stacked.heights == (0, 2.5, 5)


GOOD = {"values": torch.zeros(1, 2, 2), "spacing": (1.0, 1.0), "positions": ((0.0, 0.0, 0.0),)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(2, 2)}, r"\(slices, H, W\), got .* of shape \(2, 2\)"),
        ({"values": torch.zeros(1, 2, 2, dtype=torch.int16)}, "got torch.int16"),
        ({"values": torch.full((1, 2, 2), math.nan)}, "finite values, got nan"),
        ({"spacing": (1.0, 0.0)}, r"spacing must be \(dy, dx\) in mm"),
        ({"spacing": (1.0, math.nan)}, r"spacing must be \(dy, dx\) in mm"),
        ({"positions": ()}, "each of 1 slices, got 0"),
        ({"positions": ((0.0, 0.0),)}, "three finite numbers"),
        ({"orientation": (1.0, 0, 0, 0, 2.0, 0)}, "two orthogonal unit vectors"),
        ({"orientation": (1.0, 0, 0)}, "two orthogonal unit vectors"),
        ({"thickness": 0.0}, "thickness must be > 0"),
    ],
)
def test_volumes_are_checked(change, message):
    scans.Volume(**GOOD)
    with pytest.raises(ValueError, match=message):
        scans.Volume(**{**GOOD, **change})


def test_values_can_be_replaced():
    volume = scans.Volume(**GOOD)
    assert torch.equal(volume.with_values(torch.ones(1, 1, 2, 2)).values, torch.ones(1, 2, 2))
    with pytest.raises(ValueError, match=r"slices \(1, 2, 2\), got \(2, 2, 2\)"):
        volume.with_values(torch.ones(2, 2, 2))
    with pytest.raises(ValueError, match="slice_spacing must be > 0"):
        scans.Volume.stacked(torch.zeros(1, 2, 2), (1, 1), 0)


def test_the_unit_of_regularizers_in_attenuation():
    water = 0.02
    step = scans.hounsfield_to_attenuation(
        scans.unit_to_hounsfield(torch.tensor([0.0, 1.0])), water
    )
    assert scans.unit_attenuation(water) == pytest.approx(float(step[1] - step[0]))
    with pytest.raises(ValueError, match="water must be an attenuation"):
        scans.unit_attenuation(-1.0)
