"""Small proof files, true and forged; ``python tests/forged_proofs.py`` writes them anew.

The files in tests/proofs/correct are confirmed; those in incorrect state a problem and claim too
much; those in malformed state none, or one whose numbers leave the range of float64. Every forged
file has the digests of its content.

All begin with x = 3/2 and y = 2 at each of four pixels and  1/2 (x - y)^2 + 1/2 max(x, 0)  there:
the minimum is 7/8, and p = 1/2 proves it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from proof_files import complete, sealed, store

FOLDER = Path(__file__).parent / "proofs"
IDENTITY: dict[str, Any] = {"Identity": {}}


def full(value: float, *shape: int) -> np.ndarray:
    return np.full(shape or (1, 1, 2, 2), float(value))


def convolution(inputs: int = 1, outputs: int = 1, size: int = 1, **options: Any) -> dict[str, Any]:
    shapes = {"in_channels": inputs, "out_channels": outputs, "kernel_size": size}
    return {"Convolution": shapes | {"stride": 1, "padding": "zero"} | options}


@dataclass
class Forged:
    """Description and tensors of a proof, which a case changes."""

    problem: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layer = {
            "activation": {"ReLU": {}}, "channels": 1, "skip": convolution(), "previous": None,
            "links": {}, "bias": False, "residual": False,
        }  # fmt: skip
        network = {"layers": [layer], "in_channels": 1, "image_size": None}
        self.problem = {
            "image_shape": [1, 2, 2], "weight": 0.5, "box": [None, None],
            "fidelity": {"SquaredL2": {}}, "operator": IDENTITY, "network": network,
        }  # fmt: skip
        self.head = {
            "format": 1, "made_by": {"convexlift": "0.2"}, "problem": self.problem, "claims": [],
            "radius": 1.0,
        }  # fmt: skip
        self.tensors = {
            "x": full(1.5), "y": full(2), "theta": np.ones(1), "dual.1": full(0.5),
            "network.layers.0.skip.weight": full(1, 1, 1, 1, 1), "network.output": np.ones(1),
        }  # fmt: skip
        self.claim(3.5, 3.5)

    @property
    def layer(self) -> dict[str, Any]:
        return self.problem["network"]["layers"][0]

    def claim(self, objective: float, lower: float, guarantee: str = "GLOBAL") -> None:
        gap = (objective - lower) / abs(objective) if objective else None
        self.head["claims"] = [
            {"objective": objective, "lower_bound": lower, "gap": gap, "guarantee": guarantee}
        ]

    def zero(self) -> None:
        """x = y = 0, so that the objective is 0, with p = 0."""
        for name in ("x", "y", "dual.1"):
            self.tensors[name] = full(0)
        self.claim(0.0, 0.0)

    def weighted(self, *weights: float) -> None:
        self.problem["fidelity"] = {"WeightedL2": {}}
        self.tensors["fidelity.weights"] = np.array(weights, float).reshape(1, 1, 2, 2)

    def diagonal(self, *values: np.ndarray) -> None:
        """The product of diagonal operators."""
        names = [f"operator.{i}.values" for i in range(len(values))]
        self.tensors |= dict(zip(names, values, strict=True))
        factors = [{"Diagonal": {"values": name}} for name in names]
        self.problem["operator"] = {"Composition": {"factors": factors}}

    def write(self, path: Path, text: Callable[[str], str] | None = None) -> Path:
        head = complete(self.head, self.tensors)
        return store(path, text(json.dumps(head)) if text else head, self.tensors)


Change = Callable[[Forged], Any]
"""What makes a case of the plain proof; perhaps a function of the text of its description."""


def edited(
    layer: Any = (), problem: Any = (), head: Any = (), tensors: Any = (), claim: Any = None,
    gap: float | None = None, zero: bool = False, weights: Any = None, factors: Any = (),
    text: Any = None,
) -> Change:  # fmt: skip
    """Other entries of the description, and other tensors; those that are None are left out."""

    def change(f: Forged) -> Callable[[str], str] | None:
        if zero:
            f.zero()
        if weights:
            f.weighted(*weights)
        if factors:
            f.diagonal(*factors)
        f.layer.update(layer)
        f.problem.update(problem)
        f.head.update(head)
        f.tensors.update(tensors)
        f.tensors = {name: array for name, array in f.tensors.items() if array is not None}
        if claim:
            f.claim(*claim)
        if gap is not None:
            f.head["claims"][0]["gap"] = gap
        return text

    return change


def convolutions(count: int, value: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Layer and tensors with a chain of products with this number."""
    layer = {"activation": {"Linear": {}}, "skip": {"Chain": {"maps": [convolution()] * count}}}
    named = {f"{SKIP}.maps.{i}.weight": full(value, 1, 1, 1, 1) for i in range(count)}
    return layer, {f"{SKIP}.weight": None, **named}


def halved(f: Forged) -> None:
    f.tensors = {name: array.astype(np.float32) for name, array in f.tensors.items()}


def doubled(f: Forged) -> None:
    for name in ("x", "y", "dual.1", "theta"):
        f.tensors[name] = np.concatenate([f.tensors[name]] * 2)
    f.head["claims"] *= 2


def digest_added(text: str) -> str:
    head = json.loads(text)
    head["sha256"]["network.more"] = 64 * "0"
    return json.dumps(sealed(head))


def one(value: float, name: str) -> dict[str, np.ndarray]:
    """One entry of a tensor of the plain proof is another number."""
    array = Forged().tensors[name].copy()
    array.flat[0] = value
    return {name: array}


def corner(value: float) -> np.ndarray:
    """This number at the first pixel, and 0 elsewhere."""
    return np.array([value, 0, 0, 0]).reshape(1, 1, 2, 2)


SKIP = "network.layers.0.skip"
WEIGHT, SHARES, BIAS = f"{SKIP}.weight", "network.layers.0.shares", "network.layers.0.bias"
LINEAR, MIXTURE = {"Linear": {}}, {"HuberMixture": {"widths": [1, 2]}}
UNSEEN = np.array([1.0, 1, 1, 0]).reshape(2, 2)
NEAR = {  # an image with a pixel that no data see
    "factors": [UNSEEN], "tensors": {"x": 1.5 * UNSEEN[None, None], "y": 2 * UNSEEN[None, None]},
}  # fmt: skip
MRI = {"MRI": {"mask": "operator.0.mask", "maps": "operator.1.maps", "channels": 1}}
CHAINED, FEW = convolutions(7, 1e-40), convolutions(3, 1e40)

# Numbers of the cases that need a word:
# - weights of 1e308: q (x - y)^2 / 2 + v x is v y - v^2 / 2q at its minimum, and 2q overflows;
#   there are images of -1.1e22
# - diagonal of 1e308: x has no data, and c / d = 1e-20 / 1.5e308 underflows for c x
# - small square: the objective is 5e-25
# - slope below the range: x / 1e280 has no minimum, and 1e-280 / 1e80 is no float
# - shares of 1e308: the objective is 2.5; volume: the objective is 8
# - products above 1e100: sums of -1e120 and 1e120 do not come out as they should
# - counts without a mean: y log(y / w) for y / w = 2^1074 / 1.5, where 1.5 / 2^1074 would be
#   rounded to 2 / 2^1074
V, Y, COUNT, STEPS = 1e165, 1e-145, 2.0**66, 1008

CORRECT: dict[str, Change] = {
    "plain": edited(),
    "single precision": halved,
    "batch of two": doubled,
    "objective 0": edited(zero=True),
    "objective 0 at a constant image": edited(
        {"activation": {"GroupNorm": {"size": 2, "profile": {"Abs": {}}}}, "channels": 2,
         "skip": {"ForwardDifferences": {}}},
        tensors={WEIGHT: None, "x": full(2), "dual.1": full(0, 1, 2, 2, 2)}, claim=(0.0, 0.0)),
    "weights from 0 to 1e40": edited(
        weights=(0.0, 5e-324, 1e-300, 1e40), claim=(0.0, 0.0),
        tensors={"x": full(-1), "y": full(-1), "dual.1": full(0)}),
    "negative zeros": edited(
        zero=True, weights=(-0.0, 1.0, 1.0, 1.0), problem={"box": [-0.0, None]},
        tensors={"x": full(-0.0), "network.output": -np.zeros(1)}),
    "L1": edited(problem={"fidelity": {"L1": {"scale": 1}}}, tensors={"x": full(2)},
                 claim=(4.0, 4.0)),
    "counts": edited(
        problem={"fidelity": {"KullbackLeibler": {}}, "weight": 1.0, "box": [0.0, None]},
        tensors={"x": full(0.5), "y": full(1), "fidelity.background": full(0), "dual.1": full(1)},
        claim=(4 * math.log(2) + 1e-9, 4 * math.log(2) - 1e-9)),
    "blur": edited(
        problem={"box": [0, 4],
                 "operator": {"Blur": {"kernel": "operator.0.kernel", "boundary": "reflect"}}},
        tensors={"operator.0.kernel": full(1, 1, 1), "dual.data": full(-0.5)}),
    "near x only": edited(**NEAR, claim=(2.625, 2.125, "WITHIN_RADIUS")),
    "shares": edited(
        {"activation": {"HuberMixture": {"widths": [1e-40, 1, 1e40]}}}, zero=True,
        tensors={SHARES: np.array([[1e40, 0.0, 5e-324]])}),
    "spline": edited(
        {"activation": {"QuadraticSpline": {"knots": [0.5, 1.0], "even": False, "tail": 2.0}}},
        zero=True, tensors={SHARES: np.ones((1, 2))}),
    "integral over the pixels": edited(
        {"skip": {"Chain": {"maps": [convolution(), {"PixelSum": {"mean": False}}]}}},
        tensors={WEIGHT: None, f"{SKIP}.maps.0.weight": full(1, 1, 1, 1, 1),
                 "dual.1": full(0.5, 1, 1, 1, 1)}),
}  # fmt: skip

INCORRECT: dict[str, tuple[str, Change]] = {
    "lower bound above the objective": (
        "claims[0].lower_bound is '5.0', not a number", edited(claim=(3.5, 5.0))),
    "gap of -5": ("claims[0].gap is '-5', not a number", edited(gap=-5)),
    "gap of 0": (
        "claims[0].gap is 0.0, less than its numbers say", edited(claim=(3.5, 3.0), gap=0.0)),
    "objective too small": (
        "claims[0].objective is", edited(tensors={"x": full(2)}, claim=(3.5, 3.5))),
    "bound too large": (
        "claims[0].lower_bound is", edited(tensors={"x": full(2)}, claim=(4.0, 3.9))),
    "nothing proved": (
        "claims[0].lower_bound is 3.5, but it is below", edited(tensors={"dual.1": full(0)})),
    "near passed as global": (
        "claims[0].guarantee is 'GLOBAL', but WITHIN_RADIUS", edited(**NEAR, claim=(2.625, 2.125))),
    "wide radius": ("claims[0].lower_bound is 2.125, but", edited(
        **NEAR, head={"radius": 1e6}, claim=(2.625, 2.125, "WITHIN_RADIUS"))),
    "small square": ("claims[0].objective is 1e-200, but it is above", edited(
        zero=True, weights=(1e40, 1.0, 1.0, 1.0), tensors={"y": corner(1e-32)},
        claim=(1e-200, 0.0))),
    "slope below the range": ("claims[0].guarantee is 'GLOBAL', but WITHIN_RADIUS", edited(
        CHAINED[0], zero=True, weights=(0.0, 0.0, 0.0, 0.0), tensors=CHAINED[1],
        factors=[full(1e40), 2 * full(1e40) / 3])),
}  # fmt: skip

OUT_OF_RANGE: dict[str, tuple[str, Change]] = {
    "weights of 1e308": ("fidelity.weights holds 1.7e+308; rescale the problem", edited(
        {"activation": LINEAR}, weights=[1.7e308] * 4, claim=(4.0001e20, 3.9999e20),
        tensors={"network.output": np.array([2 * V]), "dual.1": full(V), "x": full(Y),
                 "y": full(Y)})),
    "diagonal of 1e308": ("operator.0.values holds 1.5e+308; rescale the problem", edited(
        {"activation": LINEAR, "bias": True}, zero=True, factors=[full(1.5e308)],
        weights=(0.0, 0.0, 0.0, 0.0), claim=(4.0, 4.0),
        tensors={"network.output": np.array([2e-20]), "dual.1": full(1e-20),
                 BIAS: np.array([1e20])})),
    "shares of 1e308": ("network.layers.0.shares holds 1.7e+308; rescale the problem", edited(
        {"activation": MIXTURE}, tensors={SHARES: full(1.7e308, 1, 2), "dual.1": full(0)},
        claim=(0.5, 0.0))),
    "weight of 1e300": ("fidelity.weights holds 1e+300; rescale the problem", edited(
        zero=True, weights=(1e300, 1.0, 1.0, 1.0), tensors={"y": corner(1e-162)},
        claim=(1e-200, 0.0))),
    "products above 1e100": (
        "a number on the way is above 1e+100, or none", edited(FEW[0], tensors=FEW[1])),
    "counts without a mean": ("a number on the way is above 1e+100, or none", edited(
        problem={"fidelity": {"KullbackLeibler": {}}, "box": [0.0, 1e38]},
        tensors={"fidelity.background": full(1.5 * 2.0**-STEPS), "y": full(COUNT), "x": full(0),
                 "dual.1": full(0)},
        claim=(4 * COUNT * ((STEPS + 65) * math.log(2) - 1) * (1 + 1e-9), 0.0))),
    "weight in text of 1e400": ("weight is 'inf', not a number", edited(
        problem={"weight": math.inf}, text=lambda text: text.replace("Infinity", "1e400"))),
    "weight of nothing": ("weight is 'nan', not a number", edited(problem={"weight": math.nan})),
    "box of 1e300": (
        "an end of the box is '1e+300', not a number", edited(problem={"box": [0.0, 1e300]})),
}  # fmt: skip

TENSORS: dict[str, tuple[str, Change]] = {
    "tensor with NaN": ("'y' must hold finite numbers", edited(tensors=one(np.nan, "y"))),
    "tensor with infinity": (
        "'dual.1' must hold finite numbers", edited(tensors=one(-np.inf, "dual.1"))),
    "half precision": ("'x' must hold finite numbers in float32 or float64", edited(
        tensors={"x": full(1.5).astype(np.float16)})),
    "integers": ("'y' must hold finite numbers in float32 or float64", edited(
        tensors={"y": full(2).astype(np.int64)})),
    "empty tensor": ("'x' must hold finite numbers", edited(tensors={"x": full(0, 0, 1, 2, 2)})),
    "mixture with no minimum": ("'theta' must be 1, or in [0, 1] if R is bounded below", edited(
        {"activation": {"LeakyReLU": {"slope": 0.5}}}, tensors={"theta": np.array([0.5])})),
    "negative weights": (
        "weights or background of its data have negative entries",
        edited(weights=(-5e-324, 1.0, 1.0, 1.0))),
    "tensor named twice": ("'operator.0.values' is missing, or named twice", edited(
        problem={"operator": {"Composition": {
            "factors": [{"Diagonal": {"values": "operator.0.values"}}] * 2}}},
        tensors={"operator.0.values": full(1)})),
    "tensor of another part": (
        "an operator has 'y' in place of a tensor operator.*",
        edited(problem={"operator": {"Diagonal": {"values": "y"}}})),
    "tensor outside the digest of the network": ("a linear map is", edited(
        {"skip": {"Diagonal": {"values": "w"}}},
        tensors={WEIGHT: None, "w": full(1, 1, 1, 1, 1)})),
    "digest of no tensor": (
        "['network.more'] are missing, or have no digest", edited(text=digest_added)),
    "outputs of one channel for two": ("'network.output' does not fit (2, 2, 2)", edited(
        {"skip": convolution(1, 2), "channels": 2},
        tensors={WEIGHT: full(1, 2, 1, 1, 1), "dual.1": full(0.5, 1, 2, 2, 2)})),
    "shares of two channels for one": ("shares' has the shape (2, 2), not (1, 2)", edited(
        {"activation": MIXTURE}, tensors={SHARES: np.ones((2, 2))})),
    "coils of two images for one": ("coils (2, 2, 2, 2) do not fit (1, 2, 2)", edited(
        problem={"operator": MRI, "box": [0, 4]}, claim=(3.0, 0.0),
        tensors={
            "operator.0.mask": full(1),
            "operator.1.maps": np.array([0.0, 1.0]).reshape(2, 1, 1, 1) * full(1, 2, 2, 2, 2),
            "dual.1": full(0), "y": full(0, 1, 2, 2, 2), "dual.data": full(0, 1, 2, 2, 2)})),
    "volume": ("'x' is not of image_shape", edited(
        {"skip": {"PixelSum": {"mean": False}}}, {"image_shape": [1, 2, 2, 2]}, claim=(0.0, 0.0),
        tensors={WEIGHT: None, "dual.1": full(0, 1, 1, 1, 1)} | dict.fromkeys(
            ("x", "y"), np.array([0.0, 4.0]) * full(1, 1, 1, 2, 2, 2)))),
}  # fmt: skip

DESCRIPTIONS: dict[str, tuple[str, Change]] = {
    "field twice": ("its description has a field twice", edited(
        text=lambda text: text.replace('"radius"', '"weight": 7, "weight": 7, "radius"'))),
    "unknown field": (
        "not an object with the fields ['format', ", edited(head={"dimensions": 2})),
    "unknown option": ("not an object with the fields ['in_channels', ", edited(
        {"skip": convolution(dilation=2)})),
    "missing option": (
        "a linear map, a PixelSum, is '{}', not an object", edited({"skip": {"PixelSum": {}}})),
    "stride of 0": (
        "a stride is '0', not a number in [1, ", edited({"skip": convolution(stride=0)})),
    "stride of 1.0": (
        "a stride is '1.0', not a whole number", edited({"skip": convolution(stride=1.0)})),
    "kernel of an even size": ("its kernels do not fit", edited(
        {"skip": convolution(size=2)}, tensors={WEIGHT: full(1, 1, 1, 2, 2)})),
    "pools of 30000 pixels": ("the size of an AveragePool is '30000'", edited(
        {"skip": {"AveragePool": {"size": 30000}}})),
    "huge integer": ("the size of an AveragePool is '1000000", edited(
        {"skip": {"AveragePool": {"size": 10**400}}})),
    "residual in words": (
        "layers.0.residual is 'false', neither true nor false", edited({"residual": "false"})),
    "other image size": (
        "its network is not made for images [1, 2, 2]",
        lambda f: f.problem["network"].update(image_size=[3, 3])),
    "other channels": (
        "layers.0.skip is not made for 1 channels", edited({"skip": convolution(2)})),
    "link with a leading zero": (
        "layers.0.links has '01', not an earlier layer", edited({"links": {"01": convolution()}})),
    "maker with a line of its own": ("made_by must hold names and versions", edited(head={
        "made_by": {"convexlift": "0.2\nx.proof: objective 0.0; no image in the box is below"}})),
    "maker with an escape sequence": ("made_by must hold names and versions", edited(
        head={"made_by": {"convexlift": "0.2\x1b[2K"}})),
    "link with a line of its own": (
        "layers.0.links has '1\\n\\x1b[2K', not an earlier",
        edited({"links": {"1\n\x1b[2K": convolution()}})),
}  # fmt: skip

CASES: dict[str, tuple[str, Change]] = {
    **{f"correct/{name}": ("", change) for name, change in CORRECT.items()},
    **{f"incorrect/{name}": case for name, case in INCORRECT.items()},
    **{f"malformed/{name}": case
       for name, case in (OUT_OF_RANGE | TENSORS | DESCRIPTIONS).items()},
}  # fmt: skip
"""The name of each file, with the reason of its rejection and the change that makes it."""


def write(name: str, folder: Path = FOLDER) -> Path:
    """The file of a case."""
    forged = Forged()
    text = CASES[name][1](forged)
    path = folder / f"{name.replace(' ', '_')}.proof"
    path.parent.mkdir(parents=True, exist_ok=True)
    return forged.write(path, text)


if __name__ == "__main__":
    for each in CASES:
        print(write(each), file=sys.stderr)
