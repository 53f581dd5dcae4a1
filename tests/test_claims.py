"""Claims: numbers that are true in spite of rounding, and errors for what cannot be claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import zoo
from oracle import optimum

import convexlift as cl
from convexlift.networks import Convolution, Dense
from convexlift.problems.claims import (
    CAVEAT,
    FAR,
    Guarantee,
    in_words,
    objective_above,
    worst_in_words,
)
from convexlift.tensors import Blocks

single = torch.float32


def denoising(y: torch.Tensor, weight: float, **others) -> cl.VariationalProblem:
    network = cl.TotalVariation().to(y.dtype)
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=weight, **others
    )


def confirmed_below(problem: cl.VariationalProblem, solution: cl.Solution) -> None:
    """No image of a longer run in double precision has an objective below the claimed bound."""
    better = cl.solve(
        problem.to(dtype=torch.float64), stop=cl.StopWhen(gap=1e-6, max_iterations=1000)
    )
    assert (solution.lower_bound <= better.objective).all()
    assert (better.lower_bound <= solution.objective).all()


def test_a_scaled_identity_keeps_all_digits_of_its_factor():
    torch.set_default_dtype(single)  # in which torch makes tensors of Python numbers
    assert float((0.1 * cl.Identity()).diagonal) == 0.1
    x = 1e7 + torch.rand(1, 1, 16, 16, dtype=torch.float64)
    problem = denoising(0.1 * x, 1e-3, operator=0.1 * cl.Identity())
    solution = cl.solve(problem)
    confirmed_below(problem, solution)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("offset", [6e4, 1e6, 1e8])
@pytest.mark.parametrize("step", [0.004, 8.0])
def test_data_with_an_offset_in_single_precision(offset, step):
    steps = torch.randint(0, 3, (3, 1, 16, 16))
    problem = denoising((offset + step * steps).to(single), step)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=500))
    confirmed_below(problem, solution)
    for status, gap in zip(solution.status, solution.gap.tolist(), strict=True):
        assert (status is cl.Status.CONVERGED) == (gap <= 1e-3)
    if (offset, step) == (1e8, 8.0):  # the next number is 8 away: no image can be better
        assert set(solution.status) == {cl.Status.PRECISION_LIMIT}
        assert "problem.to(dtype=torch.float64)" in solution.status[0].value
        double = cl.solve(problem.to(dtype=torch.float64))
        assert set(double.status) == {cl.Status.CONVERGED}


def test_slopes_stay_in_their_domain_under_large_biases():
    first = cl.ConvexLayer(cl.LeakyReLU(0.9), channels=1, skip=Convolution(1, 1, 1))
    head = Dense(16, 1, nonnegative=True)
    network = cl.InputConvexNetwork(
        [first, cl.ConvexLayer(cl.LeakyReLU(0.9), channels=1, previous=head)], image_size=(4, 4)
    )
    with torch.no_grad():
        first.skip.weight.fill_(1.0)
        first.bias.fill_(-1e6)
        head.weight.fill_(1 / 16)
        network.layers[1].bias.fill_(0.9e6)
    y = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network.double(), weight=1.0
    )
    value, x = optimum(problem)
    torch.set_default_dtype(single)
    assert cl.LeakyReLU(0.9).derivative(torch.tensor([-1.0]).double()).item() == 0.9
    certificate = cl.certify(problem, torch.as_tensor(x))
    assert float(certificate.lower_bound) <= value + 1e-7
    solution = cl.solve(problem, method=cl.LBFGS())
    assert float(solution.lower_bound) <= value + 1e-7


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


def test_a_constant_image_is_proved_optimal_to_the_last_digit():
    """Its objective is exactly zero: no relative gap forgives a rounding error there."""
    for value in (0.0, 0.1, 1e8):
        problem = denoising(torch.full((1, 1, 8, 8), value, dtype=single), 0.1)
        solution = cl.solve(problem)
        assert solution.status == (cl.Status.CONVERGED,)
        assert float(solution.objective) == float(solution.lower_bound) == 0.0


def test_images_stay_in_a_box_that_single_precision_cannot_represent():
    """0.1 in single precision is larger than 0.1."""
    y = torch.rand(1, 1, 8, 8, dtype=single)
    solution = cl.solve(denoising(y, 0.01, box=(0.0, 0.1)))
    assert solution.status == (cl.Status.CONVERGED,)
    assert float(solution.x.double().max()) <= 0.1
    assert cl.Box(0.0, 0.1).rounded_inward(single)[1] < 0.1 < 0.1 + 1e-8


def test_the_objective_is_rounded_up_and_the_bound_down():
    """Against sums of the same terms in exact arithmetic, where they lie between the two."""
    from fractions import Fraction

    y = (1e6 + torch.rand(1, 1, 5, 4)).to(single)
    x = y + 0.01 * torch.rand(1, 1, 5, 4).to(single)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(False).to(single), weight=0.3
    )
    rows = [[Fraction(float(v)) for v in row] for row in x[0, 0]]
    data = sum(
        (Fraction(float(a)) - Fraction(float(b))) ** 2 / 2
        for a, b in zip(x.flatten(), y.flatten(), strict=True)
    )
    down = sum(abs(rows[i + 1][j] - rows[i][j]) for i in range(4) for j in range(4))
    right = sum(abs(rows[i][j + 1] - rows[i][j]) for i in range(5) for j in range(3))
    exact = data + Fraction(0.3) * (down + right)
    claimed = objective_above(problem.to(dtype=torch.float64), x.double())
    assert exact <= Fraction(float(claimed)) <= exact * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("name", ["layers.0.bias", "layers.0.skip.weight", "output"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_was_spoiled_in_place_is_refused(name, value):
    problem = zoo.problem()
    x = problem.initial_image()
    dict(problem.regularizer.named_parameters())[name].data.view(-1)[0] = value
    for attempt in (lambda: cl.solve(problem), lambda: cl.certify(problem, x)):
        with pytest.raises(ValueError, match=f"regularizer.{name} is not finite"):
            attempt()


def test_a_weight_that_became_negative_is_found_by_solve():
    problem = zoo.problem()
    problem.regularizer.layers[1].previous.maps[1].weight.data[0, 0] = -1.0
    with pytest.raises(ValueError, match="must be nonnegative"):
        cl.solve(problem)


@dataclass(frozen=True)
class WrongConjugate(cl.SmoothActivation):
    """sqrt(1 + a^2) - 1 with a conjugate that is too small."""

    slopes = (-1.0, 1.0)

    def value(self, a):
        return torch.hypot(a, torch.ones_like(a)) - 1

    def derivative(self, a):
        return a / torch.hypot(a, torch.ones_like(a))

    def second_derivative(self, a):
        return torch.hypot(a, torch.ones_like(a)) ** -3

    def conjugate(self, s):
        return torch.where(s.abs() <= 1, 0.5 * (1 - torch.sqrt(1 - s**2)), math.inf)


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


Y = torch.rand(1, 1, 8, 8, dtype=torch.float64)


def one_layer(activation: cl.Activation) -> cl.InputConvexNetwork:
    layer = cl.ConvexLayer(activation, channels=2, skip=cl.networks.ForwardDifferences())
    return cl.InputConvexNetwork([layer])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda: {"regularizer": one_layer(WrongConjugate())}, "activation WrongConjugate"),
        (
            lambda: {"regularizer": one_layer(cl.GroupNorm(2, WrongConjugate()))},
            r"activation GroupNorm.* test it with cl\.check_activation",
        ),
        (lambda: {"fidelity": Cauchy(Y)}, r"fidelity Cauchy .* test it with cl\.check_functional"),
        (lambda: {"fidelity": Cauchy(1e6 * Y)}, "fidelity Cauchy"),
        (lambda: {"operator": Affine()}, r"A\(0\) is not 0"),
        (lambda: {"operator": 2 * Affine()}, r"A\(0\) is not 0"),
        (lambda: {"operator": WrongDiagonal()}, r"A x and diagonal \* x differ"),
    ],
)
def test_parts_that_are_not_what_they_say_are_refused(parts, message):
    usual = {"fidelity": cl.SquaredL2(Y), "regularizer": cl.TotalVariation(), "weight": 0.1}
    with pytest.raises(ValueError, match=message):
        cl.VariationalProblem(**(usual | parts()))


class SinglePrecisionOnly(cl.LinearOperator):
    """A 2 x 2 mean by a compiled routine that takes float32, as many do."""

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

    input_shape = (1, 8, 8)


def test_an_operator_that_takes_single_precision_only_is_certified_with_its_rounding():
    torch.set_default_dtype(single)  # in which norms are estimated
    y = torch.rand(2, 1, 4, 4)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=SinglePrecisionOnly(),
        regularizer=cl.TotalVariation().to(single), weight=0.1, box=(0, 1),
    )  # fmt: skip
    solution = cl.solve(problem)
    assert set(solution.status) == {cl.Status.CONVERGED}
    assert (solution.lower_bound <= solution.objective).all()
    with pytest.raises(ValueError, match="SinglePrecisionOnly is not the library's own"):
        solution.proof.save("nowhere.proof")


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda p: cl.solve(p, start=Y.numpy()), TypeError, r"write torch\.as_tensor"),
        (lambda p: cl.solve(p, start=Y.int()), TypeError, r"write x\.float\(\)"),
        (lambda p: cl.solve(p, stop=1e-3), TypeError, r"cl\.StopWhen\(gap=1e-3\)"),
        (lambda p: cl.solve(Y), TypeError, "state a problem first"),
        (lambda p: cl.certify(p, Y.int()), TypeError, r"write x\.float\(\)"),
        (lambda p: cl.certify(p, Y, Blocks({"v1": Y})), ValueError, "the duals do not"),
        (lambda p: denoising(Y, torch.tensor([0.1, 0.2])), TypeError, "one problem for each"),
        (lambda p: denoising(Y, 0.1, operator=None), TypeError, "operator must be"),
        (lambda p: denoising(Y.float(), 0.1, box=(1e39, 1e40)), ValueError, "holds no number"),
        (lambda p: cl.Blur.gaussian(1.0, radius=-1), ValueError, "from 0 to"),
        (lambda p: cl.Blur.gaussian(1e4), ValueError, "scale the image down"),
    ],
)
def test_arguments_that_make_no_sense_say_what_to_write(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt(denoising(Y, 0.1))


def test_a_weight_may_be_a_tensor_of_one_number():
    assert denoising(Y, torch.tensor(0.25)).weight == 0.25


# In plain words


@pytest.mark.parametrize(
    ("gap", "said"),
    [(6e-4, "0.06 %"), (5.93e-4, "0.06 %"), (9.31e-4, "0.094 %"), (1e-3, "0.1 %"),
     (0.0321, "3.3 %"), (0.1, "10 %"), (1e-12, "0.001 %"), (0.0, "0.001 %")],
)  # fmt: skip
def test_a_small_gap_reads_as_solved_and_is_rounded_up(gap, said):
    heading, meaning = in_words(gap, Guarantee.GLOBAL)
    assert heading == f"Solved to within {said}"
    assert float(said.split()[0]) >= 100 * gap
    assert meaning == f"no picture fits this model better by more than that. {CAVEAT}"


@pytest.mark.parametrize(
    ("guarantee", "claim"),
    [
        (Guarantee.WITHIN_RADIUS, "no picture close to this one fits"),
    ],
)
def test_plain_words_keep_premise_and_scope(guarantee, claim):
    _, meaning = in_words(1e-3, guarantee, "given the weather, ")
    assert meaning.startswith(f"given the weather, {claim}")
    assert CAVEAT in meaning


@pytest.mark.parametrize("gap", [FAR + 1e-6, 0.5, 0.999])
def test_a_large_gap_does_not_read_as_solved(gap):
    heading, meaning = in_words(gap, Guarantee.GLOBAL)
    assert heading == "Not solved yet"
    percent = float(meaning.split(" %")[0].split()[-1])
    assert 100 * gap <= percent <= 100
    assert "may fit this model up to" in meaning


@pytest.mark.parametrize(
    ("gap", "guarantee"),
    [(1.0, Guarantee.GLOBAL), (7.0, Guarantee.GLOBAL), (math.inf, Guarantee.GLOBAL),
     (math.nan, Guarantee.GLOBAL), (None, Guarantee.GLOBAL), (1e-3, Guarantee.NONE)],
)  # fmt: skip
def test_without_a_useful_bound_nothing_reads_as_proved(gap, guarantee):
    heading, meaning = in_words(gap, guarantee)
    assert heading in ("Not solved yet", "Nothing is proved yet")
    assert "%" not in meaning


def test_words_about_several_images_hold_for_each():
    several = [(1e-4, Guarantee.GLOBAL), (2e-3, Guarantee.GLOBAL), (1e-3, Guarantee.WITHIN_RADIUS)]
    assert worst_in_words(several) == in_words(2e-3, Guarantee.WITHIN_RADIUS)
    assert worst_in_words([*several, (None, Guarantee.NONE)])[0] == "Nothing is proved yet"


def test_a_solution_says_it_for_each_image():
    problem = denoising(torch.rand(2, 1, 8, 8), 0.1, box=(0, 1))
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-2))
    assert len(solution.in_words) == 2
    for words in solution.in_words:
        assert words.startswith("Solved to within ")
        assert words.endswith(f": no picture fits this model better by more than that. {CAVEAT}")


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
