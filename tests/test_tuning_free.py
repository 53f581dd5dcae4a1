"""No tuning: few iterations on shipped networks, and scale does not matter."""

from __future__ import annotations

import copy

import pytest
import torch

import convexlift as cl
from convexlift.images import load_example
from convexlift.tasks import Inpainting, SaltAndPepper

INPAINTING = Inpainting(missing=0.3, noise=0.03)


def rescaled(network: cl.InputConvexNetwork, factor: float) -> cl.InputConvexNetwork:
    """The same function: the first layer times ``factor``, the second divided by it."""
    other = copy.deepcopy(network)
    first, second = other.layers[0], other.layers[1]
    with torch.no_grad():
        first.skip.weight.mul_(factor)
        first.bias.mul_(factor)
        for weight in second.previous.parameters():
            weight.div_(factor)
    return other


@pytest.mark.sampled(3)
@pytest.mark.parametrize("factor", [60.0, 1 / 600])
@pytest.mark.parametrize("shift", [1.0, -0.02], ids=["head on", "head mixed"])
@pytest.mark.parametrize("task", [INPAINTING, SaltAndPepper()], ids=lambda task: task.name)
def test_scale_does_not_matter(task, shift, factor):
    torch.manual_seed(0)
    network = cl.networks.baseline(image_size=32, channels=6, pool=8, hidden=16)
    with torch.no_grad():
        network.layers[1].bias.uniform_(-0.05, 0.05).add_(shift)
    clean = load_example("camera")[..., 100:132, 100:132].to(torch.get_default_dtype())
    data = task.measure(clean, [torch.Generator().manual_seed(0)])
    counts = []
    for net in (network, rescaled(network, factor)):
        torch.testing.assert_close(net(clean), network(clean), rtol=1e-9, atol=1e-9)
        solution = cl.solve(
            data.problem(net, 5.0), stop=cl.StopWhen(gap=1e-3, max_iterations=3000, check_every=2)
        )
        assert solution.status == (cl.Status.CONVERGED,)
        counts.append(int(solution.iterations))
    assert abs(counts[1] - counts[0]) <= max(2, 0.1 * counts[0])


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("name", "task", "iterations"),
    [
        ("faces-inpainting-bilevel", INPAINTING, 60),
        ("faces-denoising", SaltAndPepper(), 180),
        ("photo-any-size", INPAINTING, 50),
        ("photo-any-size", SaltAndPepper(), 80),
    ],
)
def test_a_certified_gap_takes_few_iterations(name, task, iterations):
    """Limits above what the test faces need, since this picture is none."""
    network = cl.load(name)
    clean = load_example("camera")
    data = task.measure(clean, [torch.Generator().manual_seed(0)])
    weight = network.card.weights.get(task.name, network.card.weight)
    stop = cl.StopWhen(gap=1e-3, max_iterations=iterations)
    assert cl.solve(data.problem(network, weight), stop=stop).status == (cl.Status.CONVERGED,)
