"""HTML fragments of the web page: escaped texts, plots, and verdicts."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from web_runs import crop

from convexlift.solvers.solution import Status

pytest.importorskip("jinja2", reason="the web page needs gradio, which brings jinja2")

from convexlift.web import html
from convexlift.web.pictures import InputPicture
from convexlift.web.run import Point

HOSTILE = '<script>alert("1")</script>'


def test_texts_are_escaped():
    for text in (
        html.banner(HOSTILE, "bad", HOSTILE),
        html.chosen_picture(InputPicture(crop().values, HOSTILE)),
        html.fragment("hint", HOSTILE, HOSTILE),
    ):
        assert "<script" not in text
        assert 'alert("' not in text
        assert "&lt;script&gt;" in text


def test_a_convergence_plot_leaves_out_what_is_not_finite():
    values = [(0, math.inf, -math.inf), (5, 3.0, 1.0), (10, 2.0, 1.9)]
    drawn = html.convergence_plot([Point(i, 0.1, f, bound, 0.1, None) for i, f, bound in values])
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert drawn.count("<polyline") == 2
    assert drawn.count("<polygon") == 1  # the gap
    assert "<svg" in html.convergence_plot(())
    # Nothing refers to ids: the page has several plots, some of them hidden.
    assert "id=" not in drawn
    assert "url(" not in drawn


def test_a_run_of_one_sweep_has_no_curve_and_no_empty_frame():
    def sweep(done, objective, bound):
        return Point(done, 1.0, objective, bound, 0.1, None, tiles=4)

    waiting = html.convergence_plot([sweep(1, math.inf, -math.inf)])
    assert "The proof follows the last tile." in waiting
    assert html.convergence_plot([sweep(4, 2.0, 1.9)], ended=True) == ""
    two = html.convergence_plot([sweep(4, 2.0, 1.8), sweep(8, 2.0, 1.9)], ended=True)
    assert two.count("<polyline") == 2
    assert ">tiles<" in two


def test_round_numbers_of_an_axis():
    assert html.nice_steps(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    drawn = html.convergence_plot([Point(i, 0.1, 31.0, 30.0, 0.1, None) for i in (0, 5)])
    for label in ("30.00", "30.25", "30.50", "30.75", "31.00"):
        assert f">{label}<" in drawn


@pytest.mark.parametrize("last", [0, 1, 2, 5, 12])
def test_iterations_below_the_axis_are_whole_numbers(last):
    drawn = html.convergence_plot([Point(i, 0.1, 31.0, 30.0, 0.1, None) for i in {0, last}])
    below = re.findall(r'y="294" text-anchor="\w+">([^<]+)<', drawn)
    assert below[0] == "0"
    assert all(label.isdigit() for label in below)


@pytest.mark.parametrize(("seconds", "said"), [(10.0, "30 s left"), (100.0, "5 min left")])
def test_the_time_left_is_never_0_minutes(seconds, said):
    point = Point(1, seconds, math.inf, -math.inf, math.inf, None, tiles=4)
    assert said in html.progress([point], 1e-3)


@pytest.mark.parametrize(
    ("bound", "gap", "said"), [(99.9536, 4.64e-4, "0.047 %"), (None, None, "unknown")]
)
def test_the_gap_in_the_numbers_is_the_one_in_the_verdict(bound, gap, said):
    record = {
        "meaning": "no image is better", "objective": 100.0, "lower_bound": bound, "gap": gap,
        "settings": {"tolerance": 1e-3}, "iterations": 5, "seconds": 1.0, "weight": {"value": 1.0},
        "noise": {"model": "salt-and-pepper", "level": 0.25},
    }  # fmt: skip
    result = SimpleNamespace(prepared=SimpleNamespace(notes=(), noise=None))
    shown = " ".join(re.sub("<[^>]*>", " ", html.facts("denoise", result, record)).split())
    assert f"Relative gap {said} target 0.1 %" in shown
    assert ("Lower bound none" in shown) == (bound is None)
    assert "25 % of pixels" in shown


def test_numbers_at_the_axis_are_not_cut_off_on_a_phone():
    """There, letters have 16 units; digits are not wider than 0.6 of that."""
    for low, high in ((220.0, 220.9), (9990.2, 9999.8), (-9.3e5, 2e3), (1e-4, 3e-4)):
        drawn = html.convergence_plot([Point(i, 0.1, high, low, 0.1, None) for i in (0, 5)])
        labels = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)<', drawn)
        assert labels
        for right, label in labels:
            assert float(right) >= 0.6 * 16 * len(label), label


@pytest.mark.parametrize("last", [5, 55, 100, 1000, 1005, 12000])
def test_numbers_below_the_axis_are_not_cut_off_on_a_phone(last):
    drawn = html.convergence_plot([Point(i, 0.1, 31.0, 30.0, 0.1, None) for i in (0, last)])
    ticks = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="(\w+)">([\d.e+]+)<', drawn)
    for x, anchor, label in ticks:
        beyond = {"end": 0.0, "middle": 0.5}[anchor] * 0.6 * 16 * len(label)
        assert float(x) + beyond <= 480, label


@pytest.mark.parametrize(
    ("status", "gap", "guarantee", "kind", "said"),
    [
        (Status.CONVERGED, 6e-4, "GLOBAL", "good", "Solved to within 0.06 %:"),
        (Status.STOPPED, 0.03, "GLOBAL", "partial", "Stopped by you. Solved to within 3 %: no"),
        (Status.TIME_LIMIT, 0.4, "GLOBAL", "partial", "Not solved yet: another picture may fit"),
        (Status.PRECISION_LIMIT, 2e-3, "GLOBAL", "partial", "single precision. Solved to within"),
        (Status.STOPPED, None, "NONE", "bad", "Stopped by you. Nothing is proved yet"),
        (Status.NOT_FINITE, 0.5, "GLOBAL", "bad", "not finite. Not solved yet"),
        (Status.CONVERGED, 6e-4, "WITHIN_RADIUS", "good", "no picture close to this one fits"),
    ],
)  # fmt: skip
def test_the_verdict_says_no_more_than_is_proved(status, gap, guarantee, kind, said):
    found = SimpleNamespace(
        record={"gap": gap, "guarantee": guarantee},
        problem=SimpleNamespace(regularizer=SimpleNamespace(premise="")),
    )
    shown = html.verdict(SimpleNamespace(reconstruction=found, status=status))
    assert f'class="banner {kind}"' in shown
    text = " ".join(re.sub("<[^>]*>", " ", shown).split())
    assert said in text
    assert ("Solved" in text) == text.endswith(
        "by more than that. It does not say that the picture is true."
    )
