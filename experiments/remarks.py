"""Sentences that several experiments say about what they found."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from experiments.comparing import Run, SideBySide
from experiments.curves import Curve
from experiments.paper import Printed
from experiments.parts import Part
from experiments.tables import Comparison, small


def psnr_comparisons(
    found: SideBySide,
    data: Part,
    paper_data: Printed,
    runs: Mapping[str, Run],
    paper: Mapping[str, tuple[Printed, Printed]],
    moments: tuple[int, int] | None = None,
    others: Mapping[str, Run] | None = None,
) -> list[Comparison]:
    """Mean PSNR of data and reconstructions beside the corners of the paper's pictures.

    Args:
        found: all runs.
        data: the part of the data.
        paper_data: the paper's PSNR of its data.
        runs: by the paper's names of the methods.
        paper: PSNR after few and after many iterations, by the same names.
        moments: those iterations, where the runs have others (quick versions are shorter).
        others: the same methods with step sizes that suit the network, by the same names; told
            where the paper's do not.
    """
    quality = np.asarray(data.values["psnr"])
    several = len(quality) > 1
    rows = [
        Comparison(
            "Data", paper_data, float(quality.mean()), "neither", 1.0,
            "mean of the images; the paper shows one" if several else "another image",
            float(quality.std(ddof=1)) if several else None, data.values["faithful"],
        )
    ]  # fmt: skip
    for label, printed in paper.items():
        run = runs[label]
        better = (others or {}).get(label)
        if better is not None and (fits(found, run) or not closer(found, better, run)):
            better = None
        ours = (found.early, found.late)
        for each, said, k in zip(printed, moments or ours, ours, strict=True):
            remarks = [steps_text(run)]
            if said != k:
                remarks.append(f"ours after {k}")
            if better is not None:
                remarks.append(
                    f"does not suit this network, {steps_text(better)}: {found.psnr(better, k):.2f}"
                )
            rows.append(
                Comparison(
                    f"{label}, {said} iterations", each, found.psnr(run, k),
                    "higher" if run.family == "paper" else "neither", 0.5, "; ".join(remarks),
                    found.psnr_deviation(run, k), data.values["faithful"],
                )
            )  # fmt: skip
    return rows


def fits(found: SideBySide, run: Run, error: float = 1e-2) -> bool:
    """Whether its step sizes suit the network: it gets near the optimum in the end."""
    return found.error(run, found.late) <= error


def closer(found: SideBySide, run: Run, other: Run) -> bool:
    """Whether it ends nearer to the optimum than the other one."""
    return found.error(run, found.late) < found.error(other, found.late)


def steps_text(run: Run) -> str:
    """Its step sizes."""
    values = ", ".join(f"{value:g}" for value in run.parameters)
    return f"c = ({values})" if len(run.parameters) > 1 else f"step {values}"


def percent(value: float) -> str:
    """Two digits, or no fraction."""
    if not math.isfinite(value):
        return "nothing"
    return f"{100 * value:.0f} %" if value >= 1 else f"{100 * value:.2g} %"


def images_used(data: Part) -> str:
    """Which images, and what that means if they are not the paper's."""
    names = data.values["names"]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    text = f"Images: {len(names)} of the {data.values['source']}, {shown}."
    if data.values["faithful"]:
        return text
    return (
        f"{text} Only its own test faces can be held against the paper's numbers, and the network "
        "was trained on aligned faces: "
        "PSNR says little here, while objectives and certificates mean what they mean on faces."
    )


def error_text(found: SideBySide, run: Run, iteration: int) -> str:
    """The mean objective error, as far as the optimum is known."""
    known = float(found.optimum.gap.max())
    error = found.error(run, iteration)
    return f"less than {percent(known)}" if error < known else percent(error)


def certificate_reveals(found: SideBySide, *runs: Run) -> str:
    """How far from optimal the paper's stopping points are, and how our default compares."""
    moments = (found.early, found.late)
    parts = []
    for run in (*runs, found.runs["default"]):
        errors = " and ".join(small(found.error(run, k)) for k in moments)
        gaps = " and ".join(small(found.own_gap(run, k)) for k in moments)
        parts.append(f"{run.label} {errors}, where its own certificate says {gaps}")
    return (
        f"What the certificate reveals: after {found.early} and {found.late} iterations, where the "
        f"paper looks, relative objective errors are: {'; '.join(parts)}. These errors are known "
        f"to {small(float(found.optimum.gap.max()))}, by the best lower bound of all runs."
    )


def unbounded_note(found: SideBySide, parts: Mapping[str, Part], prefix: str = "") -> str:
    """Whether the box [0, 1], which the certificate needs, changes what the paper's methods do."""
    texts = []
    for name, part in parts.items():
        if not name.startswith(f"{prefix}unbounded-"):
            continue
        free, inside = Curve.of(part), found.runs[part.values["key"]].curve
        change = (free.objective[-1, 0] - inside.objective[-1, 0]) / abs(inside.objective[-1, 0])
        quality = free.psnr[-1, 0] - inside.psnr[-1, 0]
        texts.append(f"{part.values['label']} by {change:+.0e} and {quality:+.2f} dB")
    return (
        "The paper states no box. Here images lie in [0, 1], since a certificate for all images "
        "there is much sharper than one for all images whatsoever; gradient steps are projected "
        "onto it."
        + (
            " Without the box the last objective (relative) and PSNR of the first image change for "
            f"{'; '.join(texts)}."
            if texts
            else ""
        )
    )
