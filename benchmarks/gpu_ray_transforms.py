"""Time of ray transforms on a GPU: kernels against weights in pieces, and the floors.

    python benchmarks/ray_transforms.py            # this, where there is a GPU
    python benchmarks/ray_transforms.py --tiles    # other ways to cut the work into programs

Prints, for some batches, microseconds for an image of A, A* and the pair: on the device (medians of
graph replays between CUDA events) and with the host's launches, the speed-up of the pair against
``Joseph`` on the same GPU, errors of both against it in double precision, and the dot test
|<A x, y> - <x, A* y>| / (|A x| |y|).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

import convexlift as cl
from convexlift.operators.tomography.beams import DETECTORS
from convexlift.operators.tomography.joseph import Joseph
from convexlift.operators.tomography.ray_transform import Projector
from convexlift.operators.tomography.rays import crossings
from convexlift.operators.tomography.triton_projector import TILING, RayKernels, Tiling

TILINGS = {
    "default": TILING,
    "rays 1 x 128": Tiling(rays=(1, 128)),
    "rays 8 x 16": Tiling(rays=(8, 16)),
    "rays 4 x 16": Tiling(rays=(4, 16), ray_warps=2),
    "rays 8 x 32": Tiling(rays=(8, 32), ray_warps=8),
    "4 steps, 4 turns": Tiling(steps=4, turns=4),
    "1 step, 1 turn": Tiling(steps=1, turns=1),
    "groups of 8": Tiling(group=32),
    "pixels 16 x 16": Tiling(pixels=(16, 16)),
    "pixels 8 x 32, 8 warps": Tiling(pixel_warps=8),
    "pixels 16 x 32": Tiling(pixels=(16, 32)),
    "pixels 4 x 32": Tiling(pixels=(4, 32)),
    "blocks 16 x 8": Tiling(blocks=(16, 8)),
    "blocks 16 x 16": Tiling(blocks=(16, 16)),
    "blocks 8 x 32": Tiling(blocks=(8, 32)),
}


@dataclass(frozen=True)
class Times:
    """Microseconds for an image."""

    project: float
    backproject: float
    pair: float

    @staticmethod
    def of(measured: Callable[[Callable[[], object]], float], way: Projector, x, y) -> Times:
        """In each of the three."""
        each = [
            measured(lambda: way.project(x)),
            measured(lambda: way.backproject(y)),
            measured(lambda: way.backproject(way.project(x))),
        ]
        return Times(*(1e3 * time / len(x) for time in each))


def milliseconds(function: Callable[[], object], repeats: int = 15, calls: int = 1) -> float:
    """The median time between two events."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def on_device(function: Callable[[], object]) -> float:
    """Milliseconds of a graph replay, without the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()
    return milliseconds(graph.replay, calls=5)


def with_host(function: Callable[[], object]) -> float:
    """Milliseconds of a call among others."""
    for _ in range(3):
        function()
    return milliseconds(function, calls=10)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The error, in the norm."""
    return float((found.double() - exact).norm() / exact.norm())


def floors(beam: cl.ParallelBeam | cl.FanBeam) -> None:
    """What an image costs at least, in bytes and operations."""
    rays = crossings(beam.lines(), beam.grid)
    samples = sum(int((part.last - part.first).sum()) for part in rays)
    image = 4 * beam.grid.height * beam.grid.width
    sinogram = 4 * len(beam.exact_angles) * len(beam.bins)
    print(
        f"{beam}: {samples / 1e6:.1f} M crossings with 2 weights each\n"
        f"an image, each way: {(image + sinogram) / 1e6:.2f} MB to read and write at least; "
        f"{8 * samples / 1e6:.0f} MB of numbers loaded from caches, "
        f"{4 * samples / 1e6:.0f} M operations with them"
    )


def row(beam: cl.ParallelBeam | cl.FanBeam, batch: int, dtype: torch.dtype) -> None:
    """One line of the table."""
    device = torch.device("cuda")
    kernels = RayKernels(beam.lines(), beam.grid, device, dtype)
    plain = Joseph(beam.lines(), beam.grid, device)
    torch.manual_seed(0)
    x = torch.rand((batch, beam.grid.height, beam.grid.width), dtype=dtype, device=device)
    y = torch.rand((batch, *kernels.sinogram_shape), dtype=dtype, device=device)
    kernels.backproject(kernels.project(x))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    Ax, Aty = kernels.project(x), kernels.backproject(y)
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6 / batch
    one, other = x[:1].double(), y[:1].double()
    errors = (
        relative(Ax[:1], plain.project(one)), relative(Aty[:1], plain.backproject(other))
    )  # fmt: skip
    usual = relative(plain.project(x[:1]), plain.project(one))
    dot = abs((Ax.double() * y.double()).sum() - (x.double() * Aty.double()).sum())
    dot /= Ax.double().norm() * y.double().norm()
    times, host = Times.of(on_device, kernels, x, y), Times.of(with_host, kernels, x, y)
    slow = milliseconds(lambda: plain.backproject(plain.project(x[:1])), 3) * 1e3
    print(
        f"{str(dtype)[6:]:9} {batch:5}  {times.project:6.1f}  {times.backproject:6.1f} "
        f"{times.pair:6.1f}  {host.pair:10.1f}  {slow / times.pair:8.0f}  "
        f"{errors[0]:.1e} {errors[1]:.1e} ({usual:.1e})           {float(dot):.1e}  {peak:7.1f}"
    )


def compare_tilings(beam: cl.ParallelBeam | cl.FanBeam) -> None:
    """Each of them with one image and with many."""
    device = torch.device("cuda")
    print(f"{beam}\n{'tiling':24}  A, A*, pair: us/image of 1   of 4   of 20")
    for name, tiling in TILINGS.items():
        kernels = RayKernels(beam.lines(), beam.grid, device, torch.float32, tiling)
        line = f"{name:24}"
        for batch in (1, 4, 20):
            x = torch.rand((batch, beam.grid.height, beam.grid.width), device=device)
            y = torch.rand((batch, *kernels.sinogram_shape), device=device)
            times = Times.of(on_device, kernels, x, y)
            line += f"   {times.project:6.1f} {times.backproject:6.1f} {times.pair:6.1f}"
        print(line, flush=True)


def main(beam: cl.ParallelBeam, options: argparse.Namespace) -> None:
    """Print the table."""
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    shape = (options.size, options.angles, options.bins, 512.0, 256.0, 256.0)
    fan, curved = (cl.FanBeam(*shape, detector=detector) for detector in DETECTORS)
    with torch.no_grad():
        if options.tiles:
            for each in (beam, fan):
                compare_tilings(each)
            return
        for each in (beam, fan, curved):
            floors(each)
            print(
                "precision batch    A us   A* us   pair   with host  speed-up  "
                "errors of A, A* (A of Joseph)  dot test  MB more"
            )
            for batch in (1, 4, 20):
                row(each, batch, torch.float32)
            row(each, 4, torch.float64)
