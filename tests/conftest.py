"""A strict environment: float64, fixed seeds, one thread for each test process."""

from __future__ import annotations

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before anything starts its threads

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("repeatable")
torch.set_num_threads(1)
# Shells start background jobs with Ctrl-C ignored; tests that press it need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
