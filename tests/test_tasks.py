"""Imaging tasks: noise of the stated size, that belongs to its image and to nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift import phantoms
from convexlift.images import psnr
from convexlift.problems.guesses import fill_from_neighbours
from convexlift.tasks import (
    TASKS,
    GaussianDenoising,
    Inpainting,
    Measurement,
    SaltAndPepper,
    SparseViewCT,
    Task,
)

MASK = torch.rand(12, 10, generator=torch.Generator().manual_seed(4)) > 0.4
EVERY = {
    "salt and pepper": SaltAndPepper(),
    "denoising": GaussianDenoising(),
    "inpainting": Inpainting(),
    "inpainting, zero": Inpainting(fill="zero", missing=0.9),
    "inpainting, fixed mask": Inpainting(mask=MASK),
    "ct": SparseViewCT(scanner=3.0 * cl.ParallelBeam((12, 10), 9, 15, (10.0, 10.0 * 10 / 12))),
}
every_task = pytest.mark.parametrize("task", EVERY.values(), ids=EVERY)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def images(count: int, height: int = 12, width: int = 10, channels: int = 1) -> torch.Tensor:
    return 0.2 + 0.6 * torch.rand(count, channels, height, width)


def parts(task: Task, clean: torch.Tensor, *seeds: int) -> dict[str, torch.Tensor]:
    measurement = task.measure(clean, generators(*seeds))
    return {
        "y": measurement.fidelity.y,
        "data": measurement.operator(clean),
        "picture": measurement.picture,
    }


@every_task
def test_a_sample_does_not_depend_on_its_batch(task):
    clean = images(4)
    before = clean.clone()
    together = parts(task, clean, 3, 1, 4, 1)
    assert torch.equal(clean, before)
    for i, seed in enumerate((3, 1, 4, 1)):
        alone = parts(task, clean[i : i + 1], seed)
        for name, value in alone.items():
            torch.testing.assert_close(together[name][i : i + 1], value, atol=1e-15, rtol=1e-15)
    reversed_order = parts(task, clean.flip(0), 1, 4, 1, 3)
    for name, value in reversed_order.items():
        torch.testing.assert_close(value.flip(0), together[name], atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_salt_and_pepper_in_equal_parts(fraction):
    clean = torch.full((2, 1, 150, 150), 0.5)
    measurement = SaltAndPepper(fraction, scale=0.3).measure(clean, generators(0, 1))
    y = measurement.fidelity.y
    for value in (0.0, 1.0):
        share = (y == value).double().mean((1, 2, 3))
        assert (share - fraction / 2).abs().max() < 5 * math.sqrt(0.25 / 150**2)
    assert set(y.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert isinstance(measurement.fidelity, cl.L1)
    assert measurement.fidelity.scale == 0.3
    assert torch.equal(measurement.picture, y)
    if fraction > 0:
        assert not torch.equal(y[0], y[1])


@pytest.mark.parametrize("sigma", [0.0, 0.1, 2.0])
def test_gaussian_noise_of_the_stated_size(sigma):
    clean = images(2, 150, 150)
    noise = GaussianDenoising(sigma).measure(clean, generators(0, 1)).fidelity.y - clean
    assert (noise.mean((1, 2, 3)).abs() <= 5 * sigma / 150).all()
    assert noise.flatten(1).std(dim=1).tolist() == pytest.approx([sigma, sigma], rel=0.03)


@pytest.mark.parametrize("channels", [1, 3])
def test_inpainting_hides_and_disturbs(channels):
    clean = images(2, 150, 150, channels)
    measurement = Inpainting(missing=0.3, noise=0.05).measure(clean, generators(0, 1))
    mask = measurement.operator.diagonal
    assert mask.shape == (2, 1, 150, 150)
    assert not torch.equal(mask[0], mask[1])
    assert ((1 - mask).mean((1, 2, 3)) - 0.3).abs().max() < 0.02
    y = measurement.fidelity.y
    seen = (mask == 1).expand_as(y)
    assert (y[~seen] == 0).all()
    assert float((y - clean)[seen].std()) == pytest.approx(0.05, rel=0.03)
    assert torch.equal(measurement.picture[seen], y[seen])
    zero = Inpainting(missing=0.3, noise=0.05, fill="zero").measure(clean, generators(0, 1))
    assert torch.equal(zero.picture, y)


def test_a_mask_of_ones_own():
    clean = images(3)
    measurement = Inpainting(mask=MASK, noise=0.1).measure(clean, generators(0, 1, 2))
    assert torch.equal(measurement.operator.diagonal.bool(), MASK.expand(3, 1, 12, 10))
    assert (measurement.fidelity.y[..., ~MASK] == 0).all()
    assert not torch.equal(*(measurement.fidelity.y - clean)[:2])


def test_no_noise_gives_the_image():
    clean = images(1)
    for task in (SaltAndPepper(0.0), GaussianDenoising(0.0), Inpainting(0.0, 0.0)):
        measurement = task.measure(clean, generators(0))
        assert torch.equal(measurement.picture, clean)
        assert float(measurement.fidelity.value(measurement.operator(clean))) == 0


# Filling holes


def filled_slowly(plane: np.ndarray, seen: np.ndarray, size: int) -> np.ndarray:
    """Pixel by pixel, round by round: the mean of what is known around a hole."""
    plane = np.pad(np.where(seen, plane, np.nan), size // 2, constant_values=np.nan)
    reach, inner = size // 2, np.ones(seen.shape, bool)
    inner = np.pad(inner, reach)
    while True:
        before = plane.copy()
        for i, j in np.argwhere(np.isnan(before) & inner):
            around = before[i - reach : i + reach + 1, j - reach : j + reach + 1]
            if not np.isnan(around).all():
                plane[i, j] = np.nanmean(around)
        if np.array_equal(before, plane, equal_nan=True):
            return np.nan_to_num(plane[inner].reshape(seen.shape))


@pytest.mark.parametrize("size", [3, 5])
def test_holes_are_filled_as_by_hand(size):
    data = torch.rand(4, 2, 9, 11)
    mask = (torch.rand(4, 1, 9, 11) > 0.5).double()
    mask[1] = 0
    mask[1, 0, 0, 0] = 1  # a hole that takes many rounds
    mask[2] = 0  # nothing is seen
    mask[3] = 1
    ours = fill_from_neighbours(data, mask, size)
    for found, plane, seen in zip(ours, data.numpy(), mask[:, 0].numpy() == 1, strict=True):
        expected = np.stack([filled_slowly(channel, seen, size) for channel in plane])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert torch.equal(ours[2], torch.zeros(2, 9, 11))
    assert torch.equal(ours[3], data[3])
    torch.testing.assert_close(ours[1, 1], data[1, 1, 0, 0].expand(9, 11))


# Problems


@every_task
def test_the_problem_is_solved_and_certified(task):
    if isinstance(task, Inpainting) and task.mask is not None:
        task = Inpainting(mask=MASK[:8, :8])
    if isinstance(task, SparseViewCT):
        task = SparseViewCT(scanner=cl.ParallelBeam(8, 9, 12, 8.0), box=(0.0, 1.0))
    clean = images(2, 8, 8)
    measurement = task.measure(clean, generators(0, 1))
    net = cl.networks.baseline(8, channels=3, pool=4, hidden=4, kernel=3)
    problem = measurement.problem(net, 0.4)
    assert problem.weight == 0.4
    assert problem.bounds == cl.Box(0, 1)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=3000))
    assert all(status is cl.Status.CONVERGED for status in solution.status)
    assert (problem.objective(clean) >= solution.lower_bound).all()


def test_a_measurement_moves_as_a_whole():
    measurement = Inpainting().measure(images(1), generators(0)).to(dtype=torch.float32)
    assert {tensor.dtype for tensor in measurement.tensors()} == {torch.float32}


@every_task
def test_data_of_some_images_state_their_problems(task):
    clean = images(3)
    whole = task.measure(clean, generators(3, 1, 4))
    assert len(whole) == 3
    assert whole.select(slice(None)) is whole
    part = whole.select(slice(1, 3))
    net = cl.networks.ridge(channels=2, kernel=3)
    expected = whole.problem(net, 0.4).objective(clean)[1:]
    torch.testing.assert_close(part.problem(net, 0.4).objective(clean[1:]), expected)
    assert torch.equal(part.picture, whole.picture[1:])
    if not isinstance(task, SparseViewCT):
        first = task.measure(clean[:1], generators(3))
        rest = task.measure(clean[1:], generators(1, 4))
        assert first.joinable(rest)
        joined = Measurement.join([first, rest])
        assert torch.equal(joined.fidelity.y, whole.fidelity.y)
        torch.testing.assert_close(
            joined.problem(net, 0.4).objective(clean), whole.problem(net, 0.4).objective(clean)
        )


def test_only_data_of_one_kind_and_size_are_joined():
    def measured(task, size=12):
        return task.measure(images(1, size), generators(0))

    first = measured(GaussianDenoising())
    assert first.joinable(measured(GaussianDenoising(0.3)))
    assert not first.joinable(measured(SaltAndPepper()))
    assert not first.joinable(measured(Inpainting()))
    assert not first.joinable(measured(GaussianDenoising(), 14))
    assert not first.joinable(measured(GaussianDenoising(box=None)))


def test_tasks_have_names():
    assert set(TASKS) == {"salt-and-pepper", "gaussian-denoising", "inpainting", "ct"}
    assert all(TASKS[name]().name == name for name in TASKS)


# Tomography

SCANNER = 20.0 * cl.ParallelBeam(32, 24, 40, 32.0)


def test_counts_have_the_mean_and_variance_of_the_model():
    clean = phantoms.shepp_logan(32).clamp_min(0)
    task = SparseViewCT(scanner=SCANNER, background=10.0)
    y = torch.cat(
        [task.measure(clean, [torch.Generator().manual_seed(i)]).fidelity.y for i in range(50)]
    )
    mean = SCANNER(clean) + 10.0
    assert torch.equal(y, y.round())
    scaled = (y - mean) / mean.sqrt()
    assert scaled.mean().abs() < 5 / math.sqrt(scaled.numel())
    assert abs(float(scaled.var()) - 1) < 0.05


def test_tomography_is_certified_from_its_filtered_back_projection():
    clean = phantoms.shepp_logan(32).clamp_min(0)
    measurement = SparseViewCT(scanner=SCANNER).measure(clean, generators(0))
    problem = measurement.problem(cl.TotalVariation(), 3.0)
    start = problem.initial_image()
    torch.testing.assert_close(start, measurement.picture.clamp_min(0))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=5000))
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL  # with x >= 0 alone
    assert psnr(solution.x, clean) > psnr(start, clean) + 3


def test_the_scanner_is_moved_only_once():
    task = SparseViewCT(scanner=SCANNER)
    first, second = (task.measure(images(1, 32, 32), generators(i)).operator for i in (0, 1))
    assert first is second


# Errors


@every_task
def test_every_image_needs_a_generator(task):
    with pytest.raises(ValueError, match="2 images need as many generators, got 3"):
        task.measure(images(2), generators(0, 1, 2))
    with pytest.raises(TypeError, match=r"\[generator\] for a single one"):
        task.measure(images(1), torch.Generator())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SaltAndPepper(1.5), r"SaltAndPepper needs 0 <= fraction <= 1, got fraction=1\.5"),
        (lambda: SaltAndPepper(math.nan), "0 <= fraction <= 1, got fraction=nan"),
        (lambda: SaltAndPepper(scale=0.0), r"SaltAndPepper needs scale > 0, got scale=0\.0"),
        (lambda: GaussianDenoising(-0.1), r"GaussianDenoising needs sigma >= 0, got sigma=-0\.1"),
        (lambda: Inpainting(missing=-0.1), "Inpainting needs 0 <= missing <= 1"),
        (lambda: Inpainting(noise=math.inf), "Inpainting needs noise >= 0, got noise=inf"),
        (lambda: Inpainting(fill="mean"), "needs fill to be one of .* got 'mean'"),
        (lambda: Inpainting(mask=torch.ones(1, 1, 4, 4)), r"for all images, got \(1, 1, 4, 4\)"),
        (
            lambda: Inpainting(mask=MASK).measure(images(1, 8, 8), generators(0)),
            "the mask is 12 x 10, but the images are 8 x 8",
        ),
        (lambda: SparseViewCT(background=0.0), r"SparseViewCT needs background > 0, got 0\.0"),
        (lambda: SparseViewCT(scanner=cl.Identity()), "a FanBeam of a full turn, .* got Identity"),
        (lambda: SparseViewCT(filter="box"), "filter must be one of .* got 'box'"),
        (lambda: SparseViewCT(clamp=(1.0, 0.0)), r"lower < upper, got lower=1\.0 and upper=0\.0"),
        (
            lambda: SparseViewCT(scanner=SCANNER).measure(images(1, 8, 8), generators(0)),
            r"the scanner takes images of \(1, 32, 32\), but these are \(1, 8, 8\)",
        ),
        (
            lambda: fill_from_neighbours(images(1), torch.ones(1, 1, 12, 10), size=4),
            "size must be odd and at least 3, got size=4",
        ),
    ],
)
def test_what_makes_no_sense(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_joined_data_keep_the_noise_of_every_image():
    def measured(sigma):
        return GaussianDenoising(sigma).measure(torch.rand(2, 1, 8, 8), generators(0, 1))

    assert Measurement.join([measured(0.1), measured(0.1)]).noise == 0.1
    joined = Measurement.join([measured(0.1), measured(0.3)])
    assert joined.noise.tolist() == [0.1, 0.1, 0.3, 0.3]
    assert joined.select(slice(1, 3)).noise.tolist() == [0.1, 0.3]
    unknown = replace(measured(0.1), noise=None)
    assert Measurement.join([measured(0.1), unknown]).noise is None


def test_batches_of_random_noise_state_their_level():
    task = GaussianDenoising(0.1, up_to=0.5)
    clean = torch.full((2, 1, 64, 64), 0.5)
    data = [task.measure(clean, generators(seed, seed + 9)) for seed in range(4)]
    assert len({each.noise for each in data}) == 4
    for each in data:
        assert 0.1 <= each.noise <= 0.5
        assert float((each.fidelity.y - clean).std()) == pytest.approx(each.noise, rel=0.05)
    with pytest.raises(ValueError, match="up_to > sigma"):
        GaussianDenoising(0.1, up_to=0.1)
