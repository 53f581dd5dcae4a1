"""``convexlift reconstruct``: masks and truths, how they lie on pictures, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, ImageOps
from reconstruct_runs import bits, crop, noisy, one_record, run

from convexlift.files.pictures import read_picture
from convexlift.reconstruction.contents import InputError, open_contents
from convexlift.reconstruction.masks import seen_pixels
from convexlift.reconstruction.sources import companion

GREY = noisy(size=24)
pytestmark = pytest.mark.single_precision


def test_nan_is_missing(tmp_path):
    values = noisy(size=32, sigma=0.02).astype(np.float32)
    holes = values.copy()
    holes[10:13, 5:25] = np.nan
    np.save(tmp_path / "a.npy", holes)
    tifffile.imwrite(tmp_path / "b.tif", holes)
    truth = crop()[0, 0].numpy()
    for name in ("a.npy", "b.tif"):
        for task in ("inpaint", "denoise"):
            target = tmp_path / f"{task}-{name}"
            result = run(task, tmp_path / name, "-o", target)
            assert result.exit_code == 0, result.output
            filled = read_picture(target).stored[0]
            assert np.isfinite(filled).all()
            error = np.abs(filled - truth)[10:13, 5:25].mean()
            assert error < 0.65 * np.abs(truth[10:13, 5:25] - truth.mean()).mean()
            record = json.loads(target.with_suffix(".json").read_text())
            assert record["missing"] == pytest.approx(60 / 1024)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_denoising_says_that_it_filled_pixels_in(value, tmp_path):
    values = noisy(size=32).astype(np.float32)
    values[np.random.default_rng(0).random(values.shape) < 0.2] = value
    np.save(tmp_path / "a.npy", values)
    result = run("denoise", tmp_path / "a.npy", "-o", tmp_path / "x.npy")
    assert result.exit_code == 0, result.output
    assert np.isfinite(np.load(tmp_path / "x.npy")).all()
    share = 100 * np.mean(~np.isfinite(values))
    note = f"{share:.2g} % of its numbers are NaN or infinite, and were filled in"
    assert f"  note: {note}" in result.output
    assert one_record(tmp_path, "x")["notes"] == [note]
    assert "NaN" not in run("inpaint", tmp_path / "a.npy", "-o", tmp_path / "y.npy").output


def masked_picture(folder):
    mask = np.full((32, 32), 255, np.uint8)
    mask[8:12, 4:28] = 0
    Image.fromarray(mask).save(folder / "mask.png")
    Image.fromarray(255 - mask).save(folder / "inverted.png")
    pixels = np.dstack([bits(noisy(n, 32, 0.02), np.uint8) for n in ("camera", "coffee", "rocket")])
    pixels[mask == 0] = (255, 0, 255)
    Image.fromarray(pixels).save(folder / "scratched.png")
    return mask == 0


@pytest.mark.parametrize(
    "options",
    [["--mask", "mask.png"], ["--mask", "inverted.png", "--invert-mask"],
     ["--mask-colour", "#ff00ff"], ["--mask-color", "#F0F"]],
)  # fmt: skip
def test_masks_as_images_and_as_colours(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hidden = masked_picture(tmp_path)
    result = run("inpaint", "scratched.png", "-o", "filled.png", *options)
    assert result.exit_code == 0, result.output
    filled = read_picture(Path("filled.png")).stored
    clean = np.stack(
        [bits(crop(n)[0, 0].numpy(), np.uint8) for n in ("camera", "coffee", "rocket")]
    )
    wrong = np.abs(filled.astype(float) - clean)[:, hidden].mean()
    assert wrong < 30
    assert np.abs(np.array([255, 0, 255])[:, None] - clean[:, hidden]).mean() > 90


def lying(path, stored, orientation):
    """A picture whose orientation turns it; and how it is displayed."""
    exif = Image.Exif()
    exif[274] = orientation
    picture = Image.fromarray(stored)
    picture.save(path, exif=exif)
    picture.getexif()[274] = orientation
    return np.asarray(ImageOps.exif_transpose(picture))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("name", "width"), [("a.jpg", 32), ("a.png", 24), ("a.tif", 32)])
def test_masks_lie_on_pictures_as_they_are_displayed(orientation, name, width, tmp_path):
    stored = bits(noisy(size=32)[:24, :width], np.uint8)
    shown = lying(tmp_path / name, stored, orientation)
    drawn = np.full(shown.shape, 255, np.uint8)
    drawn[1:4, 2:9] = 0
    # Without an orientation, with the same one, and with another.
    Image.fromarray(drawn).save(tmp_path / "drawn.png")
    contents = open_contents(tmp_path / name)
    seen = seen_pixels(contents, tmp_path / "drawn.png")
    found = (255 * seen[0, 0]).numpy().astype(np.uint8)
    assert np.array_equal(lying(tmp_path / "seen.png", found, orientation), drawn)
    same = seen_pixels(contents, tmp_path / "seen.png")
    assert torch.equal(same, seen)
    lying(tmp_path / "other.png", drawn[::-1, ::-1], 3)
    other = seen_pixels(contents, tmp_path / "other.png")
    assert torch.equal(other, seen)


@pytest.mark.parametrize("orientation", [3, 6])
def test_truths_lie_on_pictures_as_they_are_displayed(orientation, tmp_path):
    shown = lying(tmp_path / "a.png", bits(GREY, np.uint8), orientation)
    Image.fromarray(shown).save(tmp_path / "truth.png")
    common = ["--noise", "gaussian", "--sigma", 0.02, "--truth", tmp_path / "truth.png"]
    result = run("denoise", tmp_path / "a.png", "-o", tmp_path / "x.png", *common)
    assert result.exit_code == 0, result.output
    assert one_record(tmp_path, "x")["psnr_before"] is None  # the same picture: infinitely good
    assert f"as it is displayed (orientation {orientation})" in result.output
    with Image.open(tmp_path / "x.png") as written:
        assert written.getexif()[274] == orientation


def test_sizes_of_masks_are_those_that_are_displayed(tmp_path):
    lying(tmp_path / "a.png", bits(noisy(size=32)[:24], np.uint8), 6)
    Image.fromarray(np.zeros((24, 32), np.uint8)).save(tmp_path / "mask.png")
    result = run("inpaint", tmp_path / "a.png", "-o", tmp_path / "x.png",
                 "--mask", tmp_path / "mask.png")  # fmt: skip
    assert "is 24 x 32, but" in result.output
    assert "is 32 x 24 when it is displayed" in result.output


@pytest.mark.parametrize(
    ("data", "mask", "missing"),
    [
        ((3, 8, 8), (3, 8, 8), [1, 2, 3]),  # pages
        ((3, 8, 8), (8, 8), [1, 1, 1]),
        ((3, 8, 8), (8, 8, 3), [3, 3, 3]),  # colours of one page, for three pages
        ((8, 8, 3), (8, 8), [1, 1, 1]),
        ((8, 8, 3), (8, 8, 3), [1, 2, 3]),
        ((2, 8, 8, 3), (2, 8, 8), [1, 1, 1, 2, 2, 2]),
        ((3, 8, 8), (2, 8, 8), None),
        ((2, 8, 8, 3), (5, 8, 8), None),
    ],
)
def test_masks_of_pages_and_of_colours(data, mask, missing, tmp_path):
    def write(name, array):
        path = tmp_path / name
        colours = array.shape[-1] == 3
        tifffile.imwrite(path, array, photometric="rgb" if colours else "minisblack")
        return path

    seen = np.full(mask, 255, np.uint8)
    planes = np.moveaxis(seen, -1, 0) if mask[-1] == 3 else seen.reshape(-1, 8, 8)
    for i, plane in enumerate(planes):
        plane[0, : i + 1] = 0
    path = write("x.tif", np.full(data, 128, np.uint8))
    drawn = write("m.tif", seen)
    contents = open_contents(path)
    if missing is None:
        with pytest.raises(InputError, match="give one for each, or one for all"):
            seen_pixels(contents, drawn)
    else:
        assert (seen_pixels(contents, drawn) == 0).flatten(1).sum(1).tolist() == missing


@pytest.mark.parametrize(
    ("data", "truth", "options"),
    [
        (GREY.astype(np.float32), GREY.astype(np.float64), []),
        (4095 * GREY.astype(np.float32), 4095 * GREY.astype(np.float64), []),
        (255 * GREY.astype(np.float32), bits(GREY, np.uint8), []),
        (bits(GREY, np.uint8), 255 * GREY.astype(np.float32), []),
        (bits(GREY, np.uint8), GREY.astype(np.float32), []),
        (bits(GREY, np.uint8), bits(GREY, np.uint16), []),
        (np.rint(4095 * GREY).astype(np.uint16), 4095 * GREY.astype(np.float32),
         ["--range", "0,4095"]),
    ],
)  # fmt: skip
def test_truths_are_on_the_scale_of_the_data(data, truth, options, tmp_path):
    # The truth is the data itself: anything else than nearly the same is another scale.
    np.save(tmp_path / "x.npy", data)
    np.save(tmp_path / "truth.npy", truth)
    result = run(
        "denoise", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--noise", "gaussian",
        "--sigma", 0.02, "--truth", tmp_path / "truth.npy", *options,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert one_record(tmp_path, "y")["psnr"] > 25


def test_masks_and_truths_of_folders_have_the_name_of_the_picture(tmp_path):
    folder = tmp_path / "masks"
    folder.mkdir()
    for name in ("a.alt.png", "a.gap.npy", "a.json", "b.png", "a.png"):
        (folder / name).touch()
    assert companion(folder, Path("in/a.tif"), "mask") == folder / "a.png"
    (folder / "a.npy").touch()
    assert companion(folder, Path("in/a.PNG"), "mask") == folder / "a.png"
    with pytest.raises(InputError, match=r"has a\.npy and a\.png for a\.tif; keep one mask"):
        companion(folder, Path("in/a.tif"), "mask")
    with pytest.raises(InputError, match=r"has no truth for c\.png"):
        companion(folder, Path("in/c.png"), "truth")
    strange = folder / "x[1].png"
    strange.touch()
    assert companion(folder, Path("x[1].png"), "mask") == strange


def test_noise_between_many_missing_pixels_is_estimated_or_asked_for(tmp_path):
    values = noisy(size=64, sigma=0.1).astype(np.float32)
    draw = np.random.default_rng(0).random(values.shape)
    values[draw < 0.7] = np.nan
    np.save(tmp_path / "a.npy", values)
    assert run("inpaint", tmp_path / "a.npy", "-o", tmp_path / "x.npy").exit_code == 0
    assert one_record(tmp_path, "x")["noise"]["level"] == pytest.approx(0.1, rel=0.3)
    values[draw < 0.95] = np.nan
    np.save(tmp_path / "b.npy", values)
    result = run("inpaint", tmp_path / "b.npy", "-o", tmp_path / "y.npy")
    assert result.exit_code == 1
    assert "too few pixels" in result.output
    assert "give --sigma" in result.output
    given = run("inpaint", tmp_path / "b.npy", "-o", tmp_path / "y.npy", "--sigma", 0.1)
    assert given.exit_code == 0, given.output
