"""Small problems of which every part can be learned."""

from __future__ import annotations

import torch

import convexlift as cl

SIZE = 5


def ridge(smoothing: float = 0.1) -> cl.InputConvexNetwork:
    torch.manual_seed(1)
    net = cl.networks.ridge(channels=3, kernel=3, smoothing=smoothing)
    with torch.no_grad():
        filters = net.layers[0].skip.weight
        filters -= filters.mean((-2, -1), keepdim=True)
        net.output.copy_(torch.tensor([0.2, 0.25, 0.3]))
    return net


def pixels(*shape: int) -> torch.Tensor:
    torch.manual_seed(2)
    return 0.2 + 0.6 * torch.rand(*(shape or (1, 1, SIZE, SIZE)))


def kernel(centre: float = 0.6) -> torch.Tensor:
    weights = 0.05 * torch.ones(3, 3)
    weights[1, 1] = centre
    return weights


def state_of(y, net, **parts):
    return cl.VariationalProblem(**{
        "fidelity": cl.SquaredL2(y), "regularizer": net, "weight": 0.5, **parts
    })  # fmt: skip
