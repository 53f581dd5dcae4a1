"""Certificates: bounds that hold, for every combination, from good and from bad duals."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import zoo
from checked_proofs import confirm
from oracle import optimum

import convexlift as cl
from convexlift.tensors import Blocks, choose_images

ALL = {**zoo.MONOTONE, **zoo.FIRST_LAYER_ONLY}
COMBINATIONS = list(
    itertools.product((*zoo.ARCHITECTURES, "residual last"), ALL, zoo.FIDELITIES, zoo.BOXES)
)


def short_solve(problem: cl.VariationalProblem, iterations: int = 15) -> cl.Solution:
    return cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=iterations, check_every=15))


def competitors(problem: cl.VariationalProblem, x: torch.Tensor, radius: float) -> torch.Tensor:
    """Feasible images within the radius of x, many of them near the optimum."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn((60, *x.shape[1:]), generator=generator)
    sizes = torch.logspace(-4, 0, 60)[:, None, None, None]
    images = x[:1] + (sizes * noise).clamp(-radius, radius)
    images = torch.cat([images, x[:1] + sizes[::6] * 0.3 * radius])
    return problem.bounds.project(images)


@pytest.mark.sampled(35)
@pytest.mark.parametrize("architecture", [*zoo.ARCHITECTURES, "residual last"])
@pytest.mark.parametrize("activation", ALL)
def test_the_bound_holds_for_every_combination(architecture, activation, tmp_path):
    """x after 15 iterations, bound from its duals: no competitor is below the lower bound."""
    for fidelity, box in itertools.product(zoo.FIDELITIES, zoo.BOXES):
        problem = zoo.problem(architecture, ALL[activation], fidelity, box)
        solution = short_solve(problem)
        confirm(problem, solution.proof.claim, tmp_path / "x.proof")
        certificate = cl.certify(problem, solution.x, solution.duals)
        case = f"{architecture}, {activation}, {fidelity}, {box}"
        assert certificate.guarantee[0] is not cl.Guarantee.NONE, case
        assert torch.isfinite(certificate.lower_bound).all(), case
        values = torch.cat(
            [problem.objective(image[None]) for image in competitors(problem, solution.x, 1.0)]
        )
        rounding = 1e-10 * certificate.objective.abs()
        assert (values >= certificate.lower_bound - rounding).all(), case
        assert (certificate.lower_bound <= certificate.objective).all(), case
        # Where every pixel is seen or bounded, and the network is bounded below, it is global.
        bounded = box == "box" or (fidelity != "masked L2" and architecture != "residual last")
        if bounded:
            assert certificate.guarantee == (cl.Guarantee.GLOBAL,), case
        assert certificate.map.shape == (1, 1, zoo.SIZE, zoo.SIZE)
        assert (certificate.map >= 0).all(), case
        gap = certificate.objective - certificate.lower_bound
        rounding = 1e-11 * float(certificate.objective)  # of bounds that leave room for it
        torch.testing.assert_close(certificate.map.sum((1, 2, 3)), gap, rtol=1e-8, atol=rounding)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", COMBINATIONS[:: len(COMBINATIONS) // 24], ids=", ".join)
def test_never_above_the_optimum_whatever_the_duals(case):
    """Random x and random dual variables still give a bound below CVXPY's optimum."""
    architecture, activation, fidelity, box = case
    problem = zoo.problem(architecture, ALL[activation], fidelity, box)
    try:
        value, minimiser = optimum(problem)
    except AssertionError as error:
        assert "unbounded" in str(error)  # noqa: PT017 - unseen pixels, no box, R not coercive
        return
    duals = short_solve(problem, 1).duals
    generator = torch.Generator().manual_seed(0)
    for size in (0.0, 0.3, 3.0):
        x = torch.as_tensor(minimiser) + size * torch.randn(1, 1, 8, 8, generator=generator)
        x = problem.bounds.project(x)
        # Near 0, the checker's rounding errors exceed the objective, and it proves only that.
        if not 1e-10 < float(problem.objective(x)) < math.inf:
            continue
        wild = Blocks(
            {n: size * torch.randn(v.shape, generator=generator) for n, v in duals.items()}
        )
        certificate = cl.certify(problem, x, wild, radius=20.0)
        assert float(certificate.lower_bound) <= value + 1e-6 * abs(value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", [*zoo.ARCHITECTURES, "residual last"])
@pytest.mark.parametrize("activation", zoo.MONOTONE)
def test_the_sum_of_local_terms_is_the_duality_gap(architecture, activation):
    """objective - [beta - D*(-c)], written out with conjugates, equals the Fenchel-Young sum."""
    problem = zoo.problem(architecture, ALL[activation], "L2")
    solution = short_solve(problem)
    network, count = problem.network, len(problem.network.layers)

    def choose(i, t):
        name = f"v{i}" if i == count else f"v{i},1"
        return network.layers[i - 1].activation.clip_to_slopes(solution.duals[name], t)

    backward = network.backward(problem.weight, solution.x, choose)
    beta = 0.0
    for layer, t, p in zip(network.layers, backward.t, backward.p, strict=True):
        s = torch.where(t > 0, p / t.clamp_min(1e-300), 0.5).clamp(*layer.activation.slopes)
        beta += (p * layer.bias).sum() - (t * layer.activation.conjugate(s)).sum()
    y, c = problem.fidelity.y, backward.c
    bound = float(beta + (c * y - c**2 / 2).sum())
    certificate = cl.certify(problem, solution.x, solution.duals)
    tangent_only = cl.certify(problem, solution.x)
    expected = max(bound, float(tangent_only.lower_bound))
    assert float(certificate.lower_bound) == pytest.approx(expected, rel=1e-12)


def test_any_solver_can_be_certified():
    """An image from elsewhere: L-BFGS on a smooth network, certified by its tangent alone."""
    problem = zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2")
    x = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-8)).x
    certificate = cl.certify(problem, x)
    assert float(certificate.gap) <= 1e-7
    value, minimiser = optimum(problem)
    assert float(certificate.lower_bound) <= value * (1 + 1e-8)
    distance = float((x - torch.as_tensor(minimiser)).norm())
    assert distance <= float(certificate.distance_bound) + 1e-4
    assert float(certificate.distance_bound) < 1e-2


def test_the_distance_bound_needs_every_pixel():
    problem = zoo.problem("plain", cl.ReLU(), "masked L2", "box")
    assert cl.certify(problem, problem.initial_image()).distance_bound.isinf().all()


def test_unseen_pixels_without_a_box_are_said():
    problem = zoo.problem("plain", cl.ReLU(), "masked L2", "no box")
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    assert solution.guarantee == (cl.Guarantee.WITHIN_RADIUS,)
    assert "within the radius" in solution.guarantee[0].value
    wide = cl.certify(problem, solution.x, solution.duals, radius=100.0)
    narrow = cl.certify(problem, solution.x, solution.duals, radius=0.01)
    assert float(narrow.gap) <= float(solution.gap) + 1e-12 <= float(wide.gap) + 1e-9


def test_double_precision_is_one_argument_away():
    problem = zoo.problem("residual", cl.LeakyReLU(0.2), "masked L2", "box", batch=2)
    single = problem.to(dtype=torch.float32)
    solution = cl.solve(single, stop=cl.StopWhen(gap=1e-4))
    assert solution.x.dtype == torch.float32
    rough = cl.certify(single, solution.x, solution.duals)
    exact = cl.certify(single, solution.x, solution.duals)
    assert exact.map.dtype == torch.float64
    torch.testing.assert_close(rough.lower_bound, exact.lower_bound, rtol=3e-6, atol=0)
    assert next(single.regularizer.parameters()).dtype == torch.float32


def test_the_map_shows_where_the_image_is_not_optimal():
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], "L2")
    x = cl.solve(problem, stop=cl.StopWhen(gap=1e-8)).x.clone()
    x[0, 0, 2, 5] += 0.5
    worst = int(cl.certify(problem, x).map.flatten().argmax())
    assert divmod(worst, zoo.SIZE) == (2, 5)


def test_an_image_outside_the_box_has_no_certificate():
    problem = zoo.problem("plain", cl.ReLU(), "L2", "box")
    certificate = cl.certify(problem, torch.full((1, 1, 8, 8), 2.0))
    assert certificate.guarantee == (cl.Guarantee.NONE,)
    assert certificate.gap.isinf().all()


def test_certify_refuses_what_makes_no_sense():
    problem = zoo.problem()
    with pytest.raises(ValueError, match="radius must be positive"):
        cl.certify(problem, problem.initial_image(), radius=0.0)
    problem.regularizer.output.data[0] = -1.0
    with pytest.raises(ValueError, match="must be nonnegative"):
        cl.certify(problem, problem.initial_image())


def test_choosing_images_reaches_into_records():
    first, second = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    chosen = choose_images(torch.tensor([True, False]), (first, Blocks({"x": first})),
                           (second, Blocks({"x": second})))  # fmt: skip
    assert chosen[0].sum() == 4
    assert chosen[1]["x"].sum() == 4


def test_what_is_no_image_of_the_problem_is_not_certified():
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L2", batch=2)
    x = problem.initial_image().clone()
    with pytest.raises(ValueError, match="x must have shape"):
        cl.certify(problem, x[:1])
    x[1, 0, 2, 3] = float("nan")
    with pytest.raises(ValueError, match=r"x is nan at index \(1, 0, 2, 3\)"):
        cl.certify(problem, x)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("fidelity", ["L1", "L2", "KL"])
def test_the_bound_holds_however_far_the_image_is(fidelity, scale):
    """Objective and gap nearly cancel there, and rounding is larger than the optimum."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, batch=4).to(dtype=torch.float32)
    optimum = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=2000)).objective
    far = scale * torch.rand(4, *problem.image_shape, dtype=torch.float32)
    certificate = cl.certify(problem, far)
    assert (certificate.lower_bound <= optimum).all()
    assert (certificate.gap > 0.5).all()
