"""Guesses of pixels from their neighbours, and the images that solvers start from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.problems.guesses import median_of_neighbours, without_impulses


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("shape", [(1, 1, 7, 9), (2, 3, 70, 4)], ids=str)
def test_medians_against_numpy(shape, size):
    image = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    ours, m = median_of_neighbours(image, size), size // 2
    assert ours.shape == image.shape
    height, width = shape[-2:]
    for row, column in [(0, 0), (0, width - 1), (3, 2), (height - 1, 1), (height // 2, 0)]:
        window = image[..., max(row - m, 0) : row + m + 1, max(column - m, 0) : column + m + 1]
        values = np.sort(window.flatten(-2).numpy(), axis=-1)
        lower_median = values[..., (values.shape[-1] - 1) // 2]
        np.testing.assert_array_equal(ours[..., row, column].numpy(), lower_median)


@pytest.mark.parametrize(
    "shape", [(1, 1, 7, 9), (2, 3, 1, 5), (1, 1, 1, 1), (2, 1, 3, 6, 4)], ids=str
)
def test_two_medians_against_numpy(shape):
    image = torch.randint(6, shape, generator=torch.Generator().manual_seed(1)).double()  # ties
    expected = image.numpy()
    for _ in range(2):
        edges = [(0, 0)] * (image.ndim - 2) + [(1, 1), (1, 1)]
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(expected, edges, mode="edge"), (3, 3), axis=(-2, -1)
        )
        expected = np.median(windows, axis=(-2, -1))
    np.testing.assert_array_equal(without_impulses(image).numpy(), expected)


def problem(fidelity, operator=None, box=(0.0, 1.0)) -> cl.VariationalProblem:
    options = {} if operator is None else {"operator": operator}
    return cl.VariationalProblem(
        fidelity=fidelity, regularizer=cl.TotalVariation(), weight=1.0, box=box, **options
    )


def test_unseen_pixels_start_from_the_seen_ones_around_them():
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).clone()
    seen = torch.ones(16, 16)
    seen[5:7, 5:7] = 0
    start = problem(cl.SquaredL2(ramp * seen), cl.Mask(seen)).initial_image()
    torch.testing.assert_close(start, ramp, rtol=0, atol=0.1)
    torch.testing.assert_close(start[..., seen > 0], ramp[..., seen > 0])


def test_outliers_are_gone_at_the_start_with_l1():
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).clone()
    noisy = ramp.clone()
    noisy[..., 4, 4], noisy[..., 9, 12] = 1.0, 0.0
    start = problem(cl.L1(noisy)).initial_image()
    torch.testing.assert_close(start, ramp, rtol=0, atol=0.1)
    kept = problem(cl.SquaredL2(noisy)).initial_image()
    torch.testing.assert_close(kept, noisy)


def test_the_start_is_the_guess_with_the_lowest_objective_image_by_image():
    """Fine structure that medians would destroy is left alone, beside an image they improve."""
    generator = torch.Generator().manual_seed(2)
    lines = (torch.arange(16) % 2).float().expand(16, 16)
    spots = torch.full((16, 16), 0.5)
    spots[torch.rand(16, 16, generator=generator) > 0.9] = 1.0
    y = torch.stack([lines, spots])[:, None]
    stated = problem(cl.L1(y))
    weak = cl.VariationalProblem(
        fidelity=stated.fidelity, regularizer=stated.regularizer, weight=1e-4, box=(0.0, 1.0)
    )
    torch.testing.assert_close(weak.initial_image(), y)
    start = stated.initial_image()
    assert (stated.objective(start) <= stated.objective(y)).all()
    assert (stated.objective(start) <= stated.objective(median_of_neighbours(y))).all()


def test_the_start_is_zero_if_there_is_no_better_guess():
    y = torch.full((1, 1, 8, 8), torch.inf)
    with pytest.raises(ValueError, match="inf"):
        problem(cl.SquaredL2(y))
    flat = problem(cl.SquaredL2(torch.zeros(1, 1, 8, 8)), cl.Mask(torch.zeros(8, 8)))
    torch.testing.assert_close(flat.initial_image(), torch.zeros(1, 1, 8, 8))
