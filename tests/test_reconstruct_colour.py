"""Pictures in colour: red, green and blue are one problem for a regularizer that has them."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from reconstruct_runs import bits, one_record, run

import convexlift as cl
from convexlift.files.pictures import read_picture
from convexlift.images import load_example
from convexlift.reconstruction import InputError

SIGMA, STOP = 0.1, cl.StopWhen(gap=1e-2, max_iterations=60)
OPTIONS = {"regularizer": "photo-open", "sigma": SIGMA, "noise": "gaussian", "tolerance": 1e-2,
           "max_iterations": 60}  # fmt: skip
WORDS = ["--regularizer", "photo-open", "--sigma", SIGMA, "--noise", "gaussian",
         "--tolerance", 1e-2, "--max-iterations", 60]  # fmt: skip

pytestmark = pytest.mark.single_precision


def colours(batch: int = 1) -> torch.Tensor:
    """Noisy pictures (B, 3, 48, 64) whose channels have edges in common."""
    grey = load_example("camera")[..., 80:128, 100:164]
    clean = torch.cat([grey, 0.8 * grey + 0.1, 0.4 * grey.flip(-1) + 0.3], 1)
    clean = torch.cat([clean.roll(5 * i, -1) for i in range(batch)])
    noise = SIGMA * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    return (clean + noise).clamp(0, 1)


def last(planes: torch.Tensor) -> np.ndarray:
    """(..., 3, H, W) with its channels last."""
    return planes.movedim(-3, -1).numpy()


def by_hand(y: torch.Tensor, weight: float = 1.0, seen: torch.Tensor | None = None) -> cl.Solution:
    """The solution of (B, 3, H, W) stated directly."""
    colour = y.shape[1] == 3
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y if seen is None else y * seen),
        operator=cl.Identity() if seen is None else cl.Mask(seen),
        regularizer=cl.load("photo-open-colour" if colour else "photo-open"),
        weight=weight, noise=SIGMA, box=(0, 1),
    )  # fmt: skip
    return cl.solve(problem, stop=STOP)


# Arrays


@pytest.mark.parametrize("shape", [(3, 48, 64), (2, 3, 48, 64)])
def test_arrays_are_solved_as_by_hand(shape):
    y = colours(batch=shape[0] if len(shape) == 4 else 1)
    found = cl.reconstruct(y.reshape(shape).double().numpy(), **OPTIONS)
    assert (found.x.shape, found.x.dtype) == (shape, torch.float64)
    expected = by_hand(y, found.weight.value)
    assert found.solution.x.shape == y.shape
    torch.testing.assert_close(found.solution.x, expected.x)
    torch.testing.assert_close(found.x.float(), expected.x.reshape(shape))
    torch.testing.assert_close(found.solution.lower_bound, expected.lower_bound)
    assert len(found.record["planes"]) == len(y)  # problems
    assert found.record["gap"] <= 1e-2


def test_a_colour_picture_is_more_than_three_grey_ones():
    y = colours()
    grey = cl.reconstruct(y[0, 0], **OPTIONS)
    expected = by_hand(y[:, :1], grey.weight.value)
    torch.testing.assert_close(grey.x, expected.x[0, 0])
    assert not torch.allclose(cl.reconstruct(y, **OPTIONS).x[0, 0], grey.x, atol=1e-3)


def test_regularizers_without_colours_take_channels_one_by_one():
    y = colours()
    found = cl.reconstruct(y, **(OPTIONS | {"regularizer": "tv"}))
    alone = cl.reconstruct(
        y[0, 1], **(OPTIONS | {"regularizer": "tv", "weight": found.weight.value})
    )
    torch.testing.assert_close(found.x[0, 1], alone.x)


# Files

ALPHA = bits(np.linspace(0, 1, 48 * 64).reshape(48, 64), np.uint8)
PIXELS = bits(last(colours()[0]), np.uint8)


def png(path, pixels=PIXELS):
    Image.fromarray(pixels).save(path)


FILES = {
    "rgba.png": lambda path: png(path, np.dstack([PIXELS, ALPHA])),
    "stack.tif": lambda path: tifffile.imwrite(
        path, bits(last(colours(2)), np.uint16), photometric="rgb"
    ),
    "colour.npy": lambda path: np.save(path, last(colours()[0])),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_solved_as_by_hand(name, tmp_path):
    FILES[name](tmp_path / name)
    result = run("denoise", tmp_path / name, "-o", tmp_path / "out", *WORDS, quick=False)
    assert result.exit_code == 0, result.output
    before, after = read_picture(tmp_path / name), read_picture(tmp_path / "out" / name)
    record = one_record(tmp_path / "out", name[:-4])
    values = torch.from_numpy(before.values(before.full_range)).reshape(-1, 3, 48, 64)
    x = by_hand(values, record["weight"]["value"]).x
    step = 0.0 if before.stored.dtype.kind == "f" else 0.5 / np.iinfo(before.stored.dtype).max
    written = torch.from_numpy(after.values(after.full_range)).reshape(x.shape)
    torch.testing.assert_close(written, x, rtol=0, atol=step + 1e-6)
    assert len(record["planes"]) == len(x)
    assert record["channels"] == 3
    assert record["alpha"] == (before.alpha is not None)


def test_a_folder_of_grey_and_colour_pictures(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    png(folder / "a.png")
    png(folder / "b.png", PIXELS[..., 0])
    png(folder / "c.png", PIXELS[::-1])
    result = run("denoise", folder, "-o", tmp_path / "out", "--batch", 4, *WORDS, quick=False)
    assert result.exit_code == 0, result.output
    for name in "abc":
        alone = cl.reconstruct(folder / f"{name}.png", **OPTIONS)
        x = torch.from_numpy(read_picture(tmp_path / "out" / f"{name}.png").stored / 255)
        torch.testing.assert_close(x.float().reshape(alone.x.shape), alone.x / 255, rtol=0,
                                   atol=0.6 / 255)  # fmt: skip


# Missing pixels


@pytest.mark.parametrize("shape", [(48, 64), (3, 48, 64), (2, 3, 48, 64)])
def test_masks_for_all_channels_and_for_each(shape):
    y = colours(batch=2)
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    found = cl.reconstruct(y, task="inpaint", mask=seen, **_inpainting())
    expected = by_hand(y, found.weight.value, seen.float().expand(y.shape))
    torch.testing.assert_close(found.x, expected.x)
    assert found.record["missing"] == pytest.approx(float((~seen).float().mean()), abs=1e-6)


def _inpainting() -> dict[str, object]:
    return {key: value for key, value in OPTIONS.items() if key != "noise"}


@pytest.mark.parametrize("channels", [1, 3])
def test_mask_files(channels, tmp_path):
    png(tmp_path / "a.png")
    shape = (48, 64, 3) if channels == 3 else (48, 64)
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    png(tmp_path / "mask.png", (255 * drawn.numpy()).astype(np.uint8))
    found = cl.reconstruct(
        tmp_path / "a.png", task="inpaint", mask=tmp_path / "mask.png", **_inpainting()
    )
    seen = drawn.movedim(-1, 0) if channels == 3 else drawn.expand(3, -1, -1)
    y = torch.from_numpy(PIXELS).movedim(-1, 0)[None] / 255
    expected = by_hand(y, found.weight.value, seen[None].float())
    torch.testing.assert_close(found.x / 255, expected.x[0])


def test_pixels_of_a_colour_are_missing_in_all_channels(tmp_path):
    pixels = PIXELS.copy()
    pixels[10:20, 30:40] = (255, 0, 255)
    png(tmp_path / "a.png", pixels)
    found = cl.reconstruct(tmp_path / "a.png", task="inpaint", mask_colour="#ff00ff",
                           **_inpainting())  # fmt: skip
    seen = torch.ones(1, 3, 48, 64)
    seen[..., 10:20, 30:40] = 0
    y = torch.from_numpy(pixels).movedim(-1, 0)[None] / 255
    torch.testing.assert_close(found.x / 255, by_hand(y, found.weight.value, seen).x[0])


def test_nan_in_one_channel_is_missing_there_only(tmp_path):
    pixels = last(colours()[0]).copy()
    pixels[10:20, 30:40, 1] = np.nan
    np.save(tmp_path / "a.npy", pixels)
    found = cl.reconstruct(tmp_path / "a.npy", task="inpaint", **_inpainting())
    seen = torch.from_numpy(np.isfinite(pixels)).movedim(-1, 0)[None].float()
    expected = by_hand(colours(), found.weight.value, seen)
    torch.testing.assert_close(found.x, expected.x[0])


# Errors


@pytest.mark.parametrize("shape", [(48, 64), (2, 48, 64), (1, 1, 48, 64)])
def test_the_regularizer_of_colours_refuses_grey_pictures_by_name(shape):
    y = colours()[0, : int(np.prod(shape[:-2], dtype=int))].reshape(shape)
    message = "photo-open-colour is for pictures in colour, and the image is grey; use "
    with pytest.raises(InputError, match=message + ".*photo-open"):
        cl.reconstruct(y, **(OPTIONS | {"regularizer": "photo-open-colour"}))


def test_the_command_line_says_so_too(tmp_path):
    png(tmp_path / "b.png", PIXELS[..., 0])
    words = [word if word != "photo-open" else "photo-open-colour" for word in WORDS]
    result = run("denoise", tmp_path / "b.png", "-o", tmp_path / "c.png", *words, quick=False)
    assert result.exit_code != 0
    assert "b.png is grey; use --regularizer photo-open" in " ".join(result.output.split())
    assert not (tmp_path / "c.png").exists()
