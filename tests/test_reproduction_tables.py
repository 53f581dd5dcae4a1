"""What reports are made of: verdicts, remarks, tables and legends."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.comparing import Column, Optimum, Run, SideBySide, psnr_comparisons
from experiments.document import (
    OTHER_DATA,
    OTHER_NETWORK,
    Comparison,
    Document,
    Printed,
    Section,
    Table,
    page,
)
from experiments.measuring import Curve
from experiments.runner import Part


def straight(step, last):
    """A run of one image whose objective ends at ``last``, and whose PSNR is 10 times its step."""
    checks, one = np.array([0, 10]), np.ones((2, 1))
    objective = np.array([[2.0], [last]])
    curve = Curve(checks, checks, objective, one, one, 10 * step * one, 0 * one, one, checks, one)
    return Run(f"sm-c-{step}", f"SM-C, {step}", "SM-C", True, (step,), curve)


def column(run, note=""):
    optimum = Optimum(np.array([1.0]), np.array([0.9]))
    data = Part({"psnr": [11.0], "names": ["a"], "source": "faces", "faithful": True})
    return Column(SideBySide({run.key: run}, optimum, 1.0, 10, 10), data, {"SM-C": run}, note)


def test_both_columns_say_what_they_are():
    printed = {"SM-C": (Printed(10.0, "Figure"), Printed(10.0, "Figure"))}
    theirs, ours = column(straight(1, 1.5), "our R"), column(straight(3, 1.0))
    noisy, iterations = Printed(11.0, "Figure"), (15, 200)
    first, _, last = psnr_comparisons(noisy, printed, iterations, theirs, ours)
    assert first.verdict == "agrees"
    assert last.cells[2:] == (
        "10.00", "10.00", "30.00",
        "Agrees. As the authors: step 1, 10 iterations, our R. Ours: step 3, 10 iterations.",
    )  # fmt: skip
    elsewhere = replace(theirs, other=OTHER_NETWORK, data_note="as released")
    without = replace(ours, runs={})
    first, _, last = psnr_comparisons(noisy, printed, iterations, elsewhere, without)
    assert first.cells[-1] == "Agrees. As the authors: as released."
    assert last.cells[3:] == (
        "10.00", "not measured",
        "Another network. As the authors: step 1, 10 iterations, our R. "
        "Ours: only our default was run.",
    )  # fmt: skip
    nothing = psnr_comparisons(noisy, printed, iterations, None, None)[-1]
    assert nothing.cells[3:] == ("not measured", "not measured", "Not measured.")


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(10.4, "agrees"), (12.0, "higher"), (8.0, "lower"),
     (None, "not measured"), (math.inf, "not reached")],
)  # fmt: skip
def test_verdicts(ours, verdict):
    comparison = Comparison("x", Printed(10.0, "1"), ours)
    assert comparison.verdict == verdict
    if not verdict.startswith("not"):
        assert replace(comparison, other=OTHER_DATA).verdict == "other data"
        assert replace(comparison, authors=10.0).verdict == "agrees"  # which counts more


def test_tables_as_files():
    table = Table("t", ("a", "b|c"), (("1", "x<y|z"), ("`a&b`", "")), "A `caption`")
    assert table.as_csv() == "a,b|c\n1,x<y|z\n`a&b`,\n"
    assert "| 1 | x<y\\|z |" in table.as_markdown()
    with pytest.raises(ValueError, match="columns"):
        replace(table, rows=(("1",),))
    compared = Comparison("q", Printed(0.18, "T", "s", 0.026), 0.02)
    assert compared.cells[:5] == ("q, s", "T", "0.18 ± 0.026", "not measured", "0.02")
    again = replace(table, caption="")
    document = Document("Title & more", [], [compared], [Section("S", [table, again, table])])
    text = page(document, {}, {"seed": "0"})
    assert "<title>Title &amp; more</title>" in text
    assert "<td>x&lt;y|z</td>" in text
    assert "<td><code>a&amp;b</code></td>" in text
    assert "<b>Table 1.</b> A <code>caption</code>" in text
    assert "Table 3" not in text  # a table without a caption has no number
