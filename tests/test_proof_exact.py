"""The checker's numbers against exact rational arithmetic, on tiny problems of hostile scales.

The rounding errors that the checker states must cover the difference.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import proof_files
import pytest
from exact_proofs import Data, Tiny, exact, exact_numbers, random_data, random_network, wild

from convexlift.proof_checker import (
    Activation,
    Ball,
    Proof,
    ProofRejected,
    lower_bound,
    objective,
)


@pytest.fixture
def recorded(monkeypatch) -> dict[int, np.ndarray]:
    """The slopes that the checker uses, by layer, from the last one on."""
    found: list[np.ndarray] = []
    original = Activation.slope

    def slope(self, p, t):
        found.append(original(self, p, t))
        return found[-1]

    monkeypatch.setattr(Activation, "slope", slope)
    return found


def with_evidence(tiny: Tiny, make, thetas: list[float], rng: np.random.Generator) -> float:
    """Dual variables, and theta < 1 only where the network is bounded below; returns theta."""
    for i, content in enumerate(tiny.layers, start=1):
        side = round(math.sqrt(tiny.pixels[i - 1]))
        tiny.arrays[f"dual.{i}"] = make((1, content["channels"], *((side, side) if i < 4 else ())))
    bounded_below = tiny.hs[-1].slopes[0] <= 0 and not tiny.residual[-1]
    theta = float(rng.choice(thetas)) if bounded_below else 1.0
    tiny.arrays["theta"] = np.array([theta])
    return theta


def checked(path: Path, tiny: Tiny, data: Data, weight: float) -> tuple[Ball, Ball]:
    """Objective and bound of the only image, from a file."""
    described = {"layers": tiny.layers, "in_channels": 1, "image_size": [tiny.n, tiny.n]}
    head = {
        "format": 1, "made_by": {}, "radius": 1.0, "claims": [],
        "problem": {"image_shape": [1, tiny.n, tiny.n], "weight": weight, "box": list(data.box),
                    "fidelity": data.fidelity, "operator": data.operator, "network": described},
    }  # fmt: skip
    proof_files.store(path, proof_files.complete(head, tiny.arrays), tiny.arrays)
    with np.errstate(all="ignore"):
        proof = Proof(path)
        found = objective(proof)
        bound, near = lower_bound(proof)
    assert not near.any()
    return found, bound


@pytest.mark.sampled(5)
@pytest.mark.parametrize("hostile", [False, True], ids=["ordinary", "hostile"])
@pytest.mark.parametrize("kind", ["SquaredL2", "L1", "WeightedL2"])
@pytest.mark.parametrize("network", ["one layer", "four layers", "one by pixel", "four by pixel"])
@pytest.mark.parametrize("seed", range(8))
def test_rounding_errors_cover_the_distance_to_exact_arithmetic(
    tmp_path, recorded, seed, network, kind, hostile
):
    deep, by_pixel = network.startswith("four"), network.endswith("pixel")
    rng = np.random.default_rng([seed, deep, len(kind), hostile])
    n, weight = int(rng.integers(3, 5)), 0.1
    tiny = random_network(rng, n, deep, spread=8.0 if hostile else 0.5, by_pixel=by_pixel)
    data = random_data(rng, tiny, kind, offset=1e8 if hostile and seed % 2 else 0.0)
    # Slopes p / t of all kinds: inside, at the ends, and beyond.
    theta = with_evidence(tiny, lambda shape: wild(rng, shape, -8, 8), [0.3, 1.0, 1.0], rng)
    found, bound = checked(tmp_path / "a.proof", tiny, data, weight)
    count = len(tiny.layers)
    slopes = {count - k: s for k, s in enumerate(recorded[:count])}
    J, lower, size = exact_numbers(tiny, data, kind, weight, theta, slopes)
    value, error = F(float(found.value[0])), F(float(found.error[0]))
    assert abs(value - J) <= error
    assert error <= F(1e-9) * max(size, J)
    value, error = F(float(bound.value[0])), F(float(bound.error[0]))
    assert value - error <= lower
    assert lower - F(1e-9) * size <= value - error
    assert lower <= J


def anything(rng: np.random.Generator, shape: tuple[int, ...], high: float) -> np.ndarray:
    """Numbers from 1e-300 on, and a few that are the same special one."""
    special = rng.choice([0.0, -0.0, 5e-324, -1e-310, 1e-160, 1e-40, 1.0, 1e39])
    return np.where(rng.random(shape) < 0.2, special, wild(rng, shape, -300, high))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(80))
def test_numbers_of_all_sizes_make_no_bound_false(tmp_path, recorded, seed):
    """Products and quotients overflow and underflow everywhere; files may be refused."""
    rng, kind = np.random.default_rng([seed, 77]), ["SquaredL2", "L1", "WeightedL2"][seed % 3]
    deep, weight = seed % 2 == 0, float(rng.choice([0.1, 1e-40, 1e30]))
    tiny = random_network(rng, 3, deep, spread=rng.uniform(8, 24 if deep else 39))
    data = random_data(rng, tiny, kind, offset=float(rng.choice([0, 1e8])))
    every = [0.0, 1e-300, 0.3, 1.0]
    theta = with_evidence(tiny, lambda shape: anything(rng, shape, 39), every, rng)
    if kind == "WeightedL2":
        tiny.arrays["fidelity.weights"] = q = np.abs(anything(rng, (1, 1, 3, 3), 39))
        data = replace(data, q=exact(q))
    tiny.arrays["y"] *= float(rng.choice([1, 1e-300, 1e-160, 1e-40, 1e20]))
    try:
        found, bound = checked(tmp_path / "a.proof", tiny, data, weight)
    except ProofRejected as refused:
        assert "above 1e+100" in str(refused)  # noqa: PT017
        return
    slopes = {len(tiny.layers) - k: s for k, s in enumerate(recorded[: len(tiny.layers)])}
    J, lower, _ = exact_numbers(tiny, data, kind, weight, theta, slopes)
    assert abs(F(float(found.value[0])) - J) <= F(float(found.error[0]))
    assert F(float(bound.value[0])) - F(float(bound.error[0])) <= lower <= J
