"""The sums of a certificate in one kernel are those of the plain computation.

On a GPU, or on the threads of a CPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from first_layers import NETWORKS, POOLED, ridge
from host_kernels import COMPILER, HostKernel
from marks import slow

import convexlift as cl
from convexlift.kernels import first_layer
from convexlift.problems import one_pass
from convexlift.problems.certificate import judge
from convexlift.problems.fused_pass import FusedPass
from convexlift.problems.lifting import lift
from convexlift.problems.one_pass import regularizer_at
from convexlift.solvers.primal_dual import lifted_start
from convexlift.tensors import Blocks

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.skipif(not ON_GPU and COMPILER is None, reason="needs g++")


@pytest.fixture(autouse=True, params=[0, slow(10**6)])
def _compiled(request, monkeypatch):
    monkeypatch.setattr(one_pass, "WORTHWHILE", 1)
    monkeypatch.setattr(first_layer, "FEW", request.param)
    if not ON_GPU:
        monkeypatch.setattr(first_layer, "compiled", HostKernel)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*NETWORKS, *POOLED])
def test_as_the_plain_computation(name):
    """In double precision, up to the rounding of single precision."""
    torch.manual_seed(1)
    size = (24, 40) if name in POOLED else (19, 37)
    y = torch.rand(2, 1, *size) * torch.tensor([0.3, 3.0])[:, None, None, None]
    network = (NETWORKS | POOLED)[name]()
    noise = torch.tensor([0.05, 0.2]) if name == "weights of images" else 0.1
    exact = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.4, box=(0.0, 4.0),
        noise=noise if network.reads_data else None,
    ).to(dtype=torch.float64, device=DEVICE)  # fmt: skip
    stated = exact.to(dtype=torch.float32)
    with torch.no_grad():
        x = stated.initial_image()
        _, v = lifted_start(stated, lift(stated, pooled=False), x)
        duals = Blocks({n: p + 0.5 * p.abs().mean() * torch.randn_like(p) for n, p in v.items()})
        v1, pool = next(iter(duals.values())), 4 * (name in POOLED)
        t = v1.new_ones((2, 3, *(n // pool for n in v1.shape[2:]))) if pool else v1
        assert FusedPass.of(stated.network, x, v1.dtype, t, pool) is not None
        found, bounds = judge(stated, x, duals)
        assert FusedPass.of(exact.network, x.double(), torch.float64, t.double(), pool) is None
        doubled = Blocks({name: part.double() for name, part in duals.items()})
        expected, exact_bounds = judge(exact, x.double(), doubled)
        value, last = regularizer_at(stated.network, x)  # without v
    near = {"rtol": 3e-5, "atol": 0.0}
    torch.testing.assert_close(value.double(), expected.regularizer, **near)
    if pool:
        assert last is not None
        torch.testing.assert_close(last.double(), expected.last, rtol=3e-5, atol=1e-5)
    torch.testing.assert_close(found.objective, expected.objective, **near)
    torch.testing.assert_close(found.regularizer, expected.regularizer, **near)
    torch.testing.assert_close(bounds.everywhere.gap, exact_bounds.everywhere.gap, **near)
    scale = float(exact_bounds.everywhere.data.pixels.abs().max())
    difference = bounds.everywhere.data.pixels - exact_bounds.everywhere.data.pixels
    assert float(difference.abs().max()) <= 1e-4 * scale


def test_what_it_does_not_take():
    """Dual variables in another precision, and activations whose slope is no ramp."""
    net, x = ridge("huber", "zero").float(), torch.rand(1, 1, 8, 8, dtype=torch.float32)
    network, single = net.bind((1, 8, 8)), torch.float32
    t = network.output
    assert FusedPass.of(network.to(device=DEVICE), x.to(DEVICE), single, t.to(DEVICE))
    assert FusedPass.of(network, x, torch.float64, t) is None
    assert FusedPass.of(network, x, single, t, pool=3) is None
    curved = ridge("softplus", "zero").float().bind((1, 8, 8))
    assert FusedPass.of(curved, x, single, curved.output) is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_tangent_is_the_plain_one(name):
    """p = t h'(a), except where a is so close to a kink that rounding decides about its side."""
    torch.manual_seed(2)
    y = torch.rand(2, 1, 19, 37) * torch.tensor([0.3, 3.0])[:, None, None, None]
    network = NETWORKS[name]()
    noise = torch.tensor([0.05, 0.2]) if name == "weights of images" else 0.1
    stated = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=0.4, box=(0.0, 4.0),
        noise=noise if network.reads_data else None,
    ).to(dtype=torch.float32, device=DEVICE)  # fmt: skip
    exact, (layer,) = stated.to(dtype=torch.float64), stated.network.layers
    with torch.no_grad():
        x = stated.initial_image()
        a = exact.network.hidden(x.double()).a[0]
        expected = exact.network.tangent(0.4, x.double(), [a]).p[0]
        found = one_pass.OnePass(stated.network, None).tangent(0.4, x)
    assert found.dtype == torch.float32
    ramp = layer.activation.ramp
    far = ((a - ramp.left).abs() > 1e-5) | bool(ramp.width > 0)
    assert far.double().mean() > 0.99
    steep = 1e-5 / ramp.width if ramp.width else 0.0  # a is known up to rounding
    error = torch.where(far, found - expected, 0.0).abs().amax()
    assert error <= (1e-6 + steep) * expected.abs().amax()


def test_as_many_images_as_filters_share_the_biases_of_channels():
    """Numbers after the biases of the channels belong to somebody else."""
    network = (
        cl.networks.ridge(channels=3, kernel=5)
        .bind((1, 9, 11))
        .to(device=DEVICE, dtype=torch.float32)
    )
    x = torch.rand(1, 1, 9, 11, dtype=torch.float32, device=DEVICE).expand(3, -1, -1, -1)
    fused = FusedPass.of(network, x, x.dtype, network.output)
    assert fused is not None
    beyond = torch.cat([fused.bias, torch.full_like(fused.bias, 3.0)])
    fused = replace(fused, bias=beyond[: len(fused.bias)])
    V = network.layers[0].operators[0].convolution
    value = fused.value(network.output, V.padding(x))
    torch.testing.assert_close(value, value[:1].expand(3), rtol=1e-6, atol=0)
    expected, _ = regularizer_at(network.to(dtype=torch.float64), x[:1].double())
    torch.testing.assert_close(value[:1].double(), expected, rtol=1e-5, atol=0)
