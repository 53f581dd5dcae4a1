"""What limits the kernels of an iteration on a GPU, by Nsight Compute (``ncu``).

    python benchmarks/gpu_profile.py

Prints, for each network and kernel, the microseconds per image in a batch, and three numbers in
percent of what is possible: bytes of memory moved, instructions issued, and warps that are there.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys

import torch
from gpu_iteration import CASES, problem, solver_of

from convexlift.solvers.fused_iterations import FusedIterations
from convexlift.solvers.fused_restarts import RELAXED

KERNELS = ("primal_step", "dual_step")
METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
}


def launch(name: str, batch: int) -> None:
    """A few iterations without graphs, whose kernels the profiler sees one by one."""
    with torch.no_grad():
        made, solver = solver_of(problem(name, batch, 256, "cuda"))
        fused = solver.iterations
        assert isinstance(fused, FusedIterations), solver.choices
        state = solver.start(made.initial_image())
        fused.load(state, torch.ones(batch, dtype=torch.bool))
        machine, buffers = fused._machine, fused._held
        assert machine is not None
        steps = state.tau["x"], state.sigma[machine.layer.name]
        for column, number in enumerate((*steps, steps[1], *map(torch.tensor, RELAXED))):
            buffers.table[..., column] = number
        for _ in range(4):
            buffers.clock.zero_()
            machine.pixels(buffers, observed=False)
            machine.layer(buffers, step=True, observed=False)
        torch.cuda.synchronize()


def profiled(name: str, kernel: str, batch: int) -> dict[str, float]:
    """The third launch of a kernel, when caches are warm."""
    command = ["ncu", "--csv", "--clock-control", "none", "-k", kernel, "-s", "2", "-c", "1",
               "--metrics", ",".join(METRICS), sys.executable, __file__, "--launch", name,
               "--batch", str(batch)]  # fmt: skip
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = [line for line in printed.splitlines() if line.startswith('"')]
    numbers = {}
    for row in csv.DictReader(table):
        value = float(row["Metric Value"].replace(",", ""))
        thousandth = row["Metric Unit"] in ("ns", "nsecond")
        numbers[METRICS[row["Metric Name"]]] = value / 1e3 if thousandth else value
    return numbers


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--launch", metavar="NETWORK", help="only run its kernels, for ncu")
    options = parser.parse_args()
    if options.launch:
        launch(options.launch, options.batch)
        return
    print(f"{'network':26} {'kernel':12} us/image  memory %  issue %  warps %")
    for name in list(CASES)[:3]:
        for kernel in KERNELS:
            found = profiled(name, kernel, options.batch)
            print(
                f"{name:26} {kernel:12} {found['us'] / options.batch:8.2f}  {found['memory']:8.1f}"
                f"  {found['issue']:7.1f}  {found['warps']:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
