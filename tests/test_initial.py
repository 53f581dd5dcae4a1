"""Where training starts: filters that measure what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import convexlift as cl
from convexlift.networks import AveragePool, Chain, Dense
from convexlift.networks.architectures import baseline, convolutional, deep, ridge
from convexlift.training.initialization import (
    cosine_filters,
    deepened,
    start_from_filters_,
    subtract_means_,
)

SIZE = 16
COMMON = {"channels": 8, "kernel": 3, "padding": "reflect"}
POOLED = {**COMMON, "pool": 4}
# The network, and R / (strength sum |k * x|): lowest and highest.
NETWORKS = {
    "baseline": (lambda: baseline(SIZE, hidden=32, **POOLED), 0.799, 0.801),
    "baseline, few units": (lambda: baseline(SIZE, hidden=6, **POOLED), 0.799, 0.801),
    "baseline, uneven": (lambda: baseline(SIZE, hidden=40, **POOLED), 0.799, 0.801),
    "baseline, smoothed": (
        lambda: baseline(SIZE, hidden=32, smoothing=0.01, **POOLED), 0.75, 0.8,
    ),
    "deep": (lambda: deep(SIZE, hidden=32, **POOLED), 0.97, 0.99),
    "convolutional": (lambda: convolutional(**COMMON), 0.98, 1.0),
    "ridge": (lambda: ridge(smoothing=0.0, **COMMON), 1 - 1e-12, 1 + 1e-12),
    "ridge, deep": (lambda: ridge(smoothing=0.0, depth=3, **COMMON), 0.97, 1.01),
    "ridge, smoothed": (lambda: ridge(smoothing=0.01, **COMMON), 0.95, 1.0),
}  # fmt: skip


def pictures() -> torch.Tensor:
    """Noise everywhere, in one half, in one corner; a square; an edge."""
    x = torch.rand(5, 1, SIZE, SIZE)
    x[1, ..., SIZE // 2 :] = 0.5
    x[2, ..., 4:, :] = x[2, ..., 4:] = 0.5
    x[3] = 0.5
    x[3, :, 5:9, 5:9] = 0.9
    x[4] = (torch.arange(SIZE) > 6).double()
    return x


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_cosine_filters_are_orthonormal_and_ignore_brightness(size):
    filters = cosine_filters(size**2 - 1, size)
    flat = filters.flatten(1)
    torch.testing.assert_close(flat @ flat.T, torch.eye(size**2 - 1), atol=1e-12, rtol=0)
    assert float(flat.sum(1).abs().max()) < 1e-12
    assert torch.equal(cosine_filters(2, size), filters[:2])


def test_more_filters_than_waves():
    filters = cosine_filters(12, 3)
    assert filters.shape == (12, 3, 3)
    assert float(filters.sum((1, 2)).abs().max()) < 1e-12
    torch.testing.assert_close(filters.flatten(1).norm(dim=1), torch.ones(12))
    assert torch.equal(filters, cosine_filters(12, 3))
    for count, size in ((1, 1), (0, 3)):
        with pytest.raises(ValueError, match=f"size >= 2, got count={count}, size={size}"):
            cosine_filters(count, size)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_measures_the_responses(name):
    build, low, high = NETWORKS[name]
    net = build()
    start_from_filters_(net, strength=0.03)
    x = pictures()
    paired = 1 if name.startswith("ridge") else 2
    filters = cosine_filters(8 // paired, 3)
    responses = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), filters[:, None])
    expected = 0.03 * responses.abs().sum((1, 2, 3))
    ratio = net(x).detach() / expected
    assert low <= float(ratio.min())
    assert float(ratio.max()) <= high
    net.check_convexity()
    # Brightness is free.
    assert float(net(torch.full((1, 1, SIZE, SIZE), 0.7)).detach()) < 1e-12
    torch.testing.assert_close(net(x + 0.3), net(x))


@pytest.mark.parametrize("smoothing", [0.0, 0.05])
@pytest.mark.parametrize("depth", [2, 4])
def test_a_deepened_network_is_the_same(depth, smoothing):
    shallow = ridge(smoothing=smoothing, **COMMON)
    torch.nn.init.uniform_(shallow.output, 0.5, 1.5)
    scale = 1e6 if smoothing else 1.0  # sums that are large against the smoothing
    deeper = deepened(shallow, depth, inner_channels=3, scale=scale)
    x = pictures()
    torch.testing.assert_close(deeper(x), shallow(x), rtol=1e-6, atol=0)
    assert len(deeper.layers) == depth
    varied = deepened(shallow, depth, variety=0.05, scale=scale)  # 16 groups of 8 channels
    torch.testing.assert_close(varied(x), shallow(x), rtol=0.05, atol=0)
    assert not torch.allclose(varied(x), shallow(x), rtol=1e-5)
    varied.check_convexity()
    again, another = (deepened(shallow, depth, variety=0.05, scale=scale, seed=s) for s in (0, 1))
    assert torch.equal(again(x), varied(x))
    assert not torch.equal(another(x), varied(x))


def test_a_threshold_turns_units_off():
    shallow = ridge(smoothing=0.0, **COMMON)
    x = pictures()
    deeper = deepened(shallow, 2, threshold=0.1)
    sums = deeper.layers[1].previous(shallow.bind(x.shape[1:]).forward(x).z[0])
    torch.testing.assert_close(
        deeper(x), ((sums - 0.1).clamp_min(0) * deeper.output).sum((1, 2, 3))
    )
    assert 0 < float((sums < 0.1).double().mean()) < 1


def test_only_a_shallow_ridge_is_deepened():
    with pytest.raises(ValueError, match=r"a one-layer network made by networks\.ridge"):
        deepened(baseline(SIZE, hidden=4, **POOLED), 2)
    with pytest.raises(ValueError, match=r"a one-layer network made by networks\.ridge"):
        deepened(ridge(depth=2, **COMMON), 3)
    with pytest.raises(ValueError, match="scale > 0, got scale=0"):
        deepened(ridge(**COMMON), 2, scale=0.0)
    with pytest.raises(ValueError, match="depth >= 2, got depth=1"):
        deepened(ridge(**COMMON), 1)
    nothing = ridge(**COMMON)
    torch.nn.init.zeros_(nothing.output)
    with pytest.raises(ValueError, match="here R = 0"):
        deepened(nothing, 2)
    with pytest.raises(ValueError, match="depth >= 1, got depth=0"):
        ridge(depth=0)


def test_networks_that_have_no_filters_to_set():
    dense = cl.ConvexLayer(cl.ReLU(), channels=4, skip=Dense(SIZE**2, 4))
    with pytest.raises(ValueError, match="needs a first layer with a convolution, got Dense"):
        start_from_filters_(cl.InputConvexNetwork([dense], image_size=(SIZE, SIZE)))
    first = convolutional(**COMMON).layers[0]
    skips = cl.ConvexLayer(cl.ReLU(), channels=8, skip=convolutional(**COMMON).layers[0].skip)
    with pytest.raises(ValueError, match="needs layers that read the previous one"):
        start_from_filters_(cl.InputConvexNetwork([first, skips]))
    pool = cl.ConvexLayer(cl.ReLU(), channels=8, previous=Chain(AveragePool(2)))
    with pytest.raises(ValueError, match="cannot set a Chain"):
        start_from_filters_(cl.InputConvexNetwork([first, pool]))


@pytest.mark.parametrize("name", NETWORKS)
def test_subtracting_means(name):
    net = NETWORKS[name][0]()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert float(net.layers[0].skip.weight.detach().mean((-2, -1)).abs().max()) > 1e-3
    subtract_means_(net)
    after = net.state_dict()
    key = "layers.0.skip.weight"
    torch.testing.assert_close(after[key], before[key] - before[key].mean((-2, -1), keepdim=True))
    assert all(torch.equal(after[other], before[other]) for other in before if other != key)
    x = pictures()
    torch.testing.assert_close(net(x + 0.3), net(x))
