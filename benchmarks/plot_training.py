"""Draw docs/images/training.png: how the shipped regularizers learned.

    python benchmarks/plot_training.py

The logs in docs/data are those of ``train_shipped.py``, thinned to about a hundred rows each.
Of the last stage of photo-any-size only the validations were kept; docs/training.md has them.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
PANELS = {
    "faces-denoising": ("distance", "R(damaged) - R(clean)"),
    "faces-inpainting-adversarial": ("distance", "R(damaged) - R(clean)"),
    "faces-inpainting-bilevel": ("train_psnr", "PSNR of the batch (dB)"),
    "photo-any-size-first": ("train_psnr", "PSNR of the batch (dB)"),
    "photo-any-size-second": ("train_psnr", "PSNR of the batch (dB)"),
}


def main() -> None:
    """See the module."""
    names = [name for name in PANELS if (DOCS / f"data/training-{name}.csv").exists()]
    figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 3.0), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        with (DOCS / f"data/training-{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        column, label = PANELS[name]
        curve = [(float(r["step"]), float(r[column])) for r in rows if r[column]]
        checked = [(float(r["step"]), float(r["psnr"])) for r in rows if r["psnr"]]
        axis.plot(*zip(*curve, strict=True), color="#9aa5b1", linewidth=1)
        axis.set(title=name, xlabel="step", ylabel=label)
        axis.title.set_size(9)
        right = axis.twinx()
        right.plot(*zip(*checked, strict=True), "o-", color="#b5412b", markersize=4)
        right.set_ylabel("validation PSNR (dB)", color="#b5412b")
        right.ticklabel_format(useOffset=False)
    figure.tight_layout()
    figure.savefig(DOCS / "images/training.png", dpi=110)


if __name__ == "__main__":
    main()
