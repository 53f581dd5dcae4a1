"""``cl.reconstruct``: gives what the command line gives, and says what is wrong by name."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image
from reconstruct_runs import bits, colours, crop, noisy, one_record, run

import convexlift as cl
from convexlift.images import gaussian_noise, psnr, random_mask, salt_and_pepper, save_image
from convexlift.phantoms import shepp_logan
from convexlift.reconstruction import InputError, reconstructor_for

FAST = {"regularizer": "tv", "tolerance": 1e-2, "max_iterations": 40}
NOT_COMPARED = {
    *("command", "digest", "input", "output", "output_sha256", "seconds", "settings"),
}
pytestmark = pytest.mark.single_precision


def numbers(record):
    """All of a record that does not depend on the clock and on names of files."""
    return {name: value for name, value in record.items() if name not in NOT_COMPARED}


# The same as the command line --------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "grey.png", torch.from_numpy(noisy()))
    save_image(tmp_path / "clean.png", crop())
    Image.fromarray(bits(colours(), np.uint8)).save(tmp_path / "colour.png")
    mask = torch.ones(24, 24)
    mask[4:7] = 0
    save_image(tmp_path / "mask.png", mask)
    holes = noisy(sigma=0.02).astype(np.float32)
    holes[10:13, 5:25] = np.nan
    np.save(tmp_path / "holes.npy", holes)
    np.save(tmp_path / "counts.npy", 100 + 3000 * noisy().astype(np.float32))
    scanner = cl.ParallelBeam(24, 40, 36, 200.0)
    p = scanner(0.015 * shepp_logan(24).float())
    p = p + 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    scan = cl.scans.Sinogram(p[:, 0], cl.scans.geometry_of(scanner), "line integrals")
    cl.scans.write_sinogram(scan, tmp_path / "scan.h5")
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("task", "name", "options"),
    [
        ("denoise", "grey.png", {"truth": "clean.png", "gap_map": True}),
        ("denoise", "grey.png", {"weight": "auto"}),
        ("denoise", "grey.png", {"weight": 0.05, "method": "lbfgs", "range": (0.0, 200.0)}),
        ("denoise", "colour.png", {"batch": 2}),
        ("denoise", "counts.npy", {}),
        ("denoise", "holes.npy", {}),
        ("inpaint", "holes.npy", {"sigma": 0.02}),
        ("inpaint", "colour.png", {"mask": "mask.png"}),
        ("ct", "scan.h5", {"size": 24, "extent": 200.0}),
        ("ct", "clean.png", {"simulate": True, "views": 30, "bins": 40}),
    ],
)
def test_a_file_gives_the_record_of_the_command_line(task, name, options, files):
    words = []
    for option, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [text])]
    output = files / ("out.tif" if task == "ct" else f"out{name[-4:]}")
    result = run(task, files / name, "-o", output, *words)
    assert result.exit_code == 0, result.output
    expected = one_record(files, "out")
    found = cl.reconstruct(files / name, task=task, **FAST, **options)
    assert numbers(json.loads(json.dumps(found.record))) == {
        key: value for key, value in numbers(expected).items() if key != "gap_map"
    }
    assert expected["command"].startswith("convexlift ")
    assert json.loads(json.dumps(found.record["settings"])) == expected["settings"]
    found.save(files / f"again{output.suffix}")
    assert (files / f"again{output.suffix}").read_bytes() == output.read_bytes()


def test_an_array_gives_the_record_of_its_file(files):
    values = np.load(files / "counts.npy")
    by_path, by_array = (cl.reconstruct(image, **FAST) for image in (files / "counts.npy", values))
    assert numbers(by_path.record) == numbers(by_array.record)
    assert torch.equal(by_path.x, by_array.x)
    assert by_array.record["range"] == [0, 4095]
    assert np.abs(by_array.x.numpy() - values).mean() < 300


def test_a_result_says_that_there_was_hardly_any_noise():
    smooth = torch.linspace(0.2, 0.8, 48).expand(48, 48)
    for image, said in ((smooth, True), (smooth + 0.05 * torch.randn(48, 48), False)):
        notes = cl.reconstruct(image, **FAST).record.get("notes", [])
        assert any("hardly any noise" in note for note in notes) == said
    assert "notes" not in cl.reconstruct(smooth, sigma=0.001, **FAST).record  # as asked for


# Images in memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(32, 32), (1, 32, 32), (3, 32, 32), (2, 1, 32, 32), (2, 3, 32, 32)]
)
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_results_have_the_shape_and_type_of_the_image(shape, kind):
    y = gaussian_noise(crop().expand(6, -1, -1, -1), 0.1, torch.Generator().manual_seed(0))
    image = y[: int(np.prod(shape[:-2], dtype=int))].reshape(shape).double()
    found = cl.reconstruct(image if kind == "tensor" else image.numpy(), sigma=0.1, **FAST)
    assert isinstance(found.x, torch.Tensor)
    assert found.x.shape == shape
    assert found.x.dtype == torch.float64
    planes = found.solution.x
    assert planes.shape == (image.numel() // 1024, 1, 32, 32)
    torch.testing.assert_close(found.x.float(), planes.reshape(shape))
    assert len(found.record["planes"]) == len(planes)
    assert float(psnr(planes[:1], crop())) > float(psnr(y[:1], crop())) + 2


def test_planes_of_a_batch_are_solved_as_if_alone():
    y = torch.cat([torch.from_numpy(noisy(seed=i))[None, None] for i in range(3)])
    whole = cl.reconstruct(y, sigma=0.05, noise="gaussian", **FAST)
    pieces = cl.reconstruct(y, sigma=0.05, noise="gaussian", batch=1, **FAST)
    torch.testing.assert_close(pieces.x, whole.x)
    torch.testing.assert_close(pieces.solution.lower_bound, whole.solution.lower_bound)
    planes = whole.record["planes"]
    assert whole.record["lower_bound"] == pytest.approx(sum(p["lower_bound"] for p in planes))
    assert all(p["gap"] >= 0 and p["lower_bound"] <= p["objective"] for p in planes)
    assert whole.record["gap"] <= max(plane["gap"] for plane in planes)
    assert pieces.solution.history["gap"].shape == whole.solution.history["gap"].shape
    for i in range(3):
        weight = whole.weight.value  # one for all planes
        alone = cl.reconstruct(y[i, 0], sigma=0.05, noise="gaussian", weight=weight, **FAST)
        torch.testing.assert_close(whole.x[i, 0], alone.x)
        assert whole.record["planes"][i] == pytest.approx(alone.record["planes"][0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_every_type_of_numbers(dtype):
    y = torch.from_numpy(noisy())
    image = (255 * y).round().to(dtype) if dtype == torch.uint8 else y.to(dtype)
    found = cl.reconstruct(image, sigma=0.05, **FAST)
    white = 255 if dtype == torch.uint8 else 1
    assert found.x.dtype == (torch.float32 if dtype == torch.uint8 else dtype)
    assert float((found.x.float() / white - y).abs().mean()) < 0.06


def test_the_result_is_documented_frozen_and_complete():
    found = cl.reconstruct(noisy(), gap_map=True, truth=crop()[0, 0], **FAST)
    assert isinstance(found, cl.Reconstruction)
    with pytest.raises(AttributeError):
        found.x = 0
    described = "".join(inspect.getdoc(kind) for kind in cl.Reconstruction.__mro__[:3])
    for name in found.__dataclass_fields__:
        assert f"\n    {name}:" in described
    assert found.noise.estimated
    assert found.weight.rule == "card"
    assert found.problem.weight == found.weight.value
    assert found.gap_map.shape == (1, 1, 32, 32)
    assert found.truth.shape == found.given.shape == (1, 1, 32, 32)
    assert found.record["psnr"] > found.record["psnr_before"]
    certificate = cl.certify(found.problem, found.solution.x)
    assert float(certificate.lower_bound) <= float(found.solution.objective)


def test_every_piece_has_its_part_in_the_proof(tmp_path):
    y = np.stack([noisy(size=16, seed=i) for i in range(3)])
    found = cl.reconstruct(y, batch=2, sigma=0.05, **FAST)
    found.solution.proof.save(tmp_path / "x.proof")
    assert len(cl.verify(tmp_path / "x.proof")) == 3
    assert found.problem.batch_size == 3


def test_networks_are_regularizers_and_stay_as_they_are():
    network = cl.networks.ridge(channels=2, kernel=3).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = cl.reconstruct(noisy(), regularizer=network, weight=0.01, max_iterations=20)
    assert found.record["settings"]["regularizer"] == "InputConvexNetwork"
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_strength_is_a_factor_of_the_weight():
    once, twice = (cl.reconstruct(noisy(), strength=s, sigma=0.05, **FAST) for s in (1.0, 2.0))
    assert twice.weight.value == pytest.approx(2 * once.weight.value)
    assert twice.record["settings"]["strength"] == 2


# Masks, simulated damage and scans ---------------------------------------------------------------


@pytest.mark.parametrize("shape", [(32, 32), (1, 32, 32), (2, 32, 32)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32, torch.int64])
def test_masks_as_arrays(shape, dtype):
    mask = torch.ones(shape)
    mask[..., 8:10, :] = 0
    y = crop().expand(2, -1, -1, -1)[:, 0]
    found = cl.reconstruct(y, task="inpaint", mask=mask.to(dtype), sigma=0.02, **FAST)
    assert found.record["missing"] == pytest.approx(2 / 32)
    swapped = cl.reconstruct(
        y, task="inpaint", mask=(1 - mask).to(dtype), invert_mask=True, sigma=0.02, **FAST
    )
    assert torch.equal(swapped.x, found.x)


def test_simulated_damage_is_that_of_the_seed():
    clean = crop()
    generators = [torch.Generator().manual_seed(7 + i) for i in range(3)]
    gauss = cl.reconstruct(clean, simulate=True, sigma=0.1, seed=7, **FAST)
    assert torch.equal(gauss.given, gaussian_noise(clean, 0.1, generators[0]))
    assert torch.equal(gauss.truth, clean)
    salt = cl.reconstruct(clean, simulate=True, noise="salt-and-pepper", sigma=0.2, seed=8, **FAST)
    assert torch.equal(salt.given, salt_and_pepper(clean, 0.2, generators[1]))
    holes = cl.reconstruct(
        clean, task="inpaint", simulate=True, missing=0.5, sigma=0.0, seed=9, **FAST
    )
    assert torch.equal(holes.given, clean * random_mask(clean, 0.5, generators[2]))
    assert holes.record["psnr"] > holes.record["psnr_before"]
    again = cl.reconstruct(clean, simulate=True, sigma=0.1, seed=7, **FAST)
    assert numbers(again.record) == numbers(gauss.record)


def test_scans_from_memory(files):
    scan = cl.scans.read_sinogram(files / "scan.h5")
    common = {"size": 24, "extent": 200.0, "weight": 5.0, **FAST}
    by_file = cl.reconstruct(files / "scan.h5", task="ct", **common)
    by_object = cl.reconstruct(scan, task="ct", **common)
    by_array = cl.reconstruct(
        scan.projections.numpy(), task="ct", geometry=scan.geometry, quantity=scan.quantity,
        **common,
    )  # fmt: skip
    assert by_file.x.shape == (24, 24)  # HU
    assert numbers(by_file.record) == numbers(by_object.record) == numbers(by_array.record)
    slices = cl.reconstruct(crop(), task="ct", simulate=True, views=20, bins=40, **FAST)
    assert slices.x.shape == crop().shape
    assert torch.equal(slices.truth, slices.truth.clamp_min(0))


# Progress and cancellation -----------------------------------------------------------------------


def test_progress_is_told_at_every_check():
    seen = []
    found = cl.reconstruct(noisy(), progress=seen.append, check_every=2, **FAST)
    assert [now.iteration for now in seen] == [r.iteration for r in found.solution.history]
    assert seen[1].iteration == 2
    assert all(now.x.shape == (1, 1, 32, 32) for now in seen)
    assert float(seen[-1].objective) <= float(seen[0].objective)


@pytest.mark.parametrize("batch", [3, 1])
def test_a_stop_keeps_the_best_images_so_far(batch):
    y = np.stack([noisy(seed=i) for i in range(3)])
    options = FAST | {"tolerance": 0.0, "max_iterations": 10**6, "batch": batch}
    found = cl.reconstruct(y, progress=lambda now: now.iteration >= 20, sigma=0.05, **options)
    assert set(found.solution.status) == {cl.Status.STOPPED}
    assert found.solution.iterations.tolist() == ([20] * 3 if batch == 3 else [20, 0, 0])
    assert bool((found.solution.lower_bound <= found.solution.objective).all())
    assert found.record["status"] == "STOPPED"
    assert found.x.shape == y.shape


# Options and errors ------------------------------------------------------------------------------


def test_help_shows_every_option_with_its_default():
    parameters = inspect.signature(cl.reconstruct).parameters
    for task in ("denoise", "inpaint", "ct"):
        for option in fields(reconstructor_for(task)):
            assert option.name in parameters
            assert f"    {option.name}: " in "".join(
                inspect.getdoc(kind) or "" for kind in type(reconstructor_for(task)).__mro__
            )
            if task == "denoise":
                assert parameters[option.name].default == option.default


GREY = noisy()


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (GREY, {"task": "deblur"}, "no task 'deblur'; choose one of denoise, inpaint, ct"),
        (GREY[0], {}, r"the image has the shape \(32,\); give \(H, W\), \(C, H, W\) or"),
        (np.zeros((0, 8)), {}, r"the image has the shape \(0, 8\)"),
        (np.zeros((1, 1, 1, 8, 8)), {}, r"the image has the shape \(1, 1, 1, 8, 8\)"),
        (np.full((8, 8), np.nan), {}, "the image has no finite number in it"),
        (np.where(GREY > 0.9, np.nan, GREY), {}, r"NaN or infinite at \(\d+, \d+\); fill missing"),
        (torch.arange(64).reshape(8, 8), {}, "holds int64, whose black and white are unknown"),
        (np.zeros((8, 8), complex), {}, "the image holds complex128; give real numbers"),
        (GREY[:4, :4], {}, "the image is 4 x 4; images have at least 8 x 8 pixels"),
        ([[0.0]], {}, "the image is a path, a tensor or an array, got list"),
        (GREY, {"task": "inpaint"}, "no pixel of the image is missing; give mask= or mask_colour="),
        (GREY, {"task": "inpaint", "mask": np.ones((8, 8))}, "the mask is 8 x 8, but the image is"),
        (GREY, {"task": "inpaint", "mask": np.ones((2, 32, 32))}, r"the mask has the shape \(2, "),
        (GREY, {"task": "inpaint", "mask": np.zeros((32, 32))}, "hides a whole image"),
        (GREY, {"truth": np.ones((8, 8))}, "the truth is 8 x 8, but the image is 32 x 32"),
        (GREY, {"truth": np.ones((2, 32, 32))}, r"the truth given has 2 plane\(s\)"),
        (GREY, {"sigma": 25.0}, "25 of 255 is 0.098"),
        (GREY, {"noise": "poisson"}, "noise= is gaussian or salt-and-pepper, got poisson"),
        (GREY, {"weight": "much"}, "weight= is card, auto or a number > 0, got 'm"),
        (GREY, {"weight": -1.0}, "weight= is card, auto or a number > 0, got -1.0"),
        (GREY, {"weight": (1.0, 2.0)}, "weight= is card, auto or a number > 0"),
        (GREY, {"weight": True}, "weight= is card, auto or a number > 0, got True"),
        (GREY, {"tolerance": -1.0}, "tolerance= is a relative gap from 0 on"),
        (GREY, {"time_limit": 0.0}, "time_limit= is a number of seconds > 0, got 0"),
        (GREY, {"tolerance": float("nan")}, "tolerance= is a relative gap from 0 on"),
        (GREY, {"max_iterations": -1}, "max_iterations= is a whole number from 0 on"),
        (GREY, {"batch": 0}, "batch= is auto or a whole number from 1 on, got 0"),
        (GREY, {"method": "magic"}, "no method 'magic'; choose one of default, paper"),
        (GREY, {"device": "gpu"}, "no device 'gpu' here; use device= cpu or auto"),
        (GREY, {"range": (1.0, 0.0)}, "range= needs LOW < HIGH"),
        (GREY, {"simulate": True}, "simulate= needs sigma="),
        (GREY, {"regularizer": "nobody"}, "there is no model 'nobody'"),
        ("nowhere.png", {}, "nowhere.png"),
        (GREY, {"task": "ct"}, "projections needs geometry= .* quantity="),
        (GREY, {"task": "ct", "simulate": True, "flat": 1.0}, "so flat= does not apply"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(image, options, message):
    with pytest.raises(ValueError, match=message):
        cl.reconstruct(image, **options)


@pytest.mark.parametrize("weight", [np.float32(0.5), torch.tensor(0.5), np.array(0.5), 0.5])
def test_a_number_of_any_type_is_a_weight(weight):
    result = cl.reconstruct(GREY, sigma=0.1, weight=weight, max_iterations=1)
    assert (result.weight.value, result.weight.rule) == (0.5, "given")


def test_unknown_options_are_errors():
    with pytest.raises(TypeError, match=r"denoise has no option 'sigm'; it has .*sigma"):
        cl.reconstruct(noisy(), sigm=0.1)
    with pytest.raises(TypeError, match="denoise has no option 'mask'"):
        cl.reconstruct(noisy(), mask=np.ones((32, 32)))
    assert issubclass(InputError, ValueError)


def test_records_have_the_proof_in_plain_words():
    found = cl.reconstruct(noisy(size=24), noise="gaussian", sigma=0.1, regularizer="tv")
    assert found.record["in_words"] == found.solution.in_words[0]
    assert found.record["in_words"].startswith("Solved to within 0.")
