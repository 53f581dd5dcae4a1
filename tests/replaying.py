"""Graphs without a GPU, and problems to solve with them."""

from __future__ import annotations

import contextlib

import torch

import convexlift as cl
from convexlift.solvers import cuda_graphs, recordings, replays
from convexlift.solvers.kinds import kind_of

HERE = torch.device("cpu")


class Again(cuda_graphs.CudaGraphs):
    """Instead of a graph: the launches once more, into the same results."""

    def __init__(self) -> None:
        super().__init__()
        self.captures = self.replays = 0

    def room(self, device):
        return 2**40

    def stream(self, device):
        return 0

    def beside(self, device):
        return contextlib.nullcontext()

    def capture(self, launch):
        self.captures += 1
        results = launch()

        def compute():
            self.replays += 1
            new = launch()
            for old, other in zip(
                *(kind_of(each, HERE)[1] for each in (results, new)), strict=True
            ):
                old.copy_(other)

        return results, compute


def again(monkeypatch) -> Again:
    """Put it in place of graphs, with nothing recorded so far."""
    made = Again()
    monkeypatch.setattr(replays, "GRAPHS", made)
    monkeypatch.setattr(replays, "IDLE", recordings.IdleWorkshops())
    return made


def stated(
    seed=0, network=None, fidelity=cl.SquaredL2, batch=2, **options
) -> cl.VariationalProblem:
    torch.manual_seed(seed)
    if network is None:
        network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.01)
    mask = cl.Mask(torch.rand(12, 16) > 0.3)
    options = {"operator": mask, "weight": 0.2, "box": (0, 1)} | options
    y = torch.rand(batch, 1, 12, 16)
    return cl.VariationalProblem(fidelity=fidelity(y), regularizer=network, **options)


def ordinary(problem, monkeypatch, **options) -> cl.Solution:
    with monkeypatch.context() as patch:
        patch.setattr(replays, "GRAPHS", None)
        return cl.solve(problem, **options)


def assert_same(one: cl.Solution, other: cl.Solution) -> None:
    for name in ("x", "objective", "lower_bound", "gap", "iterations"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.status == other.status
    assert one.guarantee == other.guarantee
    for name, part in one.duals.items():
        assert torch.equal(part, other.duals[name])
    for name in ("objective", "data_term", "regularizer", "lower_bound", "gap"):
        assert torch.equal(one.history[name], other.history[name])


def baseline():
    torch.manual_seed(5)
    return cl.networks.baseline(image_size=16, channels=3, smoothing=0.01)
