"""``cl.reconstruct``: the library call, with the options of the task as keywords."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from convexlift.reconstruction.contents import InputError
from convexlift.reconstruction.pictures import Denoiser, Inpainter
from convexlift.reconstruction.reconstructor import Reconstructor
from convexlift.reconstruction.result import Reconstruction
from convexlift.reconstruction.scans import ScanLike, ScanReconstructor
from convexlift.reconstruction.solution import Callback

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    kind.task: kind for kind in (Denoiser, Inpainter, ScanReconstructor)
}
"""By the name of the task."""


def reconstruct(
    image: ScanLike,
    task: str = "denoise",
    *,
    progress: Callback | None = None,
    **options: Any,
) -> Reconstruction:
    """Estimate the noise, choose the weight, state the problem, and solve it with a proof.

    ``cl.reconstruct(image, task="denoise").x`` is the image. The command line and the web page make
    the same call; the options have the names and defaults of ``convexlift reconstruct``.

    Args:
        image: a path, or a tensor or array (H, W), (C, H, W) or (B, C, H, W); every channel and
            every image is a plane of its own. Floats are in [0, 1] or, like those of NPY files, in
            any range, which is then mapped to it. For ``ct``: the path of a sinogram, a
            ``cl.scans.Sinogram``, or an array of projections with ``geometry`` and ``quantity``;
            with ``simulate``, a slice as a path, a ``cl.scans.Volume`` or an array.
        task: ``denoise``, ``inpaint`` or ``ct``.
        progress: called with a ``cl.Progress`` at every check of the solver, with the planes that
            are solved at once; return ``True`` to stop with the best image so far.
        options: of ``Denoiser``, ``Inpainter`` or ``ScanReconstructor``, which document them. Masks
            and truths are paths or arrays like the image, regularizers names, paths or networks.

    Raises:
        InputError: a ValueError that says which option or which part of the image is wrong.
        TypeError: an option that the task does not have.
    """
    with _python_names():
        chosen = reconstructor(task, **options)
        solver = chosen.solver()
        prepared = chosen.prepare(image, solver)
        return chosen.solve([prepared], solver, progress)[0]


def reconstructor(task: str, **options: Any) -> Reconstructor:
    """The options of a task, checked."""
    if task not in RECONSTRUCTORS:
        raise InputError(f"there is no task {task!r}; choose one of {', '.join(RECONSTRUCTORS)}")
    kind = RECONSTRUCTORS[task]
    known = [option.name for option in fields(kind)]
    if unknown := set(options) - set(known):
        raise TypeError(
            f"{task} has no option {sorted(unknown)[0]!r}; it has {', '.join(sorted(known))}"
        )
    return kind(**options)


@contextlib.contextmanager
def _python_names() -> Iterator[None]:
    """Errors that name keywords, ``mask_colour=``, in place of options, ``--mask-colour``."""
    try:
        yield
    except InputError as error:
        text = re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_") + "=", str(error))
        raise InputError(text) from None


def _signature() -> inspect.Signature:
    """All options with their defaults, for ``help`` and notebooks."""
    whole = inspect.signature(reconstruct)
    parameters = {p.name: p for p in whole.parameters.values() if p.kind is not p.VAR_KEYWORD}
    for kind in RECONSTRUCTORS.values():
        for name, parameter in inspect.signature(kind).parameters.items():
            parameters.setdefault(name, parameter)
    return whole.replace(parameters=list(parameters.values()))


reconstruct.__signature__ = _signature()  # type: ignore[attr-defined]
