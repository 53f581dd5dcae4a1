"""Records of results in words: a line for each, a table, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from convexlift.problems.claims import Guarantee, in_words, percent, worst_in_words
from convexlift.reconstruction.noise import Noise

EACH_RECORD = "the JSON file of each result"
STATISTICS = ("", "smallest", "median", "largest")


def summary_rows(records: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of the table at the end of many files."""
    rows = []
    for label, key, form in (
        ("noise level", "noise", ".3g"), ("weight", "weight", ".3g"),
        ("solved to within", "gap", "%"), ("seconds", "seconds", ".1f"),
        ("PSNR, dB", "psnr", ".2f"), ("SSIM", "ssim", ".3f"),
    ):  # fmt: skip
        found = [value_of(record, key) for record in records]
        numbers = sorted(value for value in found if value is not None and math.isfinite(value))
        if numbers:
            three = (numbers[0], median(numbers), numbers[-1])
            rows.append((label, *(percent(v) if form == "%" else format(v, form) for v in three)))
    return rows


def value_of(record: dict[str, Any], key: str) -> float | None:
    """A number of a record; noise and weight are records of their own."""
    value = record.get(key)
    if isinstance(value, dict):
        value = value.get("level" if key == "noise" else "value")
    return None if value is None else float(value)


def duration(seconds: float) -> str:
    """A rough time: "12 s", "3 min", "1 h 20 min"."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def verdict(records: Sequence[dict[str, Any]], premise: str, where: str = EACH_RECORD) -> str:
    """The statement proven for all files, in plain words, and the place of the numbers."""
    claims = [(record["gap"], Guarantee[record["guarantee"]]) for record in records]
    heading, meaning = worst_in_words(claims, premise)
    return f"{heading}: {meaning} (Objective, lower bound and gap: {where}.)"


def share(gap: float, tolerance: float) -> float:
    """The fraction done: the logarithm of the gap, between 1 and the tolerance."""
    if not 0 < gap < 1 or not 0 < tolerance < 1:
        return 0.0
    return min(1.0, math.log(gap) / math.log(tolerance))


def line(record: dict[str, Any], adaptive: bool = False) -> str:
    """One line about a file: noise, weight, gap, and time."""
    parts = [f"{record['input']} -> {record['output']}:"]
    if (noise := record["noise"]) is not None:
        parts.append(f"{Noise.from_json(noise)};")
    parts.append(f"weight {record['weight']['value']:.3g} ({_rule(record, adaptive)});")
    solved, _ = in_words(record["gap"], Guarantee[record["guarantee"]])
    ended = record["status"].lower().replace("_", " ")
    early = "" if ended == "converged" else f"{ended}, "
    parts.append(
        f"{solved.lower()} ({early}{record['iterations']} iterations, {record['seconds']:.1f} s)"
    )
    if record.get("psnr") is not None:
        before = record.get("psnr_before")
        from_ = "" if before is None else f"{before:.2f} -> "
        against = ""
        if record.get("simulated"):
            against = " against the given slice, which may have noise of its own"
        parts.append(f"; PSNR {from_}{record['psnr']:.2f} dB{against}")
    return " ".join(parts).replace(" ;", ";")


def _rule(record: dict[str, Any], adaptive: bool) -> str:
    """The origin of the weight."""
    rule, settings, noise = record["weight"]["rule"], record["settings"], record["noise"]
    trials = len(record["weight"].get("trials", ()))
    found = f"{rule}, {trials} solves" if trials else f"start of {rule}, whose search did not end"
    if rule == "given":
        found = "given"
    elif rule == "card" and adaptive:
        found = "the regularizer scales with the noise"
    elif rule == "card":
        texture = settings["task"] == "denoise" and noise and noise["model"] == "gaussian"
        scaled = ", scaled to noise and texture" if texture else ", scaled to the noise"
        if (level := record["weight"].get("card_level")) is not None:
            scaled = f" for noise {level:.3g}, scaled to the noise"
        found = "of the card" + scaled * (settings["task"] != "ct")
    return found if settings["strength"] == 1 else f"{found}; strength {settings['strength']:g}"
