"""The machine and the software of a computation."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import convexlift as cl


def environment(device: torch.device) -> dict[str, Any]:
    """Date, versions, machine, device, and the commit of a git checkout."""
    return {
        "date": now(),
        "convexlift": cl.__version__,
        "commit": commit(),
        "numpy": numpy.__version__,
        "device": device.type,
        "machine": machine(device),
    }


def now() -> str:
    """The date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of this checkout, with a + after local changes; None without git."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A copy of this folder may be inside the checkout of another project.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    short = git("rev-parse", "--short", "HEAD")
    return short and short + ("+" if git("status", "--porcelain", "--", "..") else "")


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, threads and versions, on which times depend."""
    cuda = device.type == "cuda"
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
