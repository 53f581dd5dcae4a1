"""The fast trainings of ``benchmarks/``: kernels against convolutions, gradients of the error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

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


class TestKernels:
    """Triton's interpreter against torch's convolutions."""

    @pytest.fixture(params=[(1, 6, 5), (3, 5, 3)], ids=["grey", "colour"])
    def parts(self, request: pytest.FixtureRequest) -> dict[str, Tensor]:
        channels, count, size = request.param
        torch.manual_seed(0)
        filters, x = torch.randn(count, channels, size, size), torch.randn(1, channels, 9, 8)
        p, ahead = (kernels.with_margin(filters, x) for _ in range(2))
        for dual in (p, ahead):
            kernels.interior(dual, size).normal_()
        weights = torch.rand(1, count, 10 - size, 9 - size) + 0.1
        biases = torch.randn_like(weights)
        return {
            "filters": filters, "x": x, "p": p, "ahead": ahead, "weights": weights, "biases": biases
        }  # fmt: skip

    def test_adjoint(self, parts: dict[str, Tensor]) -> None:
        filters, p, x = parts["filters"], parts["p"], parts["x"]
        count, channels, size, _ = filters.shape
        out = torch.empty_like(x)
        kernels._adjoint[(1, 1)](x, p, filters, out, -0.7, 9, 8, channels, count, size, 128)
        torch.testing.assert_close(out, kernels.add_adjoint(filters, p, x, -0.7))

    @pytest.mark.parametrize("biased", [False, True])
    def test_dual_step_also_in_place(self, parts: dict[str, Tensor], biased: bool) -> None:
        filters, x, sigma = parts["filters"], parts["x"], torch.tensor(0.3)
        read = kernels.Reading(parts["weights"], parts["biases"] if biased else None)
        for together in (False, True):
            ours, theirs = ([parts["ahead"].clone(), parts["p"].clone()] for _ in range(2))
            if together:
                ours[1], theirs[1] = ours[0], theirs[0]
            kernels._launch(filters, x, read, sigma, 0.1, *ours, 0.4, True)
            kernels.dual_step(filters, x, read, 0.1, sigma, *theirs, 0.4)
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other)

    def test_responses(self, parts: dict[str, Tensor]) -> None:
        filters, x, w = parts["filters"], parts["x"], parts["weights"]
        ours, theirs = parts["p"].clone(), parts["p"].clone()
        kernels._launch(filters, x, kernels.Reading(w), w, 0.0, ours, ours, 0.0, False)
        kernels.weigh(filters, x, w, theirs)
        torch.testing.assert_close(ours, theirs)

    @pytest.mark.parametrize("robust", [False, True])
    def test_primal_step(self, parts: dict[str, Tensor], robust: bool) -> None:
        x, tau = parts["x"], torch.tensor(0.3)
        seen, y = (torch.rand_like(x) < 0.7).float(), x + torch.randn_like(x)
        ours, theirs = x.clone(), x.clone()
        new, beyond = torch.empty_like(x), torch.empty_like(x)
        back = torch.randn_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        kernels._primal[grid](
            ours, back, y, seen, tau, new, beyond, 1.8, x.numel(), robust, 256
        )  # fmt: skip
        expected = kernels.primal_step(theirs, back, y, seen, tau, 1.8, robust)
        for one, other in zip((new, beyond, ours), (*expected, theirs), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", ["G", "I", "S"])
@pytest.mark.parametrize("biased", [False, True])
def test_gradient(task: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the output weights, or the last biases of the guide, against finite differences."""
    for name, value in {"BATCH": 2, "CROP": 20}.items():
        monkeypatch.setattr(training_crops, name, value)
    steps = {"DUAL_STEPS": 300, "RESTART": 100, "PDHG_STEPS": 3000 if biased else 600}
    linear = {"LINEAR_STEPS": 100, "DAMPING": 1e-9}
    for name, value in {"EDGE": 3, **steps, **linear}.items():
        monkeypatch.setattr(train_adaptive, name, value)
    net = network(("output", "biases") if biased else ("output",))
    moved = net.guide.last.bias if biased else net.output
    pictures = (255 * torch.rand(3, 1, 6, 6)).repeat_interleave(4, -1).repeat_interleave(4, -2)
    training = train_adaptive.Training(net, pictures.byte(), pictures.byte())
    draw = {"G": "gaussian", "I": "missing", "S": "impulses"}[task]
    data = training_crops.Data(*(t.double() for t in getattr(training, draw)()))
    monkeypatch.setattr(training, draw, lambda: data)
    monkeypatch.setattr(training.optimiser, "step", lambda: None)
    monkeypatch.setattr(train_adaptive, "CLIP", float("inf"))
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
    for name, value in {"BATCH": 2, "STEPS": 400, "LINEAR_STEPS": 100, "DAMPING": 1e-9}.items():
        monkeypatch.setattr(train_adaptive_ct, name, value)
    monkeypatch.setattr(train_adaptive, "CLIP", float("inf"))
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


def test_a_grown_guide_is_the_same_at_first() -> None:
    small = network()
    for parameter in small.guide.parameters():
        parameter.data.normal_(std=0.1)
    large = train_adaptive.grown(small, biases=True, blocks=3)
    picture = torch.rand(1, 1, 12, 12)
    before, after = (net.readings(picture, 0.1) for net in (small, large))
    torch.testing.assert_close(after["output"], before["output"])
    assert not after["bias_1"].detach().any()
    assert train_adaptive.grown(large, biases=True, blocks=None).reads == large.reads


def test_drawings_have_two_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    side = training_crops.CROP
    pictures = (255 * torch.rand(1, 3, side, side)).byte()
    net = cl.networks.adaptive(in_channels=3, channels=6, widths=(8,))
    training = train_adaptive.Training(net, pictures, pictures)
    for kind in range(5):
        monkeypatch.setattr(torch, "randint", lambda *_, kind=kind, **__: torch.tensor([kind]))
        drawn = training.drawing(pictures[0, :, :side, :side].float() / 255)
        assert drawn.shape == (3, side, side)
        assert len(drawn.flatten(1).unique(dim=1).T) == 2
