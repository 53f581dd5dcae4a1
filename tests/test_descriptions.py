"""``repr`` in a few lines, and the HTML that notebooks show."""

from __future__ import annotations

import base64
import io
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import convexlift as cl
from convexlift.descriptions import Description, as_html, curve, picture, png
from convexlift.problems.claims import CAVEAT, percent


@pytest.fixture(scope="module")
def solved():
    torch.set_default_dtype(torch.float32)
    y = torch.rand(2, 1, 12, 10, generator=torch.Generator().manual_seed(0))
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(), weight=0.1, box=(0, 1)
    )
    return problem, cl.solve(problem, stop=cl.StopWhen(check_every=2))


def test_repr_has_a_few_lines_and_no_tensors(solved):
    for thing in (*solved, cl.load("photo-open"), cl.networks.baseline(32, channels=4)):
        text = repr(thing)
        assert "tensor(" not in text
        assert 2 <= text.count("\n") + 1 <= 8
        assert max(map(len, text.splitlines())) < 140


def test_what_the_lines_say(solved):
    problem, solution = solved
    assert "SquaredL2(y=(2, 1, 12, 10)), float32 on cpu" in repr(problem)
    assert "TotalVariation: 1 layer, nothing to train, grey images of any size" in repr(problem)
    assert repr(solution).startswith("Solution: 2 images of 1 x 12 x 10")
    assert f"gap {float(solution.gap[1]):.1e}" in repr(solution)
    assert f"Each image: solved to within {percent(float(solution.gap.max()))}" in repr(solution)
    assert CAVEAT in " ".join(str(solution).split())  # what is printed says it, too
    assert max(map(len, str(solution).splitlines())) <= 110
    text = repr(cl.load("photo-any-size"))
    assert text.startswith("photo-any-size: 1 layer, 2,400 weights")
    assert "CC BY-NC-SA" in text
    assert "AveragePool, then Dense of layer 1" in repr(cl.networks.baseline(32, channels=4))


def test_large_batches_are_not_listed_in_full():
    y = torch.zeros(20, 1, 4, 4)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(), weight=0.1
    )
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=0))
    assert "12 more; largest gap" in repr(solution)
    assert solution._repr_html_().count("<img") == 4


def test_a_notebook_shows_the_picture_the_gap_and_the_curve(solved):
    problem, solution = solved
    html = solution._repr_html_()
    ElementTree.fromstring(html)  # well formed
    assert html.count("<img") == 2
    assert "<svg" in html
    first, _, numbers = html.partition("<details>")
    assert CAVEAT in first
    assert f"gap {float(solution.gap[0]):.1e}" in numbers
    assert problem._repr_html_().count("<img") == 2
    assert "its 48 filters" in cl.load("photo-any-size")._repr_html_()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_png_files_are_read_by_others(channels):
    samples = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    read = np.asarray(Image.open(io.BytesIO(png(samples))))
    assert np.array_equal(read, samples[0] if channels == 1 else np.moveaxis(samples, 0, -1))


def shown(html):
    (source,) = re.findall(r"base64,([^\"]*)", html)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))


def test_zero_is_black_and_one_white_unless_the_numbers_are_others():
    ramp = torch.linspace(0.2, 0.6, 12).reshape(1, 3, 4)
    assert np.array_equal(shown(picture(ramp)), np.round(255 * ramp[0].double().numpy()))
    units = picture(1000 * ramp - 500, "x")
    assert (shown(units).min(), shown(units).max()) == (0, 255)
    assert "black -300, white 100" in units
    assert shown(picture(torch.full((1, 3, 4), torch.nan))).max() == 0
    assert shown(picture(torch.rand(1, 2000, 2000))).size <= 1e6


def test_texts_are_escaped():
    html = as_html(Description("<b>", {"<i>": "a & b"}))
    assert "&lt;b&gt;" in html
    assert "a &amp; b" in html


def test_a_curve_needs_two_points():
    assert curve([0], [1.0], "") == ""
    assert curve([0, 1], [float("inf"), 1.0], "") == ""
    svg = curve([0, 10, 20], [1.0, 0.1, 0.01], "gap")
    (points,) = re.findall(r'points="([^"]*)"', svg)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)


def test_names_people_look_for_are_in_dir(monkeypatch):
    assert {"Operator", "psnr", "ssim", "training", "tasks", "images", "phantoms"} <= set(dir(cl))
    assert cl.solvers  # importing it makes it an attribute, and no public name
    assert {"solvers", "parts", "lazy_names"} & set(dir(cl)) == set()
    names = {name for name in dir(cl) if not name.startswith("_")}
    assert set(cl.__all__) == names - {"cil", "deepinv"}
    monkeypatch.setitem(sys.modules, "deepinv", ModuleType("deepinv"))
    assert "deepinv" in dir(cl)  # an adapter, where its library is installed


def test_a_reconstruction_tells_noise_weight_and_proof():
    noisy = np.random.default_rng(0).normal(0.5, 0.1, (32, 32)).astype(np.float32)
    result = cl.reconstruct(noisy, regularizer="tv", sigma=0.1, range=(0, 1))
    text = repr(result)
    assert text.startswith("the image: 1 image of 1 x 32 x 32")
    assert "noise   Gaussian noise, sigma 0.1 (given)" in text
    assert f"weight  {result.weight.value:.3g}" in text
    assert CAVEAT in " ".join(text.split())  # in lines
    assert "noise" in result._repr_html_()
