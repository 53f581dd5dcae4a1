"""Names, titles and numbers that help texts need, defined where nothing imports torch."""

from typing import NamedTuple


class Heading(NamedTuple):
    """The name of an experiment, its title, and its section in the paper."""

    name: str
    title: str
    section: str


HEADINGS = {
    heading.name: heading
    for heading in (
        Heading("denoising", "Salt-and-pepper denoising", "section 5.1"),
        Heading("ct", "Sparse-view tomography, Poisson noise", "section 5.2"),
        Heading("ct-deep", "Tomography with a deeper network", "section 5.2.1"),
        Heading("inpainting", "Inpainting, smooth network", "section 5.3"),
        Heading("training", "Training schemes and solvers, inpainting", "section 5.3.1"),
    )
}
"""The experiments of ``registry``, by name."""

# The names in `benchmark.cases.CASES` and `cl.METHODS`, repeated since these import torch.
CASES = (
    "inpainting", "inpainting-adversarial", "salt-and-pepper", "any-size-gaussian",
    "any-size-inpainting", "any-size-salt-and-pepper", "deep",
)  # fmt: skip
QUICK_CASES = tuple(name for name in CASES if name.startswith("any-size-"))
"""Cases with small pictures and a small network."""
METHODS = ("default", "paper", "nmapg", "lbfgs", "sm-c", "sm-d")

REFERENCE_GAP = 1e-6
"""The certified relative gap asked of reference optima."""
