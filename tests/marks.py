"""Marks and conditions of tests."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest

slow = partial(pytest.param, marks=pytest.mark.slow)
"""A case of a parametrized test that only ``make test-slow`` runs."""


def require_gradio() -> None:
    """Skip a test or a module without gradio, which takes seconds to import, and is not."""
    if find_spec("gradio") is None:
        reason = 'the web page needs gradio: pip install "convexlift[web]"'
        pytest.skip(reason, allow_module_level=True)
