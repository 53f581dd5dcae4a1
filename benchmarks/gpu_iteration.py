"""Time of a PDHG iteration on a GPU: the kernels against the plain path, and the floor of bytes.

    python benchmarks/gpu_iteration.py

Prints, for one image and for batches, microseconds of an iteration and image (medians of graph
replays between CUDA events), the bytes that must move, and the error against float64.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import convexlift as cl
from convexlift.problems.lifting import lift
from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.iterations import Iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.saturated_head import SaturatedHead

CASES = {"faces-inpainting-bilevel": "inpainting", "photo-any-size": "inpainting",
         "photo-open": "gaussian", "faces-denoising": "salt-and-pepper"}  # fmt: skip
WEIGHTS = {"faces-inpainting-bilevel": 1.1, "photo-any-size": 0.2, "photo-open": 1.0,
           "faces-denoising": 50.0}  # fmt: skip
"""For these data; all but the second are those of the cards."""
NOISE = 0.1


def problem(
    name: str,
    batch: int,
    size: int,
    device: str,
    task: str | None = None,
    weight: float | None = None,
) -> cl.VariationalProblem:
    """Random data with the statistics of a piecewise smooth image; another task on request."""
    torch.manual_seed(0)
    coarse = torch.rand(batch, 1, size // 16, size // 16)
    clean = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    network = cl.load(name)
    task, weight = task or CASES[name], weight or WEIGHTS[name]
    if task == "inpainting":
        mask = torch.rand(size, size) > 0.3
        data: cl.Fidelity = cl.SquaredL2((clean + 0.03 * torch.randn_like(clean)) * mask)
        operator: cl.LinearOperator = cl.Mask(mask)
    elif task == "gaussian":
        data, operator = cl.SquaredL2(clean + NOISE * torch.randn_like(clean)), cl.Identity()
    else:
        noise = torch.rand_like(clean)
        y = torch.where(noise < 0.125, 0.0, torch.where(noise > 0.875, 1.0, clean))
        data, operator = cl.L1(y), cl.Identity()
    made = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=network, weight=weight, box=(0, 1),
        noise=NOISE if network.reads_data else None,
    )  # fmt: skip
    return made.to(device=device)


def solver_of(made: cl.VariationalProblem) -> tuple[cl.VariationalProblem, RestartedPDHG]:
    """Without a saturated head, as the library would."""
    head = SaturatedHead.of(made)
    made = made if head is None else head.problem
    return made, RestartedPDHG(made, lift(made))


def milliseconds(function, repeats: int = 20) -> float:
    """The median time on the device."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 20])
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    print(f"{'network':26} batch  us/it/image  plain  ratio  MB/it/image  error")
    for name in CASES:
        for batch in options.batch:
            with torch.no_grad():
                row(name, batch, options.size)


def row(name: str, batch: int, size: int) -> None:
    """One line of the table."""
    made, solver = solver_of(problem(name, batch, size, "cuda"))
    fused = solver.iterations
    assert isinstance(fused, FusedIterations), solver.choices
    state = solver.start(made.initial_image())
    began = time.perf_counter()
    after = solver.advance(state, 40)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    began = time.perf_counter()
    after = solver.advance(state, 40)
    torch.cuda.synchronize()
    second = time.perf_counter() - began

    fused._held.table.copy_(fused._held.table[:1].clone())  # steps of zero would skip the images

    def sixty() -> None:
        fused._held.clock.zero_()
        for _ in range(12):
            fused._machine.several()

    sixty()
    each = milliseconds(sixty) / 60 / batch * 1e3
    begin = time.perf_counter()
    sixty()
    host = (time.perf_counter() - begin) / 60 * 1e6
    torch.cuda.synchronize()

    solver.iterations = Iterations(solver.saddle, solver.coupling)
    plain_state = solver.advance(state, 3)
    plain = milliseconds(lambda: solver.advance(plain_state, 5), 5) / 5 / batch * 1e3
    double = made.to(dtype=torch.float64)
    exact_solver = RestartedPDHG(double, lift(double))
    exact = exact_solver.advance(exact_solver.start(double.initial_image()), 40)
    error = float((after.x - exact.x).norm() / exact.x.norm())
    plain_error = float((solver.advance(state, 40).x - exact.x).norm() / exact.x.norm())
    w = state.w_v[fused._layer.name][0]
    bytes_moved = 2 * w.numel() * 4 + 2 * fused._held.spill[0].numel() * 4
    print(
        f"{name:26} {batch:5}  {each:11.2f}  {plain:5.0f}  {plain / each:5.1f}  "
        f"{bytes_moved / 1e6:11.1f}  {error:.1e} (plain {plain_error:.1e})  "
        f"first 40 its {first * 1e3:.1f} ms, then {second * 1e3:.2f} ms, host {host:.1f} us/it"
    )


if __name__ == "__main__":
    main()
