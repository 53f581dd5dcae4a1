"""Where and with what a result was computed."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import convexlift
from experiments.benchmark.results import machine


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Date, versions, machine, device, and the commit in a git checkout."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "convexlift": convexlift.__version__,
        "commit": commit(),
        "numpy": numpy.__version__,
        "device": device.type,
        "machine": machine(device),
    }


def commit() -> str | None:
    """The commit of the checkout this package lies in, with a + after local changes, or None."""
    folder = Path(convexlift.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed package may lie inside somebody else's checkout.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    short = git("rev-parse", "--short", "HEAD")
    return short and short + ("+" if git("status", "--porcelain", "--", ".") else "")
