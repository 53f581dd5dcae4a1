"""Ray transforms in kernels against Joseph's method: in Triton's interpreter, or on a GPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import convexlift as cl
from convexlift.operators.tomography import triton_projector
from convexlift.operators.tomography.joseph import Joseph
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


@pytest.mark.parametrize("name", ["limited angles", "near source"])
def test_batches_in_groups(name):
    """Five images are groups of two, or of four, with zeros for those that are missing."""
    examine(ALL[name](), torch.float64, 5, 1e-12)
    examine(ALL[name](), torch.float32, 5, 1e-6)


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
