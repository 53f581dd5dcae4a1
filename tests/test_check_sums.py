"""The numbers of a check from sums alone are those of the plain computation.

On a GPU, or on the threads of a CPU.
"""

from __future__ import annotations

import math

import pytest
import torch
from first_layers import POOLED, ridge
from host_kernels import COMPILER, DataKernel, HostKernel
from marks import slow

import convexlift as cl
from convexlift.decisions import Decisions
from convexlift.kernels import first_layer, rigorous_pass
from convexlift.operators.convolution import BOUNDARIES
from convexlift.operators.imaging import Diagonal
from convexlift.problems import certificate, check_sums, one_pass
from convexlift.problems.certificate import judged
from convexlift.problems.check_sums import CheckedData
from convexlift.problems.claims import InBoth
from convexlift.problems.data_bound import Slack, bound_data
from convexlift.problems.lifting import lift
from convexlift.solvers.kinds import kind_of
from convexlift.solvers.primal_dual import lifted_start
from convexlift.solvers.rehearsal import Rehearsal
from convexlift.tensors import Blocks

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.skipif(not ON_GPU and COMPILER is None, reason="needs g++")
FIDELITIES = {"squared": cl.SquaredL2, "absolute": lambda y: cl.L1(y, 0.7)}
PADDED = {p: (lambda p=p: ridge("huber", p)) for p in BOUNDARIES}
SIZE = 19, 37
MASK = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) > 0.3
OPERATORS = {
    "identity": cl.Identity(),
    "mask": cl.Mask(MASK),
    "masks": Diagonal(torch.linspace(-2, 1, 2 * 703).reshape(2, 1, *SIZE) * MASK),
}


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    monkeypatch.setattr(one_pass, "WORTHWHILE", 1)
    monkeypatch.setattr(first_layer, "FEW", 0)  # kernels that other tests compile, too
    if not ON_GPU:
        monkeypatch.setattr(first_layer, "compiled", HostKernel)
        monkeypatch.setattr(rigorous_pass, "data_kernel", DataKernel)


def stated(network="reflect", fidelity="squared", operator="mask", **options):
    torch.manual_seed(0)
    y = torch.rand(2, 1, *((24, 40) if network in POOLED else SIZE))
    options = {"weight": 0.4, "box": (0.1, 1.0)} | options
    problem = cl.VariationalProblem(
        fidelity=FIDELITIES[fidelity](y), operator=OPERATORS[operator].to(dtype=y.dtype),
        regularizer=(PADDED | POOLED)[network](), **options,
    ).to(dtype=torch.float32, device=DEVICE)  # fmt: skip
    x = (0.1 + 0.9 * torch.rand_like(y)).to(problem.fidelity.y)
    _, v = lifted_start(problem, lift(problem, pooled=False), x)
    noisy = {n: p + 0.5 * p.abs().mean() * torch.randn_like(p) for n, p in v.items()}
    return problem, x, Blocks(noisy)


def both_ways(monkeypatch, problem, x, duals):
    """The numbers of the kernels, and those of the plain path in double precision."""
    (evaluation, found), numbers = judged(InBoth(problem), x, duals, 1e-3)
    assert evaluation is None
    assert found.everywhere is found.near
    exact = problem.to(dtype=torch.float64)
    doubled = Blocks({name: part.double() for name, part in duals.items()})
    with monkeypatch.context() as patch:
        patch.setattr(certificate, "check_sums", lambda *_: None)
        (_, expected), exactly = judged(InBoth(exact), x.double(), doubled, 1e-3)
    for name, part in expected.near.items():
        assert torch.equal(found.near[name], part.float())
    return numbers, exactly


def assert_near(numbers, exactly):
    assert len(numbers) == len(exactly)
    for found, expected in zip(numbers, exactly, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=3e-5, atol=0.0, equal_nan=True)


CASES = [
    *(("reflect", f, o) for f in FIDELITIES for o in OPERATORS),
    *((name, "squared", "mask") for name in ("zero", "circular", "replicate")),
    slow("pooled, kinks", "absolute", "identity"),
]


@pytest.mark.parametrize(("network", "fidelity", "operator"), CASES)
@torch.no_grad()
def test_as_the_plain_computation(network, fidelity, operator, monkeypatch):
    numbers, exactly = both_ways(monkeypatch, *stated(network, fidelity, operator))
    assert_near(numbers, exactly)
    assert float(numbers[4].min()) > 0


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("value", [1.5, 0.05, math.nan, math.inf])
@torch.no_grad()
def test_outside_the_box(value, fidelity, monkeypatch):
    """The objective is infinite, or NaN with a NaN, also at a pixel that nobody sees."""
    problem, x, duals = stated(fidelity=fidelity)
    i, j = (~MASK).nonzero()[0].tolist()
    x[1, 0, i, j] = value
    numbers, exactly = both_ways(monkeypatch, problem, x, duals)
    finite, objective, data_term, *_ = numbers
    assert finite.tolist() == [True, math.isfinite(value)]
    assert math.isfinite(objective[0])
    if math.isfinite(value):
        assert objective[1] == math.inf
        assert_near(numbers, exactly)
        return
    assert not objective[1] < math.inf
    assert_near([each[:1] for each in numbers], [each[:1] for each in exactly])
    assert_near([data_term], [exactly[2]])


@pytest.mark.parametrize("fidelity", FIDELITIES)
@torch.no_grad()
def test_a_slope_that_is_no_number_stays_visible(fidelity):
    problem, x, _ = stated(fidelity=fidelity)
    c = torch.zeros_like(x)
    for i, j in (MASK.nonzero()[0].tolist(), (~MASK).nonzero()[0].tolist()):
        here = c.clone()
        here[1, 0, i, j] = math.nan
        _, excess, *_ = CheckedData.of(problem, x)(x, here)
        assert excess.isnan().tolist() == [False, True]


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("operator", OPERATORS)
@torch.no_grad()
def test_steep_slopes(fidelity, operator):
    """Beyond the domain of f*, and with minima at all ends of the box."""
    problem, x, _ = stated(fidelity=fidelity, operator=operator)
    c = torch.randn_like(x) * x.new_tensor([0.5, 3.0]).reshape(2, 1, 1, 1)
    _, excess, *_ = CheckedData.of(problem, x)(x, c)
    exact, nothing = problem.to(dtype=torch.float64), torch.zeros_like(excess)
    at = exact.evaluation(x.double(), nothing)
    (expected,) = bound_data(exact, at, c.double(), None, Slack(nothing, None), 1.0)
    assert_near([excess], [expected.gap])


@torch.no_grad()
def test_bounds_of_the_box_count_exactly():
    """0.1 in single precision is larger than 0.1; the number below is smaller."""
    above = torch.tensor(0.1, dtype=torch.float32)
    below = torch.nextafter(above, torch.zeros_like(above))
    for box, inside in (((0.1, 1.0), [True, False]), ((-1.0, 0.1), [False, True])):
        problem, x, _ = stated(box=box)
        x[0], x[1] = above, below
        _, _, indicator, _ = CheckedData.of(problem, x)(x, torch.zeros_like(x))
        assert (indicator == 0).tolist() == inside
        assert problem.bounds.contains(x).tolist() == inside


@pytest.mark.parametrize("operator", OPERATORS)
@torch.no_grad()
def test_it_can_be_captured(operator):
    """Nothing is read from outside, and the host waits for nothing and decides nothing."""
    problem, x, duals = stated(operator=operator)
    _, known = kind_of((problem, x, duals), x.device)
    _, expected = judged(InBoth(problem), x, duals, 1e-3)
    with Rehearsal(known), Decisions([]) as decisions:
        _, numbers = judged(InBoth(problem), x, duals, 1e-3)
    assert not decisions.flags
    assert all(torch.equal(*pair) for pair in zip(numbers, expected, strict=True))


@torch.no_grad()
def test_what_it_does_not_take(monkeypatch):
    problem, x, duals = stated()
    assert CheckedData.of(problem, x)
    assert CheckedData.of(problem.to(dtype=torch.float64), x.double()) is None
    for box in (None, (0, None)):
        assert CheckedData.of(stated(box=box)[0], x) is None
    (evaluation, _), _ = judged(InBoth(problem), x, duals, 1e-3, True)
    assert evaluation is not None  # its prediction is read
    monkeypatch.setattr(one_pass, "WORTHWHILE", 10**9)
    assert check_sums.check_sums(problem, x, duals) is None
    monkeypatch.setattr(rigorous_pass, "data_kernel", lambda *_: None)
    assert CheckedData.of(problem, x) is None


@torch.no_grad()
def test_solves_with_kernels_and_without_agree(monkeypatch):
    problem, *_ = stated()
    found = cl.solve(problem)
    monkeypatch.setattr(certificate, "check_sums", lambda *_: None)
    expected = cl.solve(problem)
    assert found.status == expected.status
    torch.testing.assert_close(found.history["gap"], expected.history["gap"], rtol=1e-3, atol=1e-7)
