"""Kernels compile for GPUs that are not here: the compilers need none."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marks import slow

from convexlift.kernels import first_layer, rigorous_pass

pytest.importorskip("triton")

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from convexlift.kernels import iteration, rays, restart

INTEGERS = {
    "height", "width", "rays", "angles", "bins", "batch", "run_count", "apart", "bias_apart",
    "size", "tall", "broad",
}  # fmt: skip
INTEGER_POINTERS = {
    "clock", "copies_of_rows", "copies_of_columns", "ray", "first", "last", "turned", "runs",
    "bounds",
}
LONG_POINTERS = {"guess", "places", "entries"}
DOUBLE_POINTERS = {"start", "slope", "turn", "line", "offsets"}
NUMBERS = {"scale", "pull", "lower", "upper", "low", "high", "left", "ramp_width", "offset"}


def compiled(kernel, warps, kind="fp32", **constants):
    kinds = {
        name: "constexpr" if name in constants else "*i32" if name in INTEGER_POINTERS
        else "*i64" if name in LONG_POINTERS else "*u8" if name == "restarts"
        else "i32" if name in INTEGERS else "fp32" if name in NUMBERS
        else "*fp64" if name in DOUBLE_POINTERS else "*" + kind
        for name in kernel.arg_names
    }
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    options = {"num_warps": warps, "num_stages": 1}
    result = triton.compile(ASTSource(kernel, kinds, constants), target=target, options=options)
    print(kernel.__name__, result.metadata.shared)


common = dict(COLUMNS=6, KERNEL_HEIGHT=5, KERNEL_WIDTH=5)
for fidelity in (1, 2, 3):
    compiled(
        iteration.primal_step, 4, FIDELITY=fidelity, PULLED=True, MORE=True, OBSERVED=True,
        COPIES=3, TILE_HEIGHT=8, TILE_WIDTH=16, **common,
    )
for pooled, coarse, rows in ((False, 16, 8), (False, 1, 8), (True, 16, 16)):
    compiled(
        iteration.dual_step, rows, STEP=True, POOLED=pooled, COARSE=coarse, OBSERVED=True,
        FULL=True, CHANNELS=32, CHUNK=32, ROOM=32, TAPS=32, TILE_HEIGHT=rows, TILE_WIDTH=16,
        SPILL=256 if rows == 8 else 512, **common,
    )
compiled(restart.moved_anchor, 4, ROUNDS=8, BLOCK=1024)
for kind, group in (("fp32", 4), ("fp64", 2), ("fp32", 1)):
    parts = 4 if group == 1 else 1
    compiled(rays.project, 4 * parts, kind, GROUP=group, RAYS=128, PARTS=parts, UNROLL=2)
    tile = dict(GROUP=group, TILE_HEIGHT=8, TILE_WIDTH=32)
    compiled(rays.backproject_parallel, 4, kind, MOST=2, UNROLL=2, **tile)
    compiled(rays.backproject_fans, 2, kind, ENTRY=32, AT_ONCE=2, **tile)
    compiled(rays.backproject_runs, 4, kind, HALVINGS=9, **tile)
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile(capability):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(capability)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    shared = [int(line.split()[1]) for line in run.stdout.splitlines()]
    assert len(shared) == 19
    assert max(shared) <= 96 * 1024  # what a multiprocessor has, with room to spare


def nvrtc() -> ctypes.CDLL:
    """The compiler that torch loads, here from its own package, which needs no GPU."""
    folder = pytest.importorskip("nvidia.cuda_nvrtc").__path__[0]
    *builtins, library = sorted(
        Path(folder, "lib").glob("libnvrtc*[0-9]"), key=lambda p: -len(p.name)
    )
    for each in builtins:
        ctypes.CDLL(str(each))
    return ctypes.CDLL(str(library))


def compile_with_nvrtc(text: str) -> None:
    """Fails with the compiler's words."""
    library, program = nvrtc(), ctypes.c_void_p()
    assert text.startswith('extern "C"')  # else torch 2.9 puts it before the first macro
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None
    )
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90")
    result = library.nvrtcCompileProgram(program, 1, options)
    log = ctypes.create_string_buffer(10_000)
    library.nvrtcGetProgramLog(program, log)
    assert (created, result) == (0, 0), log.value.decode()


@pytest.mark.parametrize("tile", [first_layer.TILE, slow(first_layer.LOW_TILE)])
@pytest.mark.parametrize(
    ("side", "coarse", "biased", "pool", "coded"),
    [
        (5, 1, True, 0, False), (5, 16, False, 0, False), (7, 0, False, 0, False),
        (5, 16, False, 16, False), (7, 0, False, 0, True), (5, 1, True, 0, True),
    ],
)  # fmt: skip
def test_nvrtc_compiles_the_first_layer(side, coarse, biased, pool, coded, tile):
    filters = torch.Size([24, 1, side, side])
    options = {"tile": tile, "coarse": coarse, "biased": biased, "pool": pool, "coded": coded}
    compile_with_nvrtc(first_layer.source(filters, **options, aligned=True))
    compile_with_nvrtc(rigorous_pass.source(filters, **options))


def test_nvrtc_compiles_bounds_on_data():
    compile_with_nvrtc(rigorous_pass.data_source())


def spilt(text: str, folder: Path) -> list[int]:
    """Bytes of registers that each kernel keeps in memory instead."""
    (folder / "kernel.cu").write_text(text)
    run = subprocess.run(
        ["nvcc", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "kernel.cu"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [int(count) for count in re.findall(r"(\d+) bytes spill stores", run.stderr)]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("tile", [first_layer.TILE, slow(first_layer.LOW_TILE)])
@pytest.mark.parametrize(("channels", "side", "biased"), [(24, 5, True), (48, 7, False)])
def test_windows_nearly_fit_into_registers(channels, side, biased, tile, tmp_path):
    filters = torch.Size([channels, 1, side, side])
    options = {"tile": tile, "coarse": 1, "biased": biased}
    # A few, so that one more program fits on a multiprocessor; many would be slow.
    found = spilt(first_layer.source(filters, **options, aligned=True), tmp_path)
    assert len(found) == len(first_layer.NAMES)
    assert max(found) <= 4 * side**2
    assert spilt(rigorous_pass.source(filters, **options), tmp_path) == [0, 0, 0]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("side", [1, 3, 5, 7])
def test_as_many_taps_as_are_allowed_fit_into_shared_memory(side, tmp_path):
    channels = rigorous_pass.MOST_TAPS // (side**2 + 1)
    filters = torch.Size([channels, 1, side, side])
    options = {"tile": first_layer.TILE, "coarse": 0, "biased": False}
    assert len(spilt(rigorous_pass.source(filters, **options), tmp_path)) == 3


def test_compiled_kernels_are_kept_in_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert first_layer._cached("key", lambda: b"binary") == b"binary"
    assert first_layer._cached("key", lambda: pytest.fail("compiled again")) == b"binary"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["key.cubin"]


def test_kernels_are_compiled_where_nothing_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert first_layer._cached("key", lambda: b"binary") == b"binary"
