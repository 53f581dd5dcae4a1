"""Certificates: bounds that hold, from good and from bad duals, and errors for what is no claim."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import zoo
from checked_proofs import confirm
from oracle import optimum

import convexlift as cl
from convexlift.networks import Convolution, Dense
from convexlift.tensors import Blocks

ALL = {**zoo.MONOTONE, **zoo.FIRST_LAYER_ONLY}
ARCHITECTURES = (*zoo.ARCHITECTURES, "residual last")
single = torch.float32
Y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def denoising(y: torch.Tensor, weight: float = 0.1, **others) -> cl.VariationalProblem:
    network = cl.TotalVariation().to(y.dtype)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=weight, **others
    )


@pytest.mark.sampled(35)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("activation", ALL)
def test_the_bound_holds_for_every_combination(architecture, activation, tmp_path):
    """x after 15 iterations, bound from its duals: no image near x is below the bound."""
    sizes = torch.logspace(-4, 0, 60)[:, None, None, None]
    noise = torch.randn((60, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    for fidelity, box in itertools.product(zoo.FIDELITIES, zoo.BOXES):
        problem = zoo.problem(architecture, ALL[activation], fidelity, box)
        solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=15))
        confirm(problem, solution.proof.claim, tmp_path / "x.proof")
        certificate = cl.certify(problem, solution.x, solution.duals)
        case = f"{architecture}, {activation}, {fidelity}, {box}"
        images = problem.bounds.project(solution.x + (sizes * noise).clamp(-1, 1))
        values = torch.cat([problem.objective(image[None]) for image in images])
        rounding = 1e-10 * certificate.objective.abs()
        assert torch.isfinite(certificate.lower_bound).all(), case
        assert (values >= certificate.lower_bound - rounding).all(), case
        assert (certificate.lower_bound <= certificate.objective).all(), case
        # Where every pixel is seen or bounded, and the network is bounded below, it is global.
        if box == "box" or (fidelity != "masked L2" and architecture != "residual last"):
            assert certificate.guarantee == (cl.Guarantee.GLOBAL,), case
        assert (certificate.map >= 0).all(), case
        gap = certificate.objective - certificate.lower_bound
        rounding = 1e-11 * float(certificate.objective)  # of bounds that leave room for it
        torch.testing.assert_close(certificate.map.sum((1, 2, 3)), gap, rtol=1e-8, atol=rounding)


def test_any_solver_can_be_certified():
    """An image from elsewhere: L-BFGS on a smooth network, certified by its tangent alone."""
    problem = zoo.problem("deep", zoo.MONOTONE["smoothed"], "L2")
    x = cl.solve(problem, method=cl.LBFGS(), stop=cl.StopWhen(gap=1e-8)).x
    certificate = cl.certify(problem, x)
    assert float(certificate.gap) <= 1e-7
    value, minimiser = optimum(problem)
    assert float(certificate.lower_bound) <= value * (1 + 1e-8)
    distance = float((x - torch.as_tensor(minimiser)).norm())
    assert distance <= float(certificate.distance_bound) + 1e-4 < 1e-2
    seen_in_part = zoo.problem("plain", cl.ReLU(), "masked L2", "box")
    unseen = cl.certify(seen_in_part, seen_in_part.initial_image())
    assert unseen.distance_bound.isinf().all()


def test_the_map_shows_where_the_image_is_not_optimal():
    problem = zoo.problem("plain", zoo.MONOTONE["smoothed"], "L2")
    x = cl.solve(problem, stop=cl.StopWhen(gap=1e-8)).x.clone()
    x[0, 0, 2, 5] += 0.5
    assert divmod(int(cl.certify(problem, x).map.flatten().argmax()), zoo.SIZE) == (2, 5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offset", [6e4, 1e6, 1e8])
@pytest.mark.parametrize("step", [0.004, 8.0])
def test_data_with_an_offset_in_single_precision(offset, step):
    steps = torch.randint(0, 3, (3, 1, 16, 16))
    problem = denoising((offset + step * steps).to(single), step)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=500))
    better = cl.solve(
        problem.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-6, max_iterations=1000)
    )
    assert (solution.lower_bound <= better.objective).all()
    assert (better.lower_bound <= solution.objective).all()
    for status, gap in zip(solution.status, solution.gap.tolist(), strict=True):
        assert (status is cl.Status.CONVERGED) == (gap <= 1e-3)
    if (offset, step) == (1e8, 8.0):  # the next number is 8 away: no image can be better
        assert set(solution.status) == {cl.Status.PRECISION_LIMIT}
        assert "problem.to(dtype=torch.float64)" in solution.status[0].value
        assert set(better.status) == {cl.Status.CONVERGED}


def test_a_scaled_identity_keeps_all_digits_of_its_factor():
    torch.set_default_dtype(single)  # in which torch makes tensors of Python numbers
    x = 1e7 + torch.rand(1, 1, 16, 16, dtype=torch.float64)
    problem = denoising(0.1 * x, 1e-3, operator=0.1 * cl.Identity())
    better = cl.solve(problem, stop=cl.StopWhen(gap=1e-6, max_iterations=1000))
    assert (cl.solve(problem).lower_bound <= better.objective).all()


def test_slopes_stay_in_their_domain_under_large_biases():
    first = cl.ConvexLayer(cl.LeakyReLU(0.9), channels=1, skip=Convolution(1, 1, 1))
    head = Dense(16, 1, nonnegative=True)
    last = cl.ConvexLayer(cl.LeakyReLU(0.9), channels=1, previous=head)
    network = cl.InputConvexNetwork([first, last], image_size=(4, 4))
    with torch.no_grad():
        first.skip.weight.fill_(1.0)
        first.bias.fill_(-1e6)
        head.weight.fill_(1 / 16)
        last.bias.fill_(0.9e6)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(Y[..., :4, :4]), regularizer=network, weight=1.0
    )
    value, x = optimum(problem)
    torch.set_default_dtype(single)
    assert float(cl.certify(problem, torch.as_tensor(x)).lower_bound) <= value + 1e-7
    assert float(cl.solve(problem, method=cl.LBFGS()).lower_bound) <= value + 1e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_into_a_solve(dtype):
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "L2").to(dtype=single)
    plain = cl.solve(problem)
    with torch.autocast("cpu", dtype):
        inside = cl.solve(problem)
        certificate = cl.certify(problem, inside.x, inside.duals)
    assert torch.equal(plain.x, inside.x)
    assert torch.equal(plain.lower_bound, inside.lower_bound)
    assert torch.equal(certificate.objective, inside.objective)


def test_images_stay_in_a_box_that_single_precision_cannot_represent():
    """0.1 in single precision is larger than 0.1."""
    solution = cl.solve(denoising(Y.to(single), 0.01, box=(0.0, 0.1)))
    assert solution.status == (cl.Status.CONVERGED,)
    assert float(solution.x.double().max()) <= 0.1


def test_counts_at_the_edge_of_what_is_bounded_are_confirmed(tmp_path):
    """Where x > 0 and y = 0, c is -1 at the optimum, and <1 + c, x> only just bounded."""
    clean = torch.zeros(1, 1, 16, 16)
    clean[..., 4:12, 4:12] = 50
    counts = torch.poisson(clean, torch.Generator().manual_seed(0))
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(counts, 0.0), regularizer=cl.TotalVariation(), weight=1.0,
        box=(0, None),
    )  # fmt: skip
    solution = cl.solve(problem)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert cl.verify(solution.proof.save(tmp_path / "a.proof"))[0].guarantee == "GLOBAL"


# What cannot be claimed


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, value, f"{name}.* is not finite")
          for name in ("layers.0.bias", "layers.0.skip.weight", "output")
          for value in (math.nan, math.inf)),
        ("layers.1.previous.maps.1.weight", -1.0, "must be nonnegative"),
    ],
)  # fmt: skip
def test_a_network_that_was_spoiled_in_place_is_refused(name, value, words):
    problem = zoo.problem()
    x = problem.initial_image()
    dict(problem.regularizer.named_parameters())[name].data.view(-1)[0] = value
    for attempt in (lambda: cl.solve(problem), lambda: cl.certify(problem, x)):
        with pytest.raises(ValueError, match=words):
            attempt()


WrongConjugate = type(  # too small
    "WrongConjugate", (cl.Huber,), {"conjugate": lambda h, s: cl.Huber.conjugate(h, s) / 2}
)


class Cauchy(cl.SquaredL2):
    """log(1 + r^2), which is not convex."""

    def density(self, w):
        return torch.log1p((w - self.y) ** 2)

    def gradient(self, w):
        return 2 * (w - self.y) / (1 + (w - self.y) ** 2)


class Affine(cl.LinearOperator):
    """x + 1, which is not linear."""

    def forward(self, x):
        return x + 1

    def adjoint(self, y):
        return y


class WrongDiagonal(cl.Identity):
    """2 x, called the identity."""

    def forward(self, x):
        return 2 * x


class SinglePrecisionOnly(cl.LinearOperator):
    """A 2 x 2 mean by a compiled routine that takes float32, as many do."""

    input_shape = (1, 8, 8)

    def forward(self, x):
        if x.dtype != single:
            raise RuntimeError("expected scalar type Float")
        return torch.nn.functional.avg_pool2d(x, 2)

    def adjoint(self, y):
        if y.dtype != single:
            raise RuntimeError("expected scalar type Float")
        return y.repeat_interleave(2, -1).repeat_interleave(2, -2) / 4

    def output_shape(self, input_shape):
        return (input_shape[0], input_shape[1] // 2, input_shape[2] // 2)


def one_layer(activation: cl.Activation) -> cl.InputConvexNetwork:
    layer = cl.ConvexLayer(activation, channels=2, skip=cl.networks.ForwardDifferences())
    return cl.InputConvexNetwork([layer])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda: {"regularizer": one_layer(WrongConjugate())}, "activation WrongConjugate"),
        (lambda: {"regularizer": one_layer(cl.GroupNorm(2, WrongConjugate()))},
         r"activation GroupNorm.* test it with cl\.check_activation"),
        (lambda: {"fidelity": Cauchy(Y)}, r"fidelity Cauchy .* test it with cl\.check_functional"),
        (lambda: {"operator": Affine()}, r"A\(0\) is not 0"),
        (lambda: {"operator": 2 * Affine()}, r"A\(0\) is not 0"),
        (lambda: {"operator": WrongDiagonal()}, r"A x and diagonal \* x differ"),
    ],
)  # fmt: skip
def test_parts_that_are_not_what_they_say_are_refused(parts, message):
    usual = {"fidelity": cl.SquaredL2(Y), "regularizer": cl.TotalVariation(), "weight": 0.1}
    with pytest.raises(ValueError, match=message):
        cl.VariationalProblem(**(usual | parts()))


def test_an_operator_that_takes_single_precision_only_is_certified_with_its_rounding():
    torch.set_default_dtype(single)  # in which norms are estimated
    problem = denoising(torch.rand(2, 1, 4, 4), operator=SinglePrecisionOnly(), box=(0, 1))
    solution = cl.solve(problem)
    assert set(solution.status) == {cl.Status.CONVERGED}
    assert (solution.lower_bound <= solution.objective).all()
    stalled = cl.solve(problem, stop=cl.StopWhen(gap=1e-12, max_iterations=200))
    assert stalled.state.x.dtype is single
    with pytest.raises(ValueError, match="SinglePrecisionOnly is not the library's own"):
        solution.proof.save("nowhere.proof")


def spoiled(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == x.max(), math.nan, x)


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda p: cl.solve(p, start=Y.numpy()), TypeError, r"write torch\.as_tensor"),
        (lambda p: cl.solve(p, start=Y.int()), TypeError, r"write x\.float\(\)"),
        (lambda p: cl.solve(p, stop=1e-3), TypeError, r"cl\.StopWhen\(gap=1e-3\)"),
        (lambda p: cl.solve(Y), TypeError, "state a problem first"),
        (lambda p: cl.certify(p, Y.int()), TypeError, r"write x\.float\(\)"),
        (lambda p: cl.certify(p, Y[..., :4]), ValueError, "x must have shape"),
        (lambda p: cl.certify(p, spoiled(Y)), ValueError, r"x is nan at index \(0, 0, "),
        (lambda p: cl.certify(p, Y, Blocks({"v1": Y})), ValueError, "the duals do not"),
        (lambda p: denoising(Y, torch.tensor([0.1, 0.2])), TypeError, "one problem for each"),
        (lambda p: denoising(Y, operator=None), TypeError, "operator must be"),
        (lambda p: denoising(Y.float(), box=(1e39, 1e40)), ValueError, "holds no number"),
    ],
)
def test_arguments_that_make_no_sense_say_what_to_write(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt(denoising(Y))


# In plain words


@pytest.mark.parametrize("gap", [0.5, 1e-2, 1e-4])
def test_a_solution_says_in_plain_words_what_is_proved(gap):
    """The percentage is rounded up, and large gaps do not read as solved."""
    y = torch.rand(2, 1, 8, 8)
    solution = cl.solve(denoising(y, 0.3, box=(0, 1)), stop=cl.StopWhen(gap=gap, check_every=1))
    for words, proved in zip(solution.in_words, solution.gap.tolist(), strict=True):
        percent = float(words.split(" %")[0].split()[-1])
        assert 100 * proved <= percent
        assert words.startswith("Solved to within ") == (proved <= 0.1)
        assert ("does not say that the picture is true" in words) == (proved <= 0.1)


def test_without_a_bound_nothing_reads_as_proved():
    outside = cl.certify(denoising(Y, box=(0, 1)), torch.full_like(Y, 2.0))
    assert outside.guarantee == (cl.Guarantee.NONE,)
    assert outside.gap.isinf().all()
