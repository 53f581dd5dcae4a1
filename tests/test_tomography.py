"""Ray transforms against ASTRA, brute force, exact projections, and each other."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from dense import dense_matrix

import convexlift as cl
from convexlift.phantoms import SHEPP_LOGAN, Ellipse, ellipse_image, ellipse_sinogram, shepp_logan

QUARTERS = [0.0, math.pi / 4, math.pi / 2, 3 * math.pi / 4]
SMALL = {
    "square": lambda: cl.ParallelBeam(8, 7, 11),
    "wide, odd": lambda: cl.ParallelBeam((7, 12), 9, 15),
    "one pixel": lambda: cl.ParallelBeam(1, 3, 4),
    "one ray": lambda: cl.ParallelBeam(5, [0.3], 1),
    "limited angles": lambda: cl.ParallelBeam(9, [0.1, 0.5, 2.5], 20),
    "along axes and diagonals": lambda: cl.ParallelBeam(8, QUARTERS, 12),
    "full turn, both ways": lambda: cl.ParallelBeam(6, [-2.0, 4.0, 9.0, math.pi, -math.pi / 2], 9),
    "in units of length": lambda: cl.ParallelBeam(10, 5, 13, 0.25),
    "oblong pixels": lambda: cl.ParallelBeam((6, 9), 8, 11, (3.0, 1.5)),
    "offset": lambda: cl.ParallelBeam(8, 6, 11, bin_width=0.8, detector_offset=1.3),
    "partly beside the image": lambda: cl.ParallelBeam(6, 5, 30, bin_width=1.0),
    "all beside it": lambda: cl.ParallelBeam(6, 5, 4, detector_offset=50.0),
    "eightfold": lambda: cl.ParallelBeam(8, 16, 10),
    "fourfold": lambda: cl.ParallelBeam((6, 8), 12, 9),
}
FANS = {
    "flat": lambda: cl.FanBeam(8, 9, 12, 15.0, 10.0),
    "flat, wide, odd, offset": lambda: cl.FanBeam((7, 12), 5, 9, 12.0, 0.0, detector_offset=0.7),
    "near source": lambda: cl.FanBeam(8, 6, 15, 5.8, 6.0, bin_width=2.0),
    "curved": lambda: cl.FanBeam(8, 9, 12, 15.0, 10.0, detector="curved"),
    "curved, limited": lambda: cl.FanBeam(
        (9, 8), [0.2, 0.9], 7, 9.0, 3.0, (1.0, 2.0), detector="curved", detector_offset=-0.1
    ),
}
ALL = SMALL | FANS
NOT_ASTRAS = {"offset", "oblong pixels", "all beside it"}


def brute_force(beam) -> np.ndarray:
    """Joseph's method ray by ray, step by step, as its definition reads; a dense matrix."""
    grid, lines = beam.grid, beam.lines()
    h, w, ph, pw = grid.height, grid.width, grid.pixel_height, grid.pixel_width
    matrix = np.zeros((lines.x.size, h, w))
    parts = (lines.x.flat, lines.y.flat, lines.dx.flat, lines.dy.flat)
    for k, (x, y, dx, dy) in enumerate(zip(*parts, strict=True)):
        by_rows = abs(dy) / ph >= abs(dx) / pw * (1 - 1e-9)
        for i in range(h if by_rows else w):
            if by_rows:
                height = (h / 2 - i - 0.5) * ph
                place = (x + (height - y) / dy * dx) / pw + w / 2 - 0.5
                weight = ph / abs(dy)
            else:
                along = (i + 0.5 - w / 2) * pw
                place = h / 2 - 0.5 - (y + (along - x) / dx * dy) / ph
                weight = pw / abs(dx)
            for j in (math.floor(place), math.floor(place) + 1):
                if 0 <= j < (w if by_rows else h):
                    matrix[(k, i, j) if by_rows else (k, j, i)] += weight * (1 - abs(place - j))
    return matrix.reshape(lines.x.size, -1)


def astra_projector(beam: cl.ParallelBeam):
    astra = pytest.importorskip("astra")
    grid = beam.grid
    half_width, half_height = grid.width * grid.pixel_width / 2, grid.height * grid.pixel_height / 2
    volume = astra.create_vol_geom(
        grid.height, grid.width, -half_width, half_width, -half_height, half_height
    )
    rays = astra.create_proj_geom(
        "parallel", float(beam.bin_width), len(beam.bins), beam.exact_angles
    )
    return astra, astra.create_projector("linear", rays, volume)


@pytest.mark.parametrize("name", ALL)
def test_entries_are_those_of_josephs_method(name):
    beam = ALL[name]()
    np.testing.assert_allclose(dense_matrix(beam, beam.input_shape), brute_force(beam), atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_adjoint_is_the_transpose(name):
    beam = ALL[name]()
    matrix, shape = dense_matrix(beam, beam.input_shape), beam.output_shape(beam.input_shape)
    rows = torch.eye(matrix.shape[0]).reshape(-1, *shape)
    np.testing.assert_allclose(beam.adjoint(rows).flatten(1).numpy(), matrix, atol=1e-14)


@pytest.mark.parametrize("name", sorted(SMALL.keys() - NOT_ASTRAS))
def test_entries_are_astras(name):
    beam = SMALL[name]()
    astra, projector = astra_projector(beam)
    matrix = astra.matrix.get(astra.projector.matrix(projector)).toarray()
    ours = dense_matrix(beam, beam.input_shape)
    np.testing.assert_allclose(ours, matrix, atol=2e-5 * matrix.max())  # single precision there


def astra_sinogram_error(size: int, angles: int, bins: int) -> float:
    beam = cl.ParallelBeam(size, angles, bins, 256.0)
    astra, projector = astra_projector(beam)
    x = shepp_logan(size)
    _, expected = astra.create_sino(x[0, 0].to(torch.float32).numpy(), projector)
    return float(np.linalg.norm(beam(x)[0, 0].numpy() - expected) / np.linalg.norm(expected))


def test_sinogram_is_astras():
    assert astra_sinogram_error(96, 40, 101) < 1e-4


def test_fans_turn_as_astras():
    """ASTRA has other weights for fans on CPUs; sinograms of smooth images are alike."""
    astra = pytest.importorskip("astra")
    beam = cl.FanBeam(64, [0.0, 0.4, 2.0, 4.5], 80, 90.0, 40.0, bin_width=1.9)
    volume = astra.create_vol_geom(64, 64)
    rays = astra.create_proj_geom("fanflat", 1.9, 80, beam.exact_angles, 90.0, 40.0)
    projector = astra.create_projector("line_fanflat", rays, volume)
    image = ellipse_image([Ellipse(1.0, 0.4, 0.2, 0.3, -0.2, 20.0)], 64)
    _, theirs = astra.create_sino(image[0, 0].to(torch.float32).numpy(), projector)
    ours = beam(image)[0, 0].numpy()
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(theirs)


@pytest.mark.slow
def test_sinogram_is_astras_at_full_size():
    assert astra_sinogram_error(512, 200, 400) < 1e-4


@pytest.mark.parametrize("name", ["square", "wide, odd", "eightfold", "curved", "all beside it"])
def test_images_of_a_batch_do_not_meet(name):
    beam = ALL[name]()
    x = torch.randn((3, *beam.input_shape))
    y = beam(x)
    torch.testing.assert_close(y, torch.cat([beam(image[None]) for image in x]))
    one_by_one = torch.cat([beam.adjoint(sinogram[None]) for sinogram in y])
    torch.testing.assert_close(beam.adjoint(y), one_by_one)
    assert beam(x[:0]).shape == (0, *beam.output_shape(beam.input_shape))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, in forward mode
@pytest.mark.parametrize(
    "beam",
    [
        cl.ParallelBeam((3, 4), [0.1, 2.0], 4),
        cl.ParallelBeam(3, 4, 3),
        cl.FanBeam(3, 3, 3, 5.0, 2.0, detector="curved"),
    ],
)
def test_derivatives_of_all_orders(beam):
    beam = beam.to(dtype=torch.float64)
    x = torch.randn((2, *beam.input_shape), requires_grad=True)
    y = torch.randn((2, *beam.output_shape(beam.input_shape)), requires_grad=True)
    assert torch.autograd.gradcheck(beam, x, check_forward_ad=True)
    assert torch.autograd.gradcheck(beam.adjoint, y, check_forward_ad=True)

    def loss(x):
        return (beam(x) ** 3).sum() + (beam.adjoint(beam(x)) ** 2).sum()

    assert torch.autograd.gradgradcheck(loss, x[:1].detach().requires_grad_())


APPROACHED = {
    "parallel": lambda size: cl.ParallelBeam(size, 30, 70, 2.0),
    "flat": lambda size: cl.FanBeam(size, 30, 70, 2.5, 1.5, 2.0),
    "curved": lambda size: cl.FanBeam(size, 30, 70, 2.5, 1.5, 2.0, detector="curved"),
}


@pytest.mark.parametrize("name", APPROACHED)
def test_exact_sinograms_are_approached(name):
    errors = []
    for size in (32, 64, 128):
        beam = APPROACHED[name](size)
        exact = ellipse_sinogram(beam)
        errors.append(float((beam(shepp_logan(size)) - exact).norm() / exact.norm()))
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]
    assert errors[2] < 0.03


def test_centre_of_mass_moves_as_a_sine():
    """sum_s s p(t, s) / sum_s p(t, s) = <centre of mass, (cos t, sin t)>."""
    beam = cl.ParallelBeam((40, 50), torch.linspace(0, 6, 13), 200)
    image = torch.zeros(1, 1, 40, 50)
    image[..., 8:15, 30:41] = torch.rand(7, 11)
    x, y = (torch.from_numpy(c) for c in beam.grid.centres())
    centre = (image * x).sum() / image.sum(), (image * y[:, None]).sum() / image.sum()
    p = beam(image)[0, 0]
    means = (p * torch.from_numpy(beam.bins)).sum(1) / p.sum(1)
    expected = centre[0] * torch.cos(beam.angles) + centre[1] * torch.sin(beam.angles)
    torch.testing.assert_close(means, expected, atol=0.02, rtol=0)
    masses = p.sum(1) * beam.bin_width
    torch.testing.assert_close(masses, image.sum().expand(13), atol=0, rtol=0.03)


def test_ellipses_of_a_picture_and_of_a_sinogram_are_the_same():
    disc = [Ellipse(2.0, 0.3, 0.5, 0.2, -0.1, 30.0)]
    image = ellipse_image(disc, 200)
    assert float(image.sum()) / 100**2 == pytest.approx(2 * math.pi * 0.3 * 0.5, rel=1e-3)
    beam = cl.ParallelBeam(200, 6, 300, 2.0)
    exact = ellipse_sinogram(beam, disc)
    assert float((beam(image) - exact).norm() / exact.norm()) < 0.01
    phantom = shepp_logan(64)
    assert phantom.shape == (1, 1, 64, 64)
    assert 0 <= float(phantom.min()) + 1e-12 <= float(phantom.max()) <= 1 + 1e-12
    assert len(SHEPP_LOGAN) == 10
    with pytest.raises(ValueError, match="size >= 1"):
        shepp_logan(0)


def test_far_sources_give_parallel_rays():
    parallel = cl.ParallelBeam(16, torch.linspace(0, 6, 9), 20, bin_width=1.0)
    for detector in ("flat", "curved"):
        fan = cl.FanBeam(16, parallel.angles, 20, 1e7, 0.0, detector=detector, bin_width=1.0)
        x = torch.rand(1, 1, 16, 16)
        torch.testing.assert_close(fan(x), parallel(x), atol=1e-4, rtol=0)


def test_copies_and_pickles_work_alike():
    beam, x = cl.ParallelBeam(9, 8, 12), torch.rand(1, 1, 9, 9)
    y = beam(x)
    for other in (copy.deepcopy(beam), pickle.loads(pickle.dumps(beam)), beam.detach()):
        assert torch.equal(other(x), y)


def test_counts_become_an_image_with_a_proof():
    """Poisson numbers of a small scan, total variation, x >= 0."""
    A = 10 * cl.ParallelBeam(24, 16, 34, 12.0)
    clean = shepp_logan(24)
    y = torch.poisson(A(clean) + 50.0)
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(y, background=50.0), operator=A,
        regularizer=cl.TotalVariation(), weight=1.0, box=(0.0, 1.0),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=2000))
    assert float(solution.gap) <= 1e-3
    error, filtered = solution.x - clean, cl.fbp(A, y - 50.0) - clean
    assert float(error.norm()) < 0.7 * float(filtered.norm())


ERRORS = {
    "image_size": lambda: cl.ParallelBeam(0, 3, 4),
    "image_size=N or": lambda: cl.ParallelBeam((4, 2.5), 3, 4),
    "pair": lambda: cl.ParallelBeam((4, 2, 2), 3, 4),
    "extent > 0": lambda: cl.ParallelBeam(4, 3, 4, -1.0),
    "at least one angle": lambda: cl.ParallelBeam(4, 0, 4),
    "the shape": lambda: cl.ParallelBeam(4, [], 4),
    r"angles\[1\] = nan": lambda: cl.ParallelBeam(4, [0.0, math.nan], 4),
    r"angles\[0\] = inf": lambda: cl.FanBeam(4, torch.tensor([math.inf]), 4, 9.0, 1.0),
    "bins=N": lambda: cl.ParallelBeam(4, 3, 0),
    "bin_width > 0": lambda: cl.ParallelBeam(4, 3, 4, bin_width=0.0),
    "finite detector_offset": lambda: cl.ParallelBeam(4, 3, 4, detector_offset=math.nan),
    "source outside the object": lambda: cl.FanBeam(4, 3, 4, 2.8, 1.0),
    "must exceed": lambda: cl.FanBeam(4, 3, 4, math.inf, 1.0),
    "detector_distance": lambda: cl.FanBeam(4, 3, 4, 9.0, -1.0),
    "detector must be one of": lambda: cl.FanBeam(4, 3, 4, 9.0, 1.0, detector="round"),
    "degrees off": lambda: cl.FanBeam(4, 3, 4, 9.0, 1.0, detector="curved", bin_width=20.0),
    "expects inputs": lambda: cl.ParallelBeam(4, 3, 5)(torch.zeros(1, 1, 5, 4)),
    "expects sinograms": lambda: cl.ParallelBeam(4, 3, 5).adjoint(torch.zeros(1, 1, 5, 3)),
    "takes images": lambda: cl.ParallelBeam(4, 3, 5).output_shape((3, 4, 4)),
    "real numbers": lambda: cl.ParallelBeam(4, 3, 5)(torch.zeros(1, 1, 4, 4, dtype=torch.int64)),
    r"device='meta'": lambda: cl.ParallelBeam(4, 3, 5)(torch.zeros(1, 1, 4, 4, device="meta")),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_say_what_to_write(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()
