"""``convexlift doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import convexlift
from convexlift.cli.app import (
    FAILURE,
    Debug,
    JsonFile,
    check_json_file,
    computes,
    one_sentence_errors,
    register,
    write_json,
)

EXTRAS = {
    "cli": ("typer", "rich", "jinja2", "matplotlib", "PIL", "tifffile"),
    "ct": ("h5py", "pydicom"),
    "train": ("tensorboard",),
    "web": ("gradio",),
    "dask": ("distributed", "pyarrow"),
    "hub": ("huggingface_hub",),
    "deepinv": ("deepinv",),
}
"""The modules of each extra for users, without those of the extras before it."""
NAMES = {"PIL": "pillow"}
"""Names of distributions that differ from their module's."""
SIDE, WIDTH = 64, 16
"""Side of the test picture in pixels; characters of the labels."""


@register("convexlift doctor\nconvexlift doctor --json report.json")
@computes
def doctor(json_file: JsonFile = None, debug: Debug = False) -> None:
    """Examine the installation, and test it by a small problem with a verified proof.

    Prints versions, devices, kernels and extras, and how to install missing ones. Then it
    denoises a small picture on each device, saves the proof, and has it checked by the independent
    checker: a few seconds. Paste the output into a report of a problem.
    """
    with one_sentence_errors(debug):
        check_json_file(json_file)
        report: dict[str, Any] = {}
        for label, value in facts():
            report[label] = value
            typer.echo(f"{label:<{WIDTH}} {value}")
        results = {}
        for device in _devices():
            started = time.perf_counter()
            try:
                verdict, passed = self_test(device), True
            except Exception as error:
                if debug:
                    raise
                verdict, passed = f"failed: {type(error).__name__}: {error}", False
            seconds = time.perf_counter() - started
            results[device] = {"passed": passed, "verdict": verdict, "seconds": seconds}
            typer.echo(f"{f'test on {device}':<{WIDTH}} {verdict} ({seconds:.1f} s)")
        write_json(json_file, {"facts": report, "tests": results})
        if not all(result["passed"] for result in results.values()):
            typer.echo("convexlift: a test failed; --debug shows where.", err=True)
            raise typer.Exit(FAILURE)
        typer.echo("Everything that is installed works.")


def facts() -> Iterator[tuple[str, str]]:
    """Versions, devices, kernels and extras, by their label."""
    import torch

    yield "convexlift", f"{convexlift.__version__}, {Path(convexlift.__file__).parent}"
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} of {os.cpu_count()} cores"
    yield "GPU", _gpus()
    yield "kernels", _kernels()
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        found = ", ".join(f"{NAMES.get(m, m)} {_version(m)}" for m in modules if m not in missing)
        if missing:
            names = ", ".join(NAMES.get(name, name) for name in missing)
            found = f"not installed ({names}): pip install 'convexlift[{extra}]'"
        yield f"extra {extra}", found


def self_test(device: str) -> str:
    """Denoise a small picture, and let the independent checker confirm the proof."""
    import torch

    from convexlift.functionals.data_terms import SquaredL2
    from convexlift.models.store import load
    from convexlift.phantoms import shepp_logan
    from convexlift.problems.claims import percent
    from convexlift.problems.variational import VariationalProblem
    from convexlift.proof_checker import verify
    from convexlift.solvers.solution import Status
    from convexlift.solvers.solve import solve

    clean = shepp_logan(SIDE).float()
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    y = (clean + 0.1 * noise).to(device)
    network = load("photo-any-size").to(device)
    problem = VariationalProblem(
        fidelity=SquaredL2(y), regularizer=network, weight=1.0, box=(0, 1)
    )  # fmt: skip
    solution = solve(problem)
    if solution.status[0] is not Status.CONVERGED:
        raise RuntimeError(f"the solver ended with {solution.status[0].name}")
    with tempfile.TemporaryDirectory() as folder:
        (verdict,) = verify(solution.proof.save(Path(folder) / "test.proof"))
    return (
        f"solved to within {percent(verdict.gap)} in {int(solution.iterations[0])} iterations, "
        "and the checker confirms the proof"
    )


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none that torch can use; everything runs on the processor"
    count = torch.cuda.device_count()
    return ", ".join(torch.cuda.get_device_name(i) for i in range(count))


def _kernels() -> str:
    import torch

    if importlib.util.find_spec("triton") is None:
        return "none: Triton is not installed; GPUs then run PyTorch's operations"
    if not torch.cuda.is_available():
        return f"Triton {_version('triton')}, not used without a GPU"
    from convexlift.kernels import first_layer

    device, filters = torch.device("cuda", torch.cuda.current_device()), torch.Size([8, 1, 3, 3])
    compiled = first_layer.compiled(
        "dual_step", device, filters, tile=first_layer.TILE, coarse=0, biased=False, aligned=True
    )
    how = "and CUDA, compiled by NVRTC" if compiled else "only: NVRTC cannot compile CUDA here"
    return f"Triton {_version('triton')} {how}"


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(NAMES.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
