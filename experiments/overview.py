"""One page of all experiments: every number and every figure of the paper, beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.catalogue import HEADINGS
from experiments.document import Document, Section, Table, compared
from experiments.figures import Figure


@dataclass(frozen=True)
class PaperFigure:
    """A figure or a table of the paper, with the blocks of our report that repeat it."""

    experiment: str  # a name in ``HEADINGS``
    title: str  # its caption in the paper, shortened
    printed: str  # what it shows, or what the paper says of it
    blocks: tuple[str, ...]  # names of tables and figures, of which those that exist are shown
    difference: str  # what differs here, in a sentence


FIGURES = (
    PaperFigure(
        "denoising", "Ablation study of the step sizes",
        "the average objective over 200 iterations for 49 pairs; the released script then uses "
        "c = (0.1, 5e-05)",
        ("ablation",), "R is ours; the initial duals are those of the released script.",
    ),
    PaperFigure(
        "denoising", "Comparison to subgradient methods",
        "SM-C settles above the optimum or is slow; SM-D converges, a little slower than Proposed",
        ("authors-curves", "curves"), "As the authors ran it, one step size each. Otherwise R is "
        "ours, images lie in [0, 1], and errors are relative to a certified optimum.",
    ),
    PaperFigure(
        "denoising", "Visual comparison of reconstructions",
        "Proposed is good after 15 iterations, when SM-C is still noisy",
        ("authors-pictures", "duals"), "The paper's 15 iterations are 16 in the script.",
    ),
    PaperFigure(
        "ct", "Comparison to subgradient methods; data fidelity and regularization",
        "SM-C is faster at first and then overtaken; SM-D is slower; large steps oscillate",
        ("authors-curves", "printed-steps", "released-steps"),
        "The printed steps of SM-C and SM-D are ten times those of the released script. R was "
        "trained on other slices, by our recipe unless the caption says as the authors ran it.",
    ),
    PaperFigure(
        "ct", "Visual comparison of reconstructions",
        "after 50 and 500 iterations, of a slice that the authors released",
        ("authors-pictures", "our-pictures"),
        "R was not released; the one here was trained on other slices.",
    ),
    PaperFigure(
        "ct-deep", "Objective and PSNR for a deeper network",
        "the behaviour of the baseline; on par with it or slightly worse",
        ("authors-curves", "printed-steps", "released-steps"),
        "The paper prints no number. R was trained on other slices, by our recipe unless the "
        "caption says as the authors ran it.",
    ),
    PaperFigure(
        "inpainting", "Table 1: mean reconstruction time per image",
        "Proposed is the fastest of four, NMAPG and SM-C take 1.5 times as long",
        ("authors-times", "times"),
        "The captions name network, gamma, box, options and limits.",
    ),
    PaperFigure(
        "inpainting", "Comparison to gradient-based methods",
        "Proposed converges faster than NMAPG, and both faster than SM-C and SM-D",
        ("authors-curves", "curves"), "Unless the caption says as the authors ran it, R is ours; "
        "step sizes depend on the network, so each method also has the best of a search.",
    ),
    PaperFigure(
        "inpainting", "Visual comparison of reconstructions",
        "after 60 and 300 iterations, with the bilevel network",
        ("authors-pictures",), "The paper's 60 iterations are 61 in the script (NMAPG: 60; here "
        "it is shown after 61 too).",
    ),
    PaperFigure(
        "training", "Table 2: mean PSNR with different solvers and training schemes",
        "bilevel learning is better than adversarial training by 0.6 to 1.7 dB",
        ("psnr",), "The table above has the authors' choices. Ours: other recipes, also with "
        "searched steps, and a row for our default.",
    ),
    PaperFigure(
        "training", "Visual comparison with different training schemes",
        "bilevel learning is sharper",
        ("crops",), "The paper does not name its face, probably 00015.png; this is another one.",
    ),
)  # fmt: skip
"""All figures and tables of the paper but its first, which illustrates an epigraph."""

SUMMARY = (
    "Every number of the paper: as printed, as its authors ran it, and ours. As the authors ran "
    "it: with the choices of their released scripts (github.com/hsw43/icnn_primal_dual, commit "
    "873d50b) where the paper prints none or others. Ours: our networks, our default solver, and "
    "images in a box, so that every result is certified. Not measured: this version, or the files "
    "at hand, do not allow it; the text says why. Not reached: measured, but the goal was not met "
    "within the limit.",
    "A remark begins with a verdict on the number with the authors' choices, or on ours if there "
    "is none: it agrees with the printed one, or is higher or lower. Agrees: within 0.5 dB (data: "
    "0.05 dB), 10 s of training, or a quarter of a speed-up. Other data, another network: the "
    "numbers cannot be compared, because images or networks differ. Where a printed number is not "
    "matched, docs/reproduction.md lists what was tried.",
)


def overview(documents: Mapping[str, Document]) -> Document:
    """One document of those of the experiments, by name."""
    sections = []
    for name, document in documents.items():
        numbers = compared(f"{name}-numbers", document.comparisons, "All numbers of this section.")
        blocks: list[str | Table | Figure] = [*document.summary[:3], numbers]
        named = {
            block.name: block
            for section in document.sections
            for block in section.blocks
            if not isinstance(block, str)
        }
        for figure in FIGURES:
            if figure.experiment == name:
                blocks.append(
                    f"In the paper: “{figure.title}”: {figure.printed}. {figure.difference}"
                )
                blocks += [
                    replace(named[each], name=f"{name}-{each}")
                    for each in figure.blocks
                    if each in named
                ]
        heading = HEADINGS[name]
        sections.append(Section(f"{heading.title} ({heading.section})", blocks))
    results = {name: dict(document.results) for name, document in documents.items()}
    comparisons: dict[str, Any] = {
        name: [each.as_plain() for each in document.comparisons]
        for name, document in documents.items()
    }
    title = "The paper's experiments: printed, as the authors ran them, and ours"
    return Document(title, SUMMARY, [], sections, {"numbers": comparisons, "reports": results})
