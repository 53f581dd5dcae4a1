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
        "the average objective over 200 iterations for 49 pairs; the released script goes on with "
        "c = (0.1, 5e-05)",
        ("ablation",), "R is ours; the duals start as in the released script.",
    ),
    PaperFigure(
        "denoising", "Comparison to subgradient methods",
        "SM-C settles above the optimum or is slow; SM-D converges, a little slower than Proposed",
        ("curves",), "R is ours, images lie in [0, 1], and errors are measured against a certified "
        "optimum.",
    ),
    PaperFigure(
        "denoising", "Visual comparison of reconstructions",
        "Proposed is good after 15 iterations, when SM-C is still noisy",
        ("authors-pictures", "duals"), "The paper's 15 iterations are 16; R is named above.",
    ),
    PaperFigure(
        "ct", "Comparison to subgradient methods; data fidelity and regularization",
        "SM-C is faster at first and then overtaken; SM-D is slower; large steps oscillate",
        ("printed-steps", "released-steps"),
        "The printed steps of SM-C and SM-D are ten times those of the released script; R was "
        "trained on other slices.",
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
        ("printed-steps", "released-steps"),
        "R was trained on other slices; the paper prints no number.",
    ),
    PaperFigure(
        "inpainting", "Table 1: mean reconstruction time per image",
        "Proposed is the fastest of four, NMAPG and SM-C take 1.5 times as long",
        ("authors-times", "times"), "Its caption names network, gamma, box, options and limits.",
    ),
    PaperFigure(
        "inpainting", "Comparison to gradient-based methods",
        "Proposed converges faster than NMAPG, and both faster than SM-C and SM-D",
        ("curves",), "R is ours; step sizes belong to a network, so each method also has the best "
        "of a search.",
    ),
    PaperFigure(
        "inpainting", "Visual comparison of reconstructions",
        "after 60 and 300 iterations, with the bilevel network",
        ("authors-pictures",), "The paper's 60 iterations are 61, of NMAPG 60.",
    ),
    PaperFigure(
        "training", "Table 2: mean PSNR with different solvers and training schemes",
        "bilevel learning is better than adversarial training by 0.6 to 1.7 dB",
        ("psnr",), "Ours: other recipes, steps searched for, and a row more.",
    ),
    PaperFigure(
        "training", "Visual comparison with different training schemes",
        "bilevel learning is sharper",
        ("crops",), "The paper does not name its face; the data of 00015.png have its PSNR.",
    ),
)  # fmt: skip
"""All figures and tables of the paper but its first, which illustrates an epigraph."""

SUMMARY = (
    "Every number of the paper: as printed, as its authors ran it, and ours. As the authors ran "
    "it: with the choices of their released scripts (github.com/hsw43/icnn_primal_dual, commit "
    "873d50b) where the paper prints none or others. Ours: our networks, our default solver, and "
    "images in a box, so that every result is certified. Not measured: this version, or the files "
    "at hand, do not allow it; the remark says why. Not reached: measured, but the goal was not "
    "met within the limit.",
    "A remark begins with a verdict on the number that the authors' choices give, or ours where "
    "there is none: it agrees with the printed one, or is better, worse, higher or lower. Other "
    "data: both are not of the same images.",
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
