"""A strict environment: float64, fixed seeds, one thread for each test process.

Every certificate that a test asks for is also written as a proof file, which the independent
checker must confirm.
"""

from __future__ import annotations

import collections
import functools
import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before anything starts its threads
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded in tests

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

for profile, examples in (("quick", 25), ("thorough", 200)):  # the latter in `make test-slow`
    hypothesis.settings.register_profile(
        profile, deadline=None, derandomize=True, max_examples=examples
    )
hypothesis.settings.load_profile("quick")
torch.set_num_threads(1)
# Shells start background jobs with Ctrl-C ignored; tests that press it need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the cases of a test marked ``sampled(n)``, every n-th is quick and the others are slow."""
    seen: collections.Counter[tuple[object, ...]] = collections.Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None:
            test = item.path, item.originalname
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


@pytest.fixture(autouse=True)
def _double_precision(request):
    """Double precision, unless a module is marked ``single_precision``."""
    single = request.node.get_closest_marker("single_precision")
    torch.set_default_dtype(torch.float32 if single else torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)  # a server or the soak may have asked for more


@pytest.fixture(autouse=True)
def _certificates_are_checked(monkeypatch, tmp_path_factory):
    from checked_proofs import confirm  # after TRITON_INTERPRET is set

    import convexlift as cl

    certify = cl.certify

    @functools.wraps(certify)
    def checked(problem, x, duals=None, **options):
        certificate = certify(problem, x, duals, **options)
        confirm(problem, certificate, tmp_path_factory.getbasetemp() / "certificate.proof")
        return certificate

    monkeypatch.setattr(cl, "certify", checked)


@pytest.fixture
def registry():
    """Names that a test gives to parts of its own are forgotten after it."""
    from convexlift.parts import PARTS

    before = dict(PARTS)
    yield PARTS
    for name, part in list(PARTS.items()):  # the library's may have been imported meanwhile
        if name not in before and not part.__module__.startswith("convexlift."):
            del PARTS[name]
