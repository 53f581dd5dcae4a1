"""Habits of torch: state dicts, copies, pickles, precisions, compilers, other devices."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import convexlift as cl

NETWORKS = {
    "ridge": lambda: cl.networks.ridge(channels=3, kernel=3, smoothing=0.1),
    "baseline": lambda: cl.networks.baseline(8, channels=3, pool=4, hidden=4, kernel=3),
    "adaptive": lambda: cl.networks.adaptive(channels=2, kernel=3, widths=(3,), blocks=1),
}
OPERATORS = {
    "identity": cl.Identity,
    "scaled mask": lambda: 2 * cl.Mask(torch.ones(8, 8)),
    "blur": lambda: cl.Blur.gaussian(1.0),
    "rays": lambda: cl.ParallelBeam(8, 5, 9),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def problem_of(net: cl.InputConvexNetwork, operator: cl.LinearOperator | None = None):
    torch.manual_seed(0)
    operator = operator or cl.Identity()
    y = operator(torch.rand(1, 1, 8, 8))
    noise = 0.1 if net.reads_data else None
    return cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), operator=operator, regularizer=net, weight=0.2, box=(0, 1),
        noise=noise,
    )  # fmt: skip


def solved(net, operator=None) -> torch.Tensor:
    return cl.solve(problem_of(net, operator)).x


@every_network
def test_a_state_dict_makes_the_same_network(name):
    first, second = NETWORKS[name](), NETWORKS[name]()
    assert not torch.equal(first.layers[0].skip.weight, second.layers[0].skip.weight)
    assert second.load_state_dict(first.state_dict()) == ([], [])
    assert torch.equal(solved(first), solved(second))
    with pytest.raises(ValueError, match="must be nonnegative for the network to be convex"):
        second.load_state_dict({**first.state_dict(), "output": -first.output})


@every_network
def test_networks_are_copied_and_pickled(name):
    net = NETWORKS[name]()
    net.card = cl.ModelCard("n", "A network.", "denoising", 0.1)
    before = solved(net)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(buffer, weights_only=False),
    ]
    with torch.no_grad():
        net.output.mul_(3.0)
    for other in copies:
        assert torch.equal(solved(other), before)
        assert other.card == net.card


@pytest.mark.parametrize(
    ("name", "operator"), [("adaptive", "identity"), *(("ridge", each) for each in OPERATORS)]
)
def test_problems_and_solutions_are_copied_and_pickled(name, operator):
    problem = problem_of(NETWORKS[name](), OPERATORS[operator]())
    solution = cl.solve(problem)
    for other in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert torch.equal(cl.solve(other).x, solution.x)
    for other in (copy.deepcopy(solution), pickle.loads(pickle.dumps(solution))):
        assert torch.equal(other.x, solution.x)
        assert str(other) == str(solution)
        assert other.status == solution.status  # enumerations are the same objects
        again = cl.solve(problem, start=other.state, stop=cl.StopWhen(gap=1e-6))
        assert again.status == (cl.Status.CONVERGED,)
        cl.certify(problem, other.x, other.duals)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_network
def test_half_precision_is_for_storage(name, dtype):
    """Weights may be kept in half precision; problems must be of one precision."""
    net = NETWORKS[name]().float()
    stored = copy.deepcopy(net).to(dtype)
    y = torch.rand(1, 1, 8, 8, dtype=torch.float32)
    noise = {"noise": 0.1} if net.reads_data else {}
    with pytest.raises(
        ValueError, match=rf"float32 on cpu, but the regularizer is {dtype}.*\.to\("
    ):
        cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=stored, weight=0.2, **noise)
    restored = stored.float()
    for p, q in zip(net.parameters(), restored.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-3, rtol=1e-2)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=restored, weight=0.2, **noise
    )
    solution = cl.solve(problem)
    assert solution.x.dtype is torch.float32
    assert solution.status == (cl.Status.CONVERGED,)
