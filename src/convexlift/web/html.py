"""HTML fragments of the page: status lines, pictures, numbers, maps, tables and plots.

Plots are SVG in the colours of the style sheet: sharp, small, and they follow dark mode. Gradio's
own line plot has no logarithmic axis and cannot shade the gap between two curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from torch import Tensor

from convexlift.images import WEIGHT_CAPTION, weight_picture
from convexlift.reconstruction import PreparedImage
from convexlift.solvers.solution import Status
from convexlift.web.pictures import (
    InputPicture,
    NotShown,
    data_url,
    false_colours,
    grey_or_colour,
    preview,
)
from convexlift.web.race import Race
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
READY = "Choose a picture and press Start."
SMALL, LARGE = (480, 330), (800, 400)
"""Width and height of plots, in units of about a pixel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 50  # margins of plots
_FRAGMENTS = TEMPLATES.get_template("fragments.html").module

Points = Sequence[tuple[float, float]]
Figure = tuple[str, str, tuple[int, int]]
"""URL, caption and size of a picture."""


def fragment(name: str, *values: Any, **more: Any) -> str:
    """A macro of ``fragments.html``; values are escaped."""
    return str(getattr(_FRAGMENTS, name)(*values, **more))


def banner(text: str, kind: str = "plain", detail: str = "") -> str:
    """The status line: ``plain``, ``busy``, ``good``, ``partial`` or ``bad``."""
    return fragment("banner", text, kind, detail)


def chosen_picture(picture: InputPicture) -> str:
    """The picture before a run."""
    height, width = picture.size
    colours = ", in colour" if picture.values.shape[1] == 3 else ""
    caption = f"{picture.name}, {width} x {height}{colours}"
    return fragment("figure", *_picture(picture.values, caption, picture))


def live_picture(snapshot: Snapshot, job: PageJob) -> str | None:
    """The latest image of a run; None if there is none to show."""
    x, caption = snapshot.x, "Given"
    if x is None:
        x = None if snapshot.prepared is None else snapshot.prepared.given
    else:
        iteration, decibel = snapshot.points[-1].iteration, snapshot.points[-1].psnr
        caption = f"Iteration {iteration}" if iteration else "Start"
        caption += "" if decibel is None else f", {decibel:.2f} dB"
    if x is None:
        return None
    try:
        return fragment("figure", *_picture(x, caption, job.picture))
    except NotShown:
        return None


def progress(points: Sequence[Point], tolerance: float) -> str:
    """The status line during a run."""
    if not points:
        return banner("Running", "busy", "preparing the problem")
    last = points[-1]
    gap = f"{last.gap:.1e}" if math.isfinite(last.gap) else "not bounded yet"
    detail = f"iteration {last.iteration}, {last.seconds:.1f} s, gap {gap}, target {tolerance:g}"
    return banner("Running", "busy", detail)


def verdict(result: RunResult) -> str:
    """The status line at the end of a run: what is proved."""
    gap, ending = result.reconstruction.record["gap"], f"{ENDINGS[result.status]}."
    if gap is None:
        return banner(ending, "bad", "There is no lower bound yet: run it longer.")
    proved = f"Certified gap {gap:.1e}"
    premise = result.reconstruction.problem.regularizer.premise
    meaning = f"{premise}no image has an objective more than {100 * gap:.2g} % below this one."
    if gap >= 1:
        meaning = "the lower bound says little yet; run it longer."
    if result.status is Status.CONVERGED:
        return banner(f"{proved}.", "good", meaning.capitalize())
    kind = "bad" if result.status is Status.NOT_FINITE else "partial"
    return banner(ending, kind, f"{proved}: {meaning}")


def sinogram(name: str, prepared: PreparedImage) -> str:
    """The data of a scan, during the run; nothing for other tasks."""
    return fragment("details", name, (), _sinogram(name, prepared), (), ())


def details(name: str, result: RunResult, record: dict[str, Any]) -> str:
    """Numbers, remarks, the sinogram, and maps; all numbers are in the JSON."""
    figure = _sinogram(name, result.prepared)
    return fragment("details", name, _numbers(record), figure, _maps(result), _remarks(result))


def standings(race: Race) -> str:
    """The table of a race."""
    rows = []
    for lap in race.laps:
        cells = ["-"] * 5
        if distances := race.distances(lap):
            seconds, reached = distances[-1]
            cells = [f"{lap.iterations}", f"{seconds:.1f} s", f"{reached:.1e}"]
            cells += [_first_below(level, distances) for level in (1e-2, 1e-3)]
        rows.append((lap.name, *cells, lap.note or lap.steps))
    head = ("Method", "Iterations", "Time", "Distance", "To 1e-2", "To 1e-3", "Step sizes")
    return fragment("standings", head, rows)


def description(job: PageJob) -> str:
    """A job in one line."""
    height, width = job.picture.size
    task = {"denoise": "Denoise", "inpaint": "Inpaint", "ct": "CT"}[job.task]
    name, regularizer = job.picture.name, job.options["regularizer"]
    return f"{task} {name}, {width} x {height}, with {regularizer}"


def convergence_plot(points: Sequence[Point]) -> str:
    """Objective and lower bound against iterations, with the gap between them shaded."""
    lines = {
        "objective": _finite((p.iteration, p.objective) for p in points),
        "lower bound": _finite((p.iteration, p.lower_bound) for p in points),
    }
    # The first values would flatten all others; they leave the plot as more come.
    values = [y for line in lines.values() for _, y in line[len(line) // 3 :]]
    if not values:
        return fragment("empty_plot", "objective and lower bound", SMALL)
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) + 1e-6 * abs(high) + 1e-12
    low, high = low - margin, high + margin
    title = "Objective and lower bound against iterations"
    levels = _linear_levels(low, high)
    return _plot(
        title, SMALL, lines, "iterations", levels, lambda y: (y - low) / (high - low), True
    )


def race_plot(race: Race | None) -> str:
    """The distance of each method from the best lower bound, on a logarithmic scale."""
    lines: dict[str, Points] = {}
    if race is not None:
        for lap in race.laps:
            lines[lap.name] = [(x, y) for x, y in _finite(race.distances(lap)) if y > 0]
    values = [y for line in lines.values() for _, y in line]
    if not values:
        return fragment("empty_plot", "no results yet", LARGE)
    first = math.floor(math.log10(min(values)) - 0.05)
    last = math.ceil(math.log10(max(values)) + 0.05)
    levels = [(10.0**k, f"1e{k}") for k in range(first, last + 1, max(1, (last - first) // 6))]
    return _plot(
        "Distance from the best lower bound against seconds", LARGE, lines, "seconds", levels,
        lambda y: (math.log10(y) - first) / (last - first),
    )  # fmt: skip


def nice_steps(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers between two numbers."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _plot(
    title: str, size: tuple[int, int], lines: dict[str, Points], across: str,
    levels: Sequence[tuple[float, str]], share: Callable[[float], float], shaded: bool = False,
) -> str:  # fmt: skip
    """Curves in a frame; ``share`` maps a value to its height, from 0 to 1."""
    left, right, top, base = _LEFT, size[0] - _RIGHT, _TOP, size[1] - _BOTTOM
    end = max((x for line in lines.values() for x, _ in line), default=0) or 1.0

    def across_to(x: float) -> float:
        return round(left + x / end * (right - left), 1)

    def down_to(y: float) -> float:
        # Values far outside are clipped, since browsers limit coordinates.
        return round(base - min(max(share(y), -4.0), 5.0) * (base - top), 1)

    curves = [[(across_to(x), down_to(y)) for x, y in line] for line in lines.values()]
    band = [*curves[0], *reversed(curves[1])] if shaded and curves[0] and curves[1] else []
    return fragment(
        "plot", title, size, (left, right, top, base), list(lines), curves, band,
        [(down_to(level), label) for level, label in levels],
        [(across_to(x), f"{x:g}") for x in nice_steps(0, end, 6)],
        across,
    )  # fmt: skip


def _linear_levels(low: float, high: float) -> list[tuple[float, str]]:
    levels = nice_steps(low, high)
    step = levels[1] - levels[0] if len(levels) > 1 else abs(high) or 1.0
    unit, mark = (1000.0, "k") if max(map(abs, levels), default=0) >= 1e4 else (1.0, "")
    digits = next(
        d for d in range(20) if math.isclose(round(step / unit, d), step / unit, rel_tol=1e-3)
    )
    return [(level, f"{level / unit:.{digits}f}{mark}" if level else "0") for level in levels]


def _numbers(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    cells = []
    if record.get("psnr") is not None:
        cells.append(("PSNR", f"{record['psnr']:.2f} dB", f"from {record['psnr_before']:.2f}"))
    if record.get("ssim") is not None:
        cells.append(("SSIM", f"{record['ssim']:.3f}", f"from {record['ssim_before']:.3f}"))
    data = f"{record['views']} views" if "views" in record else ""
    if (noise := record["noise"]) is not None:
        data = f"{'sigma' if noise['model'] == 'gaussian' else 'hit'} {noise['level']:.3g}"
    bound, gap = (math.inf if record[k] is None else record[k] for k in ("lower_bound", "gap"))
    return [
        *cells,
        ("Objective", f"{record['objective']:.6g}", f"bound {bound:.6g}"),
        ("Gap", f"{gap:.1e}", f"target {record['settings']['tolerance']:g}"),
        ("Iterations", f"{record['iterations']}", f"{record['seconds']:.1f} s"),
        ("Weight", f"{record['weight']['value']:.4g}", data),
    ]


def _remarks(result: RunResult) -> list[str]:
    """Notes of the reconstruction; where one names an option after ``;``, the page's advice."""
    parts = [note.partition(";") for note in result.prepared.notes]
    return [f"{said}. {HINTS[result.job.task] if option else ''}" for said, _, option in parts]


def _maps(result: RunResult) -> list[Figure]:
    """Where the error is, if the truth is known, where the gap is, and weights, if they vary."""
    maps, found = [], result.reconstruction
    if found.truth is not None:
        x = found.solution.x.cpu().reshape(found.truth.shape)  # colours as planes
        error = (x - found.truth).abs().mean((0, 1))
        maps.append((error, "Error |x - truth|, bright is {:.2g}", 1e-6))
    assert found.gap_map is not None
    gap = found.gap_map.cpu().sum((0, 1)).clamp_min(0)
    if bool(torch.isfinite(gap).all()):
        maps.append((gap, "Certified gap by pixel, bright is {:.1e}", 1e-30))
    figures = []
    for values, caption, least in maps:
        # Nearly the largest value: a single pixel should not darken all others.
        flat = values.flatten()
        high = max(float(flat.kthvalue(max(1, int(0.995 * len(flat)))).values), least)
        pixels = false_colours(preview(values[None, None])[0, 0], high)
        figures.append((data_url(pixels), caption.format(high), result.job.picture.size))
    if found.weight_map is not None:
        pixels = false_colours(preview(weight_picture(found.weight_map))[0, 0], 1.0)
        caption = f"Weights read off the data. {WEIGHT_CAPTION}"
        figures.append((data_url(pixels), caption, result.job.picture.size))
    return figures


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


def _first_below(level: float, distances: Points) -> str:
    return next((f"{when:.1f} s" for when, distance in distances if distance <= level), "-")


def _finite(points: Any) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
