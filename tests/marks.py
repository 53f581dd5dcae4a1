"""Marks of single cases."""

from __future__ import annotations

from functools import partial

import pytest

slow = partial(pytest.param, marks=pytest.mark.slow)
"""A case of a parametrized test that only ``make test-slow`` runs."""
