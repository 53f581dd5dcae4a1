"""Devices without double precision, as MPS, by one that pretends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from device_without_double import SOLVED

HERE = Path(__file__).parent


@pytest.mark.slow
def test_everything_works_on_a_device_without_double_precision():
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot pretend to have another device")
    done = subprocess.run(
        [sys.executable, HERE / "device_without_double.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["no double precision", *SOLVED, "differentiated"]
