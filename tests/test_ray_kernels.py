"""Ray transforms in kernels against Joseph's method: in Triton's interpreter, or on a GPU."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.operators.tomography import triton_projector
from convexlift.operators.tomography.fan_layout import ENTRY, fan_runs
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.ray_layout import parallel_turns, ray_blocks, ray_runs
from convexlift.operators.tomography.ray_transform import projector
from convexlift.operators.tomography.rays import crossings
from convexlift.operators.tomography.triton_projector import RayKernels, Tiling

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SMALL_TILES = Tiling(rays=(2, 8), ray_warps=1, pixels=(8, 16), pixel_warps=4, blocks=(8, 16))
"""Several programs for small images, but not many: the interpreter takes its time."""

PARALLEL = {
    "square": lambda: cl.ParallelBeam(8, 7, 11),
    "wide, odd": lambda: cl.ParallelBeam((7, 18), 5, 15),
    "one pixel": lambda: cl.ParallelBeam(1, 3, 4),
    "one ray": lambda: cl.ParallelBeam(5, [0.3], 1),
    "limited angles": lambda: cl.ParallelBeam(9, [0.1, 0.5, 2.5], 20),
    "along axes and diagonals": lambda: cl.ParallelBeam(8, [k * np.pi / 4 for k in range(5)], 12),
    "oblong pixels": lambda: cl.ParallelBeam((6, 9), 8, 11, (3.0, 1.5)),
    "offset": lambda: cl.ParallelBeam(8, 6, 11, bin_width=0.8, detector_offset=1.3),
    "partly beside the image": lambda: cl.ParallelBeam(6, 5, 30, bin_width=1.0),
    "all beside it": lambda: cl.ParallelBeam(6, 5, 4, detector_offset=50.0),
    "fine bins": lambda: cl.ParallelBeam(5, 3, 40, bin_width=0.2),
}
RUNS = {
    "finest bins": lambda: cl.ParallelBeam(4, 2, 60, bin_width=0.1),
    "finest bins, fan": lambda: cl.FanBeam(4, 2, 90, 9.0, 1.0),
    "near source": lambda: cl.FanBeam(8, 3, 11, 5.8, 6.0, bin_width=2.0),
    "curved, near source": lambda: cl.FanBeam(8, 3, 11, 5.8, 6.0, bin_width=1.5, detector="curved"),
}
FANS = {
    "whole image, fine": lambda: cl.FanBeam(12, 4, 30, 22.0, 5.0),
    "sources beside the rows": lambda: cl.FanBeam((12, 7), 23, 40, 14.0, 2.0, bin_width=1.0),
    "few bins": lambda: cl.FanBeam(9, 8, 4, 20.0, 5.0),
    "oblong pixels, from near": lambda: cl.FanBeam((6, 9), 7, 14, 9.0, 3.0, (3.0, 1.5)),
    "partly beside the image, fan": lambda: cl.FanBeam(9, 8, 12, 20.0, 5.0, detector_offset=9.0),
    "far source": lambda: cl.FanBeam(10, 12, 14, 1e4, 5.0),
    "uneven angles": lambda: cl.FanBeam(11, [0.1, 0.2, 2.3, 6.1], 25, 22.0, 30.0),
    "farthest source": lambda: cl.FanBeam(10, 7, 14, 1e11, 5.0),
    "one view": lambda: cl.FanBeam((5, 3), [0.4], 3, 9.0, 1.0, bin_width=0.6),
    "flat": lambda: cl.FanBeam(8, 9, 12, 15.0, 10.0),
    "flat, wide, odd, offset": lambda: cl.FanBeam((7, 12), 5, 9, 12.0, 0.0, detector_offset=0.7),
    "curved": lambda: cl.FanBeam(8, 7, 12, 15.0, 10.0, detector="curved"),
    "curved, wide": lambda: cl.FanBeam(10, 2, 24, 13.0, 10.0, detector="curved"),
    "curved, limited": lambda: cl.FanBeam(
        (9, 8), [0.2, 0.9], 7, 9.0, 3.0, (1.0, 2.0), detector="curved", detector_offset=-0.1
    ),
}
ALL = PARALLEL | FANS | RUNS


def both(beam, dtype, tiling=SMALL_TILES) -> tuple[RayKernels, Joseph]:
    """The kernels, and in double precision what they shall compute."""
    lines, grid = beam.lines(), beam.grid
    return RayKernels(lines, grid, DEVICE, dtype, tiling), Joseph(lines, grid, DEVICE)


def random(*shape, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).to(DEVICE)


def examine(beam, dtype, batch, tolerance, tiling=SMALL_TILES) -> None:
    """Products are those of Joseph's method, and the transpose is the transpose."""
    kernels, exact = both(beam, dtype, tiling)
    x = random(batch, beam.grid.height, beam.grid.width, dtype=dtype)
    y = random(batch, *kernels.sinogram_shape, dtype=dtype)
    Ax, Aty = kernels.project(x), kernels.backproject(y)
    assert Ax.dtype == Aty.dtype == dtype
    assert kernels._plain is None
    for ours, theirs in ((Ax, exact.project(x.double())), (Aty, exact.backproject(y.double()))):
        assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()
    left, right = (Ax.double() * y.double()).sum(), (x.double() * Aty.double()).sum()
    assert abs(left - right) <= tolerance * Ax.double().norm() * y.double().norm()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ALL)
def test_double_precision(name):
    examine(ALL[name](), torch.float64, 1, 1e-12)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("wide, odd", 3),
        ("offset", 1),
        ("fine bins", 3),
        ("near source", 3),
        ("curved, near source", 1),
    ],
)
def test_single_precision(name, batch):
    examine(ALL[name](), torch.float32, batch, 1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FANS)
def test_fans(name):
    """Their rays in closed form, for whole and for incomplete groups of images."""
    beam = FANS[name]()
    for batch, dtype in ((3, torch.float32), (1, torch.float64)):
        assert both(beam, dtype)[0]._fans is not None
        examine(beam, dtype, batch, 1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches_of_fans(batch):
    examine(FANS["flat, wide, odd, offset"](), torch.float32, batch, 1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_other_runs_are_searched_by_bisection(name):
    assert both(RUNS[name](), torch.float32)[0]._runs is not None


LARGE = {
    "large": lambda: cl.FanBeam((70, 90), 12, 100, 150.0, 20.0),
    "large, fine": lambda: cl.FanBeam((40, 33), 7, 160, 60.0, 20.0),
    "large, curved": lambda: cl.FanBeam((50, 61), 9, 100, 90.0, 20.0, detector="curved"),
    "large, near": lambda: cl.FanBeam(40, 17, 60, 36.0, 5.0),
}


@pytest.mark.parametrize("name", FANS | LARGE)
def test_entries_of_fans_have_each_ray_near_a_pixel_once(name):
    beam = (FANS | LARGE)[name]()
    lines, grid = beam.lines(), beam.grid
    by_rows, by_columns = crossings(lines, grid)
    fans = fan_runs(lines, grid, ray_runs(by_rows, by_columns, grid, lines.x.shape), (8, 16))
    sizes = (grid.height, grid.width)
    extents = (8 * fans.region[0], 16 * fans.region[1])
    corners = [
        (i, j) for i in range(0, sizes[0], extents[0]) for j in range(0, sizes[1], extents[1])
    ]
    found = np.zeros((lines.x.size, *sizes), dtype=int)
    for corner, (begin, middle, end) in zip(corners, fans.bounds, strict=True):
        for entry in range(begin, end):
            along, across = (0, 1) if entry < middle else (1, 0)
            run, more = divmod(fans.entries[entry, 0], ENTRY)
            lines_and_places = [
                np.arange(corner[axis], min(corner[axis] + extents[axis], sizes[axis]), step)
                for axis, step in ((along, 1), (across, 2))
            ]
            a, b = (part.ravel() for part in np.meshgrid(*lines_and_places, indexing="ij"))
            x, y, g = np.float32(a), np.float32(b), fans.guess[run]
            k = np.rint((g[0] * x + (g[1] * y + g[2])) / (g[3] * x + (g[4] * y + g[5])))
            k = np.clip(k.astype(int), 0, fans.entries[entry, 1]) + more
            for n in range(fans.at_once):
                own = fans.offsets[fans.places[run, 1] + k + n] < 1e29
                for place in (b, b + 1):
                    here = own & (place < sizes[across])
                    pixel = (a, place) if along == 0 else (place, a)
                    ray = fans.places[run, 0] + k + n
                    np.add.at(found, (ray[here], pixel[0][here], pixel[1][here]), 1)
    assert found.max(initial=0) <= 1
    i, j = np.arange(sizes[0]), np.arange(sizes[1])
    for rays, line, place in ((by_rows, i[:, None], j), (by_columns, j, i[:, None])):
        crossing = rays.start[:, None, None] + rays.slope[:, None, None] * line
        assert found[rays.ray][np.abs(crossing - place) < 1].all()


@pytest.mark.parametrize("name", ["limited angles", "near source"])
def test_batches_in_groups(name):
    """Five images are groups of two, or of four, with zeros for those that are missing."""
    examine(ALL[name](), torch.float64, 5, 1e-12)
    examine(ALL[name](), torch.float32, 5, 1e-6)


@pytest.mark.parametrize("parts", [1, 4])
def test_lanes_share_rays_or_do_not(parts):
    tiling = Tiling(rays=(4, 4), ray_warps=1, parts=parts, steps=4, pixels=(16, 16), turns=3)
    examine(ALL["limited angles"](), torch.float32, 2, 1e-6, tiling)


@pytest.mark.skipif(not ON_GPU, reason="the interpreter is too slow")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "beam",
    [
        lambda: cl.ParallelBeam(512, 200, 400, 256.0),
        lambda: cl.FanBeam(256, 90, 300, 400.0, 200.0),
        lambda: cl.FanBeam((255, 301), 90, 300, 400.0, 200.0, detector="curved"),
    ],
)
@pytest.mark.parametrize("batch", [1, 6])
def test_full_size(beam, batch, dtype, tolerance):
    examine(beam(), dtype, batch, tolerance, triton_projector.TILING)


def test_empty_batches_and_strided_ones():
    kernels, exact = both(ALL["limited angles"](), torch.float64)
    assert kernels.project(random(0, 9, 9)).shape == (0, 3, 20)
    assert kernels.backproject(random(0, 3, 20)).shape == (0, 9, 9)
    x, y = random(9, 9, 3).movedim(-1, 0), random(3, 20, 3).mT
    torch.testing.assert_close(kernels.project(x), exact.project(x))
    torch.testing.assert_close(kernels.backproject(y), exact.backproject(y))


@pytest.mark.skipif(not ON_GPU, reason="programs of the interpreter take turns")
def test_results_do_not_vary():
    kernels, _ = both(cl.FanBeam(64, 30, 90, 100.0, 50.0), torch.float32)
    x, y = random(2, 64, 64, dtype=torch.float32), random(2, 30, 90, dtype=torch.float32)
    assert torch.equal(kernels.project(x), kernels.project(x))
    assert torch.equal(kernels.backproject(y), kernels.backproject(y))


@pytest.mark.parametrize(
    "beam",
    [cl.ParallelBeam((3, 4), [0.1, 2.0], 4), cl.FanBeam(3, 2, 3, 5.0, 2.0, detector="curved")],
)
def test_derivatives_of_all_orders(beam):
    beam = beam.to(dtype=torch.float64)
    beam.angles = beam.angles.to(DEVICE)
    beam._shared.projectors[beam.angles.device, torch.float64] = both(beam, torch.float64)[0]
    x = random(1, *beam.input_shape).requires_grad_()
    y = random(1, *beam.output_shape(beam.input_shape)).requires_grad_()
    assert torch.autograd.gradcheck(beam, x, fast_mode=True)
    assert torch.autograd.gradcheck(beam.adjoint, y, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: (beam(x) ** 3).sum(), x, fast_mode=True)


def test_copies_and_pickles_work_alike():
    kernels, _ = both(ALL["one ray"](), torch.float64)
    x = random(1, 5, 5)
    y = kernels.project(x)
    for other in (copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        assert torch.equal(other.project(x), y)


def test_without_a_compiler_the_plain_path_is_taken(monkeypatch):
    def module(name):
        raise RuntimeError("Failed to find C compiler")

    kernels, exact = both(ALL["square"](), torch.float64)
    monkeypatch.setattr(triton_projector, "kernel_module", module)
    x, y = random(2, 8, 8), random(2, 7, 11)
    with pytest.warns(UserWarning, match="plain path is taken: Failed to find C compiler"):
        torch.testing.assert_close(kernels.project(x), exact.project(x))
    torch.testing.assert_close(kernels.backproject(y), exact.backproject(y))  # and no warning


def test_kernels_that_do_not_fit_give_way_and_other_errors_do_not(monkeypatch):
    from triton import OutOfResources

    errors = [OutOfResources(300_000, 65_536, "shared memory"), RuntimeError("a mistake of ours")]

    def module(name):
        raise errors[0]

    kernels, exact = both(ALL["square"](), torch.float64)
    y = random(1, 7, 11)
    kernels.project(random(1, 8, 8))
    monkeypatch.setattr(triton_projector, "kernel_module", module)
    later = copy.copy(kernels)
    with pytest.warns(UserWarning, match="plain path is taken: out of resource"):
        torch.testing.assert_close(kernels.backproject(y), exact.backproject(y))
    errors.pop(0)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        later.backproject(y)


def test_which_code_does_the_products():
    beam = ALL["square"]()
    lines, grid = beam.lines(), beam.grid
    assert not isinstance(projector(lines, grid, torch.device("cpu"), torch.float32), RayKernels)
    assert RayKernels.of(lines, grid, torch.device("cuda"), torch.float16) is None
    if ON_GPU:
        assert isinstance(projector(lines, grid, DEVICE, torch.float32), RayKernels)


@pytest.mark.parametrize("name", ALL)
def test_all_rays_are_in_a_block_and_in_a_run(name):
    beam = ALL[name]()
    by_rows, by_columns = crossings(beam.lines(), beam.grid)
    angles, bins = beam.lines().x.shape
    expected = sorted([*by_rows.ray, *by_columns.ray])
    blocks = ray_blocks(by_rows, by_columns, bins, (2, 4))
    assert sorted(blocks.ray[blocks.ray >= 0]) == expected
    runs = ray_runs(by_rows, by_columns, beam.grid, (angles, bins)).runs
    assert sorted(ray for run in runs for ray in range(run[0], run[0] + run[1])) == expected


def test_neighbouring_angles_share_blocks_in_whatever_order_they_come():
    angles = torch.linspace(0, np.pi / 4 - 0.1, 8)[torch.randperm(8)]
    beam = cl.ParallelBeam(32, angles, 40)
    by_rows, by_columns = crossings(beam.lines(), beam.grid)
    assert not len(by_columns.ray)
    blocks = ray_blocks(by_rows, by_columns, 40, (4, 8))
    for rays in blocks.ray:
        together = beam.exact_angles[rays[rays >= 0] // 40]
        assert np.ptp(together) <= 3 * np.ptp(beam.exact_angles) / 7 + 1e-9


def test_which_rays_are_parallel():
    assert all(parallel_turns(make().lines(), make().grid) for make in PARALLEL.values())
    fan = FANS["flat"]()
    assert parallel_turns(fan.lines(), fan.grid) is None
    uneven = PARALLEL["square"]()
    uneven.bins = uneven.bins + 0.1 * np.cos(uneven.bins)
    assert parallel_turns(uneven.lines(), uneven.grid) is None
    examine(uneven, torch.float64, 1, 1e-12)
