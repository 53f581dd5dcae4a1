"""Files that the library ismrmrd wrote, read by ``cl.scans.read_kspace``."""

from __future__ import annotations

import ismrmrd
import numpy as np
import pytest

import convexlift as cl

pytestmark = pytest.mark.filterwarnings("default")

SLICES, COILS, HEIGHT, WIDTH = 2, 3, 6, 8
HEADER = """<?xml version="1.0"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>8</x><y>6</y><z>{depth}</z></matrixSize></encodedSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>5</maximum><center>3</center>
</kspace_encoding_step_1></encodingLimits><trajectory>{kind}</trajectory></encoding>
</ismrmrdHeader>"""


def written(path, kind="cartesian", depth=1, far=0):
    """K-space without its second row, and its file; one row is measured three times."""
    generator = np.random.default_rng(0)
    shape = (SLICES, COILS, HEIGHT, WIDTH)
    data = (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(np.complex64)
    data[:, :, 1] = 0
    file = ismrmrd.Dataset(str(path), "dataset", create_if_needed=True)
    file.write_xml_header(HEADER.format(kind=kind, depth=depth).encode())
    readouts = [(k, row, 0.0) for k in range(SLICES) for row in range(HEIGHT) if row != 1]
    for k, row, change in [(0, 0, 99.0), *readouts, (1, 2, 2.0), (1, 2, -2.0)]:
        readout = ismrmrd.Acquisition.from_array(np.ascontiguousarray(data[k, :, row] + change))
        readout.idx.kspace_encode_step_1, readout.idx.slice = row + far, k
        readout.center_sample = WIDTH // 2
        if change == 99.0:
            readout.set_flag(ismrmrd.ACQ_IS_NOISE_MEASUREMENT)
        file.append_acquisition(readout)
    file.close()
    return data


def test_readouts_become_k_space(tmp_path):
    data = written(tmp_path / "scan.h5")
    scan = cl.scans.read_kspace(tmp_path / "scan.h5")
    np.testing.assert_allclose(scan.data.numpy(), data, atol=1e-6)
    assert scan.mask.all(dim=1).tolist() == [True, False, True, True, True, True]
    second = cl.scans.read_kspace(tmp_path / "scan.h5", slices=slice(1, 2))
    np.testing.assert_allclose(second.data.numpy(), data[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "spiral"}, "only Cartesian trajectories"),
        ({"depth": 4}, r"two dimensions are needed, and its matrix is \(4, 6, 8\)"),
        ({"far": 1}, "a readout does not fit the matrix"),
    ],
)
def test_scans_of_other_kinds_are_named(options, words, tmp_path):
    written(tmp_path / "scan.h5", **options)
    with pytest.raises(cl.scans.ScanFileError, match=words):
        cl.scans.read_kspace(tmp_path / "scan.h5")
