"""Grey pictures saved as RGB give the results of the same pictures saved as grey."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import convexlift as cl
from convexlift.files.pictures import equal_channels, read_picture
from convexlift.images import load_example
from convexlift.reconstruction.proposals import propose

QUICK = {"tolerance": 1e-2, "max_iterations": 8}

pytestmark = pytest.mark.single_precision


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def noisy(height=256, width=256):
    """A photograph with noise of 0.1, (H, W) in 8 bits; large enough for an estimate from JPEG."""
    clean = load_example("camera")[0, 0, :height, :width]
    noise = 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    return (255 * (clean + noise).clamp(0, 1)).round().to(torch.uint8).numpy()


def rgb(grey):
    return np.repeat(grey[..., None], 3, -1)


WRITERS = {
    "8.png": lambda pixels, path: Image.fromarray(pixels).save(path),
    "75.jpg": lambda pixels, path: Image.fromarray(pixels).save(path, quality=75, subsampling=0),
    "16.tif": lambda pixels, path: tifffile.imwrite(path, 257 * pixels.astype(np.uint16)),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_files_have_the_results_of_the_grey_file(kind):
    WRITERS[kind](noisy(), f"grey-{kind}")
    WRITERS[kind](rgb(noisy()), f"rgb-{kind}")
    grey, found = (cl.reconstruct(f"{name}-{kind}", **QUICK) for name in ("grey", "rgb"))
    assert found.noise == grey.noise
    assert found.noise.level == pytest.approx(0.1, rel=0.1)
    assert found.problem.regularizer.in_channels == 1
    assert found.record["objective"] == grey.record["objective"]
    assert torch.equal(found.x, grey.x.expand(3, -1, -1))
    found.save(f"out-{kind}")
    written = read_picture(Path(f"out-{kind}"))
    kept = read_picture(Path(f"rgb-{kind}")).stored.dtype
    assert (written.channels, written.stored.dtype) == (3, kept)
    assert equal_channels(written.stored)


def test_arrays_keep_their_shape():
    y = torch.from_numpy(noisy(48, 64)) / 255
    expected = cl.reconstruct(y, sigma=0.1, noise="gaussian", **QUICK)
    for image in (y.expand(3, -1, -1), y.expand(2, 3, -1, -1).double()):
        found = cl.reconstruct(image, sigma=0.1, noise="gaussian", **QUICK)
        assert (found.x.shape, found.x.dtype) == (image.shape, image.dtype)
        assert len(found.solution.x) == image.numel() // y.numel() // 3
        assert float((found.x - expected.x).abs().max()) < 1e-6


@pytest.mark.parametrize(("apart", "channels"), [(1, 1), (2, 3)])
def test_one_level_of_rounding_is_no_colour(apart, channels):
    pixels = rgb(noisy(48, 64).clip(8, 240))
    pixels[::3, ::2, 0] += np.uint8(apart)
    Image.fromarray(pixels).save("tinted.png")
    found = cl.reconstruct("tinted.png", **QUICK)
    assert found.problem.regularizer.in_channels == channels
    assert found.x.shape == (3, 48, 64)


def test_floats_of_different_channels_are_colours():
    y = (torch.from_numpy(noisy(48, 64)) / 255).repeat(3, 1, 1)
    y[0, 5, 5] += 1e-4
    assert cl.reconstruct(y, **QUICK).problem.regularizer.in_channels == 3


@pytest.mark.parametrize("planes", [1, 3])
def test_a_truth_may_be_grey_or_rgb_like_the_picture(planes):
    clean = load_example("camera")[0, 0, :48, :64]
    y = torch.from_numpy(noisy(48, 64)) / 255
    expected = cl.reconstruct(y, truth=clean, **QUICK).record
    if planes == 3:
        found = cl.reconstruct(y.expand(3, -1, -1), truth=clean.expand(3, -1, -1), **QUICK).record
        for name in ("psnr", "ssim", "psnr_before", "ssim_before"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5)
    else:
        with pytest.raises(ValueError, match=r"the truth given has 1 plane.* but .* has 3 plane"):
            cl.reconstruct(y.expand(3, -1, -1), truth=clean, **QUICK)


def test_simulated_noise_is_grey_too():
    clean = load_example("camera")[0, 0, :48, :64]
    options = QUICK | {"simulate": True, "sigma": 0.1, "seed": 3}
    grey, found = (cl.reconstruct(image, **options) for image in (clean, clean.expand(3, -1, -1)))
    torch.testing.assert_close(found.x, grey.x.expand(3, -1, -1))
    assert found.record["psnr"] == pytest.approx(grey.record["psnr"], rel=1e-5)


def test_missing_pixels():
    Image.fromarray(noisy(48, 64)).save("grey.png")
    Image.fromarray(rgb(noisy(48, 64))).save("rgb.png")
    mask = np.full((48, 64), 255, np.uint8)
    mask[10:14, 20:30] = 0
    Image.fromarray(mask).save("mask.png")
    Image.fromarray(rgb(mask)).save("mask-rgb.png")
    grey = cl.reconstruct("grey.png", "inpaint", mask="mask.png", **QUICK)
    for which in ("mask.png", "mask-rgb.png"):
        found = cl.reconstruct("rgb.png", "inpaint", mask=which, **QUICK)
        torch.testing.assert_close(found.x, grey.x.expand(3, -1, -1))
        assert found.record["missing"] == grey.record["missing"]


def test_channels_with_different_masks_stay_apart():
    y = (torch.from_numpy(noisy(48, 64)) / 255).expand(3, -1, -1)
    mask = torch.ones(y.shape)
    mask[1, 10:14, 20:30] = 0
    found = cl.reconstruct(y, "inpaint", mask=mask, **QUICK)
    assert found.problem.regularizer.in_channels == 3
    assert found.x.shape == y.shape


def test_a_range_and_alpha_are_kept():
    pixels = np.dstack([rgb(noisy(48, 64)), np.arange(48 * 64).reshape(48, 64) % 256])
    Image.fromarray(pixels.astype(np.uint8)).save("a.png")
    Image.fromarray(noisy(48, 64)).save("grey.png")
    grey, found = (cl.reconstruct(f, range=(10.0, 250.0), **QUICK) for f in ("grey.png", "a.png"))
    assert torch.equal(found.x, grey.x.expand(3, -1, -1))
    found.save("b.png")
    assert (np.asarray(Image.open("b.png"))[..., 3] == pixels[..., 3]).all()


def test_proposals_call_them_grey():
    Image.fromarray(noisy()).save("grey.jpg", quality=90)
    Image.fromarray(rgb(noisy())).save("rgb.jpg", quality=90)
    assert propose(Path("rgb.jpg")).about == propose(Path("grey.jpg")).about


def test_equal_channels_of_floats_may_be_missing():
    planes = np.full((3, 4, 5), 0.5, np.float32)
    planes[:, 1, 1] = np.nan
    assert equal_channels(planes)
    planes[0, 1, 1] = 0.5
    assert not equal_channels(planes)
