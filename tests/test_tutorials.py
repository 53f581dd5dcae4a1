"""The tutorials: their code as printed, on smaller images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from pydicom.data import get_testdata_file
from torch.nn.functional import avg_pool2d

import convexlift as cl
from convexlift.images import psnr

PAGE = Path(__file__).parent.parent / "docs" / "ct.md"
SMALLER = {
    "cl.scans.read_volume(path)": "an_eighth(cl.scans.read_volume(path))",
    "SparseViewCT()": "SparseViewCT(scanner=10 * cl.ParallelBeam(64, 40, 64, 256.0))",
    "ParallelBeam(128, angles=120, bins=192": "ParallelBeam(16, angles=24, bins=24",
    "(1, 10, 192)": "(1, 10, 24)",
    "image_size=128": "image_size=16",
}
"""What is printed, and what is run in its place."""


def an_eighth(volume: cl.scans.Volume) -> cl.scans.Volume:
    dy, dx = volume.spacing
    return cl.scans.Volume(
        avg_pool2d(volume.values, 8),
        (8 * dy, 8 * dx),
        volume.positions,
        volume.orientation,
        source=volume.source,
    )


def test_the_ct_tutorial_runs_as_printed(tmp_path, monkeypatch, capsys):
    if get_testdata_file("explicit_VR-UN.dcm", download=False) is None:
        pytest.skip("the slice comes with the package pydicom-data, which is not installed")
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    for printed, run in SMALLER.items():
        assert code.count(printed) == 1, printed
        code = code.replace(printed, run)
    scope: dict = {"an_eighth": an_eighth}
    exec(compile(code, PAGE.name, "exec"), scope)

    assert capsys.readouterr().out.count("converged") == 3
    truth, solution, proof = scope["truth"], scope["solution"], scope["proof"]
    assert truth.shape == (1, 1, 64, 64)
    assert psnr(solution.x, truth) > psnr(scope["classical"], truth) + 1
    # The claims about maps, proofs and scales.
    assert proof.guarantee == (cl.Guarantee.GLOBAL,)
    assert proof.gap <= 1.001e-3
    torch.testing.assert_close(proof.map.sum(), (proof.objective - proof.lower_bound)[0])
    assert scope["other"].gap > proof.gap
    assert len(scope["curve"]) == len(solution.history)
    written = cl.scans.read_volume("result.dcm")
    assert (written.values - scope["result"].values).abs().max() <= 1 / 16
    assert Path("result.png").exists()
    shift = cl.scans.hounsfield_to_unit(scope["image"]) - scope["own"].x
    torch.testing.assert_close(shift, torch.full_like(shift, 24 / 2524), atol=1e-5, rtol=0)


def test_fields_of_several_rows_fit_their_readings():
    # As the tutorial writes them.
    flat = torch.tensor([[[10.0, 20.0], [30.0, 40.0]], [[100.0, 200.0], [300.0, 400.0]]])
    reading = torch.ones(2, 1, 3, 2)
    integrals = cl.line_integrals(reading, flat)
    expected = torch.log(torch.tensor([[20.0, 30.0], [200.0, 300.0]]))
    assert torch.allclose(integrals.values, expected[:, None, None].expand(2, 1, 3, 2))


def test_the_regularizer_for_ct_does_not_see_a_shift():
    # Up to the rounding of its filters to half precision, as the tutorial says.
    network = cl.load("ct-abdomen-chest").double()
    x = torch.rand(1, 1, 32, 32)
    torch.testing.assert_close(network(x + 24 / 2524), network(x), rtol=1e-5, atol=0)
