"""Kernels that no problem can tell apart: rays against Joseph's method, and what compiles them.

The others are compared with the plain path in whole solves (``test_backends.py``).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from marks import slow

import convexlift as cl
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.operators.tomography import triton_projector
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.triton_projector import RayKernels, Tiling

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SMALL_TILES = Tiling(rays=(2, 8), ray_warps=1, pixels=(8, 16), pixel_warps=4, blocks=(8, 16))
"""Several programs for small images, but not many: the interpreter takes its time."""
QUARTERS = [k * np.pi / 4 for k in range(5)]
BEAMS = {
    "square": lambda: cl.ParallelBeam(8, 7, 11),
    "wide, odd": lambda: cl.ParallelBeam((7, 18), 5, 15),
    "one pixel": lambda: cl.ParallelBeam(1, 3, 4),
    "one ray": lambda: cl.ParallelBeam(5, [0.3], 1),
    "along axes and diagonals": lambda: cl.ParallelBeam(8, QUARTERS, 12),
    "oblong pixels": lambda: cl.ParallelBeam((6, 9), 8, 11, (3.0, 1.5)),
    "offset": lambda: cl.ParallelBeam(8, 6, 11, bin_width=0.8, detector_offset=1.3),
    "all beside it": lambda: cl.ParallelBeam(6, 5, 4, detector_offset=50.0),
    "finest bins": lambda: cl.ParallelBeam(4, 2, 60, bin_width=0.1),
    "finest bins, fan": lambda: cl.FanBeam(4, 2, 90, 9.0, 1.0),
    "curved, near source": lambda: cl.FanBeam(8, 3, 11, 5.8, 6.0, bin_width=1.5, detector="curved"),
    "sources beside the rows": lambda: cl.FanBeam((12, 7), 23, 40, 14.0, 2.0, bin_width=1.0),
    "oblong pixels, from near": lambda: cl.FanBeam((6, 9), 7, 14, 9.0, 3.0, (3.0, 1.5)),
    "partly beside the image": lambda: cl.FanBeam(9, 8, 12, 20.0, 5.0, detector_offset=9.0),
    "farthest source": lambda: cl.FanBeam(10, 7, 14, 1e11, 5.0),
    "uneven angles": lambda: cl.FanBeam(11, [0.1, 0.2, 2.3, 6.1], 25, 22.0, 30.0),
    "one view": lambda: cl.FanBeam((5, 3), [0.4], 3, 9.0, 1.0, bin_width=0.6),
    "curved": lambda: cl.FanBeam(8, 7, 12, 15.0, 10.0, detector="curved"),
}
FULL = {
    "parallel": lambda: cl.ParallelBeam(512, 200, 400, 256.0),
    "curved fan": lambda: cl.FanBeam((255, 301), 90, 300, 400.0, 200.0, detector="curved"),
}


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).to(DEVICE)


def examine(beam: cl.LinearOperator, dtype: torch.dtype, batch: int, tiling: Tiling) -> None:
    """Products are those of Joseph's method, and the transpose is the transpose."""
    tolerance = 1e-12 if dtype is torch.float64 else 1e-6
    kernels = RayKernels(beam.lines(), beam.grid, DEVICE, dtype, tiling)
    exact = Joseph(beam.lines(), beam.grid, DEVICE)
    x = random(batch, beam.grid.height, beam.grid.width, dtype=dtype)
    y = random(batch, *kernels.sinogram_shape, dtype=dtype)
    Ax, Aty = kernels.project(x), kernels.backproject(y)
    for ours, theirs in ((Ax, exact.project(x.double())), (Aty, exact.backproject(y.double()))):
        assert ours.dtype is dtype
        assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()
    left, right = (Ax.double() * y.double()).sum(), (x.double() * Aty.double()).sum()
    assert abs(left - right) <= tolerance * Ax.double().norm() * y.double().norm()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("dtype", "batch"), [(torch.float64, 1), (torch.float32, 3)])
@pytest.mark.parametrize("name", BEAMS)
def test_rays(name, dtype, batch):
    examine(BEAMS[name](), dtype, batch, SMALL_TILES)


@pytest.mark.skipif(not ON_GPU, reason="the interpreter is too slow")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FULL)
def test_rays_of_full_size(name, dtype):
    for batch in (1, 6):
        examine(FULL[name](), dtype, batch, triton_projector.TILING)


def test_derivatives_of_rays():
    beam = cl.FanBeam(3, 2, 3, 5.0, 2.0, detector="curved").to(device=DEVICE, dtype=torch.float64)
    x = random(1, *beam.input_shape, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(beam, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: (beam(x) ** 3).sum(), x, fast_mode=True)


def test_rays_without_a_compiler_take_the_plain_path(monkeypatch):
    def module(name):
        raise RuntimeError("Failed to find C compiler")

    beam = BEAMS["square"]()
    kernels = RayKernels(beam.lines(), beam.grid, DEVICE, torch.float64, SMALL_TILES)
    exact = Joseph(beam.lines(), beam.grid, DEVICE)
    monkeypatch.setattr(triton_projector, "kernel_module", module)
    x, y = random(2, 8, 8, dtype=torch.float64), random(2, 7, 11, dtype=torch.float64)
    with pytest.warns(UserWarning, match="plain path is taken: Failed to find C compiler"):
        torch.testing.assert_close(kernels.project(x), exact.project(x))
    torch.testing.assert_close(kernels.backproject(y), exact.backproject(y))  # and no warning


def compile_with_nvrtc(text: str) -> None:
    """By the compiler of torch's own package, which needs no GPU; fails with its words."""
    folder = pytest.importorskip("nvidia.cuda_nvrtc").__path__[0]
    names = sorted(Path(folder, "lib").glob("libnvrtc*[0-9]"), key=lambda p: -len(p.name))
    library, program = [ctypes.CDLL(str(name)) for name in names][-1], ctypes.c_void_p()
    assert text.startswith('extern "C"')  # else torch 2.9 puts it before the first macro
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None
    )
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90")
    result = library.nvrtcCompileProgram(program, 1, options)
    log = ctypes.create_string_buffer(10_000)
    library.nvrtcGetProgramLog(program, log)
    assert (created, result) == (0, 0), log.value.decode()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tile", [first_layer.TILE, first_layer.LOW_TILE])
@pytest.mark.parametrize(
    ("side", "coarse", "biased", "pool", "coded"),
    [(5, 1, True, 0, False), (5, 16, False, 0, False), (7, 0, False, 0, False),
     (5, 16, False, 16, False), (7, 0, False, 0, True), (5, 1, True, 0, True)],
)  # fmt: skip
def test_the_first_layer_compiles_for_gpus_that_are_not_here(
    side, coarse, biased, pool, coded, tile
):
    filters = torch.Size([24, 1, side, side])
    options = {"tile": tile, "coarse": coarse, "biased": biased, "pool": pool, "coded": coded}
    compile_with_nvrtc(first_layer.source(filters, **options, aligned=True))
    compile_with_nvrtc(rigorous_pass.source(filters, **options))
    compile_with_nvrtc(rigorous_pass.data_source())


@pytest.mark.parametrize("writable", [True, slow(False)])
def test_compiled_kernels_are_kept_in_the_cache_of_the_user(writable, tmp_path, monkeypatch):
    if not writable:
        (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path if writable else tmp_path / "file"))
    assert first_layer._cached("key", lambda: b"binary") == b"binary"
    if writable:
        assert first_layer._cached("key", lambda: pytest.fail("compiled again")) == b"binary"
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["key.cubin"]
