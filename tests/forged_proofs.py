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


CASES: dict[str, tuple[str, Callable[[Forged], Any]]] = {}
"""The name of each file, with the reason of its rejection and the change that makes it."""


def case(name: str, reason: str = "") -> Callable[[Any], Any]:
    def add(change: Any) -> Any:
        CASES[name] = reason, change
        return change

    return add


# Correct


@case("correct/plain")
def _(_: Forged) -> None:
    pass


@case("correct/single precision")
def _(f: Forged) -> None:
    f.tensors = {name: array.astype(np.float32) for name, array in f.tensors.items()}


@case("correct/batch of two")
def _(f: Forged) -> None:
    for name in ("x", "y", "dual.1", "theta"):
        f.tensors[name] = np.concatenate([f.tensors[name]] * 2)
    f.head["claims"] *= 2


@case("correct/objective 0")
def _(f: Forged) -> None:
    f.zero()


@case("correct/objective 0 at a constant image")
def _(f: Forged) -> None:
    group = {"GroupNorm": {"size": 2, "profile": {"Abs": {}}}}
    f.layer.update(activation=group, channels=2, skip={"ForwardDifferences": {}})
    del f.tensors["network.layers.0.skip.weight"]
    f.tensors |= {"x": full(2), "dual.1": full(0, 1, 2, 2, 2)}
    f.claim(0.0, 0.0)


@case("correct/weights from 0 to 1e40")
def _(f: Forged) -> None:
    f.weighted(0.0, 5e-324, 1e-300, 1e40)
    f.tensors |= {"x": full(-1), "y": full(-1), "dual.1": full(0)}
    f.claim(0.0, 0.0)


@case("correct/negative zeros")
def _(f: Forged) -> None:
    f.zero()
    f.weighted(-0.0, 1.0, 1.0, 1.0)
    f.tensors |= {"x": full(-0.0), "network.output": -np.zeros(1)}
    f.problem["box"] = [-0.0, None]


@case("correct/L1")
def _(f: Forged) -> None:
    f.problem["fidelity"] = {"L1": {"scale": 1}}
    f.tensors["x"] = full(2)
    f.claim(4.0, 4.0)


@case("correct/counts")
def _(f: Forged) -> None:
    f.problem |= {"fidelity": {"KullbackLeibler": {}}, "weight": 1.0, "box": [0.0, None]}
    f.tensors |= {"x": full(0.5), "y": full(1), "fidelity.background": full(0), "dual.1": full(1)}
    f.claim(4 * math.log(2) + 1e-9, 4 * math.log(2) - 1e-9)


@case("correct/blur")
def _(f: Forged) -> None:
    f.problem["box"] = [0, 4]
    f.problem["operator"] = {"Blur": {"kernel": "operator.0.kernel", "boundary": "reflect"}}
    f.tensors |= {"operator.0.kernel": full(1, 1, 1), "dual.data": full(-0.5)}


@case("correct/near x only")
def _(f: Forged) -> None:
    f.diagonal(np.array([[1.0, 1.0], [1.0, 0.0]]))
    f.tensors["x"][0, 0, 1, 1], f.tensors["y"][0, 0, 1, 1] = 0, 0
    f.claim(2.625, 2.125, "WITHIN_RADIUS")


@case("correct/shares")
def _(f: Forged) -> None:
    f.zero()
    f.layer["activation"] = {"HuberMixture": {"widths": [1e-40, 1, 1e40]}}
    f.tensors["network.layers.0.shares"] = np.array([[1e40, 0.0, 5e-324]])


@case("correct/spline")
def _(f: Forged) -> None:
    f.zero()
    f.layer["activation"] = {"QuadraticSpline": {"knots": [0.5, 1.0], "even": False, "tail": 2.0}}
    f.tensors["network.layers.0.shares"] = np.ones((1, 2))


@case("correct/integral over the pixels")
def _(f: Forged) -> None:
    f.layer["skip"] = {"Chain": {"maps": [convolution(), {"PixelSum": {"mean": False}}]}}
    f.tensors["network.layers.0.skip.maps.0.weight"] = f.tensors.pop("network.layers.0.skip.weight")
    f.tensors["dual.1"] = full(0.5, 1, 1, 1, 1)


# Incorrect


@case("incorrect/lower bound above the objective", "claims[0].lower_bound is '5.0', not a number")
def _(f: Forged) -> None:
    f.claim(3.5, 5.0)


@case("incorrect/gap of -5", "claims[0].gap is '-5', not a number")
def _(f: Forged) -> None:
    f.head["claims"][0]["gap"] = -5


@case("incorrect/gap of 0", "claims[0].gap is 0.0, less than its numbers say")
def _(f: Forged) -> None:
    f.claim(3.5, 3.0)
    f.head["claims"][0]["gap"] = 0.0


@case("incorrect/objective too small", "claims[0].objective is")
def _(f: Forged) -> None:
    f.tensors["x"] = full(2)
    f.claim(3.5, 3.5)


@case("incorrect/bound too large", "claims[0].lower_bound is")
def _(f: Forged) -> None:
    f.tensors["x"] = full(2)
    f.claim(4.0, 3.9)


@case("incorrect/nothing proved", "claims[0].lower_bound is 3.5, but it is below")
def _(f: Forged) -> None:
    f.tensors["dual.1"] = full(0)


@case("incorrect/near passed as global", "claims[0].guarantee is 'GLOBAL', but WITHIN_RADIUS")
def _(f: Forged) -> None:
    CASES["correct/near x only"][1](f)
    f.head["claims"][0]["guarantee"] = "GLOBAL"


@case("incorrect/small square", "claims[0].objective is 1e-200, but it is above")
def _(f: Forged) -> None:
    f.zero()
    f.weighted(1e40, 1.0, 1.0, 1.0)
    f.tensors["y"][0, 0, 0, 0] = 1e-32  # the objective is 5e-25
    f.claim(1e-200, 0.0)


@case("incorrect/slope below the range", "claims[0].guarantee is 'GLOBAL', but WITHIN_RADIUS")
def _(f: Forged) -> None:
    """x / 1e280 has no minimum, and 1e-280 / 1e80 is no float."""
    f.zero()
    f.weighted(0.0, 0.0, 0.0, 0.0)
    f.layer.update(activation={"Linear": {}}, skip={"Chain": {"maps": [convolution()] * 7}})
    del f.tensors["network.layers.0.skip.weight"]
    for i in range(7):
        f.tensors[f"network.layers.0.skip.maps.{i}.weight"] = full(1e-40, 1, 1, 1, 1)
    f.diagonal(full(1e40), 2 * full(1e40) / 3)


# Malformed: out of range


@case("malformed/weights of 1e308", "fidelity.weights holds 1.7e+308; rescale the problem")
def _(f: Forged) -> None:
    """q (x - y)^2 / 2 + v x is v y - v^2 / 2q at its minimum, and 2q overflows."""
    v, y = 1e165, 1e-145
    f.weighted(1.7e308, 1.7e308, 1.7e308, 1.7e308)
    f.layer["activation"] = {"Linear": {}}
    f.tensors |= {"network.output": np.array([2 * v]), "dual.1": full(v), "x": full(y)}
    f.tensors["y"] = full(y)
    f.claim(4.0001e20, 3.9999e20)  # there are images of -1.1e22


@case("malformed/diagonal of 1e308", "operator.0.values holds 1.5e+308; rescale the problem")
def _(f: Forged) -> None:
    """x has no data, and c / d = 1e-20 / 1.5e308 underflows for c x."""
    f.zero()
    f.diagonal(full(1.5e308))
    f.weighted(0.0, 0.0, 0.0, 0.0)
    f.layer.update(activation={"Linear": {}}, bias=True)
    f.tensors |= {"network.output": np.array([2e-20]), "dual.1": full(1e-20)}
    f.tensors["network.layers.0.bias"] = np.array([1e20])
    f.claim(4.0, 4.0)


@case("malformed/shares of 1e308", "network.layers.0.shares holds 1.7e+308; rescale the problem")
def _(f: Forged) -> None:
    f.layer["activation"] = {"HuberMixture": {"widths": [1, 2]}}
    f.tensors |= {"network.layers.0.shares": full(1.7e308, 1, 2), "dual.1": full(0)}
    f.claim(0.5, 0.0)  # the objective is 2.5


@case("malformed/weight of 1e300", "fidelity.weights holds 1e+300; rescale the problem")
def _(f: Forged) -> None:
    f.zero()
    f.weighted(1e300, 1.0, 1.0, 1.0)
    f.tensors["y"][0, 0, 0, 0] = 1e-162
    f.claim(1e-200, 0.0)


@case("malformed/products above 1e100", "a number on the way is above 1e+100, or none")
def _(f: Forged) -> None:
    """Sums of -1e120 and 1e120 do not come out as they should."""
    f.layer.update(activation={"Linear": {}}, skip={"Chain": {"maps": [convolution()] * 3}})
    del f.tensors["network.layers.0.skip.weight"]
    for i in range(3):
        f.tensors[f"network.layers.0.skip.maps.{i}.weight"] = full(1e40, 1, 1, 1, 1)


@case("malformed/counts without a mean", "a number on the way is above 1e+100, or none")
def _(f: Forged) -> None:
    """y log(y / w) for y / w = 2^1074 / 1.5: 1.5 / 2^1074 would be rounded to 2 / 2^1074."""
    y, steps = 2.0**66, 1008
    f.problem |= {"fidelity": {"KullbackLeibler": {}}, "box": [0.0, 1e38]}
    f.tensors |= {"fidelity.background": full(1.5 * 2.0**-steps), "y": full(y), "x": full(0)}
    f.tensors["dual.1"] = full(0)
    f.claim(4 * y * ((steps + 65) * math.log(2) - 1) * (1 + 1e-9), 0.0)


@case("malformed/weight in text of 1e400", "weight is 'inf', not a number")
def _(f: Forged) -> Callable[[str], str]:
    f.problem["weight"] = math.inf
    return lambda text: text.replace("Infinity", "1e400")


@case("malformed/weight of nothing", "weight is 'nan', not a number")
def _(f: Forged) -> None:
    f.problem["weight"] = math.nan


@case("malformed/box of 1e300", "an end of the box is '1e+300', not a number")
def _(f: Forged) -> None:
    f.problem["box"] = [0.0, 1e300]


# Malformed: tensors


@case("malformed/tensor with NaN", "'y' must hold finite numbers")
def _(f: Forged) -> None:
    f.tensors["y"][0, 0, 0, 0] = np.nan


@case("malformed/tensor with infinity", "'dual.1' must hold finite numbers")
def _(f: Forged) -> None:
    f.tensors["dual.1"][0, 0, 0, 0] = -np.inf


@case("malformed/half precision", "'x' must hold finite numbers in float32 or float64")
def _(f: Forged) -> None:
    f.tensors["x"] = f.tensors["x"].astype(np.float16)


@case("malformed/integers", "'y' must hold finite numbers in float32 or float64")
def _(f: Forged) -> None:
    f.tensors["y"] = f.tensors["y"].astype(np.int64)


@case("malformed/empty tensor", "'x' must hold finite numbers")
def _(f: Forged) -> None:
    f.tensors["x"] = full(0, 0, 1, 2, 2)


@case("malformed/negative weights", "weights or background of its data have negative entries")
def _(f: Forged) -> None:
    f.weighted(-5e-324, 1.0, 1.0, 1.0)


@case("malformed/tensor named twice", "'operator.0.values' is missing, or named twice")
def _(f: Forged) -> None:
    f.diagonal(full(1))
    f.problem["operator"]["Composition"]["factors"] *= 2


@case("malformed/tensor of another part", "an operator has 'y' in place of a tensor operator.*")
def _(f: Forged) -> None:
    f.problem["operator"] = {"Diagonal": {"values": "y"}}


@case("malformed/tensor outside the digest of the network", "a linear map is")
def _(f: Forged) -> None:
    f.layer["skip"] = {"Diagonal": {"values": "w"}}
    f.tensors["w"] = f.tensors.pop("network.layers.0.skip.weight").reshape(1, 1, 1, 1)


@case("malformed/digest of no tensor", "['network.more'] are missing, or have no digest")
def _(f: Forged) -> Callable[[str], str]:
    def added(text: str) -> str:
        head = json.loads(text)
        head["sha256"]["network.more"] = 64 * "0"
        return json.dumps(sealed(head))

    return added


@case("malformed/outputs of one channel for two", "'network.output' does not fit (2, 2, 2)")
def _(f: Forged) -> None:
    f.layer.update(skip=convolution(1, 2), channels=2)
    f.tensors |= {"network.layers.0.skip.weight": full(1, 2, 1, 1, 1)}
    f.tensors |= {"dual.1": full(0.5, 1, 2, 2, 2)}


@case("malformed/shares of two channels for one", "shares' has the shape (2, 2), not (1, 2)")
def _(f: Forged) -> None:
    f.layer["activation"] = {"HuberMixture": {"widths": [1, 2]}}
    f.tensors["network.layers.0.shares"] = np.ones((2, 2))


@case("malformed/coils of two images for one", "coils (2, 2, 2, 2) do not fit (1, 2, 2)")
def _(f: Forged) -> None:
    mri = {"mask": "operator.0.mask", "maps": "operator.1.maps", "channels": 1}
    f.problem["operator"] = {"MRI": mri}
    maps = np.array([0.0, 1.0]).reshape(2, 1, 1, 1) * full(1, 2, 2, 2, 2)
    f.tensors |= {"operator.0.mask": full(1), "operator.1.maps": maps, "dual.1": full(0)}
    f.tensors |= {name: full(0, 1, 2, 2, 2) for name in ("y", "dual.data")}
    f.problem["box"] = [0, 4]
    f.claim(3.0, 0.0)


@case("malformed/volume", "'x' is not of image_shape")
def _(f: Forged) -> None:
    f.problem["image_shape"] = [1, 2, 2, 2]
    f.layer["skip"] = {"PixelSum": {"mean": False}}
    del f.tensors["network.layers.0.skip.weight"]
    x = np.array([0.0, 4.0]) * full(1, 1, 1, 2, 2, 2)
    f.tensors |= {"x": x, "y": x, "dual.1": full(0, 1, 1, 1, 1)}
    f.claim(0.0, 0.0)  # the objective is 8


# Malformed: descriptions


@case("malformed/field twice", "its description has a field twice")
def _(f: Forged) -> Callable[[str], str]:
    return lambda text: text.replace('"radius"', '"weight": 7, "weight": 7, "radius"')


@case("malformed/unknown field", "not an object with the fields ['format', ")
def _(f: Forged) -> None:
    f.head["dimensions"] = 2


@case("malformed/unknown option", "not an object with the fields ['in_channels', ")
def _(f: Forged) -> None:
    f.layer["skip"] = convolution(dilation=2)


@case("malformed/missing option", "a linear map, a PixelSum, is '{}', not an object")
def _(f: Forged) -> None:
    f.layer["skip"] = {"PixelSum": {}}


@case("malformed/stride of 0", "a stride is '0', not a number in [1, ")
def _(f: Forged) -> None:
    f.layer["skip"] = convolution(stride=0)


@case("malformed/stride of 1.0", "a stride is '1.0', not a whole number")
def _(f: Forged) -> None:
    f.layer["skip"] = convolution(stride=1.0)


@case("malformed/kernel of an even size", "its kernels do not fit")
def _(f: Forged) -> None:
    f.layer["skip"] = convolution(size=2)
    f.tensors["network.layers.0.skip.weight"] = full(1, 1, 1, 2, 2)


@case("malformed/pools of 30000 pixels", "the size of an AveragePool is '30000'")
def _(f: Forged) -> None:
    f.layer["skip"] = {"AveragePool": {"size": 30000}}


@case("malformed/huge integer", "the size of an AveragePool is '1000000")
def _(f: Forged) -> None:
    f.layer["skip"] = {"AveragePool": {"size": 10**400}}


@case("malformed/residual in words", "layers.0.residual is 'false', neither true nor false")
def _(f: Forged) -> None:
    f.layer["residual"] = "false"


@case("malformed/other image size", "its network is not made for images [1, 2, 2]")
def _(f: Forged) -> None:
    f.problem["network"]["image_size"] = [3, 3]


@case("malformed/other channels", "layers.0.skip is not made for 1 channels")
def _(f: Forged) -> None:
    f.layer["skip"] = convolution(2)


@case("malformed/link with a leading zero", "layers.0.links has '01', not an earlier layer")
def _(f: Forged) -> None:
    f.layer["links"] = {"01": convolution()}


@case("malformed/maker with a line of its own", "made_by must hold names and versions")
def _(f: Forged) -> None:
    f.head["made_by"] = {"convexlift": "0.2\nx.proof: objective 0.0; no image in the box is below"}


@case("malformed/maker with an escape sequence", "made_by must hold names and versions")
def _(f: Forged) -> None:
    f.head["made_by"] = {"convexlift": "0.2\x1b[2K"}


@case("malformed/link with a line of its own", "layers.0.links has '1\\n\\x1b[2K', not an earlier")
def _(f: Forged) -> None:
    f.layer["links"] = {"1\n\x1b[2K": convolution()}


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
