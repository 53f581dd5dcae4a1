"""Pictures: examples, files, noise, PSNR and SSIM."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torchmetrics.functional.image import structural_similarity_index_measure

from convexlift import images


def test_examples_are_grey_pictures():
    assert {"astronaut", "camera"} <= set(images.example_names())
    for name in images.example_names():
        picture = images.load_example(name)
        assert picture.shape == (1, 1, 256, 256)
        assert picture.dtype == torch.float32
        assert 0 <= picture.min() < 0.4 < 0.6 < picture.max() <= 1


def test_a_written_picture_reads_back(tmp_path):
    picture = torch.rand(1, 1, 6, 9, dtype=torch.float32)
    images.save_image(str(tmp_path / "new" / "a.png"), picture)
    again = images.load_image(tmp_path / "new" / "a.png")
    assert (again - picture).abs().max() <= 0.5 / 255 + 1e-6
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["a.png"]


def test_nan_is_never_written(tmp_path):
    picture = torch.zeros(1, 1, 4, 4)
    picture[0, 0, 1, 2] = math.nan
    with pytest.raises(ValueError, match=r"cannot write .*nan at \(0, 0, 1, 2\)"):
        images.save_image(tmp_path / "a.png", picture)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail_half_way() -> None:
        with images.atomic_path(target) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"


def test_psnr_by_hand():
    truth = torch.zeros(2, 1, 2, 2)
    x = torch.stack([torch.full((1, 2, 2), 0.1), torch.full((1, 2, 2), 0.01)])
    for one_or_many in (truth, truth[:1]):
        torch.testing.assert_close(images.psnr(x, one_or_many), torch.tensor([20.0, 40.0]))
    assert images.psnr(x, x).tolist() == [math.inf, math.inf]
    assert images.ssim(x, x).isnan().all()  # smaller than its window


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 1, 4, 4), (1, 1, 4, 5)),
        ((2, 1, 4, 4), (3, 1, 4, 4)),
        ((2, 1, 4, 4), (2, 4, 4)),  # torch would compare each image with both
        ((1, 3, 4, 4), (1, 1, 4, 4)),
        ((4,), (4,)),
    ],
)
def test_psnr_of_images_that_do_not_match(first, second):
    message = re.escape(f"x has the shape {first} and truth {second}; compare images of one size")
    with pytest.raises(ValueError, match=message):
        images.psnr(torch.zeros(first), torch.ones(second))


@pytest.mark.parametrize("shape", [(2, 1, 11, 11), (1, 1, 40, 23), (2, 3, 16, 30)])
@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_ssim_agrees_with_torchmetrics(shape, noise):
    truth = torch.rand(shape)
    truth[..., :6] = 0.5  # variances of 0 up to rounding
    x = truth + noise * torch.randn(shape)
    expected = structural_similarity_index_measure(x, truth, data_range=1.0, reduction="none")
    torch.testing.assert_close(images.ssim(x, truth), expected, rtol=0, atol=1e-9)


def test_noise_has_the_stated_statistics():
    x = torch.full((1, 1, 200, 200), 0.5)
    generator = torch.Generator().manual_seed(0)
    hit = images.salt_and_pepper(x, 0.25, generator) != 0.5
    assert float(hit.double().mean()) == pytest.approx(0.25, abs=0.01)
    seen = images.random_mask(x, 0.3, generator)
    assert float(seen.mean()) == pytest.approx(0.7, abs=0.01)
    assert set(seen.unique().tolist()) == {0.0, 1.0}
    noise = images.gaussian_noise(x, 0.1, generator) - x
    assert float(noise.std()) == pytest.approx(0.1, rel=0.02)
    counts = images.poisson_counts(40 * x, generator)
    assert float(counts.mean()) == pytest.approx(20, rel=0.01)
    assert float(counts.var()) == pytest.approx(20, rel=0.05)


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="no example 'lena'; choose one of astronaut"):
        images.load_example("lena")
    (tmp_path / "x.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"x\.png cannot be read as a picture"):
        images.load_image(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        images.random_mask(torch.zeros(1, 1, 2, 2), 1.5, torch.Generator())
