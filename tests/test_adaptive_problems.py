"""Problems with weights for each pixel, against CVXPY and the independent checker of proofs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import proof_files
import pytest
import torch
import zoo
from checked_proofs import confirm
from marks import slow
from oracle import optimum
from parts import OPERATORS

import convexlift as cl
from convexlift.networks import AdaptiveNetwork, Convolution, Guide, NoiseGuide, UNetGuide
from convexlift.problems.lifting import lift
from convexlift.proof_checker import ProofRejected, verify
from convexlift.solvers import extrapolated_iterations, tiled_iterations
from convexlift.solvers.pdhg import RestartedPDHG
from convexlift.solvers.saturated_head import SaturatedHead
from convexlift.tensors import Blocks

NOISE = 0.1
CLOSE = cl.StopWhen(gap=1e-5, max_iterations=6000)


class Scattered(Guide):
    """Random numbers, 5 % of them infinite: other weights for neighbouring pixels."""

    def __init__(self, in_channels: int = 1, outputs: int = 4, spread: float = 3.0) -> None:
        super().__init__()
        self.in_channels, self.outputs, self.spread = in_channels, outputs, spread

    def forward(self, picture, noise, seen):
        generator = torch.Generator().manual_seed(int(1e6 * float(picture.double().mean())))
        shape = (self.outputs, *picture.shape[2:])
        numbers = [torch.randn(shape, generator=generator) for _ in picture]
        numbers = self.spread * torch.stack(numbers).to(picture)
        return torch.where(numbers.abs() > 2 * self.spread, numbers * math.inf, numbers)


class Given(Guide):
    """These numbers for every pixel, and one of their own for the first."""

    def __init__(self, first: float, others: float) -> None:
        super().__init__()
        self.in_channels, self.outputs, self.first, self.others = 1, 4, first, others

    def forward(self, picture, noise, seen):
        numbers = picture.new_full((len(picture), 4, *picture.shape[2:]), self.others)
        numbers[0, 0, 0, 0] = self.first
        return numbers


def layers(kind: str = "huber", channels: int = 1) -> list[cl.ConvexLayer]:
    """Layers with four outputs."""
    torch.manual_seed(len(kind))
    h = {"abs": cl.Abs(), "groups": cl.GroupNorm(2, cl.Huber(0.3)),
         "mixture": cl.HuberMixture((0.1, 0.5))}.get(kind, cl.Huber(0.3))  # fmt: skip
    filters = Convolution(channels, 4 * h.group, 3, padding="reflect")
    made = [cl.ConvexLayer(h, channels=4 * h.group, skip=filters, bias=False)]
    if kind in ("two layers", "residual"):
        maps = Convolution(4, 4, 3, nonnegative=True)
        residual = kind == "residual"
        made += [
            cl.ConvexLayer(cl.ReLU(), channels=4, previous=maps, bias=False, residual=residual)
        ]
    return made


def network(kind: str = "huber", channels: int = 1, guide: Guide | None = None) -> AdaptiveNetwork:
    """A network whose weights differ between neighbouring pixels."""
    guide = Scattered(channels) if guide is None else guide
    net = AdaptiveNetwork(layers(kind, channels), guide, in_channels=channels)
    with torch.no_grad():
        net.output.copy_(torch.tensor([3.0, 1.0, 2.0, 0.0]))
    return net


def u_net(channels: int = 1) -> UNetGuide:
    torch.manual_seed(3)
    guide = UNetGuide(channels, 4, widths=(3, 4), blocks=1)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return guide


SHAPE = (1, zoo.SIZE, zoo.SIZE)
SEEN = ("identity", "mask", "gaussian", "parallel beam")
TERMS = ("L2", "weighted L2", "L1", "KL")


def problem(
    operator: str = "identity", term: str = "L2", kind: str = "huber", batch: int = 2,
    channels: int = 1, **options,
) -> cl.VariationalProblem:  # fmt: skip
    """Noisy data behind an operator; impulses for L1, counts for KL, gaps for weighted L2."""
    generator = torch.Generator().manual_seed(5)
    A = OPERATORS[operator]((channels, *SHAPE[1:]))
    clean = A(zoo.clean_images(batch, channels))
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    hit = torch.rand(clean.shape, generator=generator) < 0.2
    data = {
        "L2": lambda: cl.SquaredL2(noisy),
        "weighted L2": lambda: cl.WeightedL2(
            torch.where(hit, 50.0, noisy), torch.where(hit, 0.0, 0.2 + 3 * clean.abs())
        ),
        "L1": lambda: cl.L1(torch.where(hit, 1.0, clean), 0.3),
        "KL": lambda: cl.KullbackLeibler(torch.poisson(20 * clean + 1, generator=generator), 1.0),
    }[term]()
    options = {"weight": 2.0, "noise": NOISE, "box": (0, 1)} | options
    return cl.VariationalProblem(
        fidelity=data,
        operator=20 * A if term == "KL" else A,
        regularizer=options.pop("regularizer", None) or network(kind, channels),
        **options,
    )


# The optimum, the bound and the checker


@pytest.mark.sampled(11)
@pytest.mark.parametrize("kind", ["huber", "abs"])
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("operator", SEEN)
def test_the_bound_is_below_the_optimum_and_the_checker_agrees(operator, term, kind, tmp_path):
    stated = problem(operator, term, kind)
    assert float(stated.regularizer.output.detach().std((2, 3)).amax(1).min()) > 0.01
    solution = cl.solve(stated, stop=CLOSE)
    confirm(stated, solution.proof.claim, tmp_path / "x.proof")
    for i in range(2):
        best, minimiser = optimum(one := stated.select(torch.tensor([i])))
        slack = 1e-6 * abs(best)  # accuracy of the other solver
        assert float(solution.lower_bound[i]) <= best + slack
        assert best - slack <= float(solution.objective[i]) <= best + 3e-5 * abs(best)
        torch.testing.assert_close(
            one.objective(one.bounds.project(torch.as_tensor(minimiser))),
            torch.tensor([best]), rtol=1e-5, atol=1e-6,
        )  # fmt: skip
    wild_duals_stay_below(stated.select(torch.tensor([1])), best, solution.x[1:])


def wild_duals_stay_below(one: cl.VariationalProblem, best: float, x: torch.Tensor) -> None:
    """Any image and any dual variables give a bound; the checker sees each certificate, too."""
    generator = torch.Generator().manual_seed(0)
    short = cl.solve(one, stop=cl.StopWhen(gap=None, max_iterations=1, check_every=1))
    for size in (0.0, 0.3, 10.0):
        wild = {
            name: size * torch.randn(part.shape, generator=generator)
            for name, part in short.duals.items()
        }
        moved = one.bounds.project(x + size * torch.randn(x.shape, generator=generator))
        certificate = cl.certify(one, moved, Blocks(wild), radius=20.0)
        assert float(certificate.lower_bound) <= best + 1e-6 * abs(best)


def agree(one: cl.VariationalProblem, folder: Path) -> None:
    """CVXPY and the checker confirm the solution of a batch of one."""
    solution = cl.solve(one, stop=CLOSE)
    confirm(one, solution.proof.claim, folder / "x.proof")
    best, _ = optimum(one)
    assert float(solution.lower_bound) <= best * (1 + 1e-6)
    assert float(solution.objective) == pytest.approx(best, rel=3e-5)


KINDS = ("groups", "mixture", "two layers", "residual")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [{"operator": "mask", "kind": kind, "channels": n} for kind in KINDS for n in (1, 3)]
    + [{"operator": A, "box": b} for A in SEEN[::2] for b in (None, (0, None), (0.2, 0.6))],
    ids=str,
)
def test_other_profiles_deeper_networks_and_other_boxes(options, tmp_path):
    agree(problem(batch=1, **options), tmp_path)


@pytest.mark.parametrize("kind", ["huber", "abs", *KINDS])
def test_objectives_are_convex_in_x_for_every_y(kind):
    generator = torch.Generator().manual_seed(1)
    for term in TERMS:
        stated = problem("mask", term, kind)
        for size in (1e-3, 0.3, 1.0):
            a = torch.rand((2, *SHAPE), generator=generator)
            b = stated.bounds.project(a + size * torch.randn(a.shape, generator=generator))
            middle, ends = stated.objective((a + b) / 2), stated.objective(a) + stated.objective(b)
            assert (middle <= ends / 2 * (1 + 1e-13)).all()


# Batches


@pytest.mark.parametrize("operator", [*SEEN[:2], *map(slow, SEEN[2:])])
def test_selected_images_keep_their_weights(operator):
    whole = problem(operator, kind="abs", batch=3, noise=torch.tensor([0.05, 0.1, 0.4]))
    together = cl.solve(whole, stop=CLOSE)
    for chosen in ([2], [1, 0]):
        some = whole.select(torch.tensor(chosen))
        assert torch.equal(some.regularizer.output, whole.regularizer.output[chosen])
        assert some.noise.tolist() == whole.noise[chosen].tolist()
        alone = cl.solve(some, stop=CLOSE)
        assert (together.lower_bound[chosen] <= alone.objective).all()
        assert (alone.lower_bound <= together.objective[chosen]).all()


def test_images_of_a_batch_have_their_own_noise_levels():
    levels = torch.tensor([0.05, 0.1, 0.4])
    y = torch.rand(3, 1, 8, 8)
    for guide in (u_net(), NoiseGuide(1, 4, levels=[0.01, 1.0])):
        net = network("abs", guide=guide)
        whole = cl.VariationalProblem(
            fidelity=cl.SquaredL2(y), regularizer=net, weight=1.0, noise=levels
        )
        for i in range(3):
            own = cl.VariationalProblem(
                fidelity=cl.SquaredL2(y[i : i + 1]), regularizer=net, weight=1.0,
                noise=float(levels[i]),
            )  # fmt: skip
            at = torch.tensor([i])
            torch.testing.assert_close(
                whole.select(at).regularizer.output, own.regularizer.output, rtol=1e-12, atol=0
            )
            best, _ = optimum(own)
            assert float(cl.solve(whole).lower_bound[i]) <= best * (1 + 1e-6)


def test_conditioned_networks_belong_to_their_images():
    y = torch.rand(3, 1, 8, 8)
    net = network("abs", guide=u_net())
    of_two, of_one = (net.condition(y[:n], NOISE) for n in (2, 1))
    for count in (1, 3):
        with pytest.raises(ValueError, match=f"weights of 2 images, and these are data of {count}"):
            cl.VariationalProblem(fidelity=cl.SquaredL2(y[:count]), regularizer=of_two, weight=1.0)
    shared = cl.VariationalProblem(fidelity=cl.SquaredL2(y), regularizer=of_one, weight=1.0)
    whole = cl.solve(shared, stop=CLOSE)
    for i in range(3):
        best, _ = optimum(shared.select(torch.tensor([i])))
        assert float(whole.lower_bound[i]) <= best * (1 + 1e-6)
        assert float(whole.objective[i]) == pytest.approx(best, rel=3e-5)


@pytest.mark.parametrize("operator", ["mask", slow("parallel beam")])
def test_warm_starts_reach_the_same_optimum(operator):
    stated = problem(operator)
    first = cl.solve(stated, stop=CLOSE)
    for start in (first.x, first.state, torch.zeros_like(first.x)):
        again = cl.solve(stated, start=start, stop=CLOSE)
        assert (again.lower_bound <= first.objective).all()
        assert (first.lower_bound <= again.objective).all()
        assert (again.gap <= 1e-5).all()


# Extreme guides


@pytest.mark.parametrize("others", [-math.inf, 0.0, math.inf])
def test_one_pixel_at_its_other_bound(others, tmp_path):
    stated = problem(regularizer=network(guide=Given(-others or 1e30, others)), batch=1)
    agree(stated, tmp_path)


def test_one_number_that_is_nan_is_an_error_when_the_problem_is_stated():
    with pytest.raises(ValueError, match="the guide gave weights that are not finite"):
        problem(regularizer=network(guide=Given(math.nan, 0.0)))


def test_weights_of_zero_leave_the_data():
    net = network()
    torch.nn.init.zeros_(net.output)
    stated = problem(regularizer=net, box=None)
    solution = cl.solve(stated)
    torch.testing.assert_close(solution.x, stated.fidelity.y)
    assert (solution.objective <= 1e-12).all()
    assert solution.status == (cl.Status.CONVERGED,) * 2


# Files


@pytest.mark.parametrize("kind", ["huber", "abs", *KINDS])
@pytest.mark.parametrize("guide", ["u-net", "noise"])
def test_a_loaded_network_gives_the_same_solution_to_the_last_bit(kind, guide, tmp_path):
    made = u_net() if guide == "u-net" else NoiseGuide(1, 4, levels=[0.01, 1.0])
    net = network(kind, guide=made)
    cl.save(net, tmp_path / "net")
    solutions = [
        cl.solve(problem(regularizer=each), stop=cl.StopWhen(gap=1e-3))
        for each in (net, cl.load(tmp_path / "net"))
    ]
    assert torch.equal(solutions[0].x, solutions[1].x)
    assert torch.equal(solutions[0].lower_bound, solutions[1].lower_bound)


def test_proofs_with_other_weights_are_refused_by_name(tmp_path):
    stated = problem()
    head, arrays = proof_files.contents(stated, proof_files.evidence(stated))
    weights = arrays["network.output"]
    assert weights.shape == (2, 4, 8, 8)
    assert len(verify(proof_files.store(tmp_path / "a.proof", head, arrays))) == 2

    def changed(place, number):
        other = weights.copy()
        other[place] = number
        return other

    for other, reason in [
        (changed((1, 2, 3, 4), -1e-300), "'network.output' has negative entries"),
        (changed((1, 2, 3, 4), np.nan), "'network.output' must hold finite numbers"),
        (changed((0, 1), np.inf), "'network.output' must hold finite numbers"),
        (changed((0, 0), 2 * weights[0, 0]), "objective"),
        (weights[:, :, :-1], "does not fit"),
        (weights[:, :3], "does not fit"),
        (weights[:1], "objective"),  # those of the first image for both
        (weights.mean((2, 3)), "does not fit"),
        (weights[0, :, 0, 0], "objective"),
    ]:
        arrays["network.output"] = np.ascontiguousarray(other)
        file = proof_files.store(tmp_path / "b.proof", proof_files.complete(head, arrays), arrays)
        with pytest.raises(ProofRejected, match=reason):
            verify(file)


# Variants of the iterations


@pytest.mark.parametrize("guide", ["scattered", "noise"])
@pytest.mark.parametrize("kind", ["huber", "abs", "groups"])
@pytest.mark.parametrize("term", ["L2", "L1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_strips_give_the_same_iterates(guide, kind, term, channels, monkeypatch):
    torch.manual_seed(0)
    y = torch.rand(2, channels, 37, 12)
    made = None if guide == "scattered" else NoiseGuide(channels, 4, levels=[0.01, 1.0])
    stated = cl.VariationalProblem(
        fidelity=(cl.L1 if term == "L1" else cl.SquaredL2)(y), noise=NOISE, weight=1.0,
        regularizer=network(kind, channels, made), operator=cl.Mask((y[0, :1] > 0.2).double()),
    )  # fmt: skip
    found = []
    monkeypatch.setattr(extrapolated_iterations, "MEMORABLE", 0)  # strips are not extrapolated
    for worthwhile in (10**9, 1):
        monkeypatch.setattr(tiled_iterations, "WORTHWHILE", worthwhile)
        monkeypatch.setattr(tiled_iterations, "STRIP", 4 * 12 * 5)
        solver = RestartedPDHG(stated, lift(stated))
        tiled = isinstance(solver.iterations, tiled_iterations.TiledIterations)
        assert tiled == (worthwhile == 1)
        found.append(solver.advance(solver.start(stated.initial_image()), 23))
    plain, strips = found
    torch.testing.assert_close(strips.x, plain.x, rtol=1e-8, atol=1e-10)
    for name, part in plain.v.items():
        torch.testing.assert_close(strips.v[name], part, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("holds", [True, False])
def test_a_saturated_last_layer_has_its_weights_by_pixel(holds, tmp_path):
    """h_1 >= 0 and W >= 0: units are on wherever x is not flat, and off where W is zero."""
    net = network("two layers")
    if not holds:
        torch.nn.init.zeros_(net.layers[1].previous.weight[:2])
    stated = problem(regularizer=net, batch=1)
    head = SaturatedHead.of(stated)
    assert head.problem.network.output.shape == (1, 4, 8, 8)
    agree(stated, tmp_path)


def test_last_layers_without_pixels_are_refused():
    maps = cl.networks.Dense(36, 4, nonnegative=True)
    dense = cl.ConvexLayer(cl.ReLU(), channels=4, previous=maps, bias=False)
    with pytest.raises(ValueError, match=r"as large as the image.* make a layer of \(4,\)"):
        AdaptiveNetwork([*layers(), dense], NoiseGuide(1, 4, levels=[0.1]))


@pytest.mark.parametrize("last", ["stride", "pool"])
def test_smaller_last_layers_are_refused(last, tmp_path):
    maps = {
        "stride": Convolution(1, 4, 3, stride=2),
        "pool": cl.networks.Chain(Convolution(1, 4, 3), cl.networks.AveragePool(2)),
    }
    small = cl.ConvexLayer(cl.Abs(), channels=4, skip=maps[last], bias=False)
    with pytest.raises(ValueError, match="without strides, pooling or dense maps"):
        AdaptiveNetwork([small], Scattered())
    net = AdaptiveNetwork([small], NoiseGuide(1, 4, levels=[0.1]))  # the same for all pixels
    agree(problem(regularizer=net, batch=1), tmp_path)
