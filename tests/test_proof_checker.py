"""The checker computes the package's own numbers, from its files, for problems of many shapes.

Every combination of parts is in ``test_certificates.py``, and every operator in ``test_proofs.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from checked_proofs import confirm
from proof_files import opened

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Convolution, Dense


def odd_network(padding: str) -> cl.InputConvexNetwork:
    """Strides, paddings, chains in chains, links, and a layer without bias or use."""
    torch.manual_seed(4)

    def conv(inputs, outputs, stride=1, size=3):
        return Convolution(
            inputs, outputs, size, stride=stride, padding=padding, nonnegative=inputs > 1
        )

    def dense(inputs):
        return Dense(inputs, 5, nonnegative=True)

    smooth, shallow = cl.SmoothedLeakyReLU(0.1, 0.4), Chain(AveragePool(2), AveragePool(1))
    layers = [
        cl.ConvexLayer(cl.Abs(), channels=3, skip=conv(1, 3, 2)),
        cl.ConvexLayer(cl.ReLU(), channels=2, previous=conv(3, 2), bias=False),
        cl.ConvexLayer(
            smooth, channels=2, skip=Chain(conv(1, 2), shallow), links={1: conv(3, 2, size=5)}
        ),
        cl.ConvexLayer(
            cl.LeakyReLU(0.3), channels=5, links={1: dense(108)},
            previous=Chain(AveragePool(3), conv(2, 2), dense(8)),
        ),
        cl.ConvexLayer(cl.SmoothedReLU(smoothing=0.3), channels=5, previous=dense(5),
                       residual=True),
    ]  # fmt: skip
    net = cl.InputConvexNetwork(layers, in_channels=1, image_size=(12, 12))
    for layer in net.layers:
        if layer.bias is not None:
            layer.bias.data.normal_()
    return net


def steep() -> cl.InputConvexNetwork:
    """So steep that absolute differences without a box need a mixture with its minimum."""
    layer = cl.ConvexLayer(cl.SmoothedReLU(smoothing=0.3), channels=4, skip=Convolution(1, 4, 3))
    net = cl.InputConvexNetwork([layer], in_channels=1)
    net.output.data.mul_(8)
    return net


def posed(fidelity, regularizer, weight=0.1, **others) -> cl.VariationalProblem:
    return cl.VariationalProblem(
        fidelity=fidelity, regularizer=regularizer, weight=weight, **others
    )


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3))


PROBLEMS = {
    **{p: lambda p=p: posed(cl.SquaredL2(random(2, 1, 12, 12)), odd_network(p), 2.0)
       for p in ("zero", "circular", "reflect", "replicate")},
    **{f"total variation {i}": lambda i=i: posed(
        cl.SquaredL2(random(1, 2, 7, 9)), cl.TotalVariation(i, in_channels=2), box=(0, 1))
       for i in (True, False)},
    "colours": lambda: zoo.problem(
        "residual", cl.GroupNorm(2), "masked L2", "box", batch=3, channels=3),
    "weights": lambda: zoo.problem("skips", cl.Abs(), "weighted L2", "box", batch=2),
    "masks of images": lambda: posed(
        cl.SquaredL2(random(2, 1, 8, 8)), zoo.network("plain", cl.LeakyReLU(0.2)), box=(0, 1),
        operator=cl.Mask((random(2, 1, 8, 8) > 0.4).double())),
    "mixture with the minimum": lambda: posed(cl.L1(zoo.clean_images(1), 0.2), steep(), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_numbers_are_those_of_the_package(name, tmp_path):
    problem = PROBLEMS[name]()
    solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=30, check_every=30))
    confirm(problem, solution.proof.claim, tmp_path / "a.proof", within=1e-9)
    if name == "mixture with the minimum":
        assert 0 < float(solution.proof.claim.theta) < 1


def test_single_precision_files_are_computed_in_double(tmp_path):
    """The numbers are those of the stored values in float64, not what float32 makes of them."""
    net = zoo.network("plain", cl.LeakyReLU(0.2)).float()
    problem = posed(cl.SquaredL2((3 + zoo.clean_images(1)).float()), net)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=50))
    path = solution.proof.save(tmp_path / "a.proof")
    assert opened(path)[1]["x"].dtype == np.float32
    (verdict,) = cl.verify(path)
    double = problem.to(dtype=torch.float64)
    exact = float(double.objective(solution.x.double()))
    assert verdict.objective == pytest.approx(exact, rel=1e-12)
