"""Runs of ``convexlift reconstruct`` on tiny images, for several test files."""

from __future__ import annotations

import json

import numpy as np
import torch
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.images import gaussian_noise, load_example

QUICK = ["--tolerance", "1e-2", "--max-iterations", "40", "--regularizer", "tv"]
OPTIONS = {"regularizer": "tv", "tolerance": 1e-2, "max_iterations": 40, "device": "cpu"}


def run(*arguments, quick=True):
    words = [str(a) for a in arguments]
    return CliRunner().invoke(app, ["reconstruct", *words, *(QUICK if quick else [])])


def solved(inputs, output, *task, **more):
    """The same call in Python."""
    return cl.reconstruct_many(inputs, output, *task, **OPTIONS | more)


def crop(name="camera", size=32):
    return load_example(name)[..., 80 : 80 + size, 100 : 100 + size]


def noisy(name="camera", size=32, sigma=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return gaussian_noise(crop(name, size), sigma, generator).clamp(0, 1)[0, 0].numpy()


def colours(sigma=0.05):
    return np.stack(
        [noisy(n, 24, sigma, i) for i, n in enumerate(("camera", "coffee", "rocket"))], -1
    )


def bits(values, dtype):
    if np.dtype(dtype).kind == "f":
        return values.astype(dtype)
    return np.rint(values * np.iinfo(dtype).max).astype(dtype)


def one_record(folder, name):
    return json.loads((folder / f"{name}.json").read_text())
