"""Sinograms in HDF5 and NPY files, with the geometry that reconstructs them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift import scans

ANGLES = tuple(math.pi * k / 6 + 0.01 for k in range(6))
PARALLEL = scans.ParallelGeometry(angles=ANGLES, bin_width=0.3, detector_offset=-0.1)
FAN = scans.FanGeometry(
    angles=ANGLES, bin_width=1.3, source_distance=57.0, detector_distance=41.0, detector="curved"
)


def counts(geometry=PARALLEL, dtype=torch.float32, **changes) -> scans.Sinogram:
    def frames(count):
        return torch.randint(0, 65536, (3, count, 8)).to(dtype)

    sinogram = scans.Sinogram(frames(6), geometry, "counts", frames(2), frames(1))
    return replace(sinogram, **changes)


def same(left, right):
    for name in ("projections", "flat", "dark"):
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b))
    assert left.quantity == right.quantity
    assert np.allclose(left.geometry.angles, right.geometry.angles, rtol=1e-14, atol=1e-15)
    assert replace(left.geometry, angles=(0,)) == replace(right.geometry, angles=(0,))


@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
@pytest.mark.parametrize(
    "sinogram",
    [
        counts(),
        counts(FAN, torch.float64),
        counts(replace(PARALLEL, unit="pixel"), flat=None, dark=None, quantity="line integrals"),
        counts(quantity="transmission", dark=None),
    ],
    ids=repr,
)
def test_sinograms_are_read_back(tmp_path, sinogram, name):
    path = scans.write_sinogram(sinogram, tmp_path / "new" / name)
    same(scans.read_sinogram(path), sinogram)
    part = scans.read_sinogram(path, rows=slice(1, 2))
    assert torch.equal(part.projections, sinogram.projections[1:2])
    assert sinogram.flat is None or torch.equal(part.flat, sinogram.flat[1:2])
    assert not [file for file in path.parent.iterdir() if file.name.endswith(".part")]


@pytest.mark.parametrize(
    "operator",
    [
        cl.ParallelBeam((20, 24), 30, 40, (10.0, 12.0), detector_offset=0.2),
        cl.FanBeam(24, 30, 40, 90.0, 60.0, 12.0, detector="curved"),
        cl.FanBeam(24, torch.linspace(0, 6, 30), 40, 90.0, 60.0, bin_width=1.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_the_operator_of_a_file_is_the_one_that_was_saved(tmp_path, operator, name):
    height, width = operator.input_shape[1:]
    x = torch.rand(2, 1, height, width)
    data = operator(x)[:, 0]
    geometry = scans.geometry_of(operator)
    scans.write_sinogram(scans.Sinogram(data, geometry, "line integrals"), tmp_path / name)
    again = scans.read_sinogram(tmp_path / name)
    extent = (height * operator.grid.pixel_height, width * operator.grid.pixel_width)
    scanner = again.operator((height, width), extent)
    assert type(scanner) is type(operator)
    torch.testing.assert_close(scanner(x), again.data, rtol=1e-9, atol=1e-9)


def exchange(path, theta_units="deg", axes=None, **datasets):
    """A Data Exchange file as a beamline writes it: (theta, y, x) in 16 bits."""
    data = np.random.default_rng(0).integers(0, 65536, (4, 3, 5), dtype=np.uint16)
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        group["data"] = data if axes is None else data.swapaxes(0, 1)
        group["theta"] = np.array([0.0, 45.0, 90.0, 135.0])
        group["data_white"] = data[:2] + 1
        group["data_dark"] = np.zeros((0, 3, 5), dtype=np.uint16)
        if axes is not None:
            group["data"].attrs["axes"] = axes
        if theta_units is not None:
            group["theta"].attrs["units"] = theta_units
        for name, value in datasets.items():
            del group[name]
            if value is not None:
                group[name] = value
    return data


@pytest.mark.parametrize("units", ["deg", "degrees", b"degree", np.array(["Deg"], dtype=object)])
@pytest.mark.parametrize("axes", [None, "y:theta:x"])
def test_data_exchange_files(tmp_path, units, axes):
    data = exchange(tmp_path / "a.h5", units, axes)
    sinogram = scans.read_sinogram(tmp_path / "a.h5")
    assert sinogram.projections.dtype == torch.float32
    assert np.array_equal(sinogram.projections.numpy(), data.transpose(1, 0, 2))
    assert np.array_equal(sinogram.flat.numpy(), (data[:2] + 1).transpose(1, 0, 2))
    assert sinogram.dark is None
    assert sinogram.quantity == "counts"
    assert np.allclose(sinogram.geometry.angles, np.arange(4) * math.pi / 4, atol=1e-15)
    assert sinogram.geometry == scans.ParallelGeometry(
        angles=sinogram.geometry.angles, unit="pixel"
    )


def test_radians_and_pixels(tmp_path):
    path = tmp_path / "a.hdf5"
    exchange(path, "rad", theta=None)
    with h5py.File(path, "a") as file:
        file["exchange/theta"] = [0.0, 0.5, 1.0, 1.5]
        file["exchange/theta"].attrs["units"] = "rad"
        pixel = file.create_dataset(
            "measurement/instrument/detector/actual_pixel_size_x", data=[1.2e-6]
        )
    geometry = scans.read_sinogram(path).geometry
    assert geometry.angles == (0.0, 0.5, 1.0, 1.5)
    assert geometry.bin_width == pytest.approx(1.2e-3)  # metres, where no unit is given
    assert geometry.unit == "mm"
    for unit, width in (("um", 1.2e-9), ("mm", 1.2e-6)):
        with h5py.File(path, "a") as file:
            pixel = file["measurement/instrument/detector/actual_pixel_size_x"]
            pixel.attrs["units"] = unit
        assert scans.read_sinogram(path).geometry.bin_width == pytest.approx(width)
    with h5py.File(path, "a") as file:
        file["measurement/instrument/detector/actual_pixel_size_x"].attrs["units"] = "inch"
    with pytest.raises(
        scans.ScanFileError, match=r"actual_pixel_size_x in 'inch'; use m, mm, um or"
    ):
        scans.read_sinogram(path)


def test_implausible_pixel_sizes_are_refused(tmp_path):
    exchange(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["measurement/instrument/detector/actual_pixel_size_x"] = 4.0
    with pytest.raises(scans.ScanFileError, match=r"a\.h5 .* of 4000 mm, so its unit is missing"):
        scans.read_sinogram(tmp_path / "a.h5")


def test_angles_without_a_unit(tmp_path):
    path = tmp_path / "a.h5"
    exchange(path, None)
    with pytest.raises(scans.ScanFileError, match=r"a\.h5 does not give the unit .*angle_unit="):
        scans.read_sinogram(path)
    degrees = scans.read_sinogram(path, angle_unit="degrees").geometry.angles
    assert np.allclose(degrees, np.arange(4) * math.pi / 4)
    assert scans.read_sinogram(path, angle_unit="radians").geometry.angles[1] == 45
    assert scans.read_sinogram(path, angles=[0, 1, 2, 3]).geometry.angles == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="angle_unit must be 'degrees' or 'radians', got 'turns'"):
        scans.read_sinogram(path, angle_unit="turns")
    exchange(path, "gon")
    with pytest.raises(scans.ScanFileError, match="theta in 'gon'"):
        scans.read_sinogram(path)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"data": None}, "no /exchange/data"),
        (
            {"theta": None},
            r"no /exchange/theta; .*add --beam parallel .*write read_sinogram\(path, angles=",
        ),
        ({"data": np.zeros((4, 5))}, r"shape \(4, 5\); three dimensions"),
        ({"data": np.zeros((3, 3, 5))}, "the geometry has 4 angles"),
        ({"data_white": np.zeros((1, 3, 6))}, r"flat must be \(rows, frames, bins\)"),
        ({"data": np.full((4, 3, 5), np.nan)}, r"must be finite, got nan at \(0, 0, 0\)"),
        ({"data": np.zeros((4, 3, 5), dtype=complex)}, "real numbers, got complex128"),
    ],
)
def test_other_hdf5_layouts_are_refused(tmp_path, datasets, message):
    exchange(tmp_path / "a.h5", None, **datasets)
    with pytest.raises(scans.ScanFileError, match=rf"a\.h5 .*{message}"):
        scans.read_sinogram(tmp_path / "a.h5", angle_unit="degrees")


def test_unknown_axes_are_refused(tmp_path):
    exchange(tmp_path / "a.h5", axes="energy:y:x")
    with pytest.raises(scans.ScanFileError, match=r"has the axes \['energy', 'y', 'x'\]"):
        scans.read_sinogram(tmp_path / "a.h5")


def test_a_missing_hdf5_filter_is_named(tmp_path):
    exchange(tmp_path / "a.h5", data=None)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4, 3, 5))
        plist.set_filter(32099, h5py.h5z.FLAG_OPTIONAL)  # a number that nobody has registered
        space = h5py.h5s.create_simple((4, 3, 5))
        data = h5py.h5d.create(file["exchange"].id, b"data", h5py.h5t.NATIVE_UINT16, space, plist)
        data.write_direct_chunk((0, 0, 0), b"what the filter made of it")
    with pytest.raises(scans.ScanFileError, match=r"a\.h5 .*filter .* pip install hdf5plugin"):
        scans.read_sinogram(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["cut.h5", "cut.npy"])
def test_files_that_end_too_early(tmp_path, name):
    path = scans.write_sinogram(counts(), tmp_path / name)
    whole = path.read_bytes()
    if name == "cut.npy":  # a hash would find it; without one, it is found all the same
        side = path.with_suffix(".json")
        record = json.loads(side.read_text())
        del record["arrays"]["projections"]["sha256"]
        side.write_text(json.dumps(record))
    for length in (0, 10, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:length])
        with pytest.raises(scans.ScanFileError, match=rf"{name} cannot be read as"):
            scans.read_sinogram(path)


def test_arrays_and_geometry_belong_together(tmp_path):
    path = scans.write_sinogram(counts(), tmp_path / "a.npy")
    np.save(path, np.zeros((3, 6, 8), dtype=np.float32))
    with pytest.raises(scans.ScanFileError, match=r"a\.npy is not the file that .*a\.json was wri"):
        scans.read_sinogram(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(scans.ScanFileError, match=r"a\.npy needs a\.json beside it"):
        scans.read_sinogram(path)


def test_a_geometry_written_by_hand(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16).reshape(2, 5))
    record = {
        "format": "convexlift sinogram",
        "version": 1,
        "geometry": {"beam": "parallel", "angles": [0, 1.5], "bin_width": 2},
    }
    (tmp_path / "a.json").write_text(json.dumps(record))
    sinogram = scans.read_sinogram(tmp_path / "a.npy")
    assert torch.equal(sinogram.projections, torch.arange(10, dtype=torch.float32).view(1, 2, 5))
    assert sinogram.geometry == scans.ParallelGeometry(angles=(0, 1.5), bin_width=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "does not say"),
        ({"version": 2}, "version 2; 1 is supported"),
        ({"colour": 1}, "has no field colour; its fields are geometry, quantity, arrays"),
        ({"quantity": "apples"}, "quantity must be one of counts"),
        ({"geometry": None}, "geometry must be an object, got None"),
        ({"geometry": {"beam": "cone"}}, "beam must be one of parallel, fan, got 'cone'"),
        (
            {"geometry": {"beam": "fan", "angles": [0]}},
            "FanGeometry lacks the field source_distance",
        ),
        (
            {"geometry": {"beam": "parallel", "angles": [0], "tilt": 1}},
            "ParallelGeometry has no field tilt",
        ),
        (
            {"geometry": {"beam": "parallel", "angles": [0], "bin_width": "1"}},
            "bin_width must be a finite",
        ),
        ({"geometry": {"beam": "parallel", "angles": [0]}}, "the geometry has 1 angles"),
        ({"arrays": {}}, "needs arrays to be projections"),
        (
            {"arrays": {"projections": {}, "flat": {"file": "../a.npy"}}},
            r"arrays.flat: '../a.npy' is not the name of a file",
        ),
        ({"arrays": {"projections": {}, "flat": {"file": "b.npy"}}}, r"b\.npy cannot be read"),
    ],
)
def test_damaged_geometry(tmp_path, change, message):
    path = scans.write_sinogram(counts(), tmp_path / "a.npy")
    side = path.with_suffix(".json")
    side.write_text(json.dumps({**json.loads(side.read_text()), **change}))
    with pytest.raises(scans.ScanFileError, match=message):
        scans.read_sinogram(path)
    side.write_text("{")
    with pytest.raises(scans.ScanFileError, match=r"a\.json cannot be read"):
        scans.read_sinogram(path)


def test_arrays_of_other_shapes_and_types_are_refused(tmp_path):
    path = scans.write_sinogram(counts(flat=None, dark=None), tmp_path / "a.npy")
    side = path.with_suffix(".json")
    side.write_text(json.dumps({**json.loads(side.read_text()), "arrays": {"projections": {}}}))
    np.save(path, np.zeros(5))
    with pytest.raises(scans.ScanFileError, match=r"a\.npy holds float64 of shape \(5,\)"):
        scans.read_sinogram(path)
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(scans.ScanFileError, match=r"a\.npy cannot be read as NPY"):
        scans.read_sinogram(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projections": torch.zeros(6, 8)}, "three dimensions, got .* of shape"),
        ({"projections": torch.zeros(3, 5, 8)}, "has 6 angles"),
        ({"projections": torch.full((3, 6, 8), math.inf)}, "must be finite, got inf"),
        ({"dark": torch.zeros(3, 1, 7)}, r"dark must be .*\(3, frames, 8\)"),
        ({"quantity": "apples"}, "quantity must be one of"),
    ],
)
def test_sinograms_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        counts(**change)


@pytest.mark.parametrize(
    ("geometry", "change", "message"),
    [
        (PARALLEL, {"angles": ()}, "needs angles in radians"),
        (PARALLEL, {"angles": (0, math.nan)}, r"angles\[1\] must be a finite number"),
        (PARALLEL, {"bin_width": 0}, "bin_width > 0"),
        (PARALLEL, {"detector_offset": math.inf}, "detector_offset must be a finite number"),
        (PARALLEL, {"unit": "inch"}, "unit must be one of mm, pixel"),
        (FAN, {"source_distance": -1}, "source_distance > 0"),
        (FAN, {"detector_distance": -1}, "detector_distance >= 0"),
        (FAN, {"detector": "round"}, "detector must be one of"),
    ],
)
def test_geometries_are_checked(geometry, change, message):
    with pytest.raises(ValueError, match=message):
        replace(geometry, **change)


def test_names_of_other_files_are_refused(tmp_path):
    with pytest.raises(
        scans.ScanFileError, match=r"a\.mat does not name a sinogram; use the ending"
    ):
        scans.write_sinogram(counts(), tmp_path / "a.mat")
    (tmp_path / "a.mat").touch()
    with pytest.raises(scans.ScanFileError, match=r"a\.mat is not a sinogram"):
        scans.read_sinogram(tmp_path / "a.mat")
    path = scans.write_sinogram(counts(), tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"the angles of .*a\.npy are in a\.json"):
        scans.read_sinogram(path, angle_unit="degrees")
    with pytest.raises(ValueError, match="geometry_of takes ParallelBeam or FanBeam"):
        scans.geometry_of(cl.Identity())


def test_half_precision_is_written_as_single(tmp_path):
    half = counts().to(dtype=torch.bfloat16)
    for name in ("a.npy", "a.h5"):
        again = scans.read_sinogram(scans.write_sinogram(half, tmp_path / name))
        assert torch.equal(again.projections, half.projections.float())
