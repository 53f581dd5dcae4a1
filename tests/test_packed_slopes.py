"""Large dual variables in 16 bits: still feasible, nearly as good, and less memory."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import convexlift as cl
from convexlift.networks.bound_network import BoundNetwork
from convexlift.problems import (
    claims,
    one_pass,
    packed_slopes,
    rigorous_regularizer,
    rigorous_strips,
)
from convexlift.problems.claims import InBoth, proved
from convexlift.problems.network_duals import feasible_duals
from convexlift.problems.packed_slopes import (
    CODES,
    STEPS,
    PackedDual,
    all_packed,
    can_be_packed,
    distance,
    feasible,
    pack,
    squares,
)
from convexlift.solvers import tiled_iterations
from convexlift.solvers.pdhg import PDHG
from convexlift.solvers.tiled_iterations import TiledIterations
from convexlift.tensors import Blocks

SIZE = 72
pytestmark = pytest.mark.single_precision


def denoising(fidelity="L2", smoothing=0.05, weight=0.3) -> cl.VariationalProblem:
    torch.manual_seed(0)
    network = cl.networks.ridge(channels=32, kernel=5, smoothing=smoothing)
    y = torch.zeros(1, 1, SIZE, SIZE)
    y[..., 20:50, 10:60] = 1.0
    y += 0.2 * torch.randn(y.shape)
    data = cl.L1(y) if fidelity == "L1" else cl.SquaredL2(y)
    return cl.VariationalProblem(fidelity=data, regularizer=network, weight=weight, box=(0, 1))


@pytest.mark.parametrize("h", [cl.ReLU(), cl.Huber(0.01), cl.LeakyReLU(0.2)])
def test_unpacked_slopes_are_feasible_near_and_exact_at_the_ends(h):
    t = torch.rand(1, 3, 1, 1) + torch.tensor([0.0, 1e-7, 3.0])[None, :, None, None]
    low, high = h.slopes
    s = low + (high - low) * torch.rand(1, 3, 200, 40)
    s[..., 0], s[..., 1] = low, high
    p = s * t
    unpacked = feasible(h, pack(h, p, t), t)
    assert pack(h, p, t).dtype is CODES
    torch.testing.assert_close(unpacked, h.clip_to_slopes(unpacked, t), rtol=0, atol=0)
    assert bool(((unpacked - p).abs() <= 0.51 * (high - low) / STEPS * t + 1e-6 * p.abs()).all())
    ends = h.clip_to_slopes(p, t)[..., :2]
    torch.testing.assert_close(unpacked[..., :2], ends, rtol=2e-7, atol=0)


def test_multipliers_of_zero_have_no_slope_and_give_zero():
    h, t = cl.ReLU(), torch.zeros(1, 2, 1, 1)
    p = torch.zeros(1, 2, 4, 4)
    assert not feasible(h, pack(h, p, t), t).any()


@pytest.mark.parametrize("alike", [True, False])
def test_sizes_and_parts_of_packed_slopes_are_those_of_the_numbers(alike, monkeypatch):
    monkeypatch.setattr(packed_slopes, "CACHED", 3 * 7 * 40)  # strips of 7 rows, the last shorter
    h = cl.Huber(0.01)
    t = torch.rand(1, 3, 1, 1) if alike else torch.rand(1, 3, 30, 40)
    p, q = (t * (2 * torch.rand(1, 3, 30, 40) - 1) for _ in range(2))
    codes, others = all_packed(h, p, t), all_packed(h, q, t)
    torch.testing.assert_close(codes, pack(h, p, t), rtol=0, atol=0)
    p, q = feasible(h, codes, t), feasible(h, others, t)
    torch.testing.assert_close(squares(h, codes, t), p.double().square().sum().reshape(1))
    torch.testing.assert_close(distance(h, codes, others, t), (p - q).norm().reshape(1))
    part = PackedDual(h, codes, t)[:, 1:]
    assert part.shape == (1, 2, 30, 40)
    torch.testing.assert_close(part.to(p.double()), p[:, 1:].double(), rtol=0, atol=0)


def test_groups_and_unbounded_slopes_are_not_packed():
    assert not can_be_packed(cl.GroupNorm(2, cl.Huber(0.05)))
    assert not can_be_packed(cl.HalfSquare())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("fidelity", "smoothing"), [("L2", 0.05), ("L2", 0.0), ("L1", 0.0)])
def test_a_packed_solve_ends_like_a_plain_one(fidelity, smoothing, monkeypatch):
    problem = denoising(fidelity, smoothing, weight=2.0 if fidelity == "L1" else 0.3)
    stop = cl.StopWhen(gap=1e-3, max_iterations=800)
    plain = cl.solve(problem, stop=stop)
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    packed = cl.solve(problem, stop=stop)
    assert packed.state.v["v1"].dtype is CODES
    assert packed.duals["v1"].dtype is torch.float32
    assert packed.status == plain.status == (cl.Status.CONVERGED,)
    assert float(packed.gap) <= 1e-3
    assert abs(int(packed.iterations) - int(plain.iterations)) <= 10 + int(plain.iterations) // 5
    checked = cl.certify(problem, packed.x, packed.duals)  # which tries the tangent at x, too
    assert (checked.lower_bound >= (1 - 1e-6) * packed.lower_bound).all()
    torch.testing.assert_close(checked.lower_bound, packed.lower_bound, rtol=1e-4, atol=0)


def with_missing_pixels(smoothing: float) -> cl.VariationalProblem:
    """L1 data; rounding errors of V* p count in full where no pixel is seen."""
    problem = denoising("L1", smoothing, weight=2.0)
    mask = (torch.rand(SIZE, SIZE) > 0.4).float()
    return cl.VariationalProblem(
        fidelity=cl.L1(problem.fidelity.y * mask), operator=cl.Mask(mask), box=(0, 1),
        regularizer=problem.regularizer, weight=problem.weight,
    )  # fmt: skip


@pytest.mark.parametrize("unpacks", [True, False])
def test_gaps_below_the_rounding_of_16_bits_are_reached_by_unpacking(unpacks, monkeypatch):
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    if not unpacks:
        monkeypatch.setattr(TiledIterations, "unpack", lambda self: False)
    stop = cl.StopWhen(gap=1e-6, max_iterations=250)
    solution = cl.solve(with_missing_pixels(smoothing=0.05), stop=stop)
    assert (solution.status == (cl.Status.CONVERGED,)) == unpacks
    assert solution.state.v["v1"].dtype is (torch.float32 if unpacks else CODES)


@pytest.mark.parametrize("smoothing", [0.05, 0.0])
def test_unpacked_iterations_are_those_that_are_not_packed(smoothing, monkeypatch):
    """Through restarts, with an anchor that is read where R has kinks, and after an attempt."""
    problem = with_missing_pixels(smoothing)
    plain = PDHG().solver(problem)
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    monkeypatch.setattr(tiled_iterations, "ROUNDING", 0.0)
    large = PDHG().solver(problem)
    exact, state = (solver.start(problem.initial_image()) for solver in (plain, large))
    assert large.more_precise(state) is None, "nothing is known before the first step"
    everywhere = torch.ones(1, dtype=torch.bool)
    for attempt in (False, False, True, False):
        exact, state = (
            solver.proving(each, 10, everywhere, everywhere)
            if attempt
            else solver.advance(each, 30)
            for solver, each in ((plain, exact), (large, state))
        )
        unpacked = large.more_precise(state)
        assert (state.v["v1"].dtype is CODES) == (unpacked is not None)
    assert state.v["v1"].dtype is torch.float32
    assert state.v["v1"].shape == exact.v["v1"].shape
    torch.testing.assert_close(
        problem.objective(state.x), problem.objective(exact.x), rtol=1e-3, atol=0
    )


def test_a_solve_continues_from_a_packed_state(monkeypatch):
    problem = denoising()
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    first = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=40))
    again = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=0), start=first.state)
    torch.testing.assert_close(again.objective, first.objective, rtol=1e-3, atol=0)
    assert float(again.gap) <= 1.5 * float(first.gap) + 1e-4
    paper = cl.PDHG(steps=cl.PaperSteps((1.0,)))
    cl.solve(problem, method=paper, stop=cl.StopWhen(max_iterations=2), start=first.state)
    other = denoising(weight=0.2)  # slopes are those of another weight
    assert cl.solve(other, start=first.state).status == (cl.Status.CONVERGED,)


def in_parts(monkeypatch, size: int, in_strips: bool) -> None:
    """Claims in strips of rows, or a few channels at a time; so many numbers at once."""
    monkeypatch.setattr(rigorous_strips, "CACHED", size)
    monkeypatch.setattr(rigorous_regularizer, "PART", size)
    if not in_strips:
        monkeypatch.setattr(rigorous_strips.StripSums, "of", lambda *_: None)


@pytest.mark.parametrize("in_strips", [True, False])
@pytest.mark.parametrize("part", [1, 2**22])
def test_packed_dual_variables_prove_what_their_numbers_prove(part, in_strips, monkeypatch):
    """To the last bit: a proof file holds the numbers."""
    in_parts(monkeypatch, part, in_strips)
    problem = denoising()
    both, x = InBoth(problem), problem.fidelity.y.clamp(0, 1)
    h, t = problem.network.layers[0].activation, problem.weight * problem.network.output
    codes = pack(h, t * (2 * torch.rand(1, 32, SIZE, SIZE) - 1), t)
    packed, found = proved(both, x, Blocks({"v1": codes}), 0.0)
    numbers = feasible_duals(problem.network, problem.weight, x, Blocks({"v1": codes}))
    _, expected = proved(both, x, numbers, 0.0)
    assert packed[3]["v1"] is codes  # not copied, and unpacked in the end only
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert bool(found[-1].all())
    claimed = claims.claim(problem, both.double, x, Blocks({"v1": codes}), tolerance=0.0)
    torch.testing.assert_close(claimed.duals["v1"], numbers["v1"], rtol=0, atol=0)


def test_a_packed_start_is_the_tangent_rounded(monkeypatch):
    problem = denoising()
    monkeypatch.setattr(one_pass, "WORTHWHILE", 1)
    plain = PDHG().solver(problem).start(problem.initial_image())
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    solver = PDHG().solver(problem)
    packed = solver.start(problem.initial_image())
    codes = packed.v["v1"]
    assert codes.dtype is CODES
    assert all(v["v1"] is codes for v in (packed.w_v, packed.anchor_v, packed.origin_v))
    t = problem.weight * problem.network.output
    unpacked = feasible(problem.network.layers[0].activation, codes, t)
    torch.testing.assert_close(
        unpacked, plain.v["v1"], rtol=1e-5, atol=1.1 * float(t.max()) / STEPS
    )
    torch.testing.assert_close(packed.sigma["v1"], plain.sigma["v1"], rtol=1e-3, atol=0)
    # From the duals of another method, too.
    again = solver.start(problem.initial_image(), plain.v)
    torch.testing.assert_close(again.v["v1"], codes, rtol=0, atol=1)


def test_the_state_of_a_solution_is_small_and_stays_as_it_is(monkeypatch):
    problem, stop = denoising(), cl.StopWhen(gap=None, max_iterations=60)
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    state = cl.solve(problem, stop=stop).state
    assert all(v["v1"] is state.v["v1"] for v in (state.w_v, state.anchor_v, state.origin_v))
    before = state.v["v1"].clone()
    cl.solve(problem, stop=stop, start=state)
    torch.testing.assert_close(state.v["v1"], before, rtol=0, atol=0)


class Alive(TorchDispatchMode):
    """Bytes of all tensors of at least some size, now and at most."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.now, self.most, self._known = least, 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size < self.least or key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._gone, key, size)
        self.now += size
        self.most = max(self.most, self.now)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.mark.parametrize(
    ("fidelity", "smoothing", "most"), [("L2", 0.05, 2.0), ("L1", 0.05, 2.0), ("L1", 0.0, 2.5)]
)
@pytest.mark.parametrize("gap", [None, 0.05])
def test_two_or_two_and_a_half_dual_variables_are_alive_at_most(
    gap, fidelity, smoothing, most, monkeypatch
):
    """w, and packed: v, the v of the best bound and, with kinks in R, the anchor.

    Claims add parts of one only.
    """
    problem = denoising(fidelity, smoothing, weight=2.0 if fidelity == "L1" else 0.3)
    dual = 4 * 32 * SIZE**2
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    for module, name, value in (
        (tiled_iterations, "STRIP", 1), (one_pass, "WORTHWHILE", 1), (one_pass, "STRIP", 1),
        (packed_slopes, "CACHED", 2**15), (rigorous_strips, "CACHED", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    with Alive(dual // 2) as alive:
        solution = cl.solve(problem, stop=cl.StopWhen(gap=gap, max_iterations=20))
    assert gap is None or solution.status == (cl.Status.CONVERGED,)
    assert alive.most == most * dual


def test_batches_are_not_packed(monkeypatch):
    problem = denoising()
    twice = cl.VariationalProblem(
        fidelity=cl.SquaredL2(problem.fidelity.y.repeat(2, 1, 1, 1)),
        regularizer=problem.regularizer, weight=0.3,
    )  # fmt: skip
    monkeypatch.setattr(tiled_iterations, "LARGE", 1)
    state = cl.solve(twice, stop=cl.StopWhen(max_iterations=10, gap=None)).state
    assert state.v["v1"].dtype is torch.float32


def test_the_sum_of_all_parts_is_the_network():
    network = denoising().network
    x = torch.rand(1, 1, SIZE, SIZE)
    parts = network.in_parts(1)
    assert len(parts) == 6
    values = [part.value(part.forward(x).z[-1]) for _, part in parts]
    torch.testing.assert_close(sum(values), network.value(network.forward(x).z[-1]))
    assert network.in_parts(10**9)[0][1] is network


def test_networks_of_several_layers_are_one_part():
    network = cl.networks.baseline(image_size=32, channels=8).bind((1, 32, 32))
    assert isinstance(network, BoundNetwork)
    assert [part for _, part in network.in_parts(1)] == [network]


@pytest.mark.parametrize("in_strips", [True, False])
def test_claims_in_parts_prove_the_same(in_strips, monkeypatch):
    problem = denoising()
    solution = cl.solve(problem)
    in_parts(monkeypatch, 2**22, in_strips)
    whole = cl.certify(problem, solution.x, solution.duals)
    in_parts(monkeypatch, 1, in_strips)
    parts = cl.certify(problem, solution.x, solution.duals)
    torch.testing.assert_close(parts.objective, whole.objective, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.lower_bound, whole.lower_bound, rtol=1e-9, atol=0)
