"""The fast trainings of ``benchmarks/``: kernels against convolutions, gradients of the error."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

import convexlift as cl
from convexlift.tasks import SparseViewCT
from convexlift.training.initialization import subtract_means_

triton = pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import crop_kernels as kernels  # noqa: E402
import train_adaptive  # noqa: E402
import train_adaptive_ct  # noqa: E402
import training_crops  # noqa: E402


def network(reads: Sequence[str] = ("output",)) -> cl.networks.AdaptiveNetwork:
    """A small one in double precision, whose weights differ from pixel to pixel."""
    torch.manual_seed(0)
    made = cl.networks.adaptive(channels=6, kernel=3, widths=(8,), smoothing=1.0, reads=reads)
    assert made.layers[0].skip is not None
    torch.nn.init.normal_(made.layers[0].skip.weight, std=0.3)
    subtract_means_(made)
    made.output.data.fill_(1.0)
    return made.double()


@pytest.mark.parametrize(("channels", "count", "size"), [(1, 6, 5), (3, 5, 3)])
def test_kernels_are_torchs_convolutions(channels: int, count: int, size: int) -> None:
    """In Triton's interpreter, where there is no GPU."""
    filters, x = torch.randn(count, channels, size, size), torch.randn(1, channels, 9, 8)
    p, ahead = (kernels.with_margin(filters, x) for _ in range(2))
    for dual in (p, ahead):
        kernels.interior(dual, size).normal_()
    weights = torch.rand(1, count, 10 - size, 9 - size) + 0.1
    step, close = torch.tensor(0.3), torch.testing.assert_close
    out = torch.empty_like(x)
    kernels._adjoint[(1, 1)](x, p, filters, out, -0.7, 9, 8, channels, count, size, 128)
    close(out, kernels.add_adjoint(filters, p, x, -0.7))
    ours, theirs = p.clone(), p.clone()
    kernels._launch(filters, x, kernels.Reading(weights), weights, 0.0, ours, ours, 0.0, False)
    kernels.weigh(filters, x, weights, theirs)
    close(ours, theirs)
    for biases, in_place in itertools.product((None, torch.randn_like(weights)), (False, True)):
        read = kernels.Reading(weights, biases)
        ours, theirs = ([ahead.clone(), p.clone()] for _ in range(2))
        if in_place:
            ours[1], theirs[1] = ours[0], theirs[0]
        kernels._launch(filters, x, read, step, 0.1, *ours, 0.4, True)
        kernels.dual_step(filters, x, read, 0.1, step, *theirs, 0.4)
        close(ours, theirs)
    seen, back, y = (torch.rand_like(x) < 0.7).float(), torch.randn_like(x), torch.randn_like(x)
    for robust in (False, True):
        ours, theirs, new, beyond = (x.clone() for _ in range(4))
        kernels._primal[(triton.cdiv(x.numel(), 256),)](
            ours, back, y, seen, step, new, beyond, 1.8, x.numel(), robust, 256
        )
        expected = kernels.primal_step(theirs, back, y, seen, step, 1.8, robust)
        close([new, beyond, ours], [*expected, theirs])


ACCURATE = {"LINEAR_STEPS": 100, "DAMPING": 1e-9}


def configure(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **constants: float) -> None:
    """Other constants of a script."""
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", ["G", "I", "S"])
@pytest.mark.parametrize("biased", [False, True])
def test_gradient(task: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the output weights, or the last biases of the guide, against finite differences."""
    steps = {"DUAL_STEPS": 300, "RESTART": 100, "PDHG_STEPS": 3000 if biased else 600}
    configure(monkeypatch, training_crops, BATCH=2, CROP=20)
    configure(monkeypatch, train_adaptive, EDGE=3, CLIP=math.inf, **steps, **ACCURATE)
    net = network(("output", "biases") if biased else ("output",))
    moved = net.guide.last.bias if biased else net.output
    pictures = (255 * torch.rand(3, 1, 6, 6)).repeat_interleave(4, -1).repeat_interleave(4, -2)
    training = train_adaptive.Training(net, pictures.byte(), pictures.byte())
    draw = {"G": "gaussian", "I": "missing", "S": "impulses"}[task]
    data = training_crops.Data(*(t.double() for t in getattr(training, draw)()))
    monkeypatch.setattr(training, draw, lambda: data)
    monkeypatch.setattr(training.optimiser, "step", lambda: None)
    direction = torch.randn(moved.shape, dtype=torch.float64)

    def log_error(move: float) -> float:
        with torch.no_grad():
            moved.add_(move * direction)
            x, y, start = (t / data.noise for t in (data.x, data.y, data.picture))
            read, v = training.read(data).held(), training.filters.detach()
            found = (
                training.dual_steps(v, y, read)
                if task == "G"
                else training.pdhg_steps(v, y, read, data.seen, start, task == "S")
            )
            moved.sub_(move * direction)
            return float((found - x)[..., 3:-3, 3:-3].square().mean((1, 2, 3)).log().mean())

    expected = (log_error(1e-5) - log_error(-1e-5)) / 2e-5
    training.step(task)
    assert moved.grad is not None
    found = float((moved.grad * direction).sum()) * 2 / 14**2  # of the mean of squares
    assert found == pytest.approx(expected, rel=2e-2, abs=1e-6)


def test_gradient_for_tomography(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, for counts behind a scanner."""
    configure(monkeypatch, train_adaptive_ct, BATCH=2, STEPS=400, **ACCURATE)
    configure(monkeypatch, train_adaptive, CLIP=math.inf)
    net = network()
    slices = torch.rand(2, 1, 6, 6).double().repeat_interleave(4, -1).repeat_interleave(4, -2)
    task = SparseViewCT(scanner=cl.paper_scanner(24, 20, 20), box=(0.0, 2.0))
    training = train_adaptive_ct.Tomography(net, slices, task)
    monkeypatch.setattr(training.optimiser, "step", lambda: None)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.arange(2))
    direction = torch.randn(6, dtype=torch.float64)
    noise = torch.full((2, 1, 1, 1), train_adaptive_ct.UNSTATED_NOISE, dtype=torch.float64)
    x, y, picture = slices, training.counts, training.back_projections
    data = training_crops.Data(x / noise, y, picture, noise, torch.ones_like(x))

    def log_error(move: float) -> float:
        with torch.no_grad():
            net.output += move * direction
            read = training.read(data).held()
            found = training.reconstruct(training.filters, y, read, picture / noise)
            net.output -= move * direction
            return float((found - data.x)[..., 4:-4, 4:-4].square().mean((1, 2, 3)).log().mean())

    expected = (log_error(1e-4) - log_error(-1e-4)) / 2e-4
    training.step()
    assert net.output.grad is not None
    found = float((net.output.grad * direction).sum()) * 2 / 16**2
    assert found == pytest.approx(expected, rel=2e-2, abs=1e-6)
