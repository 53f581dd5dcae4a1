"""HTML fragments of the page: status lines, pictures, numbers, maps and plots.

Plots are SVG in the colours of the style sheet: sharp, small, and they follow dark mode. Gradio's
own line plot cannot shade the gap between two curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from torch import Tensor

from convexlift.images import weight_picture
from convexlift.problems.claims import Guarantee, in_words, percent
from convexlift.reconstruction import PreparedImage
from convexlift.reconstruction.noise import Noise
from convexlift.solvers.solution import Status
from convexlift.web.pictures import (
    InputPicture,
    NotShown,
    data_url,
    false_colours,
    grey_or_colour,
    preview,
)
from convexlift.web.run import HINTS, PageJob, Point, RunResult, Snapshot

TEMPLATES = Environment(
    loader=PackageLoader("convexlift.web"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENDINGS = {
    Status.CONVERGED: "Certified",
    Status.STOPPED: "Stopped by you",
    Status.TIME_LIMIT: "Stopped at the time limit",
    Status.ITERATION_LIMIT: "Stopped at the iteration limit",
    Status.PRECISION_LIMIT: "Stopped at the limit of single precision",
    Status.NOT_FINITE: "Stopped: the iterates were not finite",
}
READY, AWAITED = "Press Start.", "Drop your file into the box, or click the box."
_WIDTH, _HEIGHT = 480, 330  # of plots, in units of about a pixel
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 16, 56  # margins of plots; seven large digits fit
_FRAGMENTS = TEMPLATES.get_template("fragments.html").module

Points = Sequence[tuple[float, float]]
Figure = tuple[str, str, tuple[int, int]]
"""URL, caption and size of a picture."""
Map = tuple[str, str, str, str, str, tuple[int, int]]
"""URL, title, explanation, the meaning of black and of bright, and size of a map."""


def fragment(name: str, *values: Any, **more: Any) -> str:
    """A macro of ``fragments.html``; values are escaped."""
    return str(getattr(_FRAGMENTS, name)(*values, **more))


def banner(text: str, kind: str = "plain", detail: str = "") -> str:
    """The status line: ``plain``, ``busy``, ``good``, ``partial`` or ``bad``."""
    return fragment("banner", text, kind, detail)


def chosen_picture(picture: InputPicture) -> str:
    """The picture before a run."""
    height, width = picture.size
    caption = f"{picture.name}, {width} x {height}"
    if picture.values.shape[1] == 3:
        caption += ", in colour"
    if picture.scaled_from is not None:
        rows, columns = picture.scaled_from
        caption += f", scaled down from {columns} x {rows}"
    return fragment("figure", *_picture(picture.values, caption, picture))


def live_picture(snapshot: Snapshot, job: PageJob) -> str | None:
    """The latest image of a run; None if it cannot be shown."""
    x, caption = snapshot.x, "Given"
    if x is None:
        x = None if snapshot.prepared is None else snapshot.prepared.given
    else:
        iteration, decibel = snapshot.points[-1].iteration, snapshot.points[-1].psnr
        step = "Iteration" if snapshot.points[-1].tiles is None else "Tile"
        caption = f"{step} {iteration}" if iteration else "Start"
        caption += "" if decibel is None else f", {decibel:.2f} dB"
    if x is None:
        return None
    try:
        return fragment("figure", *_picture(x, caption, job.picture))
    except NotShown:
        return None


def stopping() -> str:
    """The status line between Stop and the end of the run."""
    return banner("Stopping...", "busy", "The best picture so far is kept, with its proof.")


def progress(points: Sequence[Point], tolerance: float) -> str:
    """The status line during a run."""
    if not points:
        return banner("Running:", "busy", "preparing the problem")
    last = points[-1]
    solved = f"solved to within {percent(last.gap)}" if last.gap < 1 else "nothing proved"
    target = f"{solved} so far, target {percent(tolerance)}"
    if last.tiles is not None:
        sweep, done = divmod(last.iteration - 1, last.tiles)
        left = last.seconds * (last.tiles - done - 1) / last.iteration
        again = f" of sweep {sweep + 1}" if sweep else ""
        part = f"tile {done + 1} of {last.tiles}{again}"
        time = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
        return banner("Running:", "busy", f"{part}; {time} left; {target}")
    return banner("Running:", "busy", f"{target}; iteration {last.iteration}, {last.seconds:.1f} s")


def verdict(result: RunResult) -> str:
    """The status line at the end of a run: what is proved and what is not."""
    found = result.reconstruction
    gap, scope = found.record["gap"], Guarantee[found.record["guarantee"]]
    heading, meaning = in_words(gap, scope, found.problem.regularizer.premise)
    if result.status is Status.CONVERGED:
        return banner(f"{heading}:", "good", meaning)
    kind = "bad" if gap is None or result.status is Status.NOT_FINITE else "partial"
    return banner(f"{ENDINGS[result.status]}.", kind, f"{heading}: {meaning}")


def sinogram(name: str, prepared: PreparedImage) -> str:
    """The data of a scan during the run; empty for other tasks."""
    return fragment("details", name, _sinogram(name, prepared), ())


def facts(name: str, result: RunResult, record: dict[str, Any]) -> str:
    """Quality, remarks, and numbers, as in the JSON."""
    meaning = f"{record['meaning'][:1].upper()}{record['meaning'][1:]}."
    return fragment("facts", name, _quality(record), _remarks(result), meaning, _numbers(record))


def details(name: str, result: RunResult) -> str:
    """The sinogram, and maps."""
    return fragment("details", name, _sinogram(name, result.prepared), _maps(result))


def convergence_plot(points: Sequence[Point], ended: bool = False) -> str:
    """Objective and lower bound against iterations or tiles, with the gap between them shaded.

    Empty at the end of a run with fewer than two checks, which make no curve.
    """
    if ended and len(points) < 2:
        return ""
    tiled = bool(points) and points[-1].tiles is not None
    across = "tiles" if tiled else "iterations"
    lines = {
        "objective of the picture": _finite((p.iteration, p.objective) for p in points),
        "proven bound: no picture is below": _finite((p.iteration, p.lower_bound) for p in points),
    }
    # The first values would flatten all others; they leave the plot when more have come.
    values = [y for line in lines.values() for _, y in line[len(line) // 3 :]]
    if not values:
        title = "The proof follows the last tile." if tiled else "The proof will appear here."
        return fragment("empty_plot", title, _WIDTH, _HEIGHT)
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) + 1e-6 * abs(high) + 1e-12
    low, high = low - margin, high + margin
    left, right, top, base = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    end = max((x for line in lines.values() for x, _ in line), default=0) or 1.0

    def across_to(x: float) -> float:
        return round(left + x / end * (right - left), 1)

    def down_to(y: float) -> float:
        # Values far outside are clipped, since browsers limit coordinates.
        share = min(max((y - low) / (high - low), -4.0), 5.0)
        return round(base - share * (base - top), 1)

    curves = [[(across_to(x), down_to(y)) for x, y in line] for line in lines.values()]
    objective, bound = curves
    return fragment(
        "plot",
        f"Objective and lower bound against {across}",
        (_WIDTH, _HEIGHT),
        (left, right, top, base),
        list(lines),
        curves,
        [*objective, *reversed(bound)] if objective and bound else [],
        [(down_to(level), label) for level, label in _linear_levels(low, high)],
        # Iterations and tiles are whole numbers.
        [_tick(across_to(x), f"{x:g}") for x in nice_steps(0, end, 6) if x == int(x)],
        across,
    )


def nice_steps(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers between two numbers."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _tick(x: float, label: str) -> tuple[float, str, str]:
    """Place and anchor of a label below the axis; one that would be cut off ends at the edge."""
    widest = 0.6 * 16 * len(label)  # on phones: see style.css
    return (_WIDTH - 1, "end", label) if x + widest / 2 > _WIDTH else (x, "middle", label)


def _linear_levels(low: float, high: float) -> list[tuple[float, str]]:
    levels = nice_steps(low, high)
    step = levels[1] - levels[0] if len(levels) > 1 else abs(high) or 1.0
    thousands = max(map(abs, levels), default=0) >= 1e4 and step >= 100  # else they need decimals
    unit, mark = (1000.0, "k") if thousands else (1.0, "")
    digits = next(
        d for d in range(20) if math.isclose(round(step / unit, d), step / unit, rel_tol=1e-3)
    )
    return [(level, f"{level / unit:.{digits}f}{mark}" if level else "0") for level in levels]


def _quality(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Comparisons with the clean picture, if there is one."""
    cells = []
    if record.get("psnr") is not None:
        cells.append(("PSNR", f"{record['psnr']:.2f} dB", f"from {record['psnr_before']:.2f}"))
    if record.get("ssim") is not None:
        cells.append(("SSIM", f"{record['ssim']:.3f}", f"from {record['ssim_before']:.3f}"))
    return cells


def _numbers(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    data = f"{record['views']} views" if "views" in record else ""
    if (noise := record["noise"]) is not None:
        gaussian, level = noise["model"] == "gaussian", noise["level"]
        data = f"sigma {level:.3g}" if gaussian else f"{100 * level:.3g} % of pixels"
    bound, gap = record["lower_bound"], record["gap"]
    target = percent(record["settings"]["tolerance"])
    return [
        ("Objective", f"{record['objective']:.6g}", "of this picture"),
        ("Lower bound", "none" if bound is None else f"{bound:.6g}", "of all pictures"),
        ("Relative gap", "unknown" if gap is None else percent(gap), f"target {target}"),
        ("Iterations", f"{record['iterations']}", f"{record['seconds']:.1f} s"),
        ("Weight", f"{record['weight']['value']:.4g}", data),
    ]


def _remarks(result: RunResult) -> list[str]:
    """Notes of the reconstruction; the part after ``;``, which names an option, becomes advice."""
    parts = [note.partition(";") for note in result.prepared.notes]
    said = [f"{said}. {HINTS[result.job.task] if option else ''}" for said, _, option in parts]
    noise = result.prepared.noise
    return [_found(noise), *said] if noise is not None and noise.estimated else said


def _found(noise: Noise) -> str:
    """The estimated noise, in the units of the page."""
    if noise.kind == "salt-and-pepper":
        return f"Salt and pepper was found in {100 * noise.level:.2g} % of the pixels."
    where = ", as it was before JPEG compression" if noise.before_jpeg else ""
    where = " in single channels of the JPEG" if noise.jpeg_channels else where
    return f"Gaussian noise of level {noise.level:.2g} was found{where}."


def _maps(result: RunResult) -> list[Map]:
    """Maps of the error, if the truth is known, of the gap, and of weights, if they vary."""
    found, size = result.reconstruction, result.job.picture.size
    maps: list[Map] = []
    if result.job.compared and found.truth is not None:
        x = found.compared(found.solution.x.cpu()).reshape(found.truth.shape)  # colours as planes
        error = (x - found.truth).abs().mean((0, 1))
        high = max(_nearly_largest(error), 1e-6)
        bright = f"{100 * high:.2g} % of white"
        about = "Where the result differs from the clean picture."
        maps.append((_false_colour_url(error, high), "Error", about, "not at all", bright, size))
    known = found.gap_map is not None and found.record["gap"] is not None  # tiles have no map
    gap = found.gap_map.cpu().sum((0, 1)).clamp_min(0) if found.gap_map is not None else None
    if known and gap is not None and bool(torch.isfinite(gap).all()):
        mean = max(float(gap.mean()), 1e-30)
        high = max(_nearly_largest(gap), mean)
        bright = f"{high / mean:.2g} times the average"
        about = "Which pixels make up the gap that remains."
        maps.append((_false_colour_url(gap, high), "Gap", about, "none of it", bright, size))
    if found.weight_map is not None:
        url = _false_colour_url(weight_picture(found.weight_map)[0, 0], 1.0)
        about = "How strongly the regularizer smooths, chosen by its guide from these data."
        maps.append((url, "Weights", about, "detail kept", "smoothed strongly", size))
    return maps


def _nearly_largest(values: Tensor) -> float:
    """A high quantile instead of the maximum: a single pixel should not darken all others."""
    flat = values.flatten()
    return float(flat.kthvalue(max(1, int(0.995 * len(flat)))).values)


def _false_colour_url(values: Tensor, high: float) -> str:
    return data_url(false_colours(preview(values[None, None])[0, 0], high))


def _sinogram(name: str, prepared: PreparedImage) -> Figure | None:
    """Counts by view (down) and bin (across)."""
    if name != "ct":
        return None
    counts = prepared.data.fidelity.y
    rows, columns = counts.shape[-2:]
    low, high = float(counts.min()), float(counts.max())
    pixels = grey_or_colour(counts[:1], low, max(high, low + 1e-6))
    caption = f"Sinogram: {rows} views down, {columns} bins across, {low:.0f} to {high:.0f} counts"
    return data_url(pixels), caption, (rows, columns)


def _picture(x: Tensor, caption: str, picture: InputPicture) -> Figure:
    return data_url(grey_or_colour(preview(x), *picture.window)), caption, picture.size


def _finite(points: Any) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
