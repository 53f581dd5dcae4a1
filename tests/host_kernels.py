"""CUDA kernels compiled for the CPU, with a thread for each thread of a program."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from convexlift.kernels import first_layer, rigorous_pass

COMPILER = shutil.which("g++")
EXPORT = """
extern "C" void run(int programs, int batch, %s)
{
    launch(programs, batch, WARPS, [=] { %s(%s); });
}
"""


class HostKernel:
    """What ``first_layer.compiled`` gives on a GPU, for tensors on the CPU."""

    source = staticmethod(first_layer.source)

    def __init__(
        self, name: str, device: torch.device, filters: torch.Size, **options: Any
    ) -> None:
        self._name, self._text = name, self.source(filters, **options)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]) -> None:
        """Launch, and wait."""
        assert block == first_layer.BLOCK
        for tensor in args:
            assert not isinstance(tensor, torch.Tensor) or tensor.is_contiguous()
        kinds = {torch.Tensor: lambda t: ctypes.c_void_p(t.data_ptr()), float: ctypes.c_double,
                 int: ctypes.c_int}  # fmt: skip
        run = _built(self._name, self._text)  # by the first launch: some kernels have none
        run(grid[0], grid[1], *(kinds[type(arg)](arg) for arg in args))


class RigorousKernel(HostKernel):
    """What ``rigorous_pass.compiled`` gives on a GPU, for tensors on the CPU."""

    source = staticmethod(rigorous_pass.source)


class DataKernel(HostKernel):
    """What ``rigorous_pass.data_kernel`` gives on a GPU, for tensors on the CPU."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._name, self._text = name, rigorous_pass.data_source()


@cache
def _built(name: str, text: str) -> Any:
    after = text[text.index(f" {name}(\n") + len(name) + 2 :]
    signature = after[: after.index(")\n{")]
    names = ", ".join(part.split()[-1] for part in signature.split(","))
    whole = '#include "cuda_on_host.h"\n' + text + EXPORT % (signature, name, names)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(whole)
        options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
        command = [str(COMPILER), *options, f"-I{Path(__file__).parent}", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        return ctypes.CDLL(str(library)).run
