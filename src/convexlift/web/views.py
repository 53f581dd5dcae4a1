"""What the page says and shows of a run, as HTML."""

from __future__ import annotations

import html
import math
from typing import Any

import torch
from torch import Tensor

from convexlift.web.jobs import Job
from convexlift.web.pictures import NotShown, data_url, false_colours, grey_or_colour, preview
from convexlift.web.plots import closing_plot
from convexlift.web.race import Race
from convexlift.web.results import error_map
from convexlift.web.running import Ending, Outcome, Point, Snapshot
from convexlift.web.uploads import Picture

READY = "Choose a picture and press Start."


def banner(text: str, kind: str = "plain", detail: str = "") -> str:
    """One line on how things stand: ``plain``, ``busy``, ``good``, ``partial`` or ``bad``."""
    rest = f"<span>{html.escape(detail)}</span>" if detail else ""
    return f'<div class="banner {kind}" role="status"><b>{html.escape(text)}</b>{rest}</div>'


def figure(url: str, caption: str, size: tuple[int, int]) -> str:
    """A picture and what it is."""
    scaling = " pixelated" if max(size) < 200 else ""
    text = html.escape(caption)
    return (
        f'<figure class="picture{scaling}"><img alt="{text}" src="{url}" '
        f'width="{size[1]}" height="{size[0]}"><figcaption>{text}</figcaption></figure>'
    )


def chosen(picture: Picture, window: tuple[float, float] = (0.0, 1.0)) -> str:
    """The picture before anything is done to it."""
    height, width = picture.size
    colours = ", in colour" if len(picture.values) == 3 else ""
    caption = f"{picture.name}, {width} x {height}{colours}"
    return figure(data_url(grey_or_colour(preview(picture.values), *window)), caption, picture.size)


def live_picture(snapshot: Snapshot, job: Job) -> str | None:
    """The newest one; None if there is nothing new to show."""
    if snapshot.stated is None:
        return None
    if snapshot.x is None:
        x, caption = snapshot.stated.given, "Given"
    elif not snapshot.points:
        x, caption = snapshot.x, "Start"
    else:
        x, caption = snapshot.x, f"Iteration {snapshot.points[-1].iteration}"
        if (decibel := snapshot.points[-1].psnr) is not None:
            caption += f", {decibel:.2f} dB"
    try:
        return figure(data_url(grey_or_colour(preview(x), *job.window)), caption, job.picture.size)
    except NotShown:
        return None


def live_plot(points: tuple[Point, ...]) -> str:
    """Objective and bound."""
    return closing_plot(
        [float(p.iteration) for p in points],
        [p.objective for p in points],
        [p.lower_bound for p in points],
    )


def progress(points: tuple[Point, ...], tolerance: float) -> str:
    """While it runs."""
    if not points:
        return banner("Running", "busy", "stating the problem")
    last = points[-1]
    gap = f"{last.gap:.1e}" if math.isfinite(last.gap) else "not bounded yet"
    detail = f"iteration {last.iteration}, {last.seconds:.1f} s, gap {gap}, asked {tolerance:g}"
    return banner("Running", "busy", detail)


def verdict(outcome: Outcome) -> str:
    """At the end: what is proved."""
    gap = outcome.gap
    if not math.isfinite(gap):
        return banner(f"{outcome.ending.value}.", "bad", "There is no bound yet: run it longer.")
    proved = f"Certified gap {gap:.1e}"
    meaning = f"no image has an objective more than {_percent(gap)} below this one."
    if gap >= 1:
        meaning = "the lower bound says little yet; run it longer."
    if outcome.ending is Ending.CERTIFIED:
        return banner(f"{proved}.", "good", meaning.capitalize())
    kind = "bad" if outcome.ending is Ending.FAILED else "partial"
    return banner(f"{outcome.ending.value}.", kind, f"{proved}: {meaning}")


def numbers(record: dict[str, Any]) -> str:
    """The few that matter; all are in the JSON file."""
    cells = []
    if record.get("psnr_after") is not None:
        cells.append(
            ("PSNR", f"{record['psnr_after']:.2f} dB", f"from {record['psnr_before']:.2f}")
        )
    if record.get("ssim_after") is not None:
        cells.append(("SSIM", f"{record['ssim_after']:.3f}", f"from {record['ssim_before']:.3f}"))
    cells += [
        ("Objective", f"{record['objective']:.6g}", f"bound {record['lower_bound']:.6g}"),
        ("Gap", f"{record['gap']:.1e}", f"asked {record['tolerance']:g}"),
        ("Iterations", f"{record['iterations']}", f"{record['seconds']:.1f} s"),
        ("Weight", f"{record['weight']:.4g}", html.escape(_noise(record))),
    ]
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd><dd class='more'>{more}</dd></div>"
        for name, value, more in cells
    )
    return f'<dl class="numbers">{tiles}</dl>'


def maps(outcome: Outcome) -> str:
    """Where the error is, if it is known, and where the gap is."""
    figures, size = [], outcome.job.picture.size
    error = error_map(outcome)
    if error is not None:
        highest = max(_high(error), 1e-6)
        caption = f"Error |x - truth|, bright is {highest:.2g}"
        figures.append(figure(data_url(false_colours(_small(error), highest)), caption, size))
    gap = outcome.gap_map.cpu().clamp_min(0)
    if bool(torch.isfinite(gap).all()):
        highest = max(_high(gap), 1e-30)
        caption = f"Certified gap by pixel, bright is {highest:.1e}"
        figures.append(figure(data_url(false_colours(_small(gap), highest)), caption, size))
    return f'<div class="maps">{"".join(figures)}</div>'


def sinogram(counts: Tensor) -> str:
    """Counts by view (down) and bin (across)."""
    plane = counts[:1]
    rows, columns = plane.shape[-2:]
    low, high = float(plane.min()), float(plane.max())
    pixels = grey_or_colour(plane, low, max(high, low + 1e-6))
    caption = f"Sinogram: {rows} views down, {columns} bins across, "
    caption += f"{low:.0f} to {high:.0f} counts"
    return f'<div class="wide">{figure(data_url(pixels), caption, (rows, columns))}</div>'


def standings(race: Race) -> str:
    """The table of a race."""
    bound, rows = race.bound, []
    for lap in race.laps:
        if lap.objective and math.isfinite(bound):
            reached = (lap.objective[-1] - bound) / (abs(bound) or 1.0)
            cells = [f"{lap.iterations}", f"{lap.seconds[-1]:.1f} s", f"{reached:.1e}"]
            cells += [_first(lap.seconds, lap.objective, bound, level) for level in (1e-2, 1e-3)]
        else:
            cells = ["-"] * 5
        rows.append((lap.name, *cells, lap.note or lap.steps))
    head = ("Method", "Iterations", "Time", "Distance", "To 1e-2", "To 1e-3", "Steps")
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(
        f'<tr><th><i class="swatch line-{i}"></i>{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table class="standings"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def description(job: Job) -> str:
    """A job in a line."""
    height, width = job.picture.size
    names = {"denoise": "Denoise", "inpaint": "Inpaint", "ct": "CT"}
    return f"{names[job.name]} {job.picture.name}, {width} x {height}, with {job.regularizer}"


def _first(seconds: list[float], objective: list[float], bound: float, level: float) -> str:
    for when, value in zip(seconds, objective, strict=True):
        if value - bound <= level * abs(bound):
            return f"{when:.1f} s"
    return "-"


def _noise(record: dict[str, Any]) -> str:
    if "noise_level" in record:
        short = {"gaussian": "sigma", "salt-and-pepper": "hit"}[record["noise"]]
        return f"{short} {record['noise_level']:.3g}"
    return f"{record['views']} views" if "views" in record else ""


def _percent(gap: float) -> str:
    return f"{100 * gap:.2g} %"


def _high(values: Tensor) -> float:
    """Nearly the largest: single pixels are not to darken all others."""
    flat = values.flatten()
    return float(flat.kthvalue(max(1, int(0.995 * len(flat)))).values)


def _small(values: Tensor) -> Tensor:
    return preview(values[None, None])[0, 0]
