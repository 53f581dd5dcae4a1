"""The checker's numbers against exact rational arithmetic, on tiny problems of hostile scales.

The rounding errors that the checker states must cover the difference.
"""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import proof_files
import pytest
from exact_proofs import exact_numbers, random_data, random_network, wild

from convexlift.proof_checker import Activation, Proof, lower_bound, objective


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
    for i, content in enumerate(tiny.layers, start=1):
        shape = (1, content["channels"])
        side = round(math.sqrt(tiny.pixels[i - 1]))
        shape = shape if i == 4 else (*shape, side, side)
        # Slopes p / t of all kinds: inside, at the ends, and beyond.
        tiny.arrays[f"dual.{i}"] = wild(rng, shape, -8, 8)
    bounded_below = tiny.hs[-1].slopes[0] <= 0 and not tiny.residual[-1]
    theta = 0.3 if bounded_below and seed % 3 == 0 else 1.0
    tiny.arrays["theta"] = np.array([theta])
    described = {"layers": tiny.layers, "in_channels": 1, "image_size": [n, n]}
    head = {
        "format": 1, "made_by": {}, "radius": 1.0, "claims": [],
        "problem": {"image_shape": [1, n, n], "weight": weight, "box": list(data.box),
                    "fidelity": data.fidelity, "operator": data.operator, "network": described},
    }  # fmt: skip
    path = proof_files.store(
        tmp_path / "a.proof", proof_files.complete(head, tiny.arrays), tiny.arrays
    )
    with np.errstate(all="ignore"):
        proof = Proof(path)
        found = objective(proof)
        bound, near = lower_bound(proof)
    assert not near.any()
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
