"""The documentation: its Python as printed, and the output that it shows.

``docs/ct.md`` is run on a smaller slice; as printed, by ``make test-slow``.
``docs/command-line.md`` needs files of its reader, and has its own ``test_command_line_page``;
``docs/ecosystem.md`` needs other libraries, and is run by ``make test-ecosystem``.
"""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import torch
from marks import slow
from pydicom.data import get_testdata_file
from torch.nn.functional import avg_pool2d

import convexlift as cl
from convexlift.files.pictures import PictureFormat
from convexlift.images import psnr

PAGES = pages.documentation()
CT, FILES, OTHERS = "docs/ct.md", "docs/command-line.md", "docs/ecosystem.md"
ELSEWHERE = (CT, FILES, OTHERS)
LONG = "docs/recipes.md"
WITH_CODE = [name for name, page in PAGES.items() if name not in ELSEWHERE and pages.blocks(page)]
SMALLER = {
    "cl.scans.read_volume(path)": "an_eighth(cl.scans.read_volume(path))",
    "SparseViewCT()": "SparseViewCT(scanner=cl.paper_scanner(64, 40, 64))",
    "ParallelBeam(128, angles=120, bins=192": "ParallelBeam(16, angles=24, bins=24",
    "(1, 10, 192)": "(1, 10, 24)",
    "image_size=128": "image_size=16",
}
"""What is printed, and what is run in its place."""


@pytest.fixture(autouse=True)
def _as_a_reader(_double_precision, registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files, or define formats of files
    monkeypatch.setattr(PictureFormat, "_registered", dict(PictureFormat._registered))
    torch.set_default_dtype(torch.float32)


def run_and_compare(name: str) -> None:
    for block, printed in pages.run(PAGES[name], {}):
        if block.shown is not None:
            assert not pages.differences(block.shown, printed), f"{name}, line {block.line}"


@pytest.mark.parametrize("name", [slow(n) if n == LONG else n for n in WITH_CODE])
def test_the_code_runs_and_prints_what_the_page_shows(name):
    run_and_compare(name)


def test_few_blocks_are_not_run():
    left_out = {
        f"{name}:{block.line}": block.reason
        for name, page in PAGES.items()
        for block in pages.blocks(page)
        if block.reason is not None
    }
    assert len(left_out) <= 3, left_out


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("0.26 s", "9.99 s", True),
        ("after 20 iterations", "after 30 iterations", True),
        ("after 20 iterations", "after 40 iterations", False),
        ("gap 5.0e-04", "gap 4.0e-04", True),
        ("gap 5.0e-04", "gap 5.0e-05", False),
        ("30.452 dB", "30.46 dB", True),
        ("30.452 dB", "31.0 dB", False),
        ("30.452 dB", "30.452 HU", False),
        ("30.452 dB", "30.452 dB\n1", False),
    ],
)
def test_what_a_page_shows_is_compared_number_by_number(shown, printed, alike):
    assert (not pages.differences(shown, printed + "\n")) == alike


def an_eighth(volume: cl.scans.Volume) -> cl.scans.Volume:
    dy, dx = volume.spacing
    return cl.scans.Volume(
        avg_pool2d(volume.values, 8),
        (8 * dy, 8 * dx),
        volume.positions,
        volume.orientation,
        source=volume.source,
    )


def skip_without_the_slice() -> None:
    if get_testdata_file("explicit_VR-UN.dcm", download=False) is None:
        pytest.skip("the slice comes with the package pydicom-data, which is not installed")


@pytest.mark.slow
def test_the_ct_tutorial_prints_what_it_shows():
    skip_without_the_slice()
    run_and_compare(CT)


def test_the_ct_tutorial_runs_on_a_smaller_slice():
    skip_without_the_slice()
    scope: dict = {"an_eighth": an_eighth}
    printed = [text for _, text in pages.run(PAGES[CT], scope, SMALLER)]
    assert "".join(printed).count("converged") == 3
    truth, solution, proof = scope["truth"], scope["solution"], scope["proof"]
    assert truth.shape == (1, 1, 64, 64)
    assert psnr(solution.x, truth) > psnr(scope["classical"], truth) + 1
    # The claims about maps, proofs and scales.
    assert proof.guarantee == (cl.Guarantee.GLOBAL,)
    assert proof.gap <= 1.001e-3
    gap = (proof.objective - proof.lower_bound)[0]  # which leaves room for rounding
    torch.testing.assert_close(proof.map.sum(), gap, rtol=1e-4, atol=0)
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
    x = torch.rand(1, 1, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(network(x + 24 / 2524), network(x), rtol=1e-5, atol=0)
