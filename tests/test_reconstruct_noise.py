"""Noise estimates against known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from convexlift.images import (
    example_names,
    gaussian_noise,
    load_example,
    random_mask,
    salt_and_pepper,
)
from convexlift.reconstruction.noise import (
    LEAST_SIGMA,
    MOST_PIXELS,
    Noise,
    TooFewPixels,
    estimate_noise,
    gaussian_level,
    is_line_art,
    photons_of,
    sampled,
)

pytestmark = pytest.mark.single_precision


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize(
    ("sigma", "accuracy"), [(0.01, 0.25), (0.02, 0.1), (0.05, 0.05), (0.1, 0.02), (0.2, 0.03)]
)
@pytest.mark.parametrize("bits", [8, None])
def test_gaussian_noise_is_recognised_and_measured(name, sigma, accuracy, bits):
    y = gaussian_noise(load_example(name), sigma, generator(1))
    if bits is not None:  # as files have it: clipped and rounded
        y = (255 * y.clamp(0, 1)).round() / 255
        accuracy += 0.06
    noise = estimate_noise(y)
    assert noise.kind == "gaussian"
    assert noise.estimated
    assert noise.level == pytest.approx(sigma, rel=accuracy)


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.25, 0.5])
def test_salt_and_pepper_is_recognised_and_measured(name, fraction):
    noise = estimate_noise(salt_and_pepper(load_example(name), fraction, generator(1)))
    assert noise.kind == "salt-and-pepper"
    assert noise.level == pytest.approx(fraction, rel=0.1)


@pytest.mark.parametrize("name", example_names())
def test_clean_pictures_have_little_gaussian_noise(name):
    noise = estimate_noise(load_example(name))
    assert noise.kind == "gaussian"
    assert LEAST_SIGMA <= noise.level < 0.01


def textures(size=160):
    """Images without a flat part."""
    i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    stripes = 0.5 + 0.2 * torch.cos(2.3 * i + 1.1 * j)
    checks = 0.45 + 0.1 * ((i + j) % 2)
    waves = 0.5 + 0.15 * torch.cos(1.7 * i) * torch.cos(0.9 * j) + 0.1 * torch.sin(2.9 * j)
    return {"stripes": stripes, "checks": checks, "waves": waves}


@pytest.mark.parametrize("name", textures())
@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.2])
def test_texture_is_not_taken_for_noise(name, sigma):
    y = gaussian_noise(textures()[name].float()[None, None], sigma, generator(1))
    assert gaussian_level(y) == pytest.approx(sigma, rel=0.1)


@pytest.mark.parametrize("factor", [0.25, 3.0, 255.0])
def test_levels_are_scaled_with_the_image(factor):
    y = 5 + gaussian_noise(load_example("brick")[..., :100, :140], 0.05, generator(1))
    level = gaussian_level(y)
    assert gaussian_level(factor * y) == pytest.approx(factor * level, rel=1e-3)
    assert gaussian_level(7 + factor * y) == pytest.approx(factor * level, rel=1e-2)


@pytest.mark.parametrize(
    "turned",
    [lambda y: y.rot90(1, (2, 3)), lambda y: y.rot90(2, (2, 3)), lambda y: y.flip(2),
     lambda y: y.flip(3), lambda y: y.transpose(2, 3)],
    ids=["90 degrees", "180 degrees", "up and down", "left and right", "transposed"],
)  # fmt: skip
def test_levels_do_not_depend_on_orientation(turned):
    y = gaussian_noise(load_example("coffee")[..., :100, :140], 0.05, generator(1))
    assert gaussian_level(turned(y).contiguous()) == pytest.approx(gaussian_level(y), rel=1e-4)


def test_stacks_and_colours_have_one_level():
    planes = torch.cat([load_example(n)[..., :128, :128] for n in ("astronaut", "chelsea")])
    assert gaussian_level(gaussian_noise(planes, 0.05, generator())) == pytest.approx(
        0.05, rel=0.05
    )


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.4])
def test_pure_noise_has_its_level(sigma):
    noise = gaussian_noise(torch.full((1, 1, 96, 96), 0.5), sigma, generator(2))
    assert estimate_noise(noise).level == pytest.approx(sigma, rel=0.05)


def eight_bits(y):
    return (255 * y.clamp(0, 1)).round() / 255


@pytest.mark.parametrize("value", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_wide_frames_have_no_noise(value, sigma):
    y = eight_bits(gaussian_noise(load_example("camera")[..., :128, :128], sigma, generator(1)))
    framed = torch.nn.functional.pad(y, (120, 120, 60, 60), value=value)  # 77 % of the picture
    framed = eight_bits(framed)
    assert gaussian_level(framed) == pytest.approx(sigma, rel=0.1)


def test_clean_drawings_have_no_noise():
    for size in (8, 14):
        page = letters(paper=240, ink=30, size=size)
        wide = torch.nn.functional.pad(page, (60, 60, 60, 60), value=240 / 255)
        assert gaussian_level(wide) == LEAST_SIGMA


@pytest.mark.parametrize(("paper", "sigma"), [(225, 10), (235, 10), (245, 5)])
def test_text_does_not_hide_the_noise_of_light_paper(paper, sigma):
    picture = Image.new("L", (480, 400), paper)
    draw = ImageDraw.Draw(picture)
    for row in range(8, 400, 16):
        draw.text((8, row), "The quick brown fox jumps over the lazy dog " * 3, 30, font_size=12)
    page = torch.from_numpy(np.asarray(picture) / np.float32(255))[None, None]
    y = eight_bits(gaussian_noise(page, sigma / 255, generator(1)))
    assert 255 * gaussian_level(y) == pytest.approx(sigma, rel=0.15)


def test_tiny_pictures_have_an_estimate():
    x = load_example("camera")[..., 40:56, 60:76]
    levels = [estimate_noise(gaussian_noise(x, 0.1, generator(s))).level for s in range(8)]
    assert sum(levels) / 8 == pytest.approx(0.1, rel=0.15)
    assert max(levels) < 0.16


def letters(paper=255, ink=0, size=14):
    picture = Image.new("L", (96, 96), paper)
    draw = ImageDraw.Draw(picture)
    for row in range(0, 96, size + 2):
        draw.text((1, row), "The quick brown fox jumps", fill=ink, font_size=size)
    return torch.from_numpy(np.asarray(picture) / np.float32(255))[None, None]


@pytest.mark.parametrize("size", [8, 14, 30])
def test_letters_are_no_salt_and_pepper(size):
    for image in (letters(size=size), 1 - letters(size=size)):
        assert estimate_noise(image).kind == "gaussian"
        assert is_line_art(image)
    on_grey = letters(paper=180, size=size)
    assert estimate_noise(on_grey).kind == "gaussian"
    assert not is_line_art(on_grey)


def test_photographs_are_no_line_art():
    x = load_example("camera")
    for y in (x, salt_and_pepper(x, 0.7, generator(1)), torch.zeros(1, 1, 16, 16)):
        assert not is_line_art(y)
    assert is_line_art((letters() > 0.5).float())


def test_salt_alone_is_recognised():
    x = load_example("camera")
    y = torch.where(torch.rand(x.shape, generator=generator(4)) < 0.2, torch.ones_like(x), x)
    assert estimate_noise(y).kind == "salt-and-pepper"


def test_missing_pixels_are_not_looked_at():
    x = load_example("camera")
    mask = (torch.rand(x.shape, generator=generator(2)) > 0.05).float()
    noisy = gaussian_noise(x, 0.05, generator(1))
    spoiled = torch.where(mask > 0, noisy, torch.full_like(x, 7.0))
    assert gaussian_level(spoiled, mask) == pytest.approx(0.05, rel=0.1)
    assert estimate_noise(spoiled, mask).kind == "gaussian"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize("missing", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(
    ("sigma", "accuracy"), [(0.02, (0.4, 0.6)), (0.05, (0.15, 0.25)), (0.1, (0.1, 0.2))]
)
def test_noise_is_measured_between_missing_pixels(name, missing, sigma, accuracy):
    # Hardly a window of 3 x 3 pixels is whole: lines and pairs remain, which see more of the image.
    x = load_example(name)
    mask = random_mask(x, missing, generator(2))
    spoiled = torch.where(mask > 0, gaussian_noise(x, sigma, generator(1)), 7.0)
    lines, pairs = accuracy
    level = gaussian_level(spoiled, mask)
    assert level == pytest.approx(sigma, rel=pairs if missing == 0.9 else lines)


@pytest.mark.parametrize("name", example_names())
@pytest.mark.parametrize(("size", "missing"), [(8, 0), (12, 0.3), (24, 0.7), (32, 0.5)])
def test_noise_is_measured_in_small_images(name, size, missing):
    x = load_example(name)[..., 80 : 80 + size, 100 : 100 + size]
    mask = random_mask(x, missing, generator(2))
    levels = [
        gaussian_level(mask * gaussian_noise(x, 0.1, generator(seed)), mask) for seed in range(5)
    ]
    assert min(levels) > 0.06
    assert max(levels) < 0.15
    assert sum(levels) / 5 == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize(("length", "slope"), [(3, 0.002), (2, 0.0)])
def test_lines_and_pairs_have_the_deviation_of_noise(length, slope):
    # Runs of so many pixels in every other row: no windows, and no columns. Lines see no slopes.
    y = 0.2 + slope * torch.arange(256) + 0.05 * torch.randn(256, 256, generator=generator(3))
    mask = torch.zeros_like(y)
    mask[::2] = (torch.arange(256) % (length + 1) < length).float()
    assert gaussian_level(y[None, None], mask[None, None]) == pytest.approx(0.05, rel=0.03)


def test_too_few_pixels_have_no_estimate():
    isolated = torch.zeros(1, 1, 64, 64)
    isolated[..., ::2, ::2] = 1
    with pytest.raises(TooFewPixels):
        estimate_noise(torch.rand(1, 1, 64, 64, generator=generator()), isolated, "gaussian")
    for kind in ("gaussian", "salt-and-pepper", None):
        with pytest.raises(TooFewPixels):
            estimate_noise(torch.full((1, 1, 2, 2), 0.5), None, kind)


def test_flat_images_have_an_estimate():
    assert estimate_noise(torch.full((1, 1, 8, 8), 0.5)).level == LEAST_SIGMA
    assert estimate_noise(torch.zeros(1, 1, 16, 16)).level == LEAST_SIGMA


def test_photons_are_counted_in_line_integrals():
    p = torch.linspace(0, 4, 120)[:, None] * torch.linspace(0.2, 1, 90)[None]
    counts = torch.poisson(5e3 * torch.exp(-p), generator=generator())
    integrals = -torch.log(counts / 5e3)
    assert photons_of(integrals[None, None]) == pytest.approx(5e3, rel=0.15)
    assert photons_of(p[None, None]) is None  # rounding is no noise


def test_noise_says_what_it_is():
    assert str(Noise("gaussian", 0.1)) == "Gaussian noise, sigma 0.1 (estimated)"
    assert "25 %" in str(Noise("salt-and-pepper", 0.25, estimated=False))
    with pytest.raises(ValueError, match="finite"):
        Noise("gaussian", math.nan)


@pytest.mark.parametrize("shape", [(1, 1, 3000, 3000), (600, 1, 128, 128)])
def test_large_images_are_estimated_from_parts(shape):
    noise = 0.05 * torch.randn(shape, generator=generator(), dtype=torch.float32)
    some = sampled(noise)
    assert MOST_PIXELS / 2 < some.numel() <= MOST_PIXELS < noise.numel()
    assert float(some.std()) == pytest.approx(0.05, rel=0.01)
    assert sampled(torch.ones(1, 1, 1, 1).expand_as(noise)).shape == some.shape  # as a mask
