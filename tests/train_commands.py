"""``convexlift train`` on tiny pictures, for several test files."""

from __future__ import annotations

import torch
from training_runs import crops
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli.app import app
from convexlift.images import save_image

FAST = ("--batch-size", "2", "--held-out", "2", "--device", "cpu")
"""With ``--start``, a tiny network, and a preset that searches no weights."""


def run(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def flat(result):
    return " ".join(result.output.split())


def training_folder(folder):
    """Pictures, others that are no good, and a tiny model to start from."""
    torch.set_default_dtype(torch.float32)
    images = crops(6, 16)
    for place in ("pictures", "noisy", "few", "mixed", "empty", "broken"):
        (folder / place).mkdir()
    for i in range(len(images)):
        save_image(folder / "pictures" / f"{i}.png", images[i])
        save_image(folder / "noisy" / f"{i}.png", images[i] + 0.1 * torch.randn(1, 16, 16))
    save_image(folder / "few" / "0.png", images[0])
    for i, size in enumerate((16, 16, 20, 16)):
        save_image(folder / "mixed" / f"{i}.png", torch.zeros(size, size))
    save_image(folder / "mask.png", (torch.rand(16, 16) > 0.3).float())
    save_image(folder / "small-mask.png", torch.ones(8, 8))
    (folder / "broken" / "bad.png").write_bytes(b"no picture")
    cl.save(cl.networks.ridge(channels=2, kernel=3), folder / "tiny")
    return folder


def adversarial(here, output, *more):
    return run(
        *("adversarial", here / "pictures", "--preset", "paper-salt-and-pepper"),
        *("--start", here / "tiny", "--output", output, "--steps", 4, *FAST, *more),
    )


def bilevel(here, output, *more):
    return run(
        *("bilevel", here / "pictures", "--start", here / "tiny", "--output", output),
        *("--steps", 3, "--crop", 12, *FAST, *more),
    )
