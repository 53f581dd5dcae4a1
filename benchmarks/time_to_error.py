"""Seconds to a relative objective error on test faces: the default solver and its competitors.

    python benchmarks/time_to_error.py --data DIR --output FILE.json --threads 2

DIR holds ``faces/test`` and ``faces/mask.png``. A run with as many iterations as the method needs
for the error (counted before, looking at every one), and nothing evaluated between start and
end, is timed from the problem to the image: norms and start included. Methods take turns, and the
least of the repeats counts, so that a noisy machine is noisy for all. The paper's steps are the
best of its 49 pairs for these networks (``solver_iterations.py``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import load_image
from convexlift.solvers.method import Method
from convexlift.tasks import Inpainting, SaltAndPepper, Task
from convexlift.training import ImageSet

LIMIT = 250


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--faces", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--errors", type=float, nargs="*", default=[1e-3, 1e-4])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    faces = ImageSet.from_folder(arguments.data / "faces/test")
    mask = (load_image(arguments.data / "faces/mask.png") > 0.5).float()[0, 0]
    cases: list[tuple[str, Task, tuple[float, ...]]] = [
        ("faces-inpainting-bilevel", Inpainting(mask=mask), (1.0, 1e-4)),
        ("faces-denoising", SaltAndPepper(), (50.0, 2.5e-4)),
    ]
    rows = []
    for name, task, c in cases:
        network = cl.load(name, device=device)
        methods: dict[str, Method] = {
            "default": cl.PDHG(),
            "paper": cl.PDHG(steps=cl.PaperSteps(c)),
            "nmapg": cl.NMAPG(),
            "lbfgs": cl.LBFGS(),
        }
        for i in range(arguments.faces):
            data = task.measure(faces[i][None].to(device), [torch.Generator(device).manual_seed(i)])

            def stated(data=data, network=network) -> cl.VariationalProblem:
                return data.problem(network, network.card.weight)

            long = cl.StopWhen(gap=1e-6, max_iterations=600, check_every=50)
            reference = float(cl.solve(stated(), stop=long).objective)
            counts = {
                n: needed(stated(), m, reference, arguments.errors) for n, m in methods.items()
            }
            for error in arguments.errors:
                seconds = race(stated, methods, counts, error, arguments.repeats)
                for label, value in seconds.items():
                    rows.append(
                        {"task": task.name, "face": i, "error": error, "method": label,
                         "iterations": counts[label][error], "seconds": value}
                    )  # fmt: skip
                    print(json.dumps(rows[-1]), flush=True)
                arguments.output.write_text(json.dumps(rows, indent=2) + "\n")
    report(rows)


def needed(
    problem: cl.VariationalProblem, method: Method, reference: float, errors: list[float]
) -> dict[float, int | None]:
    """The first iteration with each error, or None within the limit."""
    found: dict[float, int | None] = dict.fromkeys(errors)

    def look(progress: cl.Progress) -> bool:
        error = (float(progress.objective) - reference) / abs(reference)
        for tolerance in errors:
            if error <= tolerance and found[tolerance] is None:
                found[tolerance] = progress.iteration
        return all(value is not None for value in found.values())

    stop = cl.StopWhen(gap=None, max_iterations=LIMIT, check_every=1)
    cl.solve(problem, method=method, stop=stop, callback=look)
    return found


def race(stated, methods, counts, error, repeats) -> dict[str, float | None]:
    """The least seconds of each method, taking turns."""
    best: dict[str, float | None] = dict.fromkeys(methods)
    for turn in range(repeats + 1):
        for label, method in methods.items():
            count = counts[label][error]
            if count is None:
                continue
            stop = cl.StopWhen(gap=None, max_iterations=count, check_every=max(1, count))
            problem = stated()
            _wait()
            began = time.perf_counter()
            cl.solve(problem, method=method, stop=stop)
            _wait()
            seconds = time.perf_counter() - began
            if turn:  # the first warms up
                best[label] = seconds if best[label] is None else min(best[label], seconds)
    return best


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def report(rows: list[dict]) -> None:
    """Means over the faces, and how many times longer than the default."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["error"], row["method"]), []).append(row)
    for (task, error, method), group in groups.items():
        if any(row["seconds"] is None for row in group):
            print(f"{task:16} {error:g} {method:8} not reached")
            continue
        mean, default = (
            statistics.mean(row["seconds"] for row in part)
            for part in (group, groups[task, error, "default"])
        )
        iterations = statistics.mean(row["iterations"] for row in group)
        times = f"{mean:8.3f} s {mean / default:6.2f} x"
        print(f"{task:16} {error:g} {method:8} {times} {iterations:.0f} iterations")


if __name__ == "__main__":
    main()
