"""The Python script that repeats a run: the same data, the same problem, the same numbers."""

from __future__ import annotations

from convexlift.web.jobs import (
    BOX,
    CT_BINS,
    CT_EXTENT,
    CT_FACTOR,
    TV,
    CTJob,
    DenoisingJob,
    InpaintingJob,
    Job,
)
from convexlift.web.running import Ending, Outcome

INPUT, MASK = "input.npy", "seen.npy"
"""Arrays that a script reads, where they are not inside the package."""


def script(outcome: Outcome, version: str) -> str:
    """A whole program, which writes its image to ``repeated.npy``."""
    job, device = outcome.job, outcome.solution.x.device.type
    stop = f"gap={job.tolerance!r}, check_every={job.check_every}"
    if outcome.ending is not Ending.CERTIFIED:  # it ends where the run ended
        stop = f"gap={job.tolerance!r}, max_iterations={outcome.iterations}, "
        stop += f"check_every={job.check_every}"
    weight = outcome.stated.facts["weight"]
    elsewhere = "" if device == "cpu" else f".to(device={device!r})"
    blocks = [
        [f'"""Repeats a run of the web page of convexlift {version}: {job.name}."""'],
        _imports(job),
        _picture(job),
        _data(job, outcome),
        [
            "regularizer = "
            + ("cl.TotalVariation()" if job.regularizer == TV else f"cl.load({job.regularizer!r})"),
            f"problem = data.problem(regularizer, weight={weight!r}){elsewhere}",
            f"solution = cl.solve(problem, stop=cl.StopWhen({stop}))",
            "print(solution)",
        ],
        [
            "x = solution.x.cpu()",
            *(
                ['print(f"PSNR {float(psnr(x.reshape(1, -1), clean.reshape(1, -1))):.2f} dB")']
                if job.simulated
                else []
            ),
            'np.save("repeated.npy", x.numpy())',
        ],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def needed_arrays(job: Job) -> tuple[str, ...]:
    """Which files must lie beside the script."""
    drawn = isinstance(job, InpaintingJob) and job.mask is not None
    return (*(() if job.picture.example else (INPUT,)), *((MASK,) if drawn else ()))


def _imports(job: Job) -> list[str]:
    arrays = needed_arrays(job)
    functions = ["psnr"] if job.simulated else []
    if job.picture.example and not isinstance(job, CTJob):
        functions.append("load_example")
    if isinstance(job, InpaintingJob) and job.mask is None:
        functions.append("random_mask")
    lines = ["from pathlib import Path", ""] if arrays else []
    lines += ["import numpy as np", "import torch", "", "import convexlift as cl"]
    if functions:
        lines.append(f"from convexlift.images import {', '.join(sorted(functions))}")
    if isinstance(job, CTJob) and job.picture.example:
        lines.append("from convexlift.phantoms import shepp_logan")
    lines.append(f"from convexlift.tasks import {_task(job)}")
    return lines


def _picture(job: Job) -> list[str]:
    variable = "clean" if job.simulated else "damaged"
    if not job.picture.example:
        return [
            "here = Path(__file__).parent  # with the arrays that came with this script",
            f'{variable} = torch.from_numpy(np.load(here / "{INPUT}"))',
        ]
    lines = ["here = Path(__file__).parent"] if needed_arrays(job) else []
    if isinstance(job, CTJob):
        return [*lines, f"{variable} = shepp_logan({job.picture.size[0]})"]
    return [*lines, f"{variable} = load_example({job.picture.name!r})"]


def _data(job: Job, outcome: Outcome) -> list[str]:
    variable = "clean" if job.simulated else "damaged"
    level = outcome.stated.facts.get("noise_level", 0.0)
    lines: list[str] = []
    if isinstance(job, InpaintingJob):
        if job.mask is not None:
            lines.append(f'seen = torch.from_numpy(np.load(here / "{MASK}"))')
        else:
            lines.append(
                f"seen = random_mask({variable}, {job.missing!r}, "
                f"torch.Generator().manual_seed({job.seed}))[0, 0]"
            )
        noise = job.level if job.simulated else 0.0
        lines.append(f'task = Inpainting(noise={noise!r}, mask=seen, fill="zero")')
    elif isinstance(job, CTJob):
        size = job.picture.size[0]
        beams = f"cl.ParallelBeam({size}, {job.views}, {CT_BINS}, {CT_EXTENT!r})"
        lines.append(f"task = SparseViewCT(scanner={beams} * {CT_FACTOR!r}, box={BOX!r})")
    else:
        lines.append(f"task = {_task(job)}({level if job.simulated else 0.0!r})")
    lines.append(
        f"generators = [torch.Generator().manual_seed({job.seed} + i) "
        f"for i in range(len({variable}))]"
    )
    lines.append(f"data = task.measure({variable}, generators)")
    return lines


def _task(job: Job) -> str:
    if isinstance(job, DenoisingJob):
        return "SaltAndPepper" if job.task_name() == "salt-and-pepper" else "GaussianDenoising"
    return "Inpainting" if isinstance(job, InpaintingJob) else "SparseViewCT"
