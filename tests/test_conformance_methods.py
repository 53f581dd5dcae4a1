"""Every method: the optimum of an independent solver, bounds that hold at any time, batches, stops.

CVXPY is given the lifted problem from dense matrices and textbook cones; the objective here is the
nested one. Agreement says that lifted and nested optimum are equal (the paper's Theorem), that the
method finds it, and that the certified lower bound is below it.
"""

from __future__ import annotations

import itertools
import math
import signal
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import zoo
from checked_proofs import confirm
from oracle import optimum
from parts import OPERATORS
from torch import Tensor
from zoo import MONOTONE, NAMED

import convexlift as cl

SMOOTH = MONOTONE["smoothed"]
PAPERS = cl.PDHG(steps=cl.PaperSteps((0.5, 0.05)))
METHODS = {
    "pdhg": cl.PDHG(),
    "paper steps": PAPERS,
    "as released": cl.PDHG(steps=cl.PaperSteps((0.5, 0.05), as_released=True)),
    "dualised": cl.PDHG(dualise_fidelity=True),
    "subgradient": cl.Subgradient(0.3),
    "diminishing": cl.Subgradient(3.0, diminishing=True),
    "nmapg": cl.NMAPG(),
    "nmapg as released": cl.NMAPG.as_released(),
    "lbfgs": cl.LBFGS(),
}
every_method = pytest.mark.parametrize("name", METHODS)
LIMITED = ("subgradient", "diminishing")
UNTUNED = ("paper steps", "as released", *LIMITED)  # as far as they get
EXACT = cl.StopWhen(gap=5e-7, max_iterations=20_000, check_every=20)


def denoising(y: Tensor, regularizer, weight: float = 0.1, **more) -> cl.VariationalProblem:
    """1/2 |x - y|^2 + weight R(x)."""
    data = cl.SquaredL2(y)
    return cl.VariationalProblem(fidelity=data, regularizer=regularizer, weight=weight, **more)


def gradient(problem: cl.VariationalProblem, x: Tensor) -> Tensor:
    """Of J at x, by autograd."""
    leaf = x.clone().requires_grad_()
    data = problem.fidelity.density(problem.operator(leaf)).sum()
    return torch.autograd.grad(data + problem.weight * problem.regularizer(leaf).sum(), leaf)[0]


def wild_duals_stay_below(problem: cl.VariationalProblem, value: float, x: Tensor) -> None:
    """Any image and any dual variables give a bound, which the checker of proofs confirms."""
    short = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=1))
    generator = torch.Generator().manual_seed(0)
    for size in (0.0, 0.3, 10.0):
        duals = {
            name: size * torch.randn(part.shape, generator=generator)
            for name, part in short.duals.items()
        }
        moved = x + size * torch.randn(x.shape, generator=generator)
        moved = problem.bounds.project(moved)
        # Near 0, the checker's rounding errors exceed the objective, and it proves only that.
        if 1e-10 < float(problem.objective(moved)) < math.inf:
            wild = cl.certify(problem, moved, type(short.duals)(duals), radius=20.0)
            assert float(wild.lower_bound) <= value + 1e-6 * abs(value)


def agree(problem: cl.VariationalProblem, **options) -> None:
    """The optimum is between bound and objective, at the end and at any time before."""
    value, minimiser = optimum(problem)
    room = 1e-6 * abs(value)  # accuracy of the other solver
    stop = options.pop("stop", EXACT)
    solution = cl.solve(problem, stop=stop, **options)
    assert solution.status == (cl.Status.CONVERGED,), str(solution)
    assert float(solution.objective) == pytest.approx(value, rel=1e-6 + stop.gap)
    if solution.guarantee == (cl.Guarantee.GLOBAL,):
        early = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=7), **options)
        for each in (solution, early):
            assert float(each.lower_bound) <= value + room
            assert float(each.objective) >= value - room
            assert (each.history["lower_bound"] <= value + room).all()
        wild_duals_stay_below(problem, value, torch.as_tensor(minimiser))


GAPS = ("masked L2", "weighted L2")  # unseen pixels without bounds may want to go to infinity
FIXED = [
    (a, h, f, box)
    for a in [*zoo.ARCHITECTURES, "residual last"]
    for h in (NAMED if a == "plain" else MONOTONE)
    for f in [*zoo.FIDELITIES, "weighted L2"]
    for box in (["box"] if f in GAPS else zoo.BOXES)
    if a != "residual last" or h in ("leaky", "smoothed")
]
READING = [
    (a, h, f, "box")
    for a in zoo.ADAPTIVE
    for h in ("huber", "abs", "group huber", "mixture")
    for f in zoo.FIDELITIES
]


@pytest.mark.sampled(79)
@pytest.mark.parametrize("case", FIXED + READING, ids=", ".join)
def test_the_optimum_is_that_of_an_independent_solver(case):
    architecture, activation, fidelity, box = case
    agree(zoo.problem(architecture, NAMED[activation], fidelity, box))


INVERTIBLE = ("blur circular", "gaussian")
BEHIND = [
    (name, fidelity, network, box)
    for name in ("blur zero", *INVERTIBLE, "mask", "parallel beam", "samples")
    for fidelity in ("L1", "L2", "weighted L2", "KL")
    for network in ("plain", "adaptive", "TV")
    for box in ((0.0, 1.0), (0.0, None), None)
    if not (fidelity in ("L1", "KL") and name in ("samples", "parallel beam"))
    and (box or name in INVERTIBLE)
]


def behind(name: str, fidelity: str, network: str, box) -> cl.VariationalProblem:
    """Noisy data behind an operator; counts for KL, and gaps that hold nonsense for weights."""
    A = OPERATORS[name]((1, zoo.SIZE, zoo.SIZE))
    A = A * (1 / A.norm((1, zoo.SIZE, zoo.SIZE)))
    clean = A(zoo.clean_images(1))
    generator = torch.Generator().manual_seed(5)
    noisy = clean + 0.02 * torch.randn(clean.shape, generator=generator)
    gaps = torch.rand(clean.shape, generator=generator) < 0.1
    data = {
        "L1": lambda: cl.L1(torch.where(gaps, 1.0, clean), 0.3),
        "L2": lambda: cl.SquaredL2(noisy),
        "weighted L2": lambda: cl.WeightedL2(
            torch.where(gaps, 50.0, noisy), torch.where(gaps, 0.0, 0.5 + clean.abs())
        ),
        "KL": lambda: cl.KullbackLeibler(torch.poisson(20 * clean.abs() + 1), 1.0),
    }[fidelity]()
    regularizer = {
        "plain": lambda: zoo.network("plain", cl.LeakyReLU(0.2)),
        "adaptive": lambda: zoo.adaptive("adaptive"),
        "TV": lambda: cl.TotalVariation(isotropic=len(name) % 2 == 0),
    }[network]()
    scale = 20 if fidelity == "KL" else 1
    return cl.VariationalProblem(
        fidelity=data, operator=scale * A, regularizer=regularizer, box=box,
        weight=scale * {"plain": 0.02, "adaptive": 0.3, "TV": 0.03}[network],
        noise=0.1 if regularizer.reads_data else None,
    )  # fmt: skip


@pytest.mark.sampled(41)
@pytest.mark.parametrize("case", BEHIND, ids=str)
def test_the_optimum_behind_operators(case):
    agree(behind(*case), stop=cl.StopWhen(gap=1e-4, max_iterations=5000, check_every=20))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "problem",
    [
        lambda: zoo.problem("plain", cl.LeakyReLU(0.2), "masked L2", "box", channels=2),
        lambda: zoo.problem("adaptive", NAMED["huber"], "L2", "box", channels=3),
        lambda: replace(
            zoo.problem(fidelity_name="L1", box="box"),
            regularizer=cl.networks.convolutional(channels=3, kernel=5, padding="reflect"),
        ),
        lambda: denoising(
            torch.rand(1, 1, 16, 16), weight=100.0,
            regularizer=cl.networks.baseline(16, channels=4, kernel=3, pool=4, hidden=6),
        ),
        lambda: denoising(torch.rand(1, 2, 6, 5), cl.TotalVariation(in_channels=2, joint=True)),
    ],
    ids=["colour", "adaptive colour", "margins", "the paper's network", "joint variation"],
)  # fmt: skip
def test_the_optimum_of_other_problems(problem):
    agree(problem())


@every_method
@pytest.mark.parametrize("fidelity", ["L2", "KL"])
def test_every_method_descends_to_the_optimum(name, fidelity):
    problem = zoo.problem("plain", SMOOTH, fidelity, "box")
    value, _ = optimum(problem)
    many = 300 if name in UNTUNED else 3000
    stop = cl.StopWhen(gap=1e-5, max_iterations=many)
    solution = cl.solve(problem, method=METHODS[name], stop=stop)
    room = 1e-6 * abs(value)
    assert (solution.history["lower_bound"] <= value + room).all()
    assert (solution.history["objective"] >= value - room).all()
    if fidelity == "L2" or name not in UNTUNED:
        assert float(solution.objective) <= value * (1 + (0.05 if name in UNTUNED else 2e-5))
    if name not in UNTUNED:
        assert solution.status == (cl.Status.CONVERGED,), str(solution)
    confirmed = cl.certify(problem, solution.x, solution.duals)  # and the checker agrees
    assert float(confirmed.lower_bound) >= float(solution.lower_bound) * (1 - 1e-12)


@pytest.mark.parametrize(
    "method", [cl.PDHG(), cl.LBFGS(), cl.NMAPG(), cl.Subgradient(0.02), PAPERS], ids=repr
)
def test_so_it_does_with_networks_that_read_the_data(method):
    net = zoo.guided(smoothing=0.5, depth=2, reads=zoo.EVERYTHING)
    y = zoo.clean_images(1) + 0.1 * torch.randn(1, 1, 8, 8)
    problem = denoising(y, net, weight=1.0, noise=0.1)
    value, _ = optimum(problem)
    stop = cl.StopWhen(gap=1e-3, max_iterations=600)
    solution = cl.solve(problem, method=method, stop=stop)
    assert float(solution.lower_bound) <= value * (1 + 1e-6)
    assert value * (1 - 1e-6) <= float(solution.objective) <= value * 1.01


@pytest.mark.parametrize("shift", [5.0, 0.0, -0.5], ids=["on", "mixed", "off"])
@pytest.mark.parametrize("fidelity", ["L2", "KL"])
def test_last_layers_may_be_on_or_off(shift, fidelity):
    """Where all units of the last layer are on, a method may leave it out."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, "box")
    problem.regularizer.layers[-1].bias.data.fill_(shift)
    agree(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=5000))


# Batches, precision and scale


@every_method
@pytest.mark.parametrize("case", ["plain, L1", "plain, masked L2", "adaptive, L2"])
def test_a_batch_of_three_is_three_single_runs(name, case):
    architecture, fidelity = case.split(", ")
    if architecture != "plain" and name in UNTUNED[:2]:
        pytest.skip("steps for two layers")
    h = SMOOTH if architecture == "plain" else NAMED["huber"]
    problem = zoo.problem(architecture, h, fidelity, "box", batch=3)
    # At ties the sign of x - y turns rounding errors into whole steps: fewer of those.
    chaotic = fidelity == "L1" and name in LIMITED
    stop = cl.StopWhen(gap=1e-2, max_iterations=10 if chaotic else 120)
    together = cl.solve(problem, method=METHODS[name], stop=stop)
    for i in range(3):
        one = problem.select(torch.tensor([i]))
        alone = cl.solve(one, method=METHODS[name], stop=stop)
        assert together.status[i] == alone.status[0]
        assert int(together.iterations[i]) == int(alone.iterations[0])
        torch.testing.assert_close(together.x[i], alone.x[0], rtol=0, atol=1e-8)
        torch.testing.assert_close(together.gap[i], alone.gap[0], rtol=1e-5, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fidelity", ["L2", "L1", "KL"])
@pytest.mark.parametrize("case", ["plain, spline", "adaptive, huber", "deep, leaky"])
def test_claims_in_single_precision_hold_in_double_precision(case, fidelity):
    """Both bounds are below both objectives."""
    architecture, activation = case.split(", ")
    problem = zoo.problem(architecture, NAMED[activation], fidelity, "box", batch=2)
    single = problem.to(dtype=torch.float32)
    rough = cl.solve(single, stop=cl.StopWhen(gap=1e-4))
    exact = cl.solve(single.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-6))
    assert rough.status == exact.status == (cl.Status.CONVERGED,) * 2
    assert rough.x.dtype == torch.float32
    for one, other in itertools.product((rough, exact), repeat=2):
        assert (one.lower_bound <= other.objective).all()
    assert (cl.certify(single, rough.x, rough.duals).gap <= 1.01e-4).all()
    ended = cl.solve(single, stop=cl.StopWhen(gap=0.0, max_iterations=200))
    assert (ended.lower_bound <= ended.objective).all()
    assert (ended.gap >= 0).all()


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("fidelity", ["L1", "L2", "KL"])
def test_bounds_hold_however_far_the_image_is(fidelity, scale):
    """Objective and gap nearly cancel there, and rounding is larger than the optimum."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, batch=4).to(dtype=torch.float32)
    best = cl.solve(problem, stop=cl.StopWhen(gap=1e-4, max_iterations=2000)).objective
    certificate = cl.certify(problem, scale * torch.rand(4, 1, 8, 8).float())
    assert (certificate.lower_bound <= best).all()
    assert (certificate.gap > 0.5).all()


@pytest.mark.parametrize("w", [1e4, 1e-4, 1e8])
@pytest.mark.parametrize("case", [("blur zero", "weighted L2", "plain", (0.0, 1.0)),
                                  ("parallel beam", "L2", "TV", (0.0, None)),
                                  ("mask", "L1", "TV", (0.0, 1.0))], ids=str)  # fmt: skip
def test_the_unit_of_the_objective_does_not_matter(case, w):
    """The iterations for w J are those for J."""
    problem = behind(*case)
    f = problem.fidelity
    scaled = {
        "WeightedL2": lambda: cl.WeightedL2(f.y, w * f.weights),
        "SquaredL2": lambda: cl.WeightedL2(f.y, w),
        "L1": lambda: cl.L1(f.y, w * f.scale),
    }[type(f).__name__]()
    if isinstance(f, cl.SquaredL2):
        problem = replace(problem, fidelity=cl.WeightedL2(f.y, 1.0))
    other = replace(problem, fidelity=scaled, weight=w * problem.weight)
    stop = cl.StopWhen(gap=None, max_iterations=60)
    one, two = (cl.solve(each, stop=stop) for each in (problem, other))
    torch.testing.assert_close(two.history["gap"], one.history["gap"], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(
        two.history["objective"] / w, one.history["objective"], rtol=1e-6, atol=0
    )


HOSTILE = {
    "constant": torch.full((1, 1, 8, 8), 0.3),
    "zero": torch.zeros(1, 1, 8, 8),
    "huge": 1e30 * torch.rand(1, 1, 8, 8),
    "tiny": 1e-30 * torch.rand(1, 1, 8, 8),
    "offset": 1e6 + torch.rand(1, 1, 8, 8),
    "one spike": F.pad(torch.full((1, 1, 1, 1), 1e9), (3, 4, 3, 4)),
    "one pixel": torch.rand(1, 1, 1, 1),
    "one row": torch.rand(1, 1, 1, 9),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_data_make_no_false_claims(data, dtype):
    y = HOSTILE[data].to(dtype)
    problem = denoising(y, cl.TotalVariation().to(dtype))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=300))
    assert solution.x.isfinite().all()
    assert (solution.lower_bound <= solution.objective).all()
    flat = y.double().mean().expand_as(y)
    best = min(float((flat - y.double()).square().sum() / 2), float(problem.objective(y)))
    assert float(solution.lower_bound) <= best
    if data not in ("huge", "tiny", "offset", "one spike"):
        assert solution.status == (cl.Status.CONVERGED,), str(solution)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_images_of_any_scale_take_about_as_many_iterations(scale):
    """D(s x, s y) + s w TV(s x) = s^2 (D + w TV): first steps follow the range of the pixels."""
    y = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(3)).round()

    def solved(s: float) -> cl.Solution:
        variation = cl.TotalVariation().float()
        return cl.solve(denoising((s * y).float(), variation, weight=0.05 * s, box=(-s, 2 * s)))

    ordinary, scaled = solved(1.0), solved(scale)
    assert scaled.status == (cl.Status.CONVERGED,)
    assert int(scaled.iterations) <= int(ordinary.iterations) + 20
    torch.testing.assert_close(scaled.x / scale, ordinary.x, atol=0.02, rtol=0)


# Starts


@every_method
def test_a_warm_start_goes_on_where_it_stopped(name):
    problem = zoo.problem("plain", SMOOTH, "L2", batch=2)
    first, none = (cl.StopWhen(gap=None, max_iterations=n) for n in (30, 0))
    before = cl.solve(problem, method=METHODS[name], stop=first)
    again = cl.solve(problem, method=METHODS[name], stop=none, start=before.state)
    torch.testing.assert_close(again.history[0].objective, before.history[-1].objective)


@pytest.mark.parametrize("name", ["paper steps", "nmapg", "lbfgs"])
def test_an_unbroken_run_equals_a_continued_one(name):
    problem, method = zoo.problem("plain", SMOOTH, "L2"), METHODS[name]
    whole, part = (cl.StopWhen(gap=None, max_iterations=n) for n in (20, 10))
    half = cl.solve(problem, method=method, stop=part)
    rest = cl.solve(problem, method=method, stop=part, start=half.state)
    torch.testing.assert_close(
        rest.state.x, cl.solve(problem, method=method, stop=whole).state.x, rtol=0, atol=0
    )


def test_duals_are_kept_and_images_of_others_are_starts():
    problem = zoo.problem("plain", SMOOTH, "L2", "box", batch=2)
    first = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    enough = cl.StopWhen(gap=2e-5)
    assert cl.solve(problem, stop=enough, start=first.state).iterations.tolist() == [0, 0]
    good = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-6))
    for start in (good.x, good.state):
        assert cl.solve(problem, start=start, stop=enough).iterations.tolist() == [0, 0]
    outside = cl.solve(problem, start=good.x + 5, stop=cl.StopWhen(gap=1e-3))
    assert outside.status == (cl.Status.CONVERGED,) * 2
    other = replace(problem, weight=5 * problem.weight)
    for method in (cl.LBFGS(), cl.NMAPG(), cl.PDHG()):
        stop = cl.StopWhen(gap=1e-5, max_iterations=1000)
        warm = cl.solve(other, method=method, stop=stop, start=first.state)
        assert warm.status == (cl.Status.CONVERGED,) * 2
    for elsewhere in (zoo.problem("skips", SMOOTH, "L2", batch=2), problem.to(dtype=torch.float32)):
        found = cl.solve(elsewhere, start=first.state)  # its image is a start like any other
        assert found.status == (cl.Status.CONVERGED,) * 2
        assert found.x.dtype == elsewhere.fidelity.y.dtype


# Stops


def test_a_callback_sees_named_values_and_can_stop():
    seen: list[cl.Progress] = []

    def watch(progress: cl.Progress) -> bool:
        seen.append(progress)
        return progress.iteration >= 30

    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1", batch=2)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=0.0, max_iterations=500), callback=watch)
    assert solution.status == (cl.Status.STOPPED,) * 2
    assert [p.iteration for p in seen] == [0, 10, 20, 30] == solution.history["iteration"].tolist()
    assert seen[-1].x.shape == solution.x.shape
    assert seen[-1].gap.shape == solution.history["gap"][-1].shape == (2,)
    total = seen[1].data_term + problem.weight * seen[1].regularizer
    torch.testing.assert_close(total, seen[1].objective)
    assert (solution.history["lower_bound"].diff(dim=0) >= 0).all()
    assert (solution.history["lower_bound"] <= solution.objective + 1e-12).all()


@every_method
def test_control_c_returns_the_best_image(name):
    problem = zoo.problem("plain", SMOOTH, "L1", batch=2)

    def interrupt(progress: cl.Progress) -> None:
        if progress.iteration == 20:
            signal.raise_signal(signal.SIGINT)

    endless = cl.StopWhen(gap=0.0, max_iterations=10**6)
    solution = cl.solve(problem, method=METHODS[name], callback=interrupt, stop=endless)
    assert solution.status == (cl.Status.INTERRUPTED,) * 2
    assert solution.iterations.tolist() == [20, 20]
    torch.testing.assert_close(problem.objective(solution.x), solution.objective)
    assert (solution.objective <= (1 + 1e-12) * solution.history["objective"]).all()


def steepness(problem: cl.VariationalProblem, x: Tensor) -> Tensor:
    """||grad J(x)|| for each image."""
    return gradient(problem, x).flatten(1).norm(dim=1)


def smooth_problem(batch: int = 1, box=None) -> cl.VariationalProblem:
    """The paper's smooth network, small, on noisy data."""
    torch.manual_seed(0)
    network = cl.networks.baseline(8, channels=3, kernel=3, pool=2, hidden=4, smoothing=0.05)
    data, operator = zoo.fidelity("L2", batch)
    return cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=network, weight=3.0, box=box
    )


@every_method
def test_solves_stop_at_the_first_image_with_a_short_gradient(name):
    problem, method = smooth_problem(2), METHODS[name]
    stop = cl.StopWhen(gap=None, gradient=0.02, max_iterations=3000, check_every=1)
    solution = cl.solve(problem, method=method, stop=stop)
    assert solution.status == (cl.Status.STATIONARY,) * 2
    assert (steepness(problem, solution.x) < 0.02).all()
    before = cl.StopWhen(gap=None, max_iterations=int(solution.iterations.min()) - 1, check_every=1)
    unfinished = cl.solve(problem, method=method, stop=before).state.x
    assert (steepness(problem, unfinished) >= 0.02).all()
    assert (solution.lower_bound <= solution.objective).all()  # certified as always


def test_a_gradient_needs_a_smooth_problem_without_a_box():
    stop = cl.StopWhen(gradient=0.1)
    for problem, words in (
        (zoo.problem("plain", SMOOTH, "L1"), "has kinks"),
        (zoo.problem("plain", cl.LeakyReLU(0.2), "L2"), "has kinks"),
        (smooth_problem(box=(0.0, 1.0)), "bounds of a box"),
    ):
        with pytest.raises(ValueError, match=words):
            cl.solve(problem, stop=stop)


@pytest.mark.parametrize("fidelity", ["L2", "KL"])
@pytest.mark.parametrize("step", [1e30, 1e200])
def test_divergence_is_a_status_and_never_an_image_of_nan(fidelity, step):
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), fidelity, batch=2)
    stop = cl.StopWhen(gap=1e-9, max_iterations=200)
    solution = cl.solve(problem, method=cl.Subgradient(step), stop=stop)
    assert cl.Status.CONVERGED not in solution.status
    for each in (solution.x, solution.objective, solution.state.x):
        assert each.isfinite().all()
    if step == 1e200 and fidelity == "L2":
        assert solution.status == (cl.Status.NOT_FINITE,) * 2


def test_gradients_and_settings_are_left_alone():
    problem, matmul, seen = zoo.problem(), torch.backends.cuda.matmul, []
    before, random = matmul.fp32_precision, torch.get_rng_state()
    try:
        matmul.fp32_precision = "tf32"
        callback = lambda _: seen.append(matmul.fp32_precision)  # noqa: E731
        assert not cl.solve(problem, callback=callback).x.requires_grad
        assert set(seen) == {"ieee"}
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None and p.requires_grad for p in problem.regularizer.parameters())


# The paper's iterations, written out


@pytest.mark.parametrize("diminishing", [False, True])
def test_subgradient_steps(diminishing):
    """x - eta g three times, with eta_k = eta_0/(k + 1) for SM-D (not eta_k/k as printed)."""
    problem = zoo.problem("skips", cl.LeakyReLU(0.2), "masked L2")
    x = problem.initial_image()
    for k in range(3):
        x = x - (0.7 / (k + 1) if diminishing else 0.7) * gradient(problem, x)
    stop = cl.StopWhen(gap=None, max_iterations=3)
    found = cl.solve(problem, method=cl.Subgradient(0.7, diminishing), stop=stop).state
    torch.testing.assert_close(found.x, x)


def projected(p: Tensor, q: Tensor, slope: float = 0.2) -> tuple[Tensor, Tensor]:
    """The nearest point of {leaky ReLU(p) <= q}: itself, or on one of its two edges, or 0."""
    right = ((p + q) / 2).clamp_min(0)
    left = ((p + slope * q) / (1 + slope**2)).clamp_max(0)
    on_right = (p - right) ** 2 + (q - right) ** 2 <= (p - left) ** 2 + (q - slope * left) ** 2
    inside = torch.maximum(p, slope * p) <= q
    first = torch.where(on_right, right, left)
    second = torch.where(on_right, right, slope * left)
    return torch.where(inside, p, first), torch.where(inside, q, second)


@pytest.mark.parametrize("released", [False, True], ids=["printed", "as released"])
def test_pdhg_is_the_papers(released):
    """Section 4: images first as printed; duals first, from W_2 on active units, as released."""
    problem = zoo.problem("plain", cl.LeakyReLU(0.2), "L1", batch=2)
    method = cl.PDHG(steps=cl.PaperSteps((0.5, 0.05), as_released=released))
    y, scale = problem.fidelity.y, problem.fidelity.scale
    none, some = (cl.StopWhen(gap=None, max_iterations=n) for n in (0, 15))
    state = cl.solve(problem, method=method, stop=none, start=y).state
    one, two = problem.network.layers
    V, W, cap = one.operators[0], two.operators[1], problem.weight * problem.network.output
    safety, c1, c2 = 0.99, 0.5, 0.05
    s1 = c1 / V.norm() ** 2
    s2 = c2 / W.norm() ** 2
    t1, t2 = float(state.tau["x"][0]), float(state.tau["z1"][0])
    assert t1 == pytest.approx(1 / c1, rel=1 - safety + 1e-9)
    assert t2 == pytest.approx(1 / (s1 + c2), rel=1 - safety + 1e-9)
    x, z = state.u["x"], state.u["z1"]
    v11, v12, v2 = (state.v[name] for name in ("v1,1", "v1,2", "v2"))
    x_bar, z_bar = x, z

    def images() -> tuple[Tensor, Tensor]:
        point = x - t1 * V.adjoint(v11) - y
        moved = y + point.sign() * (point.abs() - t1 * scale).clamp_min(0)
        return moved, z - t2 * (v12 + W.adjoint(v2))

    for _ in range(15):
        if not released:
            new_x, new_z = images()
            x_bar, z_bar, x, z = 2 * new_x - x, 2 * new_z - z, new_x, new_z
        p, q = v11 + s1 * V(x_bar), v12 + s1 * z_bar
        near_p, near_q = projected(p / s1 + one.bias, q / s1)
        v11, v12 = p - s1 * (near_p - one.bias), q - s1 * near_q
        v2 = torch.minimum((v2 + s2 * (W(z_bar) + two.bias)).clamp_min(0), cap)
        if released:
            new_x, new_z = images()
            x_bar, z_bar, x, z = 2 * new_x - x, 2 * new_z - z, new_x, new_z
    found = cl.solve(problem, method=method, stop=some, start=y).state.x
    torch.testing.assert_close(found, x)


def nmapg(problem: cl.VariationalProblem, x: Tensor, iterations: int) -> Tensor:
    """Algorithm 4 of Li and Lin for one image, with rho = 0.9, delta = 0.1, eta = 0.8.

    Steps start from |<s, r>| / <r, r>, at most 1; the second search has a slack of 1e-4.
    """

    def cost(x: Tensor) -> float:
        return float(problem.objective(x))

    def quotient(s: Tensor, r: Tensor) -> float:
        return min(1.0, float((s * r).sum().abs() / (r * r).sum()))

    def search(origin: Tensor, g: Tensor, step: float, level: float, slack: float) -> Tensor:
        while True:
            point = origin - step * g
            limit = level - 0.1 * float(((point - origin) ** 2).sum())
            if cost(point) <= limit * (1 + slack):
                return point
            step *= 0.9

    before, z, t_before, t, q, c = x, x, 0.0, 1.0, 1.0, cost(x)
    y_before = g_before = None
    for _ in range(iterations):
        y = x + t_before / t * (z - x) + (t_before - 1) / t * (x - before)
        g = gradient(problem, y)
        step = 0.1 if y_before is None else quotient(y - y_before, g - g_before)
        z = search(y, g, step, max(cost(y), c), 0.0)
        new = z
        if cost(z) >= c - 0.1 * float(((z - y) ** 2).sum()):
            own = gradient(problem, x)
            step = step if y_before is None else quotient(x - y_before, own - g_before)
            v = search(x, own, step, c, 1e-4)
            new = v if cost(v) <= cost(z) else z
        before, x, y_before, g_before = x, new, y, g
        t_before, t = t, ((4 * t**2 + 1) ** 0.5 + 1) / 2
        c, q = (0.8 * q * c + cost(x)) / (0.8 * q + 1), 0.8 * q + 1
    return x


@pytest.mark.parametrize("architecture", ["plain", "deep"])
@pytest.mark.parametrize("iterations", [1, 6, 25])
def test_nmapg_takes_the_steps_of_the_authors_options(architecture, iterations):
    problem = zoo.problem(architecture, SMOOTH, "masked L2")
    stop = cl.StopWhen(gap=None, max_iterations=iterations)
    x = problem.fidelity.y
    found = cl.solve(problem, method=cl.NMAPG.as_released(), stop=stop, start=x).state.x
    torch.testing.assert_close(found, nmapg(problem, x, iterations), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("decrease", [0.1, 0.3, 1.0])
def test_nmapg_accepts_by_its_own_rule(decrease):
    """F(x_{k+1}) <= c_k, the mean of all F so far with weights that fade by 0.8."""
    problem = behind("gaussian", "L2", "plain", None)
    problem = replace(problem, regularizer=zoo.network("plain", SMOOTH), weight=2.0)
    stop = cl.StopWhen(gap=None, max_iterations=80, check_every=1)
    solution = cl.solve(problem, method=cl.NMAPG(decrease=decrease, memory=0.8), stop=stop)
    first, *others = solution.history["objective"][:, 0].tolist()
    level, q = first, 1.0
    for objective in others:
        assert objective <= level
        level, q = (0.8 * q * level + objective) / (0.8 * q + 1), 0.8 * q + 1


# Certificates


def test_any_image_can_be_certified():
    """One from elsewhere, by its tangent alone; and the distance to the minimiser is bounded."""
    problem = zoo.problem("deep", SMOOTH, "L2")
    x = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-8)).x
    certificate = cl.certify(problem, x)
    value, minimiser = optimum(problem)
    assert float(certificate.lower_bound) <= value * (1 + 1e-8)
    distance = float((x - torch.as_tensor(minimiser)).norm())
    assert distance <= float(certificate.distance_bound) + 1e-4 < 1e-2
    x[0, 0, 2, 5] += 0.5  # the map shows where the image is not optimal
    certificate = cl.certify(problem, x)
    assert divmod(int(certificate.map.flatten().argmax()), zoo.SIZE) == (2, 5)
    gap = certificate.objective - certificate.lower_bound
    torch.testing.assert_close(certificate.map.sum((1, 2, 3)), gap, rtol=1e-8, atol=0)
    assert (certificate.map >= 0).all()


COMBINATIONS = list(itertools.product(
    (*zoo.ARCHITECTURES, "residual last", *zoo.ADAPTIVE), zoo.FIDELITIES, zoo.BOXES
))  # fmt: skip


@pytest.mark.sampled(17)
@pytest.mark.parametrize("case", COMBINATIONS, ids=", ".join)
def test_no_competitor_is_below_the_bound(case, tmp_path):
    """After a few iterations, for images near the solution and far from it."""
    architecture, fidelity, box = case
    h = NAMED["huber" if architecture in zoo.ADAPTIVE else "leaky"]
    problem = zoo.problem(architecture, h, fidelity, box)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=15))
    confirm(problem, solution.proof.claim, tmp_path / "x.proof")
    certificate = cl.certify(problem, solution.x, solution.duals)
    assert certificate.guarantee[0] is not cl.Guarantee.NONE
    if box == "box" or (fidelity != "masked L2" and architecture != "residual last"):
        assert certificate.guarantee == (cl.Guarantee.GLOBAL,)
    noise = torch.logspace(-4, 0, 40)[:, None, None, None] * torch.randn(40, 1, 8, 8)
    for image in problem.bounds.project(solution.x + noise.clamp(-1, 1)):
        value = problem.objective(image[None])
        assert (value >= certificate.lower_bound - 1e-10 * value.abs()).all()
    assert (certificate.lower_bound <= certificate.objective).all()


def test_what_cannot_be_certified_is_said():
    problem = zoo.problem("plain", cl.ReLU(), "masked L2", "box")
    assert cl.certify(problem, problem.initial_image()).distance_bound.isinf().all()
    outside = cl.certify(problem, torch.full((1, 1, 8, 8), 2.0))
    assert outside.guarantee == (cl.Guarantee.NONE,)
    assert outside.gap.isinf().all()
    unseen = zoo.problem("plain", cl.ReLU(), "masked L2", "no box")
    solution = cl.solve(unseen, stop=cl.StopWhen(gap=1e-5))
    assert solution.guarantee == (cl.Guarantee.WITHIN_RADIUS,)
    x = problem.initial_image().clone()
    with pytest.raises(ValueError, match="x must have shape"):
        cl.certify(problem, x[..., :4])
    x[0, 0, 2, 3] = math.nan
    with pytest.raises(ValueError, match=r"x is nan at index \(0, 0, 2, 3\)"):
        cl.certify(problem, x)
    problem.regularizer.output.data[0] = -1.0
    with pytest.raises(ValueError, match="must be nonnegative"):
        cl.certify(problem, problem.initial_image())


# What is chosen, and bad input


@pytest.mark.parametrize(
    ("network", "smoothing", "method"),
    [("deep", 0.1, cl.LBFGS()), ("deep", 0.0, cl.PDHG()), ("baseline", 0.1, cl.LBFGS()),
     ("baseline", 0.0, cl.PDHG())],
)  # fmt: skip
def test_only_smooth_problems_of_several_layers_are_left_unlifted(network, smoothing, method):
    """``explain`` says so, and ``solve`` does it."""
    make = getattr(cl.networks, network)
    regularizer = make(16, channels=3, kernel=3, pool=4, hidden=4, smoothing=smoothing)
    problem = denoising(torch.rand(1, 1, 16, 16), regularizer)
    chosen = {choice.about: choice.chosen for choice in cl.explain(problem).choices}
    assert chosen["method"].startswith(type(method).__name__)
    stop = cl.StopWhen(gap=None, max_iterations=7)
    assert torch.equal(
        cl.solve(problem, stop=stop).x, cl.solve(problem, method=method, stop=stop).x
    )


def test_scans_take_few_iterations():
    """Smooth problems and linear programs: 110 and 190 with extrapolation, thousands without."""
    torch.manual_seed(0)
    A, truth = cl.ParallelBeam(16, angles=8, bins=24), torch.zeros(1, 1, 16, 16)
    truth[..., 4:12, 4:12] = 1.0
    y = A(truth) + 0.3 * torch.randn(1, 1, 8, 24)
    net = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1)
    for fidelity, regularizer, weight, gap, most in (
        (cl.L1(y), cl.TotalVariation(), 1.0, 1e-4, 300),
        (cl.WeightedL2(y, torch.rand(y.shape)), net, 0.05, 1e-7, 250),
    ):
        problem = cl.VariationalProblem(
            fidelity=fidelity, operator=A, regularizer=regularizer, weight=weight, box=(0, 1)
        )
        solution = cl.solve(problem, stop=cl.StopWhen(gap=gap, max_iterations=most))
        assert solution.status == (cl.Status.CONVERGED,), str(solution)


@pytest.mark.slow
def test_lbfgs_goes_on_where_rounding_hides_the_descent():
    """In single precision F stops to fall at a gradient whose certificate is a hundredth."""
    truth = cl.phantoms.shepp_logan(32).float().expand(1, 1, -1, -1)
    scanner = cl.ParallelBeam(32, 30, 47, 32.0) * 4.0
    task = cl.tasks.SparseViewCT(scanner=scanner, box=(0.0, None))
    problem = task.measure(truth, [torch.Generator().manual_seed(0)]).problem(
        cl.load("ct-abdomen-chest"), 1.0
    )
    stop = cl.StopWhen(gap=1e-4, max_iterations=1000)
    assert cl.solve(problem, method=cl.LBFGS(), stop=stop).status == (cl.Status.CONVERGED,)


Y = torch.rand(1, 1, 8, 8, dtype=torch.float64)
HIDDEN = denoising(
    Y, cl.networks.ridge(channels=2, kernel=3, smoothing=0.1).double(),
    operator=cl.Blur.gaussian(1.0).to(dtype=torch.float64),
)  # fmt: skip
RELEASED = cl.PaperSteps((1.0,), as_released=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.StopWhen(gap=-1.0), "gap must be nonnegative"),
        (lambda: cl.StopWhen(gap=math.nan), "gap must be nonnegative"),
        (lambda: cl.StopWhen(gradient=0.0), "gradient must be positive"),
        (lambda: cl.StopWhen(max_iterations=-1), "max_iterations must be at least 0"),
        (lambda: cl.StopWhen(seconds=0.0), "seconds must be positive"),
        (lambda: cl.StopWhen(check_every=0), "check_every must be at least 1"),
        (lambda: cl.Subgradient(0.0), "step > 0"),
        (lambda: cl.NMAPG(shrink=1.0), "0 < shrink < 1"),
        (lambda: cl.NMAPG(memory=1.0), "0 <= memory < 1"),
        (lambda: cl.NMAPG(longest_step=0.0), "longest_step > 0"),
        (lambda: cl.NMAPG(slack=-1.0), "slack >= 0"),
        (lambda: cl.LBFGS(memory=0), "memory >= 1"),
        (lambda: cl.PaperSteps((1.0, -1.0)), "positive numbers"),
        (
            lambda: cl.solve(zoo.problem("deep"), method=PAPERS),
            r"needs 4 step-size parameters c = \(c_1, c_2, c_3, c_4\)",
        ),
        (
            lambda: cl.solve(denoising(Y, cl.TotalVariation()), method=cl.PDHG(steps=RELEASED)),
            "leave as_released out",
        ),
        (
            lambda: cl.solve(replace(HIDDEN, fidelity=cl.L1(Y)), method=cl.NMAPG()),
            "needs a smooth fidelity behind Blur, and L1 is not",
        ),
        (
            lambda: cl.solve(HIDDEN, method=cl.PDHG(dualise_fidelity=False)),
            "no closed-form prox",
        ),
        (lambda: cl.solve(zoo.problem(), start=torch.zeros(1, 1, 4, 4)), r"start must have shape"),
        (lambda: cl.solve(zoo.problem(), start=Y / 0 * 0), r"start is nan at index \(0, 0, 0, 0\)"),
    ],
)
def test_bad_options(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("method", ["lbfgs", cl.PDHG])
def test_methods_are_objects(method):
    with pytest.raises(TypeError, match=r"method must be cl.PDHG\(\)"):
        cl.solve(zoo.problem(), method=method)
    with pytest.raises(TypeError, match="VariationalProblem"):
        cl.explain(Y)
