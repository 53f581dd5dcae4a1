"""Devices without double precision, as MPS, by one that pretends; and the CPU as if it were one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import convexlift as cl
from convexlift import precision
from convexlift.problems import variational

HERE = Path(__file__).parent
CHECKED = ["no double precision", "plain", "mask", "blur", "rays", "Poisson", "L1", "pooled",
           "adaptive", "differentiated", "proximal_map"]  # fmt: skip


@pytest.mark.slow
def test_everything_works_on_a_device_without_double_precision():
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot pretend to have another device")
    done = subprocess.run(
        [sys.executable, HERE / "device_without_double.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == CHECKED


def test_the_devices_of_this_machine_have_double_precision():
    assert precision.has_double("cpu")
    assert precision.as_double(torch.ones(1).float()).dtype is torch.float64
    assert not precision.has_double("no such device")


def test_gradients_go_through_the_problem_on_the_cpu(monkeypatch):
    """The engine of autograd cannot pretend; the CPU, said to have no double precision, can."""
    y = torch.rand(1, 1, 8, 8).requires_grad_()
    net = cl.networks.ridge(channels=3, kernel=3, smoothing=0.1)
    weight = torch.tensor(0.2, requires_grad=True)
    stop = cl.StopWhen(gap=1e-8)

    def gradients(moved: bool) -> list[torch.Tensor]:
        problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=weight)
        if moved:  # as ``with_double`` does
            problem = problem.with_network(problem.trainable_network).to(device="cpu")
        x = cl.solve(problem, stop=stop, differentiable=True).x
        return list(torch.autograd.grad(x.square().sum(), [y, weight, net.output]))

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(ours, theirs)
    monkeypatch.setattr(variational, "has_double", lambda kind: False)
    problem = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=net, weight=weight)
    assert problem.with_double() is not problem
