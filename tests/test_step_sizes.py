"""Step sizes of automatic PDHG are admissible, few iterations suffice, and units do not matter.

The limits on iterations lie between what is needed now and what was needed without the mechanism
that a problem is an example of.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from backends import step_norm
from problem_cases import images, made, posed, ridge, smooth, uneven

import convexlift as cl
from convexlift import phantoms
from convexlift.images import load_example
from convexlift.tasks import Inpainting, SaltAndPepper, SparseViewCT

INPAINTING = Inpainting(missing=0.3, noise=0.03)


def opposite_rows(padding: str) -> cl.InputConvexNetwork:
    """Two rows of opposite signs, far apart: zeros in the spectrum."""
    network = cl.networks.ridge(channels=1, kernel=11, padding=padding)
    with torch.no_grad():
        network.layers[0].skip.weight.zero_()
        network.layers[0].skip.weight[..., 0, :], network.layers[0].skip.weight[..., -1, :] = 1, -1
    return network


def scanned(network: cl.InputConvexNetwork, contrast: float = 1.0) -> cl.VariationalProblem:
    """An image of 18 x 14 pixels; of the least contrast 1, the weights of all rays are alike."""
    A = cl.ParallelBeam((18, 14), 9, 20, 18.0).to(dtype=torch.float64)
    y = A(images(1, 1, 18, 14))
    data = cl.WeightedL2(y, contrast ** (-y / y.max()))
    return cl.VariationalProblem(
        fidelity=data, operator=A, regularizer=network, weight=0.3, box=(0, 1)
    )


STEPS = {
    "scan, differences": lambda: scanned(cl.TotalVariation()),
    "scan, filters": lambda: scanned(smooth(kernel=7, padding="zero")),
    "scan, filters of filters": lambda: scanned(smooth(depth=3, inner_channels=3)),
    **{f"scan, opposite rows, {p}": lambda p=p: scanned(opposite_rows(p))
       for p in ("zero", "reflect", "replicate")},
    "uneven rays": lambda: scanned(cl.TotalVariation(), 2000.0),
    "uneven rays, filters": lambda: scanned(smooth(), 50.0),
    "uneven channels": lambda: posed(uneven(), size=(9, 10), batch=1),
    "a few blurred pixels": lambda: made("few blurred pixels", alone=True),
    "one convolution": lambda: posed(ridge(), size=(9, 10), batch=1),
    **{name: lambda name=name: made(name, alone=True)
       for name in ("skips", "residual", "deep counts")},
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STEPS)
def test_steps_satisfy_the_condition_of_convergence(name):
    """||S^(1/2) K T^(1/2)|| < 1, from dense matrices, at first and after restarts."""
    problem = STEPS[name]()
    for iterations in (0, 30):
        assert 0.2 < step_norm(problem, iterations) < 1


def noisy_scan(bins: int, angles: int, noise: float, fidelity=cl.L1, **options):
    truth = torch.zeros(1, 1, 16, 16)
    truth[..., 4:12, 4:12] = 1.0
    A = cl.ParallelBeam(16, angles=angles, bins=bins)
    y = A(truth)
    y = y + noise * y.max() * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    options = {"regularizer": cl.TotalVariation(), "weight": 1.0, "box": (0, 1)} | options
    return cl.VariationalProblem(fidelity=fidelity(y), operator=A, **options)


def phantom_scan(network: cl.InputConvexNetwork) -> cl.VariationalProblem:
    task = SparseViewCT(scanner=20.0 * cl.ParallelBeam(24, 18, 36, 24.0), box=(0.0, None))
    clean = phantoms.shepp_logan(24).clamp_min(0)
    return task.measure(clean, [torch.Generator().manual_seed(0)]).problem(network, 3.0)


def uneven_rays() -> cl.VariationalProblem:
    """Line integrals from photons, of which 1 / 2000 pass the densest part."""
    A = cl.ParallelBeam(24, 18, 36, 24.0)
    clean = phantoms.shepp_logan(24).clamp_min(0)
    decay = math.log(2000.0) / float(A(clean).max())
    draw = torch.Generator().manual_seed(0)
    counts = torch.poisson(1e4 * torch.exp(-decay * A(clean)), draw).clamp_min(1)
    data = cl.WeightedL2(-(counts / 1e4).log() / decay, counts * decay**2)
    return cl.VariationalProblem(
        fidelity=data, operator=A, regularizer=cl.TotalVariation(), weight=3.0, box=(0, 2)
    )


def inpainting() -> cl.VariationalProblem:
    """With weights that differ from pixel to pixel, some of which are not seen."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, 1, 10, 10, generator=draw)
    y = torch.nn.functional.interpolate(coarse, size=(80, 80), mode="bilinear")
    mask = (torch.rand(80, 80, generator=draw) > 0.3).to(y)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y * mask), operator=cl.Mask(mask), noise=0.05, weight=1.0,
        regularizer=cl.load("photo-open").to(y), box=(0, 1),
    )  # fmt: skip


def shipped(name: str, task: Inpainting | SaltAndPepper) -> cl.VariationalProblem:
    network = cl.load(name)
    clean = load_example("camera").to(torch.get_default_dtype())
    weight = network.card.weights.get(task.name, network.card.weight)
    return task.measure(clean, [torch.Generator().manual_seed(0)]).problem(
        network.to(torch.get_default_dtype()), weight
    )


LIMITS = {
    "extrapolations behind a scanner": (lambda: noisy_scan(24, 8, 0.02), 1e-4, 600),
    "steps by frequency": (lambda: phantom_scan(cl.TotalVariation()), 1e-3, 600),
    "steps by frequency, filters": (lambda: phantom_scan(smooth(kernel=5)), 1e-3, 300),
    "steps by pixel": (uneven_rays, 1e-2, 400),
    "attempts at a proof": (inpainting, 1e-3, 120),
    "faces, inpainting": (lambda: shipped("faces-inpainting-bilevel", INPAINTING), 1e-3, 60),
    "photos, inpainting": (lambda: shipped("photo-any-size", INPAINTING), 1e-3, 50),
    "photos, salt and pepper": (lambda: shipped("photo-any-size", SaltAndPepper()), 1e-3, 80),
    "faces, salt and pepper": (lambda: shipped("faces-denoising", SaltAndPepper()), 1e-3, 180),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LIMITS)
def test_few_iterations_suffice(name):
    make, gap, limit = LIMITS[name]
    solution = cl.solve(make(), stop=cl.StopWhen(gap=gap, max_iterations=limit))
    assert set(solution.status) == {cl.Status.CONVERGED}, str(solution)


@pytest.mark.parametrize("box", [(0, None), (None, 1)])
@pytest.mark.parametrize("kind", ["missing pixels", "absolute differences", "rays"])
def test_one_bound_suffices_for_a_bound_over_all_images(kind, box):
    """Dual variables are repaired where V* p alone bounds <c, x>; the checker confirms it."""
    problem = {
        "missing pixels": lambda: posed(cl.TotalVariation(), weight=0.1, box=box, batch=1),
        "absolute differences": lambda: posed(
            cl.TotalVariation(), cl.L1, cl.Identity(), weight=0.4, box=box
        ),
        "rays": lambda: noisy_scan(24, 12, 0.02, cl.SquaredL2, weight=0.1, box=box),
    }[kind]()
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=400))
    assert set(solution.guarantee) == {cl.Guarantee.GLOBAL}
    assert set(solution.status) == {cl.Status.CONVERGED}
    cl.certify(problem, solution.x, solution.duals)


@pytest.mark.single_precision
def test_iterations_go_on_in_double_precision_where_rounding_stops_them():
    """Line integrals from up to 1e6 photons: A x - y is not much larger than rounding errors."""
    clean = phantoms.shepp_logan(40).clamp_min(0)
    A = cl.ParallelBeam(40, 60, 60, 40.0)
    decay = 4.6 / float(A(clean).max())  # a hundredth passes
    counts = torch.poisson(
        1e6 * torch.exp(-decay * A(clean)), generator=torch.Generator().manual_seed(0)
    )
    problem = cl.VariationalProblem(
        fidelity=cl.WeightedL2(-(counts / 1e6).log() / decay, counts * decay**2), operator=A,
        regularizer=cl.TotalVariation(), weight=30.0, box=(0, 2),
    )  # fmt: skip
    stop = cl.StopWhen(gap=1e-4, max_iterations=600)
    solution = cl.solve(problem, stop=stop)
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.x.dtype == torch.float32
    again = cl.solve(problem, start=solution.state, stop=stop)  # begins in single precision
    assert again.status[0] is cl.Status.CONVERGED


# Units


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
def test_scales_of_layers_do_not_matter(task, shift, factor):
    torch.manual_seed(0)
    network = cl.networks.baseline(image_size=32, channels=6, pool=8, hidden=16)
    with torch.no_grad():
        network.layers[1].bias.uniform_(-0.05, 0.05).add_(shift)
    clean = load_example("camera")[..., 100:132, 100:132].to(torch.get_default_dtype())
    data = task.measure(clean, [torch.Generator().manual_seed(0)])
    stop, counts = cl.StopWhen(gap=1e-3, max_iterations=3000, check_every=2), []
    for net in (network, rescaled(network, factor)):
        torch.testing.assert_close(net(clean), network(clean), rtol=1e-9, atol=1e-9)
        solution = cl.solve(data.problem(net, 5.0), stop=stop)
        assert solution.status == (cl.Status.CONVERGED,)
        counts.append(int(solution.iterations))
    assert abs(counts[1] - counts[0]) <= max(2, 0.1 * counts[0])


@pytest.mark.parametrize("channel", [0, 7])
def test_rescaling_a_channel_and_undoing_it_changes_nothing(channel):
    """|1000 a| / 1000 is the same function, and iterates differ by rounding only."""
    plain, scaled = (posed(uneven(), size=(9, 10), batch=1) for _ in range(2))
    for each in (plain, scaled):
        each.regularizer.layers[0].activation = cl.Abs()
    with torch.no_grad():
        scaled.regularizer.layers[0].skip.weight[channel] *= 1000
        scaled.regularizer.output[channel] /= 1000
    stop = cl.StopWhen(gap=1e-6, max_iterations=2000)
    one, other = (cl.solve(each, stop=stop) for each in (plain, scaled))
    assert int(one.iterations) == int(other.iterations)
    torch.testing.assert_close(one.x, other.x, rtol=0, atol=1e-5)
